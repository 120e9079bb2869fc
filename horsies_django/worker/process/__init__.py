"""What the processes of a worker have in common: options, signals, logs, the kill timer, memory."""
