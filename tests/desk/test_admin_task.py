"""The page of a task: a sentence about its state, why it does not run, and its buttons."""

from __future__ import annotations

import datetime as dt
import html
import json
import re
import threading
import uuid
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.urls import reverse

from horsies_django import queues
from horsies_django.models import AuditEntry, Queue, Task
from horsies_django.tasks import operations
from tests.conftest import limit
from tests.desk.test_admin import body, client_with, page_of, says, table
from tests.desk.test_admin_schedules import opened as opened_form
from tests.desk.test_admin_workflows import messages
from tests.support.factories import (
    FINISHED,
    HeartbeatFactory,
    TaskAttemptFactory,
    TaskFactory,
    WorkerFactory,
    error,
    living_worker,
    now,
)

pytestmark = pytest.mark.django_db

VERBS = ("retry", "skip", "copy", "cancel", "kill", "redact")
WHY = "the bank is back"
EVERYTHING = ("view_task", "operate_task", "view_payload")


def url(verb: str, task: Any) -> str:
    return reverse(f"admin:horsies_task_{verb}", args=(getattr(task, "pk", task),))


def ago(**how: float) -> Any:
    return now() - dt.timedelta(**how)


def headline(client: Client, task: Any) -> str:
    (found,) = re.findall(
        r'<p class="horsies-headline">(.*?)</p>', body(client, page_of(task)), re.DOTALL
    )
    return html.unescape(re.sub(r"<[^>]+>", "", found))


def opened(client: Client, verb: str, task: Any) -> dict[str, Any]:
    """Return what a browser would post of a form that was opened just now."""
    return {**opened_form(client, url(verb, task)), "reason": WHY}


def act(client: Client, verb: str, task: Any, **given: str) -> Any:
    return client.post(url(verb, task), {**opened(client, verb, task), **given}, follow=True)


def failed(**columns: Any) -> Task:
    given: dict[str, Any] = {
        "status": "FAILED",
        "error_code": "BROKE",
        "result": error("BROKE", "s3cret"),
        **columns,
    }
    task: Task = TaskFactory(finished_at=ago(minutes=3, seconds=1), **given)
    return task


# The sentence about the state


def test_a_finished_task_shows_its_end_and_its_attempts(
    boss: Client,
) -> None:
    """A finished task shows when and where it ended and the number of its attempts."""
    task = failed(max_retries=2, retry_count=1)
    for attempt, function in enumerate(("parse_left", "parse_right"), 1):
        site = f"orders/tasks.py in {function}"
        TaskAttemptFactory(
            task_id=task.pk, error_code="BROKE", attempt=attempt, site=site, site_line=3
        )

    said = headline(boss, task)
    where = "orders/tasks.py in parse_right"

    assert re.fullmatch(
        rf"Failed 3 min( \d+ s)? ago at attempt 2 of 3 in {where} with BROKE\.", said
    ), said

    once = failed(attempts_before=0)
    assert re.fullmatch(r"Failed 3 min( \d+ s)? ago with BROKE\.", headline(boss, once))

    again = failed(attempts_before=3, retry_count=0, max_retries=2)
    assert "at attempt 4 of 6" in headline(boss, again), "somebody retried it after three attempts"
    assert ">4 of 6<" in body(boss, reverse("admin:horsies_task_changelist"))

    started = ago(hours=2, seconds=2)
    done = TaskFactory(
        status="COMPLETED", started_at=started, finished_at=started + dt.timedelta(seconds=1.3)
    )
    assert headline(boss, done) == "Completed 2 h ago after 1.3 s."

    for status, begins in (("CANCELLED", "Cancelled 5 min"), ("EXPIRED", "Expired 5 min")):
        ended = TaskFactory(status=status, started_at=None, finished_at=ago(minutes=5))
        assert headline(boss, ended).startswith(begins)

    redacted = failed(redacted_at=ago(hours=1))
    for client in (boss, client_with("view_task")):
        assert headline(client, redacted).endswith(
            "; its arguments and messages were removed 1 h ago."
        )


