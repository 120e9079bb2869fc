"""Acts on all tasks that match a description: each matching task is found once, and treated as the
act says; also under random events.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections

from horsies_django import TaskResult, get_handle
from horsies_django.core.errors import TaskNotFinished
from horsies_django.models import AuditEntry, SendKey, Task, TaskAttempt
from horsies_django.store.notify import channel_prefix
from horsies_django.store.retention import Kept, RetentionStore
from horsies_django.store.selections import Selection, SelectionStore
from horsies_django.tasks import selection as module
from horsies_django.tasks.redaction import redact
from horsies_django.tasks.selection import act, act_on, act_on_all, matching, preview
from tests.apps.errands import tasks as errands
from tests.apps.errands.api import TaskResultStatus, exceptions
from tests.apps.project import tasks
from tests.conftest import Claimer, Claimers, Connect, limit, put, sql
from tests.db.conftest import Aside
from tests.db.test_order import cancel, claim, failed
from tests.db.test_pass import done
from tests.db.test_statements import explained, plans
from tests.db.test_unique import of_order
from tests.support.factories import FINISHED, TaskAttemptFactory, TaskFactory, now
from tests.support.sizes import examples

WHO = {"actor": "ada", "reason": "a night"}
STATUSES = ("PENDING", "CLAIMED", "RUNNING", *FINISHED)
LATER = dt.timedelta(days=1)


def ids_of(selection: Selection, *, many: int, read: int) -> list[uuid.UUID]:
    """Return the ids of a selection, read in small pages."""
    store = SelectionStore(connection)
    after = None
    found = []

    while True:
        page, after = store.page(selection, after, many=many, read=read)
        assert len(page) <= many
        found += [task.id for task in page]
        if after is None:
            return found


def made(pick: random.Random, moment: dt.datetime) -> Task:
    """Make a task of any kind, at one of few moments, so that many tasks share one."""
    status = pick.choice(STATUSES)
    values: dict[str, Any] = {
        "status": status,
        "queue_name": pick.choice(("mail", "bulk")),
        "task_name": pick.choice(("shop.pay", "shop.ship")),
        "sent_at": moment - dt.timedelta(minutes=pick.randrange(4)),
        "partition_key": pick.choice((None, "x", "y")),
    }

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
        # The first attempt is from before a retry by hand.
        TaskAttemptFactory(task_id=task.pk, attempt=1, site="shop/tasks.py in early")
        TaskAttemptFactory(
            task_id=task.pk, attempt=2, claim_generation=2, site=site, finished_at=task.finished_at
        )
        task.failed_at = site  # type: ignore[attr-defined]

    return task


def fits(task: Task, chosen: Selection, runs: bool = False) -> bool:
    """Return whether a task is in a selection, by the rules of the documentation.

    With ``runs``, tasks of workflow runs count, too.
    """
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
        status,
        maybe(moment - dt.timedelta(minutes=1)),
        since=maybe(moment - dt.timedelta(minutes=2)),
        queue=maybe("mail"),
        names=maybe(["shop.pay"], ["shop.ship", "x"]),
        code=maybe("OH_NO") if failed else None,
        site=maybe("shop/tasks.py in pay", "shop/tasks.py in early") if failed else None,
        worker=maybe(uuid.UUID(int=1)),
        partition=maybe("x"),
    )


def key_of(status: str | None) -> Callable[[Any], Any]:
    """Return the key by which a list of that status is ordered, the newest first."""
    if status in (*FINISHED, "UNSUCCESSFUL", "FINISHED"):
        return lambda row: (row.finished_at, row.pk)
    if status in ("CLAIMED", "RUNNING"):
        return lambda row: (row.sent_at, row.pk)
    return lambda row: row.pk


@pytest.mark.parametrize("seed", range(6))
def test_every_selection_lists_each_of_its_tasks_once(
    seed: int,
) -> None:
    """Every selection and every list has each task that it describes once, and no other task.

    Fails if: a page ends between two tasks of the same moment, and the second one is never found.

    Fails if: the lists of a page, of a command and of an act differ at the edges of a description.
    """
    pick = random.Random(seed)
    moment = now()
    rows = [made(pick, moment) for _ in range(70)]

    for _ in range(60):
        chosen = anything(pick, moment)
        listed, bounded = module.newest_tasks(chosen)
        pages = list(listed)

        assert not bounded
        assert len(pages) == len({row.pk for row in pages}), chosen
        assert {row.pk for row in pages} == {
            row.pk for row in rows if fits(row, chosen, runs=True)
        }, chosen

        if chosen.status != "PENDING":
            assert pages == sorted(pages, key=key_of(chosen.status), reverse=True)

        chosen = chosen._replace(status=chosen.status or "FAILED", until=chosen.until or moment)
        found = ids_of(chosen, many=pick.choice((1, 3, 100)), read=pick.choice((2, 7, 1_000)))
        assert len(found) == len(set(found)), chosen
        assert set(found) == {row.pk for row in rows if fits(row, chosen)}, chosen


def test_a_list_shows_the_newest_tasks_of_its_own_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A list shows the newest tasks of its own period, and reports whether there are more.

    Fails if: the newest 30,000 tasks are all from after the requested night, which then looks
    empty.
    """
    monkeypatch.setattr(module, "MOST_SCANNED", 5)
    night = now() - dt.timedelta(hours=12)
    old = failures(3, finished_at=night)
    failures(9)
    hour = dt.timedelta(hours=1)

    for status in ("FAILED", "FINISHED"):
        listed, bounded = module.newest_tasks(Selection(status, night + hour))
        assert (bounded, {row.pk for row in listed}) == (False, set(old))

        listed, bounded = module.newest_tasks(Selection(status, since=night - hour, names=["x"]))
        assert (bounded, list(listed)) == (True, [])

        assert (
            module.newest_tasks(Selection(status, since=night + hour, until=night + 2 * hour))[1]
            is False
        )


