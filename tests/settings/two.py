"""Settings of a project that keeps the queue in a database of its own and listens through a third
alias.
"""

from __future__ import annotations

from tests.settings import *  # noqa: F403

_env = environ.Env()  # noqa: F405
DATABASES = {
    "default": _env.db_url("DATABASE_URL"),
    "queue": _env.db_url("QUEUE_URL"),
    "direct": _env.db_url("DIRECT_URL"),
}
DATABASE_ROUTERS = ["horsies_django.routers.HorsiesRouter"]
HORSIES = {**HORSIES, "DATABASE": "queue", "LISTEN_DATABASE": "direct"}  # noqa: F405
