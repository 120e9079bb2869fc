"""Acts on many among random lives: two people retry, click twice and redact while a worker runs, rows are locked and pruned.

Triggers write down each return of a finished task and each end, so what the acts say they did, what waiting callers get and what
django.tasks shows is held against what happened.
"""

from __future__ import annotations

import json
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections

from horsies_django import TaskResult, get_handle
from horsies_django.core.errors import TaskNotFinished
from horsies_django.models import AuditEntry, SendKey, Task, TaskAttempt
from horsies_django.store.retention import Kept, RetentionStore
from horsies_django.tasks import selection
from horsies_django.tasks.redaction import redact
from horsies_django.tasks.selection import act_on, act_on_all, matching
from tests.apps.errands import tasks as errands
from tests.apps.errands.api import TaskResultStatus, exceptions
from tests.conftest import Claimer, Claimers, Connect, limit, put, sql
from tests.db.conftest import Aside
from tests.db.test_order import cancel, claim, failed
from tests.db.test_pass import done
from tests.db.test_unique import of_order
from tests.support.factories import TaskFactory, now
from tests.support.sizes import examples

QUEUES = {"default": 100, "mail": 100, "bulk": 100}
MOVES = """
CREATE TABLE moves (number int GENERATED ALWAYS AS IDENTITY, id uuid, ended boolean, code text);
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN INSERT INTO moves (id, ended, code) VALUES (NEW.id, NEW.finished_at IS NOT NULL, NEW.error_code); RETURN NULL; END';
CREATE TRIGGER note_move AFTER UPDATE ON horsies_tasks FOR EACH ROW
WHEN ((OLD.finished_at IS NULL) <> (NEW.finished_at IS NULL)) EXECUTE FUNCTION note_move()
"""
GONE = "DROP TRIGGER note_move ON horsies_tasks; DROP FUNCTION note_move(); DROP TABLE moves"
SHOWN = {  # what django.tasks calls each status
    "PENDING": TaskResultStatus.READY, "CLAIMED": TaskResultStatus.READY, "RUNNING": TaskResultStatus.RUNNING,
    "COMPLETED": TaskResultStatus.SUCCESSFUL, "FAILED": TaskResultStatus.FAILED, "CANCELLED": TaskResultStatus.FAILED,
}  # fmt: skip


@pytest.fixture
def returned(transactional_db: None) -> Iterator[Callable[[], Counter[uuid.UUID]]]:
    """Return how often each finished task came back so far."""

    def read() -> Counter[uuid.UUID]:
        return Counter(id_ for (id_,) in sql("SELECT id FROM moves WHERE NOT ended"))

    sql(MOVES)
    yield read
    sql(GONE)


def ends(id_: uuid.UUID) -> list[str | None]:
    """Return the error code of each end of a task so far, None for a completion."""
    return [code for (code,) in sql("SELECT code FROM moves WHERE ended AND id = %s ORDER BY number", [id_])]


def waited(id_: uuid.UUID) -> TaskResult[Any]:
    """Wait for a result, in a thread of its own."""
    try:
        return get_handle(id_).get(60_000)
    finally:
        connections.close_all()


def born(worker: Claimer) -> None:
    """Make tasks of every kind that did not complete: plain, unique, ordered, merged, expired, cancelled, of a run."""
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
    """The moves, and what the acts say that they did."""

    def __init__(self, seed: int, worker: Claimer, aside: Any, threads: ThreadPoolExecutor) -> None:
        self.pick, self.worker, self.aside, self.threads = random.Random(seed), worker, aside, threads
        self.verdicts: Counter[str] = Counter()
        self.ids = list(Task.objects.order_by("pk").values_list("pk", flat=True))
        self.again = set(self.pick.sample(self.ids, 6))  # they fail again when they run, and nobody clicks on them
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
            self.aside.execute("SELECT FROM horsies_tasks WHERE id = ANY (%s::uuid[]) FOR UPDATE", [held])
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
        """Wait for tasks of the queue in which neither a failed task stops others nor one runs for others."""
        unfinished = Task.objects.filter(finished_at=None, queue_name="default")
        for id_ in unfinished.order_by("pk").values_list("pk", flat=True)[:3]:
            self.waits.append((id_, len(ends(id_)), self.threads.submit(waited, id_)))

    def look(self) -> None:
        """Look at the results of django.tasks: each is as its row is, or gone with it."""
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
        RetentionStore(connection).prune_tasks(Kept((), others=True, age=timedelta(0)), 1)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(examples(12, 60)))
def test_each_is_retried_at_most_once_whatever_else_happens_and_what_is_counted_is_true(
    seed: int, claimer: Claimers, connect: Connect, monkeypatch: pytest.MonkeyPatch,
    returned: Callable[[], Counter[uuid.UUID]],
) -> None:  # fmt: skip
    """Naive: a task that fails again is taken once more, or the second person's act counts what the first one did."""
    monkeypatch.setattr(selection, "BATCH", 3)
    worker = claimer(**QUEUES)
    born(worker)
    never = set(Task.objects.filter(merged_into__isnull=False).values_list("pk", flat=True))
    never |= set(Task.objects.filter(workflow_id__isnull=False).values_list("pk", flat=True))
    assert len(never) == 4
    threads = ThreadPoolExecutor(20)
    night = Night(seed, worker, connect(), threads)
    moves = [
        night.act, night.act, night.act_beside_locks, night.click_twice, night.redact, night.run, night.prune, night.wait,
        night.look,
    ]  # fmt: skip
    for _ in range(60):
        before = set(night.redacted)
        night.pick.choice(moves)()
        for id_ in set(night.redacted) - before:
            night.redacted[id_] = returned()[id_]
        unfinished = Task.objects.filter(task_name=of_order.name, finished_at=None).values_list("kwargs", flat=True)
        assert max(Counter(json.dumps(kwargs) for kwargs in unfinished).values(), default=0) <= 1, "unique"
    for act in night.acts:
        for step in act:
            night.verdicts.update(step.verdicts)
    last = sum(
        (Counter(step.verdicts) for step in act_on_all(matching("UNSUCCESSFUL"), "retry", actor="ada")), Counter()
    )
    assert not last.keys() - {"RETRIED", "MERGED", "REDACTED", "DUPLICATE"}
    found = returned()
    once_more = set(found) & night.again  # those that failed again are due to the last act, too
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
        got, after = wait.result(60), [*ends(id_)[before:], *["RESULT_REDACTED"] * (id_ in night.redacted)]
        code = None if got.is_ok() else got.err_value.error_code
        assert code in after, "the first end after the call, or a later one"
    threads.shutdown()


def test_two_people_who_retry_the_same_night_at_the_same_time_retry_each_task_once(
    monkeypatch: pytest.MonkeyPatch, returned: Callable[[], Counter[uuid.UUID]], aside: Aside
) -> None:
    """Naive: both read the same page, the second one waits for the first one's locks, and retries all of them again."""
    monkeypatch.setattr(selection, "BATCH", 20)
    tasks = TaskFactory.create_batch(200, status="FAILED", error_code="OH_NO", finished_at=now() - timedelta(seconds=1))
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