@pytest.mark.parametrize("status", ["UNSUCCESSFUL", "FINISHED", "PENDING", "RUNNING"])
def test_a_page_reads_no_more_of_its_index_than_it_may(
    claimer: Claimers, connect: Connect, status: str
) -> None:
    """Fails if: each page begins at the first entry again, so that 300,000 tasks are read 600
    times.
    """
    kinds: dict[str, Any] = {
        "status": {"UNSUCCESSFUL": "FAILED", "FINISHED": "COMPLETED"}.get(status, status)
    }
    TaskFactory.create_batch(600, **kinds)
    TaskFactory.create_batch(600, status="COMPLETED" if status != "FINISHED" else "PENDING")
    connect().execute("ANALYZE horsies_tasks")

    worker = claimer()
    store = SelectionStore(worker.conn)
    chosen = Selection(status, now() + LATER)
    _first, after = store.page(chosen, many=300, read=1_000)

    notices = explained(worker)
    worker.conn.execute("SET auto_explain.log_analyze = on", prepare=False)
    page, _after = store.page(chosen, after, many=20, read=50)
    assert len(page) == 20

    (plan,) = plans(notices, "fitting")
    read = [
        int(rows)
        for rows in re.findall(
            r"Index Scan using horsies_tasks_\w+ .*?\(actual .*?rows=(\d+)", plan
        )
    ]

    assert read, plan
    assert max(read) <= 51, plan


def failures(count: int = 1, **columns: Any) -> list[uuid.UUID]:
    values = {"finished_at": now() - dt.timedelta(seconds=1), **columns}
    return [
        task.pk
        for task in TaskFactory.create_batch(count, status="FAILED", error_code="OH_NO", **values)
    ]


