"""The limits of processes: the memory of a child, and the time of a worker that was stopped."""
