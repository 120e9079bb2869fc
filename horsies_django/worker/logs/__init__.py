"""The log of a worker: its lines on the console, the thread that writes them, a line per task."""