def test_a_waiting_task_shows_how_many_tasks_are_ahead(boss: Client) -> None:
    """A waiting task shows how long it has waited, for what, and how many tasks are ahead of it."""
    limit("mail", max_concurrency=3)
    TaskFactory.create_batch(3, queue_name="mail", status="RUNNING")
    TaskFactory.create_batch(7, queue_name="mail", enqueued_at=ago(minutes=9))
    living_worker("mail", threads=1, processes=9)
    task = TaskFactory(queue_name="mail", enqueued_at=ago(minutes=4))

    said = headline(boss, task)

    assert re.fullmatch(
        r"Waiting for 4 min( \d+ s)?: mail is at its cap \(3 of 3\), 7 tasks ahead\.", said
    ), said

    queues.pause("mail", actor="ada", reason="the disk is full")
    assert "The queue 'mail' has been paused since" in headline(boss, task)


def test_the_headline_shows_waiting_running_and_merged_tasks(boss: Client) -> None:
    beat = {"sent_at": now() + dt.timedelta(hours=1)}  # the worker lives until the test ends
    worker = living_worker("mail", hostname="web-1", pid=988, beat=beat)
    survivor = TaskFactory()

    due = {"enqueued_at": now() + dt.timedelta(minutes=40)}
    retried = {"retry_count": 1, "max_retries": 4, "next_retry_at": due["enqueued_at"]}
    snoozed = TaskFactory(queue_name="mail", snooze_count=1, claim_generation=1, **due)
    TaskAttemptFactory(task_id=snoozed.pk, outcome="SNOOZED")

    running = TaskFactory(
        queue_name="mail", status="RUNNING", claimed_by=worker.pk, started_at=ago(minutes=12)
    )

    ended = {"status": "CANCELLED", "started_at": None, "finished_at": ago(minutes=2)}
    merged = TaskFactory(error_code="MERGED", merged_into=survivor.pk, **ended)

    for task, said in (
        (TaskFactory(queue_name="mail", **due), r"Due in 39 min( \d+ s)?\."),
        (
            TaskFactory(queue_name="mail", **due, **retried),
            r"Retries in 39 min( \d+ s)?: attempt 2 of 5\.",
        ),
        (snoozed, r"Snoozed by its code, due in 39 min( \d+ s)?\."),
        (running, r"Running for 12 min( \d+ s)? on web-1:988\."),
        (merged, rf"Merged 2 min( \d+ s)? ago into task {survivor.pk}.*"),
    ):
        found = headline(boss, task)
        assert re.fullmatch(said, found), found

    assert f'<a href="{page_of(survivor)}">{survivor.pk}</a>' in body(boss, page_of(merged))
    HeartbeatFactory(worker_id=worker.pk, pid=4711, holding=[str(running.pk)])
    assert headline(boss, running).endswith(" on web-1:988, child 4711.")


@pytest.mark.parametrize(
    ("verb", "asked", "did"),
    [
        ("cancel", "asked to stop", "Asked to stop"),
        (
            "kill",
            "asked to stop .* ago, killed if it does not",
            "Asked to stop, killed if it does not",
        ),
    ],
)
def test_message_and_page_agree_on_a_cancel_of_a_running_task(
    verb: str, asked: str, did: str, boss: Client
) -> None:
    """Fails if: a message reports it as cancelled, while it runs and may be killed."""
    task = TaskFactory(status="RUNNING", claimed_by=living_worker().pk)

    page = act(boss, verb, task)

    told = [str(message) for message in page.context["messages"]]
    assert told == [f"Task {task}: {did}."]
    html = page.content.decode()
    assert re.search(rf"Running for [^<]*, {asked}[^<]*\.", html)
    assert re.search(r"It has been running since [^<]*\. Its cancellation was requested at ", html)
    assert [cells[2:4] for cells in table(html, "horsies-audit")] == [[did, ""]]


# Attempts


BEGIN = """Traceback (most recent call last):
  File "/srv/shop/orders/tasks.py", line 41, in parse_left
    return parse(payload)
           ^^^^^^^^^^^^^^
"""
LIBRARIES = """  File "/usr/lib/python3.12/json/__init__.py", line 3, in loads
    return decode(s)
  File "/srv/.venv/lib/python3.12/site-packages/x/y.py", line 9, in decode
    raise ValueError
  File "<frozen importlib._bootstrap>", line 7, in _call
"""
END = """  File "/srv/shop/orders/parse.py", line 2, in parse_right
    oh()
ValueError: s3cret
"""
TRACE = BEGIN + LIBRARIES + END
SHORT = f"{BEGIN}  … 3 library frames\n{END}"


