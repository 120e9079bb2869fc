"""Benchmarks: ``python -m benchmarks [NAME...]`` measures (see docs/benchmarks).

``python -m benchmarks plot FILE`` draws.
"""
