"""Benchmarks: ``python -m benchmarks drain|latency|enqueue|caps`` prints one JSON line per measurement."""
