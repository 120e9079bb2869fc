"""The worker: an engine that claims and settles, a pool of processes that run user code, a heart that says they live."""
