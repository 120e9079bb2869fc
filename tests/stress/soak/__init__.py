"""The soak: an hour of mixed work at 60 % of the workers' capacity, in which no figure may grow.

``make soak`` runs it on a PostgreSQL server of its own, and ``make soak ARGS="--minutes=3"`` a
short one. Tasks of all kinds, workflows and schedules run in three workers. Children and workers
are killed, workers are replaced in turns as by a deploy, finished rows are pruned after two
minutes, and autovacuum is on. Every ten seconds a sample records memory, disk and times.

Finished tasks are judged soon after they finish, because their rows are pruned: by the judge of the
storm (``tests/stress/chaos``). At the end the last third of the samples is compared with the second
third: see ``flat.py``.
"""
