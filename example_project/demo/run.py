"""A run of the demo: the database, tables, login, the two services, the story and the report."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

import environ
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import OperationalError, connection, connections

from example_project.demo.browser import Browser
from example_project.demo.clock import now
from example_project.demo.ending import ended_by_signals
from example_project.demo.facts import untrue
from example_project.demo.files import choose
from example_project.demo.narrator import Narrator
from example_project.demo.problems import DemoFailed
from example_project.demo.processes import Services, services
from example_project.demo.report import invitation, report
from example_project.demo.story import Story
from example_project.postgres import private_postgres
from example_project.postgres_binaries import PostgresError
from horsies_django.worker.process.options import usable_cpus

USERNAME = "demo"
MOST_PROCESSES = 4
SCHEMES = ("postgresql://", "postgres://")


@dataclass(frozen=True)
class Choices:
    """The options of the command line."""

    files: int
    exits: bool
    database_url: str | None


def run(choices: Choices, out: TextIO, err: TextIO) -> int:
    """Run the demo and return the exit code.

    It is 0 if everything was as promised, and 1 otherwise, with the reasons on ``err``. After
    Ctrl-C it is 130 with ``--exit``, and 0 without it.
    """
    say = Narrator(out)

    try:
        with ended_by_signals(), database(choices.database_url, say) as url:
            password = prepare(say)
            with services(url, max(2, min(MOST_PROCESSES, usable_cpus()))) as running:
                return perform(choices, say, running, password, err)
    except (DemoFailed, PostgresError) as problem:
        print(
            f"The demo failed: {problem}",
            *getattr(problem, "__notes__", ()),
            sep="\n",
            file=err,
            flush=True,
        )
        return 1
    except KeyboardInterrupt:
        say.step("stopped")
        return 130 if choices.exits else 0


def perform(choices: Choices, say: Narrator, running: Services, password: str, err: TextIO) -> int:
    """Run the story, print the report, and return the exit code.

    Without ``--exit``, wait for Ctrl-C first.
    """
    address = running.address()
    worker = running.worker_row()
    say.step(f"site at {address}/, worker {worker.pid} with {running.processes} processes")

    browser = Browser(address)
    browser.log_in(USERNAME, password)
    reviewer = get_user_model().objects.get(username=USERNAME)
    facts = Story(say, running, browser, worker, choose(choices.files), reviewer, now()).tell()

    report(say, facts)
    reasons = list(untrue(facts))
    for reason in reasons:
        print(f"Not as promised: {reason}", file=err, flush=True)

    invitation(say, address, USERNAME, password)
    say.step("done" if not reasons else "done, but not as promised")

    if not choices.exits:
        say.detail("Press Ctrl-C to stop everything.")
        running.until(lambda: None, "Ctrl-C", float("inf"))

    return 1 if reasons else 0


@contextmanager
def database(url: str | None, say: Narrator) -> Iterator[str]:
    """Connect Django to the database at ``url``, or to that of a private server, and yield its URL.

    A private server ends with the run.
    """
    if url is not None:
        use(url)
        say.step(f"PostgreSQL {server_version()}, as given by --database-url")
        yield url
        return

    with private_postgres(durable=True) as private:
        use(private)
        say.step(
            f"PostgreSQL {server_version()} runs on {connection.settings_dict['HOST']}, for this "
            "demo only"
        )

        try:
            yield private
        finally:
            connections.close_all()
            # The connection that waited for results stays open for a minute. It is cut now, which
            # is not worth a warning.
            logging.getLogger("horsies.waiting").setLevel(logging.ERROR)


def use(url: str) -> None:
    """Use the database at ``url`` from now on.

    The settings were read before there was a server, so they are changed in place, as in Django's
    test runner. Raises DemoFailed if the URL is not that of a PostgreSQL database.
    """
    if not url.startswith(SCHEMES):
        raise DemoFailed(
            "--database-url is not PostgreSQL's: write it as "
            "postgresql://user:password@host:port/name"
        )

    try:
        parsed = environ.Env.db_url_config(url)
    except (environ.ImproperlyConfigured, ValueError) as error:
        raise DemoFailed(f"--database-url is no URL of a database: {error}") from error

    connections.close_all()
    connection.settings_dict.update(parsed)


def server_version() -> str:
    """Return the version of the server.

    Raises DemoFailed if the server does not answer.
    """
    try:
        connection.ensure_connection()
    except OperationalError as error:
        raise DemoFailed(f"the database does not answer: {str(error).strip()}") from error

    major, minor = divmod(connection.pg_version, 10_000)
    return f"{major}.{minor}"


def prepare(say: Narrator) -> str:
    """Create the tables and the login, and return its password, which is new in each run."""
    call_command("migrate", verbosity=0, interactive=False)

    password = secrets.token_urlsafe(9)
    users = get_user_model().objects
    user = users.filter(username=USERNAME).first() or users.create_superuser(USERNAME)
    user.is_staff = user.is_superuser = user.is_active = True
    user.set_password(password)
    user.save()

    say.step("tables and login made")
    return password
