"""The strict content security policy of the browser tests' server.

The server starts before the first test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import override_settings


class StrictPolicy:
    """A project's middleware that forbids everything inline and everything from other sites."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'"
        return response


@pytest.fixture(scope="session", autouse=True)
def strict() -> Iterator[None]:
    """Send the strict policy with every page.

    This is a fixture of the session: the running server ignores settings that a test changes.
    """
    with override_settings(
        MIDDLEWARE=[*settings.MIDDLEWARE, "tests.browser.conftest.StrictPolicy"]
    ):
        yield
