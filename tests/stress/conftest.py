"""Fixtures of the storms, and how storms that are separate programs are run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.stress.programs import NO_SERVER, WRONG
from tests.support.sites import python
from tests.support.workers import scheduler as scheduler
from tests.support.workers import server as server
from tests.support.workers import standing_server as standing_server
from tests.support.workers import worker as worker


def verdict_of(program: str, *options: str) -> dict[str, Any]:
    """Run a storm program that finds no violation, and return its verdict."""
    done = python("-m", f"tests.stress.{program}", *options, timeout=580)
    if done.returncode == NO_SERVER:
        pytest.skip(done.stderr.strip())

    assert done.stdout, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)

    found = [printed.get(name) for name in WRONG if printed.get(name)]
    assert (found, done.returncode) == ([], 0), f"{found}\n{done.stderr[-4_000:]}\n{done.stdout}"
    return printed
