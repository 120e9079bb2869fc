"""An audit entry or a snapshot that cannot be written is told, and never stops what it records."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from django.db import connection, transaction

from horsies_django import Workflow, queues, schedules
from horsies_django.models import AuditEntry, LostRecord, Queue, Schedule, Task, WorkflowRun
from horsies_django.monitoring.health import examine, problems
from horsies_django.store import base
from horsies_django.store.schedules import ScheduleStore
from horsies_django.store.workers import Load
from horsies_django.tasks import operations
from horsies_django.tasks.redaction import redact
from horsies_django.worker.maintenance.heartbeat import Snapshots
from tests.apps.project.tasks import noop
from tests.conftest import put
from tests.db.conftest import Connect
from tests.support.factories import TaskFactory
from tests.support.refusing import refused

pytestmark = pytest.mark.django_db(transaction=True)

LOAD = Load(1, 0, 50.0, 0.0)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The errors of the audit; what was said in the last minute is forgotten."""
    base.repeats.kinds.clear()
    with caplog.at_level(logging.ERROR, "horsies"):
        yield caplog


def told() -> list[str]:
    """Return what the status says about lost records."""
    return [one.text for one in problems(examine(connection)) if one.code == "RECORD_LOST"]


def logged(log: pytest.LogCaptureFixture) -> list[str]:
    """Return the actions whose entries were logged as lost."""
    return sorted(record.args[0] for record in log.records if isinstance(record.args, tuple))


def test_a_pause_whose_audit_entry_is_lost_pauses_and_is_told_with_who_and_why(log: pytest.LogCaptureFixture) -> None:
    with refused("horsies_audit", event="INSERT"):
        assert queues.pause("mail", actor="ann", reason="full disk") == ["paused_at", "paused_by", "paused_reason"]
    assert Queue.objects.get(pk="mail").paused_by == "ann"
    (record,) = log.records
    assert (record.name, record.levelname) == ("horsies.audit", "ERROR")
    assert "queue.pause 'mail' by 'ann', reason 'full disk'. It could not be written: refused" in record.getMessage()
    (text,) = told()
    assert text.startswith("the audit entry 'queue.pause mail' could not be written ")
    assert "secret" not in text + log.text


def test_audit_entries_that_are_lost_every_second_are_logged_once_a_minute(log: pytest.LogCaptureFixture) -> None:
    with refused("horsies_audit", event="INSERT"):
        for _ in range(2):
            queues.pause("mail", actor="ann")
            queues.resume("mail", actor="ann")
    assert logged(log) == ["queue.pause", "queue.resume"]


def test_every_audited_change_is_made_and_logged_if_its_entry_is_refused(log: pytest.LogCaptureFixture) -> None:
    for name in ("nightly", "weekly"):
        schedules.create(name, {"task": noop.name, "pattern": "daily at 00:00"}, actor="ann")
    Schedule.objects.filter(pk="nightly").update(
        declared_in="here", declared_at=dt.datetime.now(dt.UTC) - dt.timedelta(days=30)
    )
    waiting, (failed, again), run = put(1)[0], TaskFactory.create_batch(2, status="FAILED"), Workflow("flow")
    run.add(noop)
    handle = run.send()
    with refused("horsies_audit", event="INSERT"):
        with transaction.atomic():
            operations.cancel([waiting], actor="ann")
            operations.retry(again.pk, actor="ann")
            new = operations.copy(failed.pk, actor="ann")
            assert redact(failed.pk, actor="ann", reason="asked")
            assert handle.pause(actor="ann")
        schedules.disable("nightly", actor="ann")
        schedules.delete("weekly", actor="ann")
        assert ScheduleStore(connection).gone(dt.timedelta(days=1), "scheduler") == ["nightly"]
    assert not AuditEntry.objects.filter(actor__in=["ann", "scheduler"]).exclude(action="schedule.create").exists()
    assert Task.objects.get(pk=waiting).status == "CANCELLED"
    assert {Task.objects.get(pk=id_).status for id_ in (new, again.pk)} == {"PENDING"}
    assert Task.objects.get(pk=failed.pk).redacted_at is not None
    assert WorkflowRun.objects.get().status == "PAUSED"
    assert Schedule.objects.get().gone_at is not None
    assert logged(log) == [
        "schedule.delete", "schedule.disable", "schedule.gone", "task.cancel", "task.copy", "task.redact", "task.retry",
        "workflow.pause",
    ]  # fmt: skip


def test_a_pause_waits_neither_for_a_locked_audit_nor_for_another_loss(connect: Connect) -> None:
    other = connect()
    with other.transaction():
        other.execute("LOCK TABLE horsies_audit IN ACCESS EXCLUSIVE MODE")
        assert other.execute("SELECT horsies_lost('audit', 'another', 'why')").fetchone() == ("",)
        assert queues.pause("mail", actor="ann")
    assert Queue.objects.get(pk="mail").paused_at is not None
    assert LostRecord.objects.get().what == "another"


def test_a_loss_that_cannot_be_recorded_either_does_not_stop_a_pause(log: pytest.LogCaptureFixture) -> None:
    with refused("horsies_audit", event="INSERT"), refused("horsies_lost_records", event="INSERT"):
        assert queues.pause("mail", actor="ann")
    assert len(log.records) == 1
    assert told() == []


@pytest.mark.parametrize("how", ["refused", "locked"])
def test_a_lost_snapshot_is_logged_once_a_minute(connect: Connect, log: pytest.LogCaptureFixture, how: str) -> None:
    conn, other, worker = connect(), connect(), uuid.uuid4()
    conn.execute("SET statement_timeout = 50")
    snapshots = Snapshots(worker, 1, 0.0)
    with other.transaction(), ExitStack() as stack:
        if how == "refused":
            stack.enter_context(refused("horsies_worker_states", event="INSERT"))
        else:
            other.execute("LOCK TABLE horsies_worker_states IN SHARE MODE")
        snapshots.tick(conn, [], [], LOAD, 0)
        snapshots.tick(conn, [], [], LOAD, 0)
    assert log.text.count("could not record the worker's state: ") == 1
    (text,) = told()
    assert text.startswith(f"a snapshot of worker {worker} could not be written ")
    LostRecord.objects.update(at=dt.datetime.now(dt.UTC) - dt.timedelta(minutes=61))
    assert told() == [], "it is no longer told after an hour"
