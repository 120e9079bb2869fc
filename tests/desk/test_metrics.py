"""The URLs for monitoring: the metrics of the site, its status, and who may read them."""

from __future__ import annotations

import datetime as dt
import json
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.conf import settings as project
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.core import mail
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import reverse

from horsies_django import queues, schedules
from horsies_django.conf import parse_settings
from horsies_django.models import Schedule
from horsies_django.monitoring import metrics
from horsies_django.monitoring.health import ProblemCode
from horsies_django.monitoring.reading import CACHED_SECONDS, MOST_WAITING_REQUESTS
from horsies_django.views import StatusResponse, cached_responses, for_monitoring, status
from tests.apps.project import tasks
from tests.conftest import Claimers, Connect, limit, put, wait_until
from tests.support.factories import TaskFactory, WorkerFactory, living_worker, now
from tests.support.metrics import Metrics, agree, promtool
from tests.support.runs import sent

pytestmark = pytest.mark.django_db(transaction=True)

TOKEN = "0aHdCd9DAPkbhA-_"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(autouse=True)
def token(settings: Any) -> Iterator[None]:
    """Set the token in the settings, and clear the metrics that another test has cached."""
    settings.HORSIES = {**project.HORSIES, "MONITORING_TOKEN": TOKEN}
    metrics.cached_metrics.kept.clear()
    cached_responses.kept.clear()
    yield

    metrics.cached_metrics.kept.clear()
    cached_responses.kept.clear()


def scrape(client: Client) -> Any:
    return client.get(reverse("horsies:metrics"), headers=BEARER)


def scraped(client: Client) -> Metrics:
    metrics.cached_metrics.kept.clear()
    response = scrape(client)
    assert (response.status_code, response["Content-Type"]) == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
    )
    return Metrics(response.content.decode())


def test_the_metrics_of_the_site_are_valid_for_promtool(
    client: Client,
) -> None:
    """The metrics of the site are those of the page, and promtool reports no problem."""
    limit("default", max_concurrency=7)
    put(3)
    schedules.create(
        "nightly", {"task": tasks.noop.name, "pattern": "daily at 03:00"}, actor="a test"
    )
    Schedule.objects.update(next_fire_at=now())

    found = scraped(client)

    agree(found, "Metrics of the site")
    assert promtool("check", "metrics", given=found.text) == ""


def test_metrics_show_due_and_running_tasks_limits_and_pauses(
    client: Client, claimer: Claimers
) -> None:
    limit("default", max_concurrency=2)
    put(5)
    put(4, delay=dt.timedelta(hours=1))
    assert len(claimer(default=1).run_pass(sync=9).claims) == 2

    TaskFactory(queue_name="mail", sent_at=now() - dt.timedelta(minutes=5))
    queues.pause("mail", actor="a test")

    found = scraped(client)
    due = found.of("horsies_queue_due_tasks", "queue")
    running = found.of("horsies_queue_running_tasks", "queue")

    assert (due["default"], due["mail"], due["bulk"]) == (3, 1, 0)
    assert (running["default"], running["mail"]) == (2, 0)

    limits = found.of("horsies_queue_limit_tasks", "queue")
    assert limits == {"default": 2, "mail": 0}
    assert found.of("horsies_queue_paused", "queue") == {**dict.fromkeys(due, 0), "mail": 1}

    oldest = found.of("horsies_queue_oldest_due_timestamp_seconds", "queue")
    assert set(oldest) == {"default", "mail"}
    assert 290 < oldest["default"] - oldest["mail"] < 400

    limit("*", max_concurrency=40)
    # The whole cluster has only limit and pause, so that a sum counts no task twice.
    found = scraped(client)

    for name in found.types:
        cluster = ("queue", "*") in {
            pair for (sample, labels) in found.samples if sample == name for pair in labels
        }
        assert cluster == (name in ("horsies_queue_limit_tasks", "horsies_queue_paused")), name


def test_workers_and_unfinished_runs_are_counted_by_state(
    client: Client,
) -> None:
    """Workers and unfinished runs are counted by state, and schedules have their next fire time."""
    for silent in (0, 0, 300):
        living_worker(beat={"sent_at": now() - dt.timedelta(seconds=silent)})
    WorkerFactory(stopped_at=now())
    WorkerFactory(stopped_at=now() - dt.timedelta(hours=1))  # it is long gone

    for name in ("nightly", "off", "new"):
        schedules.create(
            name, {"task": tasks.noop.name, "pattern": "daily at 03:00"}, actor="a test"
        )

    moment = now() + dt.timedelta(hours=1)
    # No scheduler has seen the new one.
    Schedule.objects.exclude(name="new").update(next_fire_at=moment)
    schedules.disable("off", actor="a test")

    for verb in (None, None, "pause", "cancel"):
        handle = sent()
        if verb:
            getattr(handle, verb)(actor="a test")

    found = scraped(client)

    assert found.of("horsies_workers", "state") == {
        "living": 2,
        "stopping": 0,
        "stale": 1,
        "dead": 0,
        "stopped": 1,
    }
    assert found.of("horsies_schedule_next_fire_timestamp_seconds", "schedule") == {
        "nightly": moment.timestamp()
    }
    assert found.of("horsies_workflow_runs", "status") == {
        "RUNNING": 2,
        "PAUSED": 1,
        "COMPENSATING": 0,
    }


