"""Acts on all tasks that match a description: which they are, each once, and what is done to them."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from horsies_django.models import AuditEntry, Task
from horsies_django.store.notify import channel_prefix
from horsies_django.store.selections import Selection, SelectionStore
from horsies_django.tasks import selection as module
from horsies_django.tasks.redaction import redact
from horsies_django.tasks.selection import act, act_on_all, matching, preview
from tests.apps.project import tasks
from tests.conftest import Claimers, Connect, limit, put, sql
from tests.db.test_statements import explained, plans
from tests.support.factories import FINISHED, TaskAttemptFactory, TaskFactory, now

WHO = {"actor": "ada", "reason": "a night"}
STATUSES = ("PENDING", "CLAIMED", "RUNNING", *FINISHED)
LATER = dt.timedelta(days=1)


def ids_of(selection: Selection, *, many: int, read: int) -> list[uuid.UUID]:
    """Walk through a selection in small pages."""
    store, after, found = SelectionStore(connection), None, []
    while True:
        page, after = store.page(selection, after, many=many, read=read)
        assert len(page) <= many
        found += [task.id for task in page]
        if after is None:
            return found


def made(pick: random.Random, moment: dt.datetime) -> Task:
    """Make a task of any kind. Few moments, so that many tasks have the same."""
    status = pick.choice(STATUSES)
    values: dict[str, Any] = {
        "status": status, "queue_name": pick.choice(("mail", "bulk")), "task_name": pick.choice(("shop.pay", "shop.ship")),
        "sent_at": moment - dt.timedelta(minutes=pick.randrange(4)), "partition_key": pick.choice((None, "x", "y")),
    }  # fmt: skip
    if status == "PENDING":
        values["parked"] = values["partition_key"] is not None and pick.random() < 0.5
    else:
        values["claimed_by"] = uuid.UUID(int=pick.randrange(2))
    if status in FINISHED:
        values["finished_at"] = moment - dt.timedelta(minutes=pick.randrange(4))
    if status in ("FAILED", "CANCELLED", "EXPIRED"):
        values["error_code"] = pick.choice(("OH_NO", "TASK_CANCELLED"))
    if pick.random() < 0.1:
        values |= {"workflow_id": uuid.uuid4(), "node": 1, "node_index": 0}
    task: Task = TaskFactory(**values)
    if status == "FAILED":
        site = pick.choice((None, "shop/tasks.py in pay"))
        TaskAttemptFactory(task_id=task.pk, attempt=1, site="shop/tasks.py in early")  # before somebody retried it
        TaskAttemptFactory(task_id=task.pk, attempt=2, claim_generation=2, site=site, finished_at=task.finished_at)
        task.failed_at = site  # type: ignore[attr-defined]
    return task


def fits(task: Task, chosen: Selection, runs: bool = False) -> bool:
    """Whether a task is in a selection, by the words of the documentation; ``runs``: also one of a workflow run."""
    groups = {"UNSUCCESSFUL": ("FAILED", "CANCELLED", "EXPIRED"), "FINISHED": FINISHED}
    at = task.sent_at if chosen.status is None else task.finished_at or task.sent_at
    return (
        (chosen.status is None or task.status in groups.get(chosen.status, (chosen.status,)))
        and (runs or task.workflow_id is None)
        and chosen.queue in (None, task.queue_name)
        and (chosen.names is None or task.task_name in chosen.names)
        and chosen.code in (None, task.error_code)
        and chosen.site in (None, getattr(task, "failed_at", None))
        and chosen.worker in (None, task.claimed_by)
        and chosen.partition in (None, task.partition_key)
        and (chosen.since is None or at >= chosen.since)
        and (chosen.until is None or at <= chosen.until)
    )


def anything(pick: random.Random, moment: dt.datetime) -> Selection:
    """Describe tasks at random."""

    def maybe(*values: Any) -> Any:
        return pick.choice((None, None, *values))

    status = pick.choice((None, *STATUSES, "UNSUCCESSFUL", "FINISHED"))
    failed = status in ("FAILED", "CANCELLED", "EXPIRED", "UNSUCCESSFUL")
    return Selection(
        status, maybe(moment - dt.timedelta(minutes=1)), since=maybe(moment - dt.timedelta(minutes=2)), queue=maybe("mail"),
        names=maybe(["shop.pay"], ["shop.ship", "x"]), code=maybe("OH_NO") if failed else None,
        site=maybe("shop/tasks.py in pay", "shop/tasks.py in early") if failed else None,
        worker=maybe(uuid.UUID(int=1)), partition=maybe("x"),
    )  # fmt: skip


def key_of(status: str | None) -> Callable[[Any], Any]:
    """Return by what a list of that status is ordered, the newest first."""
    if status in (*FINISHED, "UNSUCCESSFUL", "FINISHED"):
        return lambda row: (row.finished_at, row.pk)
    if status in ("CLAIMED", "RUNNING"):
        return lambda row: (row.sent_at, row.pk)
    return lambda row: row.pk


@pytest.mark.parametrize("seed", range(6))
def test_every_selection_and_every_list_has_all_tasks_that_it_describes_each_once_and_no_other(seed: int) -> None:
    """Naive: a page ends between two tasks of the same moment, and the second one is never found.

    Or the list of a page, of a command and of an act say the same in three ways, which differ at their edges.
    """
    pick, moment = random.Random(seed), now()
    rows = [made(pick, moment) for _ in range(70)]
    for _ in range(60):
        chosen = anything(pick, moment)
        listed, bounded = module.newest(chosen)
        pages = list(listed)
        assert not bounded
        assert len(pages) == len({row.pk for row in pages}), chosen
        assert {row.pk for row in pages} == {row.pk for row in rows if fits(row, chosen, runs=True)}, chosen
        if chosen.status != "PENDING":
            assert pages == sorted(pages, key=key_of(chosen.status), reverse=True)
        chosen = chosen._replace(status=chosen.status or "FAILED", until=chosen.until or moment)
        found = ids_of(chosen, many=pick.choice((1, 3, 100)), read=pick.choice((2, 7, 1_000)))
        assert len(found) == len(set(found)), chosen
        assert set(found) == {row.pk for row in rows if fits(row, chosen)}, chosen


def test_a_list_looks_at_the_newest_of_its_own_time_and_says_if_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive: the newest 30,000 are from after the night that is asked for, and the night is empty."""
    monkeypatch.setattr(module, "DEEPEST", 5)
    night = now() - dt.timedelta(hours=12)
    old = failures(3, finished_at=night)
    failures(9)
    hour = dt.timedelta(hours=1)
    for status in ("FAILED", "FINISHED"):
        listed, bounded = module.newest(Selection(status, night + hour))
        assert (bounded, {row.pk for row in listed}) == (False, set(old))
        listed, bounded = module.newest(Selection(status, since=night - hour, names=["x"]))
        assert (bounded, list(listed)) == (True, [])
        assert module.newest(Selection(status, since=night + hour, until=night + 2 * hour))[1] is False


