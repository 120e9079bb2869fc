"""A pytest plugin that records how each test ended.

It distinguishes a failed assertion from any other end: an import that fails or a fixture that
raises also ends a test, and proves nothing about the assertions of the test.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

PASSED = "passed"
ASSERTED = "an assertion failed"
FOUND = pytest.StashKey[defaultdict[str, list[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--verdicts", type=Path, required=True, help="the file to write, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FOUND] = defaultdict(list)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call" or not report.passed:
        item.config.stash[FOUND][report.nodeid.partition("[")[0]].append(
            verdict(item, report, call)
        )
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.getoption("--verdicts").write_text(json.dumps(session.config.stash[FOUND]))


def verdict(item: pytest.Item, report: pytest.TestReport, call: pytest.CallInfo[Any]) -> str:
    """Return how one phase of a test ended.

    An assert statement that raises while it is evaluated has failed as well.
    """
    if report.passed:
        return PASSED
    assert call.excinfo is not None
    error = call.excinfo.value
    asserted = isinstance(error, AssertionError | pytest.fail.Exception) or any(
        entry.path == item.path and str(entry.statement).lstrip().startswith("assert ")
        for entry in call.excinfo.traceback
    )
    in_time = not str(error).startswith("Timeout")  # of pytest-timeout, wherever the test was
    if call.when == "call" and asserted and in_time:
        return ASSERTED
    return f"{report.outcome} in {call.when}: {error!r:.200}"
