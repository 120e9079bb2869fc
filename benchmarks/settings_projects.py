"""Settings of a measured project, which the environment changes.

It can make the project larger, close connections, or use Celery.
"""

from __future__ import annotations

import environ

from benchmarks.settings import *  # noqa: F403
from benchmarks.settings import HORSIES, INSTALLED_APPS

env = environ.Env()

INSTALLED_APPS = INSTALLED_APPS + env.list("BENCH_APPS", default=[])
if "BENCH_CHILD_CONN_MAX_AGE" in env.ENVIRON:
    HORSIES["CHILD_CONN_MAX_AGE"] = env.int("BENCH_CHILD_CONN_MAX_AGE")
if env.bool("BENCH_CELERY", default=False):
    INSTALLED_APPS = [
        name for name in INSTALLED_APPS if name not in ("horsies_django", "benchmarks.load")
    ]
