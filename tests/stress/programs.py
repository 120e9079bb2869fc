"""The common parts of the storm programs: a private server, Django's setup, a verdict as JSON."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from example_project.postgres_binaries import PostgresError
from tests.support.server import Server, private_server
from tests.support.standby import private_pair

NO_SERVER = 3
WRONG = ("violations", "leaks", "grown")


def parser(program: str, description: str) -> argparse.ArgumentParser:
    """Return a parser that has the option for the seed."""
    made = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    made.add_argument(
        "--seed", type=int, default=1, help="of the weather and of the mix of tasks (1)"
    )
    return made


def run(
    program: str,
    settings: str,
    judged: Callable[[Server, Path], dict[str, Any]],
    *,
    pair: bool = False,
) -> int:
    """Print the result of ``judged``, which gets a server, or a pair of them, and a directory.

    Return the exit code: 1 if there is a violation, NO_SERVER if no server can be started.
    """
    servers = private_pair() if pair else private_server()
    try:
        with servers as server, tempfile.TemporaryDirectory(prefix="storm-") as directory:
            server.refresh()
            set_up(server, settings)
            found = judged(server, Path(directory))
    except PostgresError as error:
        print(
            f"python -m {program}: no PostgreSQL server can be started here: {error}",
            file=sys.stderr,
        )
        return NO_SERVER

    print(json.dumps(found, indent=1), flush=True)
    return 1 if any(found.get(name) for name in WRONG) else 0


def set_up(server: Server, settings: str) -> None:
    """Set Django up on the server; workers inherit the environment."""
    os.environ |= {"DATABASE_URL": server.url, "DJANGO_SETTINGS_MODULE": settings}

    import django

    django.setup()
    logging.getLogger("horsies").setLevel(logging.CRITICAL)

    from horsies_django import queues

    queues.sync(actor="storm")
