"""The oracle of caps: tasks that note their runs, a storm over their workers, and a judge.

``python -m tests.stress.oracle --claims 20000`` runs one storm on DATABASE_URL and prints the
verdict. A test runs a small one, and ``python -m benchmarks caps --claims 1000000`` a large one.
"""
