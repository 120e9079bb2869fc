"""The tasks that are measured."""
