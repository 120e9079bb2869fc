"""The soak: an hour of mixed work at 60 % of what the workers can do, with kills, deploys and
pruning; nothing may grow.

``make soak`` runs it on a PostgreSQL server of its own, and ``make soak ARGS="--minutes=3"`` a
short one. Tasks of all kinds, workflows and schedules run in three workers. Children and workers
are killed, workers are replaced in turns as by a deploy, finished rows are pruned after two
minutes, and autovacuum is on. A sample every ten seconds says how much memory, disk and time that
takes.

What finished is judged as it finishes, because its row is soon gone: by the judge of the storm
(``tests/stress/chaos``). At the end the last third of the samples is compared with the second: see
``flat.py``.
"""
