"""The code of the processes that run tasks: the lanes, the run of a task, the cleanup after it."""