def test_a_retry_of_all_that_is_resumed_runs_each_task_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A retry of all tasks that is stopped and begun again retries each task once."""
    monkeypatch.setattr(module, "TASKS_PER_TRANSACTION", 7)
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
    assert ("partition" in after["selection"], "ann@" in str(after)) == (True, False), (
        "no value of a partition"
    )

    assert Counter(Task.objects.values_list("status", flat=True)) == {"PENDING": 41, "COMPLETED": 1}
    failures(3, finished_at=now() + LATER)  # these finished after the selection was made
    assert [step.tasks for step in act_on_all(chosen, "retry", **WHO)] == [0]


def test_locked_and_refused_tasks_are_skipped_and_counted(
    connect: Connect,
) -> None:
    """An act skips locked tasks and tasks that refuse it, and counts both by reason.

    Fails if: the act waits for a lock, or one task that refuses undoes the other 499 of its
    transaction.
    """
    plain, held = failures(2)
    TaskFactory(status="CANCELLED", error_code="MERGED", merged_into=plain, finished_at=now())
    gone = failures(1)[0]
    redact(gone, actor="ada", reason="asked")

    done = tasks.noop.send()
    Task.objects.filter(pk=done.task_id).update(
        status="CANCELLED", finished_at=now(), error_code="TASK_CANCELLED"
    )

    other = connect()
    with other.transaction():
        other.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [held])
        (step,) = act_on_all(matching("UNSUCCESSFUL"), "retry", **WHO)

    assert (step.tasks, step.verdicts) == (
        5,
        {"RETRIED": 2, "MERGED": 1, "REDACTED": 1, "LOCKED": 1},
    )
    assert Task.objects.get(pk=held).status == "FAILED"


def test_retries_of_many_are_spread_and_wake_each_queue_once(
    connect: Connect,
) -> None:
    """Retries of many tasks are spread over a time, with one notification for each queue.

    Fails if: 300,000 retries are 300,000 notifications, and reach the service that failed all at
    once.
    """
    failures(30, queue_name="mail")
    listener = connect()
    listener.execute(f'LISTEN "{channel_prefix(listener)}_new"', prepare=False)

    began = now()
    [*act_on_all(matching("FAILED"), "retry", spread=dt.timedelta(hours=1), **WHO)]

    due = sorted(row.enqueued_at - began for row in Task.objects.all())
    assert (
        dt.timedelta(0)
        <= due[0]
        < dt.timedelta(minutes=30)
        < due[-1]
        <= dt.timedelta(hours=1, minutes=1)
    )

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
def test_each_verb_does_the_same_to_many_as_to_one(
    verb: str, status: str, before: dict[str, Any], verdicts: dict[str, int], after: str
) -> None:
    """Each verb changes a selected task as it changes a single one.

    The audit has the actor, the reason and the counts.
    """
    values = {"status": status, "sent_at": now() - dt.timedelta(seconds=1), **before}
    task = TaskFactory(queue_name="mail", kwargs={"to": "ann"}, **values)
    TaskFactory(queue_name="bulk", **values)

    first, *_parked = act_on_all(matching(status, queue="mail"), verb, **WHO)
    assert first.verdicts == verdicts

    task.refresh_from_db()
    assert (task.status, task.terminate) == (after, verb == "terminate")
    assert (task.redacted_at is not None, task.kwargs) == (
        (True, {}) if verb == "redact" else (False, {"to": "ann"})
    )

    entry = AuditEntry.objects.filter(action=f"task.{verb}").latest("pk")
    assert (entry.subject, entry.actor, entry.reason) == ("mail", "ada", "a night")
    assert json.loads(entry.after["verdicts"]) == verdicts
    assert json.loads(entry.after["selection"])["status"] == status


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    **{
        f"{verb} {status}": (
            lambda v=verb, s=status: act(matching(s), v, **WHO),
            f"{verb} applies only to tasks that are",
        )
        for verb, status in (
            ("retry", "COMPLETED"),
            ("retry", "FINISHED"),
            ("cancel", "FAILED"),
            ("redact", "RUNNING"),
        )
    },
    "any status": (
        lambda: act(module.as_of_now(module.described()), "cancel", **WHO),
        "cancel applies only to tasks",
    ),
    "verb": (lambda: act(matching("FAILED"), "burn", **WHO), "'burn' is not one of retry"),
    "reason": (
        lambda: act(matching("FAILED"), "redact", actor="ada", reason=" "),
        "needs a reason",
    ),
    "actor": (lambda: act(matching("FAILED"), "retry", actor=""), "no task was changed: actor"),
    "code": (lambda: matching("COMPLETED", code="OH_NO"), "have an error code"),
    "site": (lambda: matching("RUNNING", site="x"), "have an error code, a site or an exception"),
    "partition": (lambda: matching("FAILED", partition="x"), "pass the queue, too"),
}


@pytest.mark.parametrize(("ask", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_meant_is_refused_in_words(ask: Callable[[], Any], words: str) -> None:
    failures(1)

    with pytest.raises(ValueError, match=re.escape(words)):
        ask()

    assert Task.objects.get().status == "FAILED"


def test_a_part_of_a_name_selects_the_known_names_with_it() -> None:
    """A part of a name selects all known names that contain it."""
    noop = tasks.noop.name
    assert matching("FAILED", name=noop).names == [noop]
    assert set(matching("FAILED", name="project.tasks.ra").names or ()) >= {tasks.raises.name}

    sql(
        "INSERT INTO horsies_history "
        "VALUES (3600, now(), 'default', 'gone.from_the_code', 'COMPLETED', 1, 0, array_fill(0, "
        "'{16}'))"
    )

    found = matching("FAILED", name="from_the").names
    assert found == ["from_the", "gone.from_the_code"], "the text may be a name, too"
    assert matching("FAILED", name="gone.from_the_code").names == ["gone.from_the_code"]


def test_a_preview_counts_by_name_and_code_and_shows_some(monkeypatch: pytest.MonkeyPatch) -> None:
    failures(3, task_name="shop.pay")
    failures(6, task_name="shop.ship")

    found = preview(matching("FAILED"))
    assert (found.many, found.more, len(found.examples)) == (9, False, 5)
    assert found.kinds == [("shop.ship", "OH_NO", 6), ("shop.pay", "OH_NO", 3)]

    monkeypatch.setattr(module, "MOST_SCANNED", 8)
    assert preview(matching("FAILED"))[:2] == (8, True)

    failures(1, task_name="shop.late", finished_at=now())
    late = preview(matching("FAILED", name="shop.late"))
    assert late[:3] == (1, False, [("shop.late", "OH_NO", 1)]), "behind nine others"
    assert preview(matching("FAILED", name="shop.late"), first=True)[:2] == (0, True), (
        "a page reads the first entries"
    )

    limit("mail", partition_by_args=[], partition_max_concurrency=1)
    put(2, queue="default")
    TaskFactory(queue_name="mail", parked=True, partition_key="x")
    assert preview(matching("PENDING"))[:2] == (3, False)


# Random events: two people retry, click twice and redact while a worker runs, rows are locked and
# pruned. Triggers record each return of a finished task and each end. The reports of the acts, the
# results of waiting callers and the results of django.tasks are compared with these records.

QUEUES = {"default": 100, "mail": 100, "bulk": 100}
MOVES = """
CREATE TABLE moves (number int GENERATED ALWAYS AS IDENTITY, id uuid, ended boolean, code text);
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN INSERT INTO moves (id, ended, code)
   VALUES (NEW.id, NEW.finished_at IS NOT NULL, NEW.error_code); RETURN NULL; END';
