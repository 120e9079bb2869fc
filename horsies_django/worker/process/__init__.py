"""Shared by the processes of a worker: options, signals, logs, kill timer, memory."""
