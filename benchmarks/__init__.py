"""Benchmarks: ``python -m benchmarks [NAME...]`` measures, ``python -m benchmarks plot FILE`` draws
(docs/benchmarks).
"""