CREATE TRIGGER note_move AFTER UPDATE ON horsies_tasks FOR EACH ROW
WHEN ((OLD.finished_at IS NULL) <> (NEW.finished_at IS NULL)) EXECUTE FUNCTION note_move()
"""
GONE = "DROP TRIGGER note_move ON horsies_tasks; DROP FUNCTION note_move(); DROP TABLE moves"
SHOWN = {  # the status in django.tasks for each status
    "PENDING": TaskResultStatus.READY,
    "CLAIMED": TaskResultStatus.READY,
    "RUNNING": TaskResultStatus.RUNNING,
    "COMPLETED": TaskResultStatus.SUCCESSFUL,
    "FAILED": TaskResultStatus.FAILED,
    "CANCELLED": TaskResultStatus.FAILED,
}


@pytest.fixture
def returned(transactional_db: None) -> Iterator[Callable[[], Counter[uuid.UUID]]]:
    """Give a function that returns how often each finished task came back so far."""

    def read() -> Counter[uuid.UUID]:
        return Counter(id_ for (id_,) in sql("SELECT id FROM moves WHERE NOT ended"))

    sql(MOVES)
    yield read
    sql(GONE)


def ends(id_: uuid.UUID) -> list[str | None]:
    """Return the error code of each end of a task so far, None for a completion."""
    return [
        code
        for (code,) in sql("SELECT code FROM moves WHERE ended AND id = %s ORDER BY number", [id_])
    ]


def waited(id_: uuid.UUID) -> TaskResult[Any]:
    """Wait for a result, in a thread of its own."""
    try:
        return get_handle(id_).get(60_000)
    finally:
        connections.close_all()


def mixed(worker: Claimer) -> None:
    """Make tasks of every kind that did not complete.

    They are plain, unique, ordered, merged, expired, cancelled, or of a run.
    """
    limit("mail", partition_by_args=["customer_id"], partition_policy="stop")
    limit("bulk", partition_by_args=[], partition_by_task=True, partition_policy="coalesce")

    put(12)
    put(4, queue="mail", kwargs=[json.dumps({"customer_id": n % 2}) for n in range(4)])
    put(3, queue="bulk", kwargs=['{"a": 1}'] * 3)
    cancel(*put(2))

    for _ in range(4):
        errands.returns.enqueue("tuple")

    for order in (1, 2, 1, 2, 1):
        of_order.send(order)
        outcomes: list[Any] = [failed(one) for one in claim(worker, slots=40)]
        worker.run_pass(outcomes=outcomes)

    TaskFactory.create_batch(2, status="EXPIRED")
    TaskFactory.create_batch(2, status="FAILED", workflow_id=uuid.uuid4(), node=1)


class Night:
    """Random events, and a count of the verdicts that the acts report."""

    def __init__(self, seed: int, worker: Claimer, aside: Any, threads: ThreadPoolExecutor) -> None:
        self.pick = random.Random(seed)
        self.worker = worker
        self.aside = aside
        self.threads = threads
        self.verdicts: Counter[str] = Counter()
        self.ids = list(Task.objects.order_by("pk").values_list("pk", flat=True))

        # These fail again when they run, and are not retried by hand.
        self.again = set(self.pick.sample(self.ids, 6))
        self.redacted: dict[uuid.UUID, int] = {}

        sent = Task.objects.filter(task_name__contains="errands").values_list("pk", flat=True)
        self.results = [errands.returns.get_result(str(id_)) for id_ in sent]
        self.waits: list[tuple[uuid.UUID, int, Future[TaskResult[Any]]]] = []

        self.acts = [
            act_on_all(matching(status), "retry", actor=actor)
            for status, actor in (("UNSUCCESSFUL", "ada"), ("FAILED", "bob"), ("CANCELLED", "ada"))
        ]

    def act(self) -> None:
        if step := next(self.pick.choice(self.acts), None):
            assert sum(step.verdicts.values()) == step.tasks
            self.verdicts.update(step.verdicts)

    def act_beside_locks(self) -> None:
        with self.aside.transaction():
            held = [str(id_) for id_ in self.pick.sample(self.ids, 5)]
            self.aside.execute(
                "SELECT FROM horsies_tasks WHERE id = ANY (%s::uuid[]) FOR UPDATE", [held]
            )
            self.act()

    def click_twice(self) -> None:
        ids = self.pick.sample([id_ for id_ in self.ids if id_ not in self.again], 5)
        for _ in range(2):
            self.verdicts.update(act_on(ids, "retry", actor="bob"))

    def redact(self) -> None:
        id_ = self.pick.choice(self.ids)
        try:
            if redact(id_, actor="ada", reason="asked"):
                self.redacted[id_] = 0
        except (LookupError, TaskNotFinished):
            pass

    def run(self) -> None:
        for one in claim(self.worker, slots=self.pick.randrange(1, 4)):
            self.worker.run_pass(outcomes=[failed(one) if one.id in self.again else done(one)])

    def wait(self) -> None:
        """Wait for tasks of the queue in which no task stops or replaces others."""
        unfinished = Task.objects.filter(finished_at=None, queue_name="default")
        for id_ in unfinished.order_by("pk").values_list("pk", flat=True)[:3]:
            self.waits.append((id_, len(ends(id_)), self.threads.submit(waited, id_)))

    def look(self) -> None:
        """Check the results of ``django.tasks``: each equals its row, or is gone with it."""
        for result in self.results:
            row = Task.objects.filter(pk=result.id).first()
            try:
                result.refresh()
            except exceptions.TaskResultDoesNotExist:
                assert row is None
            else:
                assert row is not None
                assert (result.status, result.finished_at) == (SHOWN[row.status], row.finished_at)
                tried = TaskAttempt.objects.filter(task_id=row.pk).exclude(outcome="COMPLETED")
                assert len(result.errors) == tried.count()

    def prune(self) -> None:
        RetentionStore(connection).prune_tasks(Kept((), others=True, age=dt.timedelta(0)), 1)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(examples(12, 60)))
def test_a_retry_of_many_retries_each_task_at_most_once(
    seed: int,
    claimer: Claimers,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    returned: Callable[[], Counter[uuid.UUID]],
) -> None:
    """Each task is retried at most once, whatever else happens, and all counts are true.

    Fails if: a task that fails again is retried once more, or the second person's act counts the
    retries of the first one.
    """
    monkeypatch.setattr(module, "TASKS_PER_TRANSACTION", 3)
    worker = claimer(**QUEUES)
    mixed(worker)

    never = set(Task.objects.filter(merged_into__isnull=False).values_list("pk", flat=True))
    never |= set(Task.objects.filter(workflow_id__isnull=False).values_list("pk", flat=True))
    assert len(never) == 4

    threads = ThreadPoolExecutor(20)
    night = Night(seed, worker, connect(), threads)
    moves = [
        night.act,
        night.act,
        night.act_beside_locks,
        night.click_twice,
        night.redact,
        night.run,
        night.prune,
        night.wait,
        night.look,
    ]

    for _ in range(60):
        before = set(night.redacted)
        night.pick.choice(moves)()
        for id_ in set(night.redacted) - before:
            night.redacted[id_] = returned()[id_]

        unfinished = Task.objects.filter(task_name=of_order.name, finished_at=None).values_list(
            "kwargs", flat=True
        )
        assert max(Counter(json.dumps(kwargs) for kwargs in unfinished).values(), default=0) <= 1, (
            "unique"
        )

    for steps in night.acts:
        for step in steps:
            night.verdicts.update(step.verdicts)

    last = sum(
        (
            Counter(step.verdicts)
            for step in act_on_all(matching("UNSUCCESSFUL"), "retry", actor="ada")
        ),
        Counter(),
    )
    assert not last.keys() - {"RETRIED", "MERGED", "REDACTED", "DUPLICATE"}

    found = returned()
    once_more = set(found) & night.again  # the last act retries tasks that failed again, too
    assert all(many == 1 or id_ in once_more for id_, many in found.items())
    assert sum(found.values()) == night.verdicts["RETRIED"] + last["RETRIED"]
    assert not never & set(found)
    assert {id_: found[id_] for id_ in night.redacted} == night.redacted

    entries = AuditEntry.objects.filter(action="task.retry").values_list("after", flat=True)
    audited = sum((Counter(json.loads(after["verdicts"])) for after in entries), Counter())
    assert audited == night.verdicts + last
    assert SendKey.objects.count() <= 2

    while claims := claim(worker, slots=40):
        worker.run_pass(outcomes=[done(one) for one in claims])
    night.look()

    for id_, before, wait in night.waits:
        got = wait.result(60)
        after = [*ends(id_)[before:], *["RESULT_REDACTED"] * (id_ in night.redacted)]
        code = None if got.is_ok() else got.err_value.error_code
        assert code in after, "the first end after the call, or a later one"

    threads.shutdown()


def test_two_people_who_retry_at_once_retry_each_task_once(
    monkeypatch: pytest.MonkeyPatch, returned: Callable[[], Counter[uuid.UUID]], aside: Aside
) -> None:
    """If two people retry the same tasks at the same time, each task is retried once.

    Fails if: both read the same page, and the second act waits for the locks of the first one and
    retries all tasks again.
    """
    monkeypatch.setattr(module, "TASKS_PER_TRANSACTION", 20)
    tasks = TaskFactory.create_batch(
        200, status="FAILED", error_code="OH_NO", finished_at=now() - dt.timedelta(seconds=1)
    )
    ready = threading.Barrier(3)

    def retry(clicks: bool) -> list[dict[str, int]]:
        ready.wait()
        if clicks:
            pages = ([task.pk for task in tasks[start:][:20]] for start in range(0, 200, 20))
            return [act_on(page, "retry", actor="bob") for page in pages]
        return [step.verdicts for step in act_on_all(matching("FAILED"), "retry", actor="ada")]

    people = [aside(retry, clicks) for clicks in (False, False, True)]
    told = sum((Counter(each) for one in people for each in one.result()), Counter())

    assert told["RETRIED"] == sum(returned().values())
    assert set(returned().values()) == {1}

    [*act_on_all(matching("FAILED"), "retry", actor="ada")]
    assert returned() == {task.pk: 1 for task in tasks}
