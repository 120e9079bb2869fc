"""The choice of the PostgreSQL server for the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.database import ROOT, choose, docker_engine_problem, server_version


def yes() -> None:
    return None


def never() -> str:
    raise AssertionError("this question was not needed")


def absent() -> str:
    return "nobody answers"


@pytest.mark.parametrize(
    ("environ", "ping", "pull", "kind", "why"),
    [
        (
            {"DATABASE_URL": "postgresql://h/mine", "HORSIES_PG_BIN": "/opt/pg"},
            never,
            never,
            "url",
            "DATABASE_URL",
        ),
        ({"HORSIES_PG_BIN": "/opt/pg"}, never, never, "embedded", "/opt/pg"),
        ({"DATABASE_URL": "", "HORSIES_PG_BIN": ""}, yes, yes, "container", ""),
        ({}, absent, never, "embedded", "embedded binaries (nobody answers)"),
        ({}, yes, absent, "embedded", "embedded binaries (nobody answers)"),
    ],
    ids=["url", "binaries", "engine with image", "no engine", "no image"],
)
def test_a_named_database_is_used_without_asking_docker(
    environ: dict[str, str],
    ping: Callable[[], str | None],
    pull: Callable[[], str | None],
    kind: str,
    why: str,
) -> None:
    """A named database is used without a call of Docker; without Docker the reason is given."""
    choice = choose(environ, ping=ping, pull=pull)

    assert choice.kind == kind
    assert why in choice.why


def test_an_unreachable_server_ends_the_run_with_advice() -> None:
    """A server that does not answer ends the run with advice."""
    with pytest.raises(pytest.UsageError, match="Correct DATABASE_URL"):
        server_version("postgresql://nobody@127.0.0.1:1/none")


def test_the_docker_client_without_an_engine_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")

    assert docker_engine_problem() == "no Docker engine answers"


@pytest.mark.e2e
def test_tests_of_pure_code_run_without_postgresql(tmp_path: Path) -> None:
    """Tests of pure code run where no PostgreSQL can be started, and other tests do not.

    Fails if: a server is started for all tests, and those of pure code cannot run without one.
    """
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}

    def code(path: str) -> int:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path]
        return subprocess.run(
            command,
            cwd=ROOT,
            env={**environment, "HORSIES_PG_BIN": str(tmp_path)},
            capture_output=True,
            check=False,
        ).returncode

    assert code("tests/unit/test_errors.py") == 0
    assert code("tests/desk/test_routers.py") == pytest.ExitCode.USAGE_ERROR