@pytest.mark.parametrize("status", ["UNSUCCESSFUL", "FINISHED", "PENDING", "RUNNING"])
def test_a_page_reads_no_more_of_its_index_than_it_may(claimer: Claimers, connect: Connect, status: str) -> None:
    """Naive: each page begins at the first entry again, so that 300,000 tasks are read 600 times."""
    kinds: dict[str, Any] = {"status": {"UNSUCCESSFUL": "FAILED", "FINISHED": "COMPLETED"}.get(status, status)}
    TaskFactory.create_batch(600, **kinds)
    TaskFactory.create_batch(600, status="COMPLETED" if status != "FINISHED" else "PENDING")
    connect().execute("ANALYZE horsies_tasks")
    worker = claimer()
    store, chosen = SelectionStore(worker.conn), Selection(status, now() + LATER)
    _first, after = store.page(chosen, many=300, read=1_000)
    notices = explained(worker)
    worker.conn.execute("SET auto_explain.log_analyze = on", prepare=False)
    page, _after = store.page(chosen, after, many=20, read=50)
    assert len(page) == 20
    (plan,) = plans(notices, "fitting")
    read = [int(rows) for rows in re.findall(r"Index Scan using horsies_tasks_\w+ .*?\(actual .*?rows=(\d+)", plan)]
    assert read, plan
    assert max(read) <= 51, plan


