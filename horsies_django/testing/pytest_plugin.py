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
    """Let a test with the marker request the fixture."""
    names = getattr(item, "fixturenames", (IMMEDIATE,))
    if IMMEDIATE not in names and item.get_closest_marker(IMMEDIATE) is not None:
        # A new list, because parameters of a test share the old one.
        item.fixturenames = [*names, IMMEDIATE]  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """End ``immediate()`` with the test, so that failed tasks fail the test, not its teardown."""
    with item.stash.get(ENTERED, nullcontext()):
        return (yield)


@pytest.fixture
def horsies(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """The functions of ``horsies_django.testing``; ``sent`` and the assertions are about this test.

    Requests ``db``.
    """
    require_django()
    request.getfixturevalue("db")
    with testing.captured_tasks() as sent:
        yield testing.Kit(sent)


@pytest.fixture
def horsies_immediate(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run what the test sends at once, as in ``immediate()``, with the arguments of the marker of
    the same name.
    """
    require_django()

    # Django runs the coroutine of a TestCase in this thread; plugins of pytest run theirs where
    # this fixture sees nothing.
    if inspect.iscoroutinefunction(request.function) and not issubclass(
        request.cls or object, unittest.TestCase
    ):
        pytest.fail(
            f"{IMMEDIATE} does not see async tests: write 'async with immediate():' in the test",
            pytrace=False,
        )

    marker = request.node.get_closest_marker(IMMEDIATE) or pytest.mark.horsies_immediate.mark
    with ExitStack() as stack:
        stack.enter_context(testing.immediate(*marker.args, **marker.kwargs))
        request.node.stash[ENTERED] = stack
        yield


def require_django() -> None:
    """Fail the test if Django is not set up, or without the app."""
    from django.apps import apps

    if not apps.ready or not apps.is_installed("horsies_django"):
        pytest.fail(
            "the fixtures of horsies_django need Django, with 'horsies_django' in INSTALLED_APPS: "
            "install pytest-django and set "
            "DJANGO_SETTINGS_MODULE",
            pytrace=False,
        )
