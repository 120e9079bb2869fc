"""Messages between the processes of a worker."""