def test_each_problem_counts_and_all_others_are_zero(client: Client) -> None:
    """Each kind of problem has a series, which is zero without a problem.

    Fails if: without a problem there is no series, which looks the same as a site that is down.
    """
    found = problems(client)

    assert set(found.values()) == {0}
    assert found.keys() == {(code.value, code.severity.value) for code in ProblemCode}
    assert found.keys() >= {("NO_LIVING_WORKER", "critical"), ("FAILURES", "warning")}

    put(1)
    TaskFactory(queue_name="mail", sent_at=now() - dt.timedelta(hours=1))

    expected = {("NO_LIVING_WORKER", "critical"): 2, ("WAITS_TOO_LONG", "warning"): 1}
    assert {key: count for key, count in problems(client).items() if count} == expected


def test_a_lock_on_the_tables_is_reported_without_figures(client: Client, connect: Connect) -> None:
    """If a lock prevents reading the tables, the metrics report the lock and no figures.

    Fails if: they have zero workers and zero waiting tasks, because none could be counted.
    """
    lock = connect()

    with lock.transaction():
        lock.execute("LOCK TABLE horsies_tasks, horsies_workflows IN ACCESS EXCLUSIVE MODE")
        found = scraped(client)

    assert found.types.keys() == {"horsies_problem"}
    assert found.get("horsies_problem", code="BLOCKED", severity="critical") == 1


def problems(client: Client) -> dict[tuple[str, str], float]:
    samples = [
        (dict(labels), n)
        for (name, labels), n in scraped(client).samples.items()
        if name == "horsies_problem"
    ]
    return {(labels["code"], labels["severity"]): n for labels, n in samples}


@pytest.mark.parametrize("fails", [False, True])
def test_simultaneous_requests_share_one_reading(connect: Connect, fails: bool) -> None:
    """Simultaneous requests wait for one reading, also for one that fails.

    Fails if: each of them starts a reading of its own, so that a slow database gets as many readers
    as there are scrapers; or each tries again after a failure, so that scrapers occupy more and
    more threads while the database is away.
    """
    begun = list[int]()
    opened = list[int]()
    found = list[Any]()
    answers = threading.Event()

    def slowly() -> psycopg.Connection[Any]:
        opened.append(1)
        assert answers.wait(30)
        if fails:
            raise psycopg.OperationalError("nobody listens")
        return connect()

    def reads() -> None:
        begun.append(1)
        try:
            found.append(metrics.read_metrics(slowly))
        except psycopg.OperationalError as error:
            found.append(str(error))

    threads = [threading.Thread(target=reads) for _ in range(5)]
    for thread in threads:
        thread.start()

    wait_until(lambda: len(begun) == 5 and bool(opened), "all ask")
    answers.set()
    for thread in threads:
        thread.join(30)

    assert len(opened) == 1
    assert found == [found[0]] * 5
    assert (found[0] == "nobody listens") == fails


