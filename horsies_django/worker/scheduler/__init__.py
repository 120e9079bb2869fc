"""The scheduler: sends the tasks of schedules when they are due."""
