"""Fixtures of the tests with real worker processes."""

from __future__ import annotations

import pytest

from tests.support.collector import collector as collector
from tests.support.workers import busy as busy
from tests.support.workers import link as link
from tests.support.workers import scheduler as scheduler
from tests.support.workers import script as script
from tests.support.workers import server as server
from tests.support.workers import shared_worker as shared_worker
from tests.support.workers import standing, uses_shared_worker
from tests.support.workers import standing_server as standing_server
from tests.support.workers import worker as worker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a file that share a worker first, so that the worker starts only once."""
    place = {item.path: number for number, item in reversed(list(enumerate(items)))}
    items.sort(key=lambda item: (place[item.path], not uses_shared_worker(item)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    standing.stays = uses_shared_worker(nextitem)
