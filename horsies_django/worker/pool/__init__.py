"""The pool: the worker's side of the processes that run tasks.

It starts and replaces them, sends them tasks, enforces timeouts, and ends stuck processes.
"""
