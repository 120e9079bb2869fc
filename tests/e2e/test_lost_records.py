"""Workers whose audit entries and snapshots the database refuses: they start, live and rescue one another as ever."""

from __future__ import annotations

import signal

from horsies_django import queues
from horsies_django.models import LostRecord, Queue, QueueLimits, Worker, WorkerState
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.e2e.test_queue_command import run as run_queue
from tests.e2e.test_status_command import run as run_status
from tests.support.refusing import refused
from tests.support.workers import Start, held_by

SHORT = {"HORSIES_TEST_STALE_MS": "2500"}


def test_workers_start_with_a_new_queue_and_rescue_a_killed_one_and_a_pause_pauses_without_any_side_record(
    worker: Start,
) -> None:
    Queue.objects.filter(pk="mail").delete()
    QueueLimits.objects.filter(pk="mail").delete()
    served = refused("horsies_queues", "new.served_at IS DISTINCT FROM old.served_at")
    with refused("horsies_audit", event="INSERT"), refused("horsies_worker_states", event="INSERT"), served:
        first = worker("--processes=1", "--queues=default,mail", **SHORT).ready()
        assert Queue.objects.filter(pk="mail").exists()
        lost = tasks.hold.send("lost")
        held_by("lost")
        first.signal(signal.SIGKILL)
        second = worker("--processes=1", "--queues=default", **SHORT).ready()
        assert lost.get(timeout_ms=30_000).err_value.error_code == "WORKER_CRASHED"
        assert "mail: paused_by: null -> " in run_queue("pause", "mail")
        assert Worker.objects.count() == 2
        wait_until(lambda: "could not record the worker's state: refused" in second.log, "the snapshot is missed")
        assert second.stop() == 0
    assert not WorkerState.objects.exists()
    assert {"audit", "snapshot"} == set(LostRecord.objects.values_list("kind", flat=True))
    code, printed = run_status()
    assert code == 1
    assert "RECORD_LOST: the audit entry 'queue.pause mail' could not be written" in printed
    assert "RECORD_LOST: a snapshot of worker " in printed
    assert "the heartbeat failed" not in first.log + second.log
    assert queues.resume("mail", actor="ann")
