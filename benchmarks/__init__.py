"""Benchmarks: ``python -m benchmarks drain|latency|enqueue`` prints one JSON line per measurement."""
