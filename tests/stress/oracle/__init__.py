"""The oracle of caps: tasks that note when they run, a storm over the workers that run them, and a
judge of what was noted.

``python -m tests.stress.oracle --claims 20000`` raises one storm on DATABASE_URL and prints the
verdict; a test does it small, and ``python -m benchmarks caps --claims 1000000`` large.
"""
