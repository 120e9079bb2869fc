"""The tasks of ``benchmarks.projects`` for Celery, on the Redis that BENCH_REDIS_URL names."""

from __future__ import annotations

import os

from celery import Celery

app = Celery(
    "benchmarks", broker=os.environ["BENCH_REDIS_URL"], backend=os.environ["BENCH_REDIS_URL"]
)


@app.task
def noop(n: int) -> None:
    pass


@app.task
def users(n: int) -> int:
    from django.contrib.auth.models import User  # the apps are loaded now

    return User.objects.count()
