"""Modules that the processes of a worker share: options, shutdown, connections, counts."""
