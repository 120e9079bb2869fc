"""The admin's pages work in a real browser, light and dark, under a strict security policy.

They load nothing from other sites.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client
from django.urls import reverse

from horsies_django import queues
from horsies_django.admin.tasks import bulk as all_page
from horsies_django.core.counts import COMPLETED
from horsies_django.core.status import Status
from horsies_django.models import AuditEntry, Heartbeat, Queue, Task, Worker
from horsies_django.tasks import selection
from tests.desk.test_admin_overview import counted
from tests.support.factories import (
    HeartbeatFactory,
    TaskAttemptFactory,
    TaskFactory,
    error,
    living_worker,
    now,
)

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
playwright = pytest.importorskip(
    "playwright.sync_api", reason="no browser tests: playwright is not installed"
)
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="no browser tests: axe is not installed"
)
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        not CHROMIUM,
        reason="no browser tests: chromium is not installed (apt-get install chromium)",
    ),
]

AXE = axe.Axe()
SERIOUS = ("serious", "critical")
# Django's search box has no label.
OURS = {"include": [["#content"]], "exclude": [["#changelist-search"]]}
# Links change their colour gradually.
SETTLED = "Promise.allSettled(document.getAnimations().map(each => each.finished))"
# The directory for pictures of the pages, for a person to check.
PICTURES = os.environ.get("HORSIES_TEST_PICTURES")

TRACEBACK = """Traceback (most recent call last):
  File "/srv/library/documents/tasks.py", line 41, in import_file
    text = payload.decode("utf-8")
           ^^^^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.12/encodings/utf_8.py", line 16, in decode
    return codecs.utf_8_decode(input, errors, True)
UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"""

# The ratio of the luminances of a badge's text and of its background, as WCAG defines it.
LUMINANCE = """
  const rgb = text => text.match(/[0-9.]+/g).map(Number);
  const luminance = text => {
    const [r, g, b] = rgb(text).slice(0, 3).map(c =>
      (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };"""
CONTRASTS = f"""badges => badges.map(badge => {{
  {LUMINANCE}
  let behind = badge;
  while (rgb(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
  const colours = [getComputedStyle(badge).color, getComputedStyle(behind).backgroundColor];
  const [low, high] = colours.map(luminance).sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}})"""

CUT = """charts => charts.map(chart =>
  chart.querySelector("rect").getBoundingClientRect().right
    > chart.getBoundingClientRect().right + 1)"""


Look = Callable[[str], Any]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, live_server: Any) -> Iterator[Look]:
    """Return a function that opens an address as a superuser.

    The test fails if the browser reports a problem, also one with the strict policy, or fetches
    from elsewhere.
    """
    # Playwright's blocking calls run on an event loop of their own, which looks like async code to
    # Django.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    complaints: list[str] = []

    def note(message: Any) -> None:
        if message.type in {"error", "warning"} and message.location["url"]:  # axe's have none
            complaints.append(message.text)

    def opened(address: str) -> Any:
        page.goto(live_server.url + address, wait_until="load")
        return page

    with playwright.sync_playwright() as driver:
        arguments = ["--headless", "--no-sandbox", "--disable-gpu"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)

        context = browser.new_context(color_scheme="light", viewport={"width": 1280, "height": 900})
        context.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
        context.add_cookies(
            [
                {
                    "name": "sessionid",
                    "value": client.cookies["sessionid"].value,
                    "url": live_server.url,
                }
            ]
        )

        page = context.new_page()
        page.on("pageerror", lambda problem: complaints.append(str(problem)))
        page.on("console", note)
        page.on(
            "request",
            lambda request: (
                request.url.startswith(live_server.url) or complaints.append(request.url)
            ),
        )
        page.route("**/favicon.ico", lambda route: route.fulfill(status=204))

        yield opened

        context.close()
        browser.close()
        # Close the connections of that event loop: later they could not be closed any more, and the
        # database could not be dropped.
        connections.close_all()

    assert complaints == []


@pytest.fixture
def library(transactional_db: None) -> Task:
    """Create the rows of a document library on a busy morning; return the task that failed."""
    Queue.objects.bulk_create(
        [Queue(name=name) for name in ("default", "index", "mail")], ignore_conflicts=True
    )

    processes = {"web-1": 4127, "web-2": 988}
    workers = [
        living_worker("default", "index", "mail", hostname=name, pid=pid)
        for name, pid in processes.items()
    ]
    for worker in workers:
        HeartbeatFactory.create_batch(2, worker_id=worker.pk)

    path = {"path": "archive/1998/letters.txt", "language": "de"}
    names = (
        "documents.tasks.import_file",
        "documents.tasks.index_document",
        "mail.tasks.send_receipt",
    )

    for number, status in enumerate([*[Status.COMPLETED] * 30, *Status]):
        held = status in (Status.RUNNING, Status.COMPLETED, Status.FAILED)
        claimed = {"claimed_by": workers[number % 2].pk} if held else {}
        TaskFactory(
            task_name=names[number % 3],
            queue_name=("default", "index", "mail")[number % 3],
            status=status.value,
            kwargs=path,
            **claimed,
        )

    exception = {
        "type": "UnicodeDecodeError",
        "repr": "UnicodeDecodeError()",
        "traceback": TRACEBACK,
    }
    problem = error(
        "NOT_TEXT", "The file is not UTF-8.", data={"byte": 0, "value": 255}, exception=exception
    )

    began = now() - dt.timedelta(seconds=70)
    failed = TaskFactory(
        task_name=names[0],
        status="FAILED",
        error_code="NOT_TEXT",
        result=problem,
        claimed_by=workers[0].pk,
        max_retries=1,
        retry_count=1,
        kwargs=path,
        sent_at=began,
        finished_at=began + dt.timedelta(seconds=45.3),
    )

    for attempt, code, waited, ran in ((1, "TIMED_OUT", 3, 30), (2, "NOT_TEXT", 43, 2.3)):
        TaskAttemptFactory(
            task_id=failed.pk,
            attempt=attempt,
            error_code=code,
            error_message="The file is not UTF-8.",
            worker_id=workers[0].pk,
            child_pid=4127 + attempt,
            will_retry=attempt == 1,
            traceback=TRACEBACK,
            started_at=began + dt.timedelta(seconds=waited),
            finished_at=began + dt.timedelta(seconds=waited + ran),
            site="documents/tasks.py in import_file",
            site_line=41,
        )

    return failed


@pytest.fixture
def crowded(library: Task) -> Queue:
    """Create limits for the library.

    A queue with partitions is overridden, one queue is paused, and the cluster has a cap.
    """
    rule = {"partition_by_args": ["customer"], "partition_max_concurrency": 2, "max_concurrency": 8}
    queues.change(
        "mail",
        {**rule, "priority": 5},
        actor="ada",
        reason="Three customers were all of the traffic.",
    )

    reason = "The mail provider throttles us until Friday."
    until = dt.datetime.now(dt.UTC) + dt.timedelta(days=2)
    queues.override(
        "mail",
        {"max_concurrency": 4, "local_limit": None},
        actor="grace",
        reason=reason,
        until=until,
    )

    queues.pause("index", actor="ada", reason="The disk of the index is full.")
    queues.change("*", {"max_concurrency": 40}, actor="ada")

    alive, silent = Worker.objects.order_by("hostname")
    Heartbeat.objects.filter(pk=silent.pk).update(died_at=now())
    for number, (customer, worker) in enumerate(
        [("acme", alive), ("acme", alive), ("globex", silent)]
    ):
        started = now() - dt.timedelta(seconds=47 * number + 3)
        task = TaskFactory(
            task_name="mail.tasks.send_newsletter",
            queue_name="mail",
            status="RUNNING",
            kwargs={"customer": customer},
            partition_key=f'{{"customer": "{customer}"}}',
            partition_version=1,
            claimed_by=worker.pk,
            claimed_at=started,
        )
        HeartbeatFactory(worker_id=worker.pk, pid=4200 + number, holding=[str(task.pk)])

    for hour in range(1, 24):  # the counts of a day
        found = [(COMPLETED, 300 + 37 * (hour * hour % 11)), ("PROVIDER_REFUSED", 5 * (hour % 7))]
        rows = [("mail", "mail.tasks.send_newsletter", result, n) for result, n in found]
        counted(*rows, ago=dt.timedelta(hours=hour), seconds=6)
    Worker.objects.exclude(stopped_at=None).delete()  # the workers of the counts

    TaskFactory.create_batch(
        7,
        task_name="mail.tasks.send_newsletter",
        queue_name="mail",
        kwargs={"customer": "acme"},
        parked=True,
        partition_key='{"customer": "acme"}',
        partition_version=1,
    )

    return Queue.objects.get(name="mail")


@pytest.fixture
def night(library: Task) -> None:
    """Create failures of one night: tasks of three names, the first of them in two places."""
    worker = Worker.objects.get(hostname="web-1").pk
    failed = [("mail", "mail.tasks.send_receipt", "PROVIDER_REFUSED", 1_811)]
    rest = [
        ("index", "documents.tasks.index_document", "TIMED_OUT", 12),
        ("default", library.task_name, "NOT_TEXT", 1),
    ]
    counted(*failed, *rest, ago=dt.timedelta(minutes=20))
    Worker.objects.exclude(stopped_at=None).delete()  # the worker of the counts

    refused = (
        9,
        "ConnectionRefusedError",
        "The provider refused the connection: mx1.example.org:587",
    )
    missing = (3, "TemplateDoesNotExist", "receipt.tr.html")
    places = {"mail/provider.py in deliver": refused, "mail/tasks.py in render": missing}

    for site, (many, exception, message) in places.items():
        name = "mail.tasks.send_receipt"
        code = "PROVIDER_REFUSED"
        at = now() - dt.timedelta(minutes=20)
        of = {
            "task_name": name,
            "queue_name": "mail",
            "status": "FAILED",
            "error_code": code,
            "sent_at": at,
        }

        for task in TaskFactory.create_batch(many, **of, claimed_by=worker):
            TaskAttemptFactory(
                task_id=task.pk,
                error_code=code,
                exception_class=exception,
                error_message=message,
                site=site,
                site_line=7,
                worker_id=worker,
                finished_at=task.finished_at,
            )


WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def assert_readable(page: Any, name: str, badges: int = 0) -> None:
    """Fail on a page that is unreadable in dark or light mode, on a phone, a tablet or a screen.

    The page has no faint badges, and at least so many of them, does not scroll sideways, and axe
    finds no serious problem.
    """
    page.evaluate(AXE.axe_script)

    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        page.evaluate(SETTLED)
        contrasts = page.locator(".horsies-badge").evaluate_all(CONTRASTS)
        assert all(ratio >= 4.5 for ratio in contrasts), (name, scheme, contrasts)
        assert len(contrasts) >= badges, name

        for width in (390, 768, 1_400):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(WIDE) <= 0, f"{name} has to be scrolled sideways at {width}"
            if (scheme, width) in (("dark", 390), ("light", 1_400)):  # most of the time
                found = page.evaluate(
                    "context => axe.run(context, {resultTypes: ['violations']})", OURS
                )["violations"]
                serious = [
                    (one["id"], one["nodes"][0]["html"])
                    for one in found
                    if one["impact"] in SERIOUS
                ]
                assert serious == [], (name, scheme, width)

        if PICTURES:
            picture(page, name, scheme)

    page.set_viewport_size({"width": 1_280, "height": 900})


def assert_all_readable(look: Look, addresses: dict[str, str], **badges: int) -> None:
    """Fail if one of the pages is not readable; each has at least so many badges."""
    for name, address in addresses.items():
        assert_readable(look(address), name, badges.get(name, 0))


def picture(page: Any, name: str, scheme: str) -> None:
    """Take pictures of a page, at the width of a phone and at a width for the documentation."""
    for width, highest in ((390, 1_600), (1_200, 900 if name == "tasks" else 2_400)):
        # The frame of a drawing depends on the size.
        page.set_viewport_size({"width": width, "height": 1_200})
        bottom = page.locator("#content").evaluate(
            "content => content.getBoundingClientRect().bottom"
        )
        clip = {"x": 0, "y": 0, "width": width, "height": min(bottom + 20, highest)}
        page.screenshot(
            path=Path(str(PICTURES)) / f"{name}-{width}-{scheme}.png", full_page=True, clip=clip
        )


def test_pages_of_tasks_are_readable_under_a_strict_policy(
    look: Look, library: Task, night: None, crowded: Queue
) -> None:
    """All pages of tasks are readable and comply with a strict content security policy."""
    tasks = reverse("admin:horsies_task_changelist")
    of = "?since=day&task=mail.tasks.send_receipt&code=PROVIDER_REFUSED"
    waiting, running = (
        Task.objects.filter(**which)[0] for which in ({"parked": True}, {"status": "RUNNING"})
    )

    addresses = {
        "tasks": tasks,
        "task": reverse("admin:horsies_task_change", args=(library.pk,)),
        "waiting": reverse("admin:horsies_task_change", args=(waiting.pk,)),
        "running": reverse("admin:horsies_task_change", args=(running.pk,)),
        "redact": reverse("admin:horsies_task_redact", args=(library.pk,)),
        "failures": reverse("admin:horsies_task_failures") + of,
        "filtered": f"{tasks}?status=FAILED&since=1d",
        "all": reverse("admin:horsies_task_all") + "?status=FAILED&since=1d",
    }

    assert_all_readable(look, addresses, tasks=50, task=1)


def test_pages_of_queues_are_readable_under_a_strict_policy(look: Look, crowded: Queue) -> None:
    """All pages of queues and workers are readable and comply with a strict policy."""
    worker = Worker.objects.get(hostname="web-1")
    addresses = {
        f"{name}s": reverse(f"admin:horsies_{name}_changelist") for name in ("worker", "queue")
    }
    addresses |= {
        "worker": reverse("admin:horsies_worker_change", args=(worker.pk,)),
        "queue": reverse("admin:horsies_queue_change", args=("mail",)),
        "paused": reverse("admin:horsies_queue_change", args=("index",)),
        "cluster": reverse("admin:horsies_queue_change", args=("*",)),
        "override": reverse("admin:horsies_queue_override", args=("mail",)),
        "pause": reverse("admin:horsies_queue_pause", args=("mail",)),
        "audit": reverse("admin:horsies_auditentry_changelist"),
        "entry": reverse(
            "admin:horsies_auditentry_change", args=(AuditEntry.objects.latest("pk").pk,)
        ),
    }

    assert_all_readable(look, addresses, workers=2, worker=1, queues=2, queue=8, paused=2)


def test_a_person_reads_why_a_task_failed_and_retries_it_once(look: Look, library: Task) -> None:
    page = look(reverse("admin:horsies_task_change", args=(library.pk,)))

    playwright.expect(page.locator(".horsies-headline")).to_contain_text("Failed")
    page.get_by_text("All frames").first.wait_for(state="attached")

    page.set_viewport_size({"width": 1_000, "height": 900})  # narrower than the drawing
    assert page.locator(".horsies-timeline").evaluate_all(CUT) == [False, False], (
        "the whole timeline is in sight"
    )

    page.get_by_role("link", name="Retry").click()
    page.get_by_label("Reason:").fill("The file is whole again.")
    assert_readable(page, "task-retry")
    page.get_by_role("button", name="Retry").dblclick()

    playwright.expect(page.locator(".messagelist")).to_be_visible()
    playwright.expect(page.locator(".horsies-headline")).to_contain_text("Waiting")
    playwright.expect(page.get_by_role("link", name="Retry", exact=True)).to_have_count(0)
    assert AuditEntry.objects.filter(action="task.retry", subject=str(library.pk)).count() == 1


def test_retrying_all_failed_tasks_refreshes_the_page_by_itself(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person retries all failed tasks, and the page goes from step to step by itself."""
    monkeypatch.setattr(selection, "TASKS_PER_TRANSACTION", 2)
    monkeypatch.setattr(all_page, "ACT_SECONDS", 0.0)
    TaskFactory.create_batch(
        7, status="FAILED", error_code="OH_NO", finished_at=now() - dt.timedelta(hours=1)
    )

    page = look(reverse("admin:horsies_task_changelist") + "?status=FAILED")
    page.get_by_role("link", name="Act on all matching tasks").click()
    page.get_by_role("button", name="Count the tasks").click()

    playwright.expect(page.get_by_role("heading", name="7 tasks")).to_be_visible()
    assert_readable(page, "all-found")

    page.get_by_label("Reason:").fill("The bank is back.")
    page.get_by_role("button", name="Retry all").click()

    playwright.expect(page.get_by_role("heading", name="Done")).to_be_visible()
    playwright.expect(page.get_by_text("RETRIED: 7")).to_be_visible()
    assert_readable(page, "all-done")
    assert not Task.objects.filter(status="FAILED").exists()
