"""The storm: tasks of every kind, workers that die and stand still, a database that goes away, and
a judge of what they left.

``python -m tests.stress.chaos --tasks 3000 --faults 40`` raises one on a PostgreSQL server of its
own and prints the verdict; ``--measure`` prints how long it takes until a task comes back whose
process or whose whole machine died. A test does the storm small, and ``python -m benchmarks chaos
--tasks 200000 --faults 1000`` large.
"""
