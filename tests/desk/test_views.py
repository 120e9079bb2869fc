"""The URLs for monitoring: whom they answer, with what, and when the answer is 503."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings as project
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.core import mail
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import reverse

from horsies_django.conf import parse
from horsies_django.views import for_monitoring, status
from tests.conftest import put

pytestmark = pytest.mark.django_db(transaction=True)

TOKEN = "5JkkRl0yNEdJ8-_kgVvW"
BEARER = {"Authorization": f"Bearer {TOKEN}"}

Nothing = Callable[..., Any]


@pytest.fixture
def token(settings: Any) -> None:
    settings.HORSIES = {**project.HORSIES, "MONITORING_TOKEN": TOKEN}


@for_monitoring
def nothing(request: HttpRequest) -> HttpResponse:
    """Answer with nothing."""
    return HttpResponse()


def ask(client: Client, **headers: str) -> tuple[int, dict[str, Any]]:
    """Ask for the status, and return the HTTP status and the JSON of the answer."""
    response = client.get(reverse("horsies:status"), headers=headers)
    assert response["Content-Type"] == "application/json"
    assert "no-store" in response["Cache-Control"]
    return response.status_code, json.loads(response.content)


def user(*permissions: str, **columns: Any) -> User:
    found = User.objects.create_user("somebody", **columns)
    found.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return found


def test_the_token_opens_without_a_query_and_no_other_word_does(
    token: None, django_assert_num_queries: Nothing
) -> None:
    def opens(header: str) -> bool:
        request = RequestFactory().get("/", headers={"Authorization": header})
        request.user = AnonymousUser()
        return nothing(request).status_code == 200

    with django_assert_num_queries(0):
        assert opens(f"Bearer {TOKEN}")
        assert opens(f"bearer {TOKEN}")
        words = (
            f"Basic {TOKEN}",
            TOKEN,
            "Bearer",
            "Bearer ",
            f"Bearer {TOKEN[:-1]}",
            f"Bearer {TOKEN}x",
            "Bearer ü",
            "",
        )
        assert [word for word in words if opens(word)] == []


def test_without_a_token_in_the_settings_no_token_is_accepted_and_none_is_no_token() -> None:
    for header in ("Bearer", "Bearer ", "Bearer x"):
        assert nothing(RequestFactory().get("/", headers={"Authorization": header})).status_code == 401


def test_strangers_get_401_and_users_without_the_permission_403_and_neither_a_detail(
    token: None, client: Client
) -> None:
    refused = client.get(reverse("horsies:status"))
    assert (refused.status_code, refused["WWW-Authenticate"]) == (401, "Bearer")
    assert ask(client, Authorization="Bearer wrong")[0] == 401
    assert ask(client) == (401, {"error": "This needs a token, or a user with the permission horsies.view_queue."})
    client.force_login(user("view_task"))
    assert ask(client) == (403, {"error": "This needs the permission horsies.view_queue."})


def test_a_user_who_may_see_queues_is_answered_and_a_wrong_token_beside_the_session_does_not_matter(
    client: Client,
) -> None:
    somebody = user("view_queue")
    client.force_login(somebody)
    assert ask(client)[0] == 200
    assert ask(client, Authorization="Bearer of.some.proxy")[0] == 200
    somebody.is_active = False
    somebody.save()
    assert ask(client)[0] == 401


def test_it_answers_200_and_what_the_command_prints_or_503_if_something_is_wrong(token: None, client: Client) -> None:
    code, found = ask(client, **BEARER)
    assert (code, found["healthy"], found["problems"]) == (200, True, [])
    assert {"queues", "workers", "database"} <= found.keys()
    put(3)
    code, found = ask(client, **BEARER)
    assert (code, found["healthy"]) == (503, False)
    assert [problem["code"] for problem in found["problems"]] == ["NO_LIVING_WORKER"]
    assert client.post(reverse("horsies:status"), headers=BEARER).status_code == 405


def test_a_site_that_wants_a_login_everywhere_does_not_send_monitoring_to_its_login_page(
    token: None, client: Client, settings: Any
) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    assert ask(client, **BEARER)[0] == 200


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody connect to the database: its port is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
    monkeypatch.setitem(connection.settings_dict, "PORT", port)
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)


def test_while_the_database_is_away_it_is_503_as_json_and_nothing_is_told_of_the_server(
    token: None, client: Client, away: None, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    settings.ADMINS = ["ops@example.com"]
    unread = {"healthy": False, "error": "The database cannot be read: 'manage.py horsies_status' says why."}
    with caplog.at_level(logging.WARNING, "django.request"):
        assert ask(client, **BEARER) == (503, unread)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert mail.outbox == [], "each poll would send one"


def test_a_user_who_cannot_be_read_gets_503_too(client: Client, away: None) -> None:
    request = RequestFactory().get("/")
    request.user = User(pk=1, username="somebody")  # whose permissions are still to be read
    response = status(request)
    assert (response.status_code, json.loads(response.content)["healthy"]) == (503, False)


def test_the_token_is_in_no_repr_and_in_no_message() -> None:
    found, problems = parse({"MONITORING_TOKEN": TOKEN}, databases=["default"])
    assert (found.monitoring_token, problems) == (TOKEN, [])
    assert TOKEN not in repr(found)
    secret = "s3cret"
    for value, id_ in (
        (f"{secret}\n", "E003"),
        (f"{secret} {secret}", "E003"),
        (f"{secret}ü", "E003"),
        ([secret], "E001"),
    ):
        found, (problem,) = parse({"MONITORING_TOKEN": value}, databases=["default"])
        assert (problem.id, problem.where, found.monitoring_token) == (id_, "HORSIES['MONITORING_TOKEN']", "")
        assert secret not in str(problem)