def failures(count: int = 1, **columns: Any) -> list[uuid.UUID]:
    values = {"finished_at": now() - dt.timedelta(seconds=1), **columns}
    return [task.pk for task in TaskFactory.create_batch(count, status="FAILED", error_code="OH_NO", **values)]


def test_a_retry_of_all_lets_each_run_once_though_stopped_and_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 7)
    monkeypatch.setattr(module, "READ", 10)
    failures(40)
    TaskFactory(status="COMPLETED")
    chosen = matching("FAILED")
    first = act(chosen, "retry", **WHO)
    assert (first.tasks, first.verdicts) == (7, {"RETRIED": 7})
    steps = [*act_on_all(chosen, "retry", **WHO)]
    assert sum(step.verdicts.get("RETRIED", 0) for step in steps) == 33
    acts = Counter(entry.after["act"] for entry in AuditEntry.objects.filter(action="task.retry"))
    assert sorted(acts.values()) == [1, len(steps)], "the parts of an act have one id in the audit"
    failures(1, partition_key='{"to":"ann@example.org"}')
    act(matching("FAILED", queue="default", partition='{"to":"ann@example.org"}'), "retry", **WHO)
    after = AuditEntry.objects.filter(action="task.retry").latest("pk").after
    assert ("partition" in after["selection"], "ann@" in str(after)) == (True, False), "no value of a partition"
    assert Counter(Task.objects.values_list("status", flat=True)) == {"PENDING": 41, "COMPLETED": 1}
    failures(3, finished_at=now() + LATER)  # after the selection
    assert [step.tasks for step in act_on_all(chosen, "retry", **WHO)] == [0]


def test_what_others_hold_is_left_and_counted_and_what_refuses_is_counted_by_why(connect: Connect) -> None:
    """Naive: the act waits for a lock, or one task that refuses undoes the other 499 of its transaction."""
    plain, held = failures(2)
    failures(1, merged_into=plain)
    gone = failures(1)[0]
    redact(gone, actor="ada", reason="asked")
    done = tasks.noop.send()
    Task.objects.filter(pk=done.task_id).update(status="CANCELLED", finished_at=now(), error_code="TASK_CANCELLED")
    other = connect()
    with other.transaction():
        other.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [held])
        (step,) = act_on_all(matching("UNSUCCESSFUL"), "retry", **WHO)
    assert (step.tasks, step.verdicts) == (5, {"RETRIED": 2, "MERGED": 1, "REDACTED": 1, "LOCKED": 1})
    assert Task.objects.get(pk=held).status == "FAILED"


def test_retries_are_spread_over_a_time_and_workers_are_woken_once_for_a_queue(connect: Connect) -> None:
    """Naive: 300,000 retries are 300,000 notifications, and hit the service that failed all at once."""
    failures(30, queue_name="mail")
    listener = connect()
    listener.execute(f'LISTEN "{channel_prefix(listener)}_new"', prepare=False)
    began = now()
    [*act_on_all(matching("FAILED"), "retry", spread=dt.timedelta(hours=1), **WHO)]
    due = sorted(row.enqueued_at - began for row in Task.objects.all())
    assert dt.timedelta(0) <= due[0] < dt.timedelta(minutes=30) < due[-1] <= dt.timedelta(hours=1, minutes=1)
    heard = [notify.payload for notify in listener.notifies(timeout=5, stop_after=1)]
    assert [text.split()[1] for text in heard] == ["mail"]
    assert [*listener.notifies(timeout=0)] == []


