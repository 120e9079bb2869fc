"""How queues, tasks, schedules, workers and the database are. It reads, and locks nothing."""
