"""What workers are told of tasks is enough to find every one of them in time: no poll comes to their help."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from django.db import connection, transaction

from horsies_django.models import Task
from horsies_django.store.notify import channel_prefix
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.payloads import HOSTILE
from tests.support.workers import WorkerProcess

Start = Callable[..., WorkerProcess]
pytestmark = pytest.mark.django_db(transaction=True)

NO_POLL = {"HORSIES_TEST_POLL_MS": "300000"}
KINDS = (
    lambda: tasks.noop.send(),
    lambda: tasks.anoop.send(),
    lambda: tasks.mail.send("a@example.org"),
    lambda: tasks.noop.with_options(priority=3).send(),
    lambda: tasks.anoop.with_options(queue="mail").send(),
    lambda: tasks.noop.schedule(0.3),
    lambda: tasks.anoop.with_options(queue="bulk").schedule(0.05),
    lambda: tasks.noop.send_many([{}] * 5),
    lambda: tasks.raises.send("a failure, which only a whole pass can write"),
)


@pytest.mark.promise("S3.9")
@pytest.mark.parametrize("options", [("--processes=1",), ("--processes=2", "--queues=default")])
@pytest.mark.boundary
def test_whatever_is_sent_runs_when_it_is_due(worker: Start, options: tuple[str, ...]) -> None:
    worker(*options, **NO_POLL).ready()
    dice = random.Random(7)
    served = Task.objects.filter(queue_name="default") if len(options) > 1 else Task.objects.all()
    for _ in range(60):
        kinds = dice.choices(KINDS, k=dice.choice([1, 1, 2, 8]))
        if dice.random() < 0.3:
            with transaction.atomic():
                for send in kinds:
                    send()
        else:
            for send in kinds:
                send()
        if dice.random() < 0.5:
            wait_until(lambda: not served.filter(status__in=["PENDING", "RUNNING"]).exists(), "all of them ran")
    wait_until(lambda: not served.filter(status__in=["PENDING", "RUNNING"]).exists(), "all of them ran")
    assert (
        served.filter(status="COMPLETED").count() + served.filter(task_name__endswith="raises").count()
        == served.count()
    )


def test_a_task_that_is_due_soon_starts_then_though_others_came_and_went_meanwhile(worker: Start) -> None:
    worker("--processes=1", **NO_POLL).ready()
    tasks.noop.send().get(30_000)
    soon = tasks.noop.schedule(1.5)
    for _ in range(5):
        assert tasks.noop.send().get(30_000).is_ok()
    assert soon.get(30_000).is_ok()


def test_what_any_role_may_notify_ends_no_worker_and_makes_it_overlook_nothing(worker: Start) -> None:
    process = worker("--processes=1", "--with-scheduler", **NO_POLL).ready()
    with connection.cursor() as cursor:
        for suffix in ("_new", "_done", "_schedules"):
            for payload in (text for text in HOSTILE if text.isprintable()):
                cursor.execute("SELECT pg_notify(%s, %s)", [channel_prefix(connection) + suffix, payload])
    assert tasks.noop.send().get(30_000).is_ok()
    assert process.stop() == 0
    assert "Traceback" not in process.log
