"""The pool: the processes that run tasks, as the worker sees them, and what becomes of those that hang, grow or die."""
