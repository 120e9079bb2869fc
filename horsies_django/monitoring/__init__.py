"""The state of queues, tasks, schedules, workers and the database. Only reads, without locks."""
