"""The comparison after a reconnect, with a database that has lost claims: their rows are changed to what they were before."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from django.db import connection

from horsies_django import Workflow
from horsies_django.conf import config
from horsies_django.models import Task
from horsies_django.worker.engine.outage import ClaimsLost
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.supervisor import Supervisor
from tests.apps.project import tasks
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

NEVER_CLAIMED = (
    "status = 'PENDING', claimed_by = NULL, claimed_at = NULL, started_at = NULL, claim_expires_at = NULL, "
    "claim_generation = claim_generation - 1"
)
NEVER_STARTED = "status = 'CLAIMED', started_at = NULL, claim_expires_at = now() + interval '1 hour'"


class Here:
    """A worker in soft mode that runs tasks itself, one at a time, and goes on one turn at a time."""

    def __init__(self, folder: Path) -> None:
        soft = replace(config(), prefetch_buffer=2, claim_lease_ms=60_000)
        self.parts = Supervisor(soft, WorkerOptions(queues=("default",), processes=0))
        self.engine = self.parts.engine
        self.folder = folder
        self.parts.outbox.connect()
        self.parts.pool.start()
        self.until(lambda: self.parts.pool.ready)

    def until(self, condition: object) -> None:
        """Let it turn until something is the case."""
        wait_until(lambda: self.engine.turn(0.01) or condition(), "it has turned")  # type: ignore[operator]

    def send(self, name: str) -> uuid.UUID:
        """Send a ``linger`` task."""
        self.engine.wakeups.look_everywhere()
        return tasks.linger.send(str(self.folder / name)).task_id

    def end(self, name: str) -> None:
        """Let that task end."""
        (self.folder / f"{name}.go").touch()

    def finishes_cut_off(self) -> uuid.UUID:
        """Let a task start, and finish while there is no connection; then connect, and have its outcome in the outbox."""
        task = self.send("one")
        self.until(lambda: status(task) == "RUNNING")
        self.parts.outbox.disconnect()
        self.engine.outage.retry_at = time.monotonic() + 3600
        self.end("one")
        self.until(lambda: self.parts.outbox.outcomes)
        self.parts.outbox.connect()
        return task

    def reconnects(self) -> None:
        """Let it compare as it does after a reconnect."""
        self.engine.comparison.reconnected()
        self.engine.comparison.run(time.monotonic())


@pytest.fixture
def here(transactional_db: None, tmp_path: Path) -> Iterator[Here]:
    made = Here(tmp_path)
    yield made
    for name in ("one", "two"):
        made.end(name)
    made.parts.pool.stop()
    made.parts.outbox.disconnect()
    made.parts.kill_timer.disarm()
    made.engine.close()
    made.parts.selector.close()


def status(id_: uuid.UUID) -> str:
    return str(Task.objects.get(pk=id_).status)


def lose(id_: uuid.UUID, columns: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE horsies_tasks SET {columns} WHERE id = %s", [id_])
        assert cursor.rowcount == 1


@pytest.mark.parametrize("columns", [NEVER_CLAIMED, NEVER_STARTED], ids=["claim", "start"])
def test_a_running_task_whose_claim_or_start_was_lost_ends_the_worker_s_life(here: Here, columns: str) -> None:
    one = here.send("one")
    here.until(lambda: status(one) == "RUNNING")
    here.reconnects()
    lose(one, columns)
    with pytest.raises(ClaimsLost, match=rf"lost 1 claim.*{one}"):
        here.reconnects()


def test_a_lost_row_in_the_middle_of_a_connection_is_no_loss(here: Here) -> None:
    """Somebody has changed it by hand: the server has not been away."""
    one = here.send("one")
    here.until(lambda: status(one) == "RUNNING")
    lose(one, NEVER_CLAIMED)
    here.engine.comparison.run(time.monotonic())


def test_a_prefetched_task_whose_claim_was_lost_leaves_the_buffer(here: Here) -> None:
    """Naive: claimed anew and running, it is found running under the old claim too, and dispatched once more."""
    one = here.send("one")
    here.until(lambda: status(one) == "RUNNING")
    two = here.send("two")
    here.until(lambda: status(two) == "CLAIMED")
    here.reconnects()
    assert set(here.engine.prefetched.claims) == {two}
    lose(two, NEVER_CLAIMED)
    here.reconnects()
    assert not here.engine.prefetched


@pytest.mark.parametrize("columns", [NEVER_CLAIMED, NEVER_STARTED], ids=["claim", "start"])
def test_a_finished_task_whose_claim_or_start_was_lost_ends_it_too_and_its_outcome_is_dropped(
    here: Here, columns: str
) -> None:
    """Naive: the worker claims it again under its old number, and the outcome of the lost claim is written for the new one."""
    one, outbox = here.finishes_cut_off(), here.parts.outbox
    lose(one, columns)
    with pytest.raises(ClaimsLost, match=rf"lost 1 claim.*{one}"):
        here.reconnects()
    assert not outbox.owes
    assert status(one) == ("PENDING" if columns == NEVER_CLAIMED else "CLAIMED")


def test_an_outcome_that_was_written_although_its_reply_was_lost_is_no_loss(here: Here) -> None:
    here.finishes_cut_off()
    outbox = here.parts.outbox
    written = list(outbox.outcomes)
    outbox.run_pass()
    outbox.outcomes += written
    here.reconnects()
    assert not outbox.owes


def test_a_worker_that_was_declared_dead_is_told_so_and_nothing_of_lost_claims(here: Here) -> None:
    one = here.send("one")
    here.until(lambda: status(one) == "RUNNING")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO horsies_heartbeats (id, worker_id, role, pid, sent_at, died_at) "
            "VALUES (%s, %s, 'claimer', 1, now(), now())", [here.parts.worker] * 2,
        )  # fmt: skip
    lose(one, NEVER_CLAIMED)
    here.engine.comparison.reconnected()
    here.engine.turn(0.0)
    assert here.engine.disowned


def test_a_workflow_whose_task_was_written_after_a_reconnect_is_advanced(here: Here) -> None:
    flow = Workflow("one step")
    flow.add(tasks.linger, str(here.folder / "one"))
    flow.send()
    here.engine.wakeups.look_everywhere()
    here.until(lambda: Task.objects.filter(status="RUNNING").exists())
    outbox = here.parts.outbox
    outbox.disconnect()
    here.engine.outage.retry_at = time.monotonic() + 3600
    here.end("one")
    here.until(lambda: outbox.outcomes)
    outbox.connect()
    here.reconnects()
    assert Task.objects.get().status == "COMPLETED"
    assert len(here.engine.advancer.owed) == 1
