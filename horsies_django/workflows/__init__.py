"""Workflows: building graphs of tasks, sending them, and controlling their runs."""
