"""The engine: one thread that waits for wakeups, runs the pass and hands claims to the pool."""
