"""What people on call ask: the answers of docs/howto/incidents.md are found within four pages, by links alone."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from horsies_django import Workflow, queues
from horsies_django.admin.overview import summaries
from horsies_django.core.counts import COMPLETED
from horsies_django.models import Schedule
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.conftest import limit
from tests.desk.test_admin_overview import counted
from tests.support.factories import HeartbeatFactory, TaskAttemptFactory, TaskFactory, living_worker, now

pytestmark = pytest.mark.django_db(transaction=True)

MOST = 4  # pages until the answer
SERVED = ("default", "mail", "bulk")
MINUTE, HOUR = dt.timedelta(minutes=1), dt.timedelta(hours=1)
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "incidents.md"
ANSWERED = {
    "Mail is late", "A night's failures", "One tenant floods the queue", "A task kills its processes", "A worker grows",
    "A deploy removed a task", "Did 03:00 fire?", "A run stands still", "The database is slow", "Who changed the limit?",
    "How much ran today?", "What would have woken me?",
}  # fmt: skip


class Person:
    """Somebody on call, who begins at the overview and follows links; ``html`` is the page that they see."""

    def __init__(self, client: Client) -> None:
        self.client, self.pages = client, 0
        summaries.kept.clear()
        self.open(reverse("admin:app_list", args=("horsies",)))

    def open(self, address: str) -> None:
        found: Any = self.client.get(address)
        if found.status_code == 302:
            found = self.client.get(found["Location"])
        assert found.status_code == 200, address
        self.html, self.address = found.content.decode().replace("<wbr>", ""), address
        self.pages += 1

    def follow(self, text: str, address: str = "") -> None:
        """Open the first link of the page with a text, whose address has a part."""
        found = re.findall(r'<a[^>]*?href="([^"]*)"[^>]*>(.*?)</a>', self.html, re.DOTALL)
        links = [unescape(to) for to, shown in found if plain(shown) == text and address in unescape(to)]
        assert links, (text, address, [plain(shown) for _to, shown in found])
        self.open(links[0] if links[0].startswith("/") else self.address.partition("?")[0] + links[0])

    def sees(self, *texts: str) -> None:
        shown = plain(self.html)
        for text in texts:
            assert text in shown, (text, shown)
        assert self.pages <= MOST


def plain(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


@pytest.fixture
def person(boss: Client) -> Iterator[Any]:
    """Give a function that begins at the overview."""
    yield lambda: Person(boss)
    summaries.kept.clear()


def test_the_page_of_incidents_has_the_incidents_that_are_walked_here() -> None:
    assert set(re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)) >= ANSWERED


def test_mail_is_late(person: Any) -> None:
    worker = living_worker(*SERVED, hostname="web-1", pid=77)
    limit("mail", max_concurrency=1)
    TaskFactory(task_name="shop.slow", queue_name="mail", status="RUNNING", claimed_by=worker.pk)
    TaskFactory(task_name="shop.mail", queue_name="mail", sent_at=now() - HOUR)
    someone = person()
    someone.sees("1 of 1")
    someone.follow("1", "status=PENDING")
    someone.follow("shop.mail")
    someone.sees("mail is at its cap 1 of 1")
    someone.follow("mail")
    someone.sees("shop.slow", "web-1:77")


def test_a_nights_failures(person: Any) -> None:
    for number in range(3):
        task = TaskFactory(
            task_name="shop.charge", status="FAILED", error_code="NO_ROOM", finished_at=now() - MINUTE * number
        )
        TaskAttemptFactory(
            task_id=task.pk, error_code="NO_ROOM", site="shop/tasks.py in charge", finished_at=task.finished_at,
            exception_class="OSError",
        )  # fmt: skip
    counted(("default", "shop.charge", "NO_ROOM", 3))
    someone = person()
    someone.follow("Tasks")
    someone.follow("Failures")
    someone.follow("shop.charge")
    someone.sees("OSError", "shop/tasks.py in charge")
    someone.follow("Retry all")
    assert "3 tasks" in plain(someone.html), "which test_admin_all.py retries from here on"


def test_one_tenant_floods_the_queue(person: Any) -> None:
    worker = living_worker(*SERVED)
    limit("mail", partition_by_args=["customer"], partition_max_concurrency=1)
    of_acme = {"queue_name": "mail", "partition_key": '{"customer": "acme"}', "partition_version": 1}
    TaskFactory(status="RUNNING", claimed_by=worker.pk, **of_acme)
    TaskFactory.create_batch(5, parked=True, **of_acme)
    someone = person()
    someone.follow("mail")
    someone.sees("acme", "At its limit")


def test_a_task_kills_its_processes(person: Any) -> None:
    worker = living_worker(*SERVED, hostname="web-7", pid=12)
    task = TaskFactory(task_name="shop.eats", status="FAILED", error_code="WORKER_CRASHED", claimed_by=worker.pk)
    TaskAttemptFactory(task_id=task.pk, error_code="WORKER_CRASHED", worker_id=worker.pk, child_pid=4711)
    counted(("default", "shop.eats", "CRASHED", 2), ("default", "shop.eats", "WORKER_CRASHED", 1))
    someone = person()
    someone.sees("shop.eats")
    someone.follow("These tasks", "shop.eats")
    someone.follow("shop.eats")
    someone.sees("WORKER_CRASHED", "4711", "web-7:12")


def test_a_worker_grows(person: Any) -> None:
    worker = living_worker(*SERVED, hostname="web-3", pid=33, memory_usage_mb=80, children_memory_mb=912)
    task = TaskFactory(task_name="shop.eats", status="RUNNING", claimed_by=worker.pk)
    HeartbeatFactory(worker_id=worker.pk, pid=34, holding=[str(task.pk)], memory_mb=912)
    someone = person()
    someone.follow("Workers")
    someone.sees("80 MB + 912 MB")
    someone.follow("web-3:33")
    someone.sees("34 child, runs tasks 912 MB shop.eats")


def test_a_deploy_removed_a_task(person: Any) -> None:
    living_worker(*SERVED, task_names=["shop.here"])
    TaskFactory(task_name="shop.gone", sent_at=now() - HOUR)
    someone = person()
    someone.sees("shop.gone")
    someone.follow("These tasks", "shop.gone")
    someone.follow("shop.gone")
    someone.sees("No live worker of its queue knows the task 'shop.gone'")


def test_did_it_fire_at_three(person: Any) -> None:
    definition = {"task": "tests.apps.project.tasks.noop", "pattern": "0 3 * * *", "zone": "UTC"}
    Schedule.objects.bulk_create([Schedule(name="night", changes=definition, next_at=now() - HOUR)])
    someone = person()
    someone.sees("night")
    someone.follow("night")
    someone.sees("0 3 * * *", "Last fire times")


def test_a_run_stands_still(person: Any) -> None:
    flow = Workflow("order", on_error="pause")
    flow.add(flows.odd_fails, 1)
    flow.send()
    drain(raise_errors=False)
    someone = person()
    someone.sees("order")
    someone.follow("The first run")
    someone.sees("Paused", "odd_fails")
    someone.follow("Retry")
    someone.sees("Nodes that failed, expired or were cancelled run again")


def test_the_database_is_slow(person: Any, connect: Any) -> None:
    blocking = connect()
    blocking.autocommit = False
    blocking.execute("SELECT set_config('application_name', 'nightly report', false)")
    blocking.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
    try:
        person().sees("nightly report")
    finally:
        blocking.rollback()


def test_who_changed_the_limit(person: Any) -> None:
    queues.override("mail", {"max_concurrency": 2}, actor="grace", reason="The provider throttles us.")
    someone = person()
    someone.follow("mail")
    someone.sees("grace", "The provider throttles us.", "Overridden")


def test_how_much_ran_today(person: Any) -> None:
    counted(("mail", "shop.mail", COMPLETED, 1_234), ("mail", "shop.mail", "NO_ROOM", 5), ago=3 * HOUR)
    someone = person()
    someone.follow("Last 24 hours")
    someone.sees("most 1,239", "failed in all: 5")


def test_what_would_have_woken_somebody(person: Any) -> None:
    TaskFactory.create_batch(2, queue_name="mail", sent_at=now() - HOUR)
    someone = person()
    someone.sees("Critical", "Queue mail has 2 tasks due and no live worker")