def blocks(page: str) -> list[str]:
    return [
        html.unescape(text)
        for text in re.findall(r'<pre class="horsies-text"[^>]*>(.*?)</pre>', page, re.DOTALL)
    ]


def test_a_traceback_shows_the_frames_of_the_project_first(
    boss: Client,
) -> None:
    """A traceback shows the frames of the project first, and all frames when unfolded."""
    task = failed(result=error("BROKE"))
    TaskAttemptFactory(task_id=task.pk, error_code="BROKE", error_message="no", traceback=TRACE)
    TaskAttemptFactory(
        task_id=task.pk, attempt=2, error_code="BROKE", traceback="ValueError: only a line"
    )

    page = body(boss, page_of(task))
    found = blocks(page[page.index('id="horsies-attempts"') :])

    assert found == ["ValueError: only a line", "no", SHORT, TRACE]
    assert "<details><summary>All frames</summary>" in page
    assert page.count("<details><summary>Traceback</summary>") == 2, (
        "that of the last attempt is its error above"
    )

    waits = TaskFactory(retry_count=2, max_retries=3)
    for number in (1, 2):
        TaskAttemptFactory(task_id=waits.pk, attempt=number, error_code="BROKE", traceback=TRACE)
    assert body(boss, page_of(waits)).count("<details open><summary>Traceback</summary>") == 1, (
        "of the newest attempt"
    )

    group = (
        '  | Traceback:\n  |   File "/x/site-packages/a.py", line 1, in b\n  |     c()\n  | '
        "ValueError\n"
    )
    Task.objects.filter(pk=task.pk).update(
        result=error("BROKE", exception={"repr": "E", "traceback": group})
    )

    short = "  | Traceback:\n  … 1 library frame\n  | ValueError\n"
    assert {short, group} <= set(blocks(body(boss, page_of(task))))

    plain = body(client_with("view_task"), page_of(task))
    assert not blocks(plain[plain.index('id="horsies-attempts"') :])


def test_attempts_are_a_timeline_with_waits_and_durations(boss: Client) -> None:
    """Attempts are a timeline that shows how long each waited and ran."""
    sent = ago(minutes=10)
    worker = WorkerFactory(hostname="web-1", pid=77)
    task = failed(sent_at=sent)

    first = sent + dt.timedelta(seconds=30)
    second = sent + dt.timedelta(seconds=95)
    ran = {"started_at": first, "finished_at": first + dt.timedelta(seconds=5), "will_retry": True}
    TaskAttemptFactory(task_id=task.pk, error_code="BUSY", site="a.py in f", site_line=7, **ran)
    ran = {"started_at": second, "finished_at": second + dt.timedelta(seconds=5)}
    TaskAttemptFactory(task_id=task.pk, attempt=2, worker_id=worker.pk, child_pid=4711, **ran)

    page = body(boss, page_of(task))
    newest, oldest = table(page, "horsies-attempts")

    assert (newest[0], newest[1], newest[3]) == ("2", "✓ Completed", "waited 1 min, ran 5.0 s")
    assert newest[5:] == ["web-1:77", "4711"]
    assert (oldest[1], oldest[3:5]) == (
        "✕ Failed then retried",
        ["waited 30 s, ran 5.0 s", "BUSY a.py in f, line 7"],
    )
    assert (
        table(body(client_with("view_task"), page_of(task)), "horsies-attempts")[1][4] == oldest[4]
    ), "no payload"

    drawn = re.findall(r'<path d="M(\d+) 4H(\d+)"/><rect x="(\d+)" y="0" width="(\d+)"', page)
    assert drawn == [("70", "190", "190", "10"), ("0", "60", "60", "10")]


# The buttons


