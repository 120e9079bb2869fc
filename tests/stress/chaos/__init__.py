"""The storm: tasks of every kind, dying and stopped workers, a failing database, and a judge.

``python -m tests.stress.chaos --tasks 3000 --faults 40`` runs one on a PostgreSQL server of its own
and prints the verdict. With ``--measure`` it prints how long it takes until a task runs again whose
process or whole machine died. A test runs a small storm, and ``python -m benchmarks chaos --tasks
200000 --faults 1000`` a large one.
"""
