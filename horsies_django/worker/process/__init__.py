"""Modules that the processes of a worker share: options, signals, logs, kill timer, memory."""