@pytest.mark.parametrize(
    ("verb", "status", "before", "verdicts", "after"),
    [
        ("cancel", "PENDING", {}, {"CANCELLED": 1}, "CANCELLED"),
        ("cancel", "RUNNING", {}, {"REQUESTED": 1}, "RUNNING"),
        ("terminate", "RUNNING", {}, {"REQUESTED": 1}, "RUNNING"),
        ("redact", "FINISHED", {"status": "COMPLETED"}, {"REDACTED": 1}, "COMPLETED"),
        ("retry", "EXPIRED", {"error_code": "TASK_EXPIRED"}, {"RETRIED": 1}, "PENDING"),
        ("purge", "PENDING", {}, {"CANCELLED": 1}, "CANCELLED"),
    ],
)
def test_each_verb_does_to_all_what_it_does_to_one_and_the_audit_says_who_why_and_to_how_many(
    verb: str, status: str, before: dict[str, Any], verdicts: dict[str, int], after: str
) -> None:
    values = {"status": status, "sent_at": now() - dt.timedelta(seconds=1), **before}
    task = TaskFactory(queue_name="mail", kwargs={"to": "ann"}, **values)
    TaskFactory(queue_name="bulk", **values)
    first, *_parked = act_on_all(matching(status, queue="mail"), verb, **WHO)
    assert first.verdicts == verdicts
    task.refresh_from_db()
    assert (task.status, task.terminate) == (after, verb == "terminate")
    assert (task.redacted_at is not None, task.kwargs) == ((True, {}) if verb == "redact" else (False, {"to": "ann"}))
    entry = AuditEntry.objects.filter(action=f"task.{verb}").latest("pk")
    assert (entry.subject, entry.actor, entry.reason) == ("mail", "ada", "a night")
    assert json.loads(entry.after["verdicts"]) == verdicts
    assert json.loads(entry.after["selection"])["status"] == status


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    **{
        f"{verb} {status}": (lambda v=verb, s=status: act(matching(s), v, **WHO), f"{verb} is for tasks that are")
        for verb, status in (("retry", "COMPLETED"), ("retry", "FINISHED"), ("cancel", "FAILED"), ("redact", "RUNNING"))
    },
    "any status": (lambda: act(module.as_of_now(module.described()), "cancel", **WHO), "cancel is for tasks"),
    "verb": (lambda: act(matching("FAILED"), "burn", **WHO), "'burn' is not one of retry"),
    "reason": (lambda: act(matching("FAILED"), "redact", actor="ada", reason=" "), "needs a reason"),
    "actor": (lambda: act(matching("FAILED"), "retry", actor=""), "no task was changed: actor"),
    "code": (lambda: matching("COMPLETED", code="OH_NO"), "have an error code"),
    "site": (lambda: matching("RUNNING", site="x"), "have an error code or a site"),
    "partition": (lambda: matching("FAILED", partition="x"), "name the queue"),
}


@pytest.mark.parametrize(("ask", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_meant_is_refused_in_words(ask: Callable[[], Any], words: str) -> None:
    failures(1)
    with pytest.raises(ValueError, match=re.escape(words)):
        ask()
    assert Task.objects.get().status == "FAILED"


def test_a_part_of_a_name_stands_for_the_known_names_that_have_it() -> None:
    noop = tasks.noop.name
    assert matching("FAILED", name=noop).names == [noop]
    assert set(matching("FAILED", name="project.tasks.ra").names or ()) >= {tasks.raises.name}
    sql("INSERT INTO horsies_history VALUES (3600, now(), 'default', 'gone.from_the_code', 'COMPLETED', 1, 0, '{}')")
    found = matching("FAILED", name="from_the").names
    assert found == ["from_the", "gone.from_the_code"], "the text may be a name, too"
    assert matching("FAILED", name="gone.from_the_code").names == ["gone.from_the_code"]


def test_a_preview_counts_by_name_and_code_and_shows_some(monkeypatch: pytest.MonkeyPatch) -> None:
    failures(3, task_name="shop.pay")
    failures(6, task_name="shop.ship")
    found = preview(matching("FAILED"))
    assert (found.many, found.more, len(found.examples)) == (9, False, 5)
    assert found.kinds == [("shop.ship", "OH_NO", 6), ("shop.pay", "OH_NO", 3)]
    monkeypatch.setattr(module, "DEEPEST", 8)
    assert preview(matching("FAILED"))[:2] == (8, True)
    failures(1, task_name="shop.late", finished_at=now())
    late = preview(matching("FAILED", name="shop.late"))
    assert late[:3] == (1, False, [("shop.late", "OH_NO", 1)]), "behind nine others"
    assert preview(matching("FAILED", name="shop.late"), first=True)[:2] == (0, True), "a page reads the first entries"
    limit("mail", partition_by_args=[], partition_max_concurrency=1)
    put(2, queue="default")
    TaskFactory(queue_name="mail", parked=True, partition_key="x")
    assert preview(matching("PENDING"))[:2] == (3, False)
