"""Workflows: graphs of tasks, their runs, and the control of these runs."""
