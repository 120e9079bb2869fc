"""The pool: the processes that run tasks, from the side of the worker; timeouts, stuck processes
and recycling.
"""
