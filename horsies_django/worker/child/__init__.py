"""Code that runs in the processes of the pool: the lanes, the run of a task, and restoring the
process afterwards.
"""