def test_buttons_are_those_that_the_status_allows() -> None:
    everything = client_with(*EVERYTHING)
    run = uuid.uuid4()
    later = now() + dt.timedelta(hours=1)
    expected: list[tuple[dict[str, Any], set[str]]] = [
        ({"status": "FAILED"}, {"retry", "copy", "redact"}),
        (
            {"status": "FAILED", "ordered": True, "order_stop": "stop"},
            {"retry", "skip", "copy", "redact"},
        ),
        ({"status": "CANCELLED"}, {"retry", "copy", "redact"}),
        ({"status": "EXPIRED"}, {"retry", "copy", "redact"}),
        ({"status": "COMPLETED"}, {"copy", "redact"}),
        ({"status": "FAILED", "workflow_id": run, "node": 0, "node_index": 0}, {"copy", "redact"}),
        ({"status": "FAILED", "redacted_at": now()}, set()),
        ({"status": "CANCELLED", "error_code": "MERGED", "merged_into": run}, {"copy", "redact"}),
        ({}, {"cancel"}),
        (
            {"next_retry_at": later, "enqueued_at": later, "retry_count": 1, "max_retries": 2},
            {"retry", "cancel"},
        ),
        ({"next_retry_at": ago(hours=1), "retry_count": 1, "max_retries": 2}, {"cancel"}),
        ({"status": "RUNNING"}, {"cancel", "kill"}),
        ({"status": "CLAIMED"}, {"cancel", "kill"}),
        ({"status": "RUNNING", "cancel_requested_at": now()}, {"kill"}),
        ({"status": "RUNNING", "cancel_requested_at": now(), "terminate": True}, set()),
    ]

    for columns, verbs in expected:
        task = TaskFactory(**columns)
        page = body(everything, page_of(task))
        assert {verb for verb in VERBS if f'href="{url(verb, task)}"' in page} == verbs, columns


def test_each_button_acts_with_the_user_and_the_reason() -> None:
    """Each button acts under the name of the user, with the reason, and returns to the task.

    An act that is impossible is reported with the cause.
    """
    client = client_with(*EVERYTHING, "view_auditentry")
    later = now() + dt.timedelta(hours=1)
    waits = TaskFactory(next_retry_at=later, enqueued_at=later, retry_count=1, max_retries=2)
    copied = failed()

    cases: list[tuple[str, Task, str, dict[str, Any]]] = [
        ("retry", failed(), "task.retry", {"status": "PENDING"}),
        (
            "retry",
            waits,
            "task.retry",
            {"status": "PENDING", "enqueued_at__lte": later - dt.timedelta(minutes=30)},
        ),
        ("copy", copied, "task.copy", {"status": "FAILED"}),
        ("cancel", TaskFactory(), "task.cancel", {"status": "CANCELLED"}),
        (
            "cancel",
            TaskFactory(status="RUNNING"),
            "task.cancel",
            {"status": "RUNNING", "terminate": False},
        ),
        (
            "kill",
            TaskFactory(status="RUNNING"),
            "task.terminate",
            {"status": "RUNNING", "terminate": True},
        ),
        ("redact", failed(), "task.redact", {"status": "FAILED", "kwargs": {}}),
    ]

    for verb, task, action, columns in cases:
        response = act(client, verb, task)
        assert response.redirect_chain == [(page_of(task), 302)], (verb, response.content)
        assert len(messages(response)) == 1
        assert Task.objects.filter(pk=task.pk, **columns).exists(), verb

        entry = AuditEntry.objects.get(subject=str(task.pk))
        assert (entry.actor, entry.action, entry.reason) == (
            response.context["user"].get_username(),
            action,
            WHY,
        )
        html = response.content.decode()
        assert table(html, "horsies-audit")[0][4] == WHY

        if verb == "copy":
            sent = Task.objects.get(copy_of=copied.pk)
            says(html, f'a task was sent, <a href="{page_of(sent)}">{sent.pk}</a>')

    done = AuditEntry.objects.count()
    assert (
        "it has not finished"
        in act(client, "retry", TaskFactory(status="RUNNING")).content.decode()
    )
    assert "This field is required." in act(client, "redact", failed(), reason=" ").content.decode()
    assert "nothing was changed" in messages(act(client, "cancel", failed()))[0]
    assert AuditEntry.objects.count() == done


