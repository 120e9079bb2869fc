"""The pytest plugin: the fixtures ``horsies`` and ``horsies_immediate``, and a marker.

Only tests that use them need Django.
"""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Generator, Iterator
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from horsies_django import testing

if TYPE_CHECKING:
    from horsies_django.testing import Kit

IMMEDIATE = "horsies_immediate"  # the name of the marker, and of the fixture that it requests
ENTERED = pytest.StashKey[ExitStack]()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        f"{IMMEDIATE}(*, queues=None, raise_errors=True): run what the test sends at once, as in "
        "horsies_django.testing.immediate()",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Add the fixture to a test that has the marker."""
    names = getattr(item, "fixturenames", (IMMEDIATE,))
    if IMMEDIATE not in names and item.get_closest_marker(IMMEDIATE) is not None:
        # A new list, because the variants of a parametrized test share the old one.
        item.fixturenames = [*names, IMMEDIATE]  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """End ``immediate()`` with the test, so that failed tasks fail the test, not its teardown."""
    with item.stash.get(ENTERED, nullcontext()):
        return (yield)


@pytest.fixture
def horsies(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """The functions of ``horsies_django.testing``, limited to tasks that were sent in this test.

    The limit applies to ``sent`` and the assertions. Requests the fixture ``db``.
    """
    require_django()
    request.getfixturevalue("db")
    with testing.captured_tasks() as sent:
        yield testing.Kit(sent)


@pytest.fixture
def horsies_immediate(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the tasks that the test sends at once, as ``immediate()`` does.

    The arguments are those of the marker with the same name.
    """
    require_django()

    # Django runs the coroutine of a TestCase in this thread. Plugins of pytest run coroutines
    # where this fixture does not see their sends.
    if inspect.iscoroutinefunction(request.function) and not issubclass(
        request.cls or object, unittest.TestCase
    ):
        pytest.fail(
            f"{IMMEDIATE} has no effect on async tests: write 'async with immediate():' in the "
            "test",
            pytrace=False,
        )

    marker = request.node.get_closest_marker(IMMEDIATE) or pytest.mark.horsies_immediate.mark
    with ExitStack() as stack:
        stack.enter_context(testing.immediate(*marker.args, **marker.kwargs))
        request.node.stash[ENTERED] = stack
        yield


def require_django() -> None:
    """Fail the test if Django is not set up, or if the app is not installed."""
    from django.apps import apps

    if not apps.ready or not apps.is_installed("horsies_django"):
        pytest.fail(
            "the fixtures of horsies_django need Django, with 'horsies_django' in INSTALLED_APPS: "
            "install pytest-django and set "
            "DJANGO_SETTINGS_MODULE",
            pytrace=False,
        )