def test_without_prometheus_client_the_response_is_501(client: Client, monkeypatch: Any) -> None:
    """Without ``prometheus_client`` the response is 501, with the command to install it."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    response = scrape(client)

    said = b"Metrics need prometheus-client: pip install 'horsies-django[prometheus]'\n"
    assert (response.status_code, response.content) == (501, said)


# Permissions, and responses with the status 503


@for_monitoring
def nothing(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def ask(client: Client, **headers: str) -> tuple[int, dict[str, Any]]:
    """Request the status, without its cache, and return the HTTP status and the JSON."""
    cached_responses.kept.clear()
    response = client.get(reverse("horsies:status"), headers=headers)

    assert response["Content-Type"] == "application/json"
    assert "no-store" in response["Cache-Control"]
    return response.status_code, json.loads(response.content)


def test_the_token_opens_without_a_query_and_no_other_word_does(
    settings: Any, django_assert_num_queries: Any
) -> None:
    def opens(header: str) -> bool:
        request = RequestFactory().get("/", headers={"Authorization": header})
        request.user = AnonymousUser()
        return nothing(request).status_code == 200

    others = (
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        "Bearer ü",
        "",
    )

    with django_assert_num_queries(0):
        assert opens(f"Bearer {TOKEN}")
        assert opens(f"bearer {TOKEN}")
        assert [word for word in others if opens(word)] == []

        settings.HORSIES = {
            key: value for key, value in settings.HORSIES.items() if key != "MONITORING_TOKEN"
        }
        assert [word for word in (*others, f"Bearer {TOKEN}") if opens(word)] == [], (
            "without one in the settings"
        )


def test_strangers_get_401_and_users_without_permission_403(client: Client, settings: Any) -> None:
    """Without a user the response is 401, without the permission 403, and never a login page."""
    refused = client.get(reverse("horsies:status"))
    assert (refused.status_code, refused["WWW-Authenticate"]) == (401, "Bearer")
    assert ask(client, Authorization="Bearer wrong")[0] == 401
    assert ask(client) == (
        401,
        {"error": "A token, or a user with the permission horsies.view_queue, is required."},
    )

    somebody = User.objects.create_user("somebody")
    client.force_login(somebody)
    assert ask(client) == (403, {"error": "The permission horsies.view_queue is required."})

    somebody.user_permissions.set(Permission.objects.filter(codename="view_queue"))
    assert ask(client)[0] == ask(client, Authorization="Bearer of.some.proxy")[0] == 200

    somebody.is_active = False
    somebody.save()
    assert ask(client)[0] == 401

    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ]
    assert ask(Client(), **BEARER)[0] == 200, "on a site that wants a login everywhere"


def test_without_the_database_status_and_metrics_are_503(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    """Without the database, status and metrics are 503 and contain no data of the server."""
    assert scrape(client).status_code == 200

    past = {
        name: (until - CACHED_SECONDS, text)
        for name, (until, text) in metrics.cached_metrics.kept.items()
    }
    monkeypatch.setattr(metrics.cached_metrics, "kept", past)

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    connection.close()
    for key, value in (("HOST", "127.0.0.1"), ("PORT", port), ("ATOMIC_REQUESTS", True)):
        monkeypatch.setitem(connection.settings_dict, key, value)
    settings.ADMINS = ["ops@example.com"]

    assert scrape(client).status_code == 503

    unread = {
        "healthy": False,
        "error": "The database cannot be read. Run 'manage.py horsies_status' to see the reason.",
    }
    caplog.clear()
    with caplog.at_level(logging.WARNING, "django.request"):
        assert ask(client, **BEARER) == (503, unread)

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert mail.outbox == [], "each poll would send one"

    cached_responses.kept.clear()
    request = RequestFactory().get("/")
    request.user = User(pk=1, username="somebody")  # whose permissions are not read yet
    response = status(request)

    assert (response.status_code, json.loads(response.content)["healthy"]) == (503, False)


def test_the_status_is_read_once_in_a_second(client: Client) -> None:
    first = client.get(reverse("horsies:status"), headers=BEARER)
    put(3)

    again = client.get(reverse("horsies:status"), headers=BEARER)
    later = ask(client, **BEARER)

    assert again.content == first.content
    assert later[1] != json.loads(first.content)


def test_many_who_wait_for_the_status_are_refused(client: Client) -> None:
    """Fails if: each request occupies a thread of the site until the database answers."""
    reading = threading.Event()
    go_on = threading.Event()

    def slowly() -> StatusResponse:
        reading.set()
        assert go_on.wait(30)
        return StatusResponse(healthy=True, text="{}")

    reads = [
        threading.Thread(target=cached_responses.read, args=("", slowly))
        for _ in range(MOST_WAITING_REQUESTS + 1)
    ]
    for one in reads:
        one.start()
        assert reading.wait(30)
    assert cached_responses.waiting is not None
    wait_until(
        lambda: cached_responses.waiting is not None and cached_responses.waiting._value == 0,
        "all others wait",
    )

    refused = client.get(reverse("horsies:status"), headers=BEARER)

    go_on.set()
    for one in reads:
        one.join(30)
    assert (refused.status_code, refused.json()["healthy"]) == (503, False)
    assert "Too many requests are waiting" in refused.json()["error"]
    assert client.get(reverse("horsies:status"), headers=BEARER).status_code == 200


def test_the_token_is_in_no_repr_and_in_no_message() -> None:
    found, problems = parse_settings({"MONITORING_TOKEN": TOKEN}, databases=["default"])

    assert (found.monitoring_token, problems) == (TOKEN, [])
    assert TOKEN not in repr(found)

    secret = "s3cret"
    for value, id_ in (
        (f"{secret}\n", "E003"),
        (f"{secret} x", "E003"),
        (f"{secret}ü", "E003"),
        ([secret], "E001"),
    ):
        found, (problem,) = parse_settings({"MONITORING_TOKEN": value}, databases=["default"])
        assert (problem.id, problem.where, found.monitoring_token) == (
            id_,
            "HORSIES['MONITORING_TOKEN']",
            "",
        )
        assert secret not in str(problem)