def test_a_form_acts_once_and_on_the_task_as_it_was_seen(boss: Client) -> None:
    """A form acts once, and only if the task is unchanged since the form was opened.

    Fails if: a second click on "Send a copy" sends another one, or "Retry" runs a task that failed
    again meanwhile.
    """
    task = failed()
    given = opened(boss, "copy", task)

    for clicks in (1, 2):
        response = boss.post(url("copy", task), given, follow=True)
        assert response.redirect_chain == [(page_of(task), 302)]
        assert Task.objects.filter(copy_of=task.pk).count() == 1, clicks

    (message,) = messages(response)
    assert message.startswith("Nothing was done, because the task has changed")
    assert message.endswith("its status is FAILED now. boss: Copied.")

    task = failed()
    given = opened(boss, "retry", task)
    operations.retry(task.pk)
    Task.objects.filter(pk=task.pk).update(
        status="FAILED",
        error_code="BROKE",
        finished_at=now(),
        started_at=now(),
        claimed_by=uuid.uuid4(),
        claimed_at=now(),
        result=error("BROKE"),
    )

    assert "Nothing was done" in messages(boss.post(url("retry", task), given, follow=True))[0]
    assert Task.objects.get(pk=task.pk).status == "FAILED"

    assert (
        "This field is required."
        in boss.post(url("retry", failed()), {"reason": WHY}).content.decode()
    )


@pytest.mark.django_db(transaction=True)
def test_two_clicks_at_once_send_one_copy(boss: Client) -> None:
    task = failed()
    given = opened(boss, "copy", task)
    begin = threading.Barrier(2)
    answers = []

    def click() -> None:
        client = Client()
        client.cookies = boss.cookies.copy()
        begin.wait()
        answers.append(client.post(url("copy", task), given).status_code)
        connections.close_all()

    clicks = [threading.Thread(target=click) for _number in range(2)]

    for one in clicks:
        one.start()
    for one in clicks:
        one.join()

    assert answers == [302, 302]
    assert Task.objects.filter(copy_of=task.pk).count() == 1


# Why it is not running


def test_every_reason_has_a_line_with_links(
    boss: Client,
) -> None:
    """Every reason has a line with links to a few rows that cause it.

    A finished task has no such lines.
    """
    gone = WorkerFactory(queues=["mail"], hostname="web-9", pid=99, stopped_at=now())
    limit("mail", max_concurrency=7)
    held = TaskFactory.create_batch(
        7, queue_name="mail", status="RUNNING", task_name="shop.holder", claimed_by=gone.pk
    )

    queues.pause("bulk", actor="ada", reason="the disk is full")
    waiting = TaskFactory(queue_name="mail")
    later = TaskFactory(queue_name="bulk", enqueued_at=now() + dt.timedelta(hours=1))

    for task, expected, said in (
        (
            later,
            ["QUEUE_PAUSED", "NO_LIVE_WORKER", "NOT_DUE"],
            ["Why is it not running?", "the disk is full"],
        ),
        (waiting, ["QUEUE_AT_CAP", "NO_LIVE_WORKER"], ["shop.holder</a>, …"]),
        (held[0], ["RUNNING"], ["Where is it running?"]),
    ):
        response = boss.get(page_of(task))
        assert sorted(line.code for line in response.context["panel"].lines) == sorted(expected)
        says(response.content.decode(), *said)

    says(body(boss, page_of(later)), f'<a href="{page_of(Queue(name="bulk"))}">bulk</a>')
    page = body(boss, page_of(waiting))
    assert sum(f'<a href="{page_of(one)}">shop.holder</a>' in page for one in held) == 5
    says(page, f'workers: <a href="{page_of(gone)}">web-9:99</a>')
    says(body(boss, page_of(held[0])), f'worker: <a href="{page_of(gone)}">web-9:99</a>')

    for status in FINISHED:
        assert boss.get(page_of(TaskFactory(status=status))).context["panel"] is None


def test_arguments_of_a_django_task_are_shown_by_parameter(
    boss: Client,
) -> None:
    """Arguments and priority of a task of Django are shown under Django's names and values.

    Fails if: they are shown as they are stored, without the names of the parameters.
    """
    call = {"args": ["Ann"], "kwargs": {"loud": True}, "names": ["name"]}

    page = html.unescape(body(boss, page_of(TaskFactory(codec="plain", priority=101, kwargs=call))))
    says(page, json.dumps({"loud": True, "name": "Ann"}, indent=2), "101 (django.tasks: 0)")

    typed = html.unescape(body(boss, page_of(TaskFactory(kwargs=call))))
    assert json.dumps(call, indent=2) in typed
    assert "(django.tasks" not in typed
