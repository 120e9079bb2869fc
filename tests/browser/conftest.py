"""What the server of the tests in a browser sends, which starts before the first of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import override_settings


class StrictPolicy:
    """A project's middleware that forbids everything inline and everything from elsewhere."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'"
        return response


@pytest.fixture(scope="session", autouse=True)
def strict() -> Iterator[None]:
    """Let every page have the strict policy.

    Fails if: in a fixture of a test, which the server does not notice any more.
    """
    with override_settings(
        MIDDLEWARE=[*settings.MIDDLEWARE, "tests.browser.conftest.StrictPolicy"]
    ):
        yield
