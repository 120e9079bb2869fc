"""The thread for receivers: errors of a receiver stay in it, and no other thread waits for it."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from horsies_django import signals
from horsies_django.core.records import Claim, Outcome, Reply
from horsies_django.store.workers import Happened
from horsies_django.worker.engine import receivers as receivers_module
from horsies_django.worker.engine.receivers import Receivers
from tests.conftest import wait_until
from tests.worker.conftest import claims


@pytest.fixture
def receivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receivers]:
    for name in signals.__all__:
        monkeypatch.setattr(getattr(signals, name), "receivers", [])
    made = Receivers(uuid.uuid4())
    yield made
    made.stop()


def outcome(claim: Claim, status: str = "COMPLETED", **more: Any) -> Outcome:
    reply = Reply(status, '{"ok": 1}', None if status == "COMPLETED" else "OH_NO")
    return Outcome.of(claim, reply, 77, seconds=0.5)._replace(**more)


def noted(*of: signals.HorsiesSignal) -> list[tuple[str, dict[str, Any]]]:
    """Return a list that fills with the names and values of these signals."""
    got: list[tuple[str, dict[str, Any]]] = []
    for one in of:
        one.connect(lambda sender, signal, **values: got.append((signal.name, values)), weak=False)
    return got


AGAIN = {"retry": 1, "of": 2, "at": 1_800_000_000.5}
ABOUT = {"task_name": "tests.nothing", "queue_name": "default", "attempt": 1}


class Slow:
    """A receiver that waits at a gate, and stores its events."""

    def __init__(self, signal: signals.HorsiesSignal) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.got: list[uuid.UUID] = []
        signal.connect(self)

    def __call__(self, task_id: uuid.UUID, **values: Any) -> None:
        self.entered.set()
        assert self.gate.wait(30)
        self.got.append(task_id)


def test_only_signals_that_somebody_receives_are_queued(receivers: Receivers) -> None:
    """Fails if: every task costs an event that is thrown away later."""
    slow = Slow(signals.task_retried)
    _ = Slow(signals.task_rescued)
    slow.gate.set()
    ended, again = claims(2)

    receivers.started([ended])
    receivers.settled([outcome(ended), outcome(ended, "FAILED")], {})
    receivers.rescued(
        [Happened("died", uuid.uuid4(), "", 0), Happened("expired", ended.id, "tests.nothing", 1)]
    )

    assert receivers.waiting.empty()
    assert receivers.thread is None

    receivers.settled([outcome(ended), outcome(again, "FAILED")], {str(again.id): AGAIN})
    receivers.stop()
    assert slow.got == [again.id]


def test_a_flood_of_signals_is_bounded_and_drops_are_counted(
    receivers: Receivers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of signals is bounded, and dropped signals are counted while the engine goes on.

    Fails if: the queue grows until the worker has no memory, or adding to it waits.
    """
    monkeypatch.setattr(receivers_module, "MOST_WAITING_RECORDS", 100)
    slow = Slow(signals.task_started)
    first, *rest = claims(101)

    receivers.started([first])
    assert slow.entered.wait(30)

    receivers.started(rest)
    assert (receivers.dropped, caplog.records) == (0, [])

    for _ in range(3):
        receivers.started(claims(25))
    assert (receivers.dropped, receivers.waiting.qsize()) == (75, 100)
    (record,) = caplog.records  # not one for each
    assert (record.name, record.levelno) == ("horsies.signals", logging.ERROR)
    assert "too slow: 100 signal(s) wait, 25 dropped so far" in record.getMessage()

    slow.gate.set()
    receivers.stop()
    assert slow.got == [claim.id for claim in (first, *rest)], "all that waited are delivered"
    assert "75 signal(s) were dropped" in caplog.messages[-1]
    assert "0 more were not delivered" in caplog.messages[-1]


def test_a_stopping_worker_does_not_wait_for_a_hanging_receiver(
    receivers: Receivers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopping worker does not wait for a hanging receiver for ever, and the log names it."""
    monkeypatch.setattr(receivers_module, "STOP_SECONDS", 0.01)
    slow = Slow(signals.task_started)
    first, *others = claims(3)

    receivers.started([first])
    assert slow.entered.wait(30)
    event, began = wait_until(lambda: receivers.delivering, "it is delivered")
    receivers.delivering = event, began - 75
    receivers.started(others)
    receivers.started([])

    (record,) = caplog.records
    told = (
        f"2 signal(s) wait, 0 dropped so far; task_started of tests.nothing {first.id} has taken "
        "75 s so far"
    )
    assert told in record.getMessage()

    receivers.stop()
    assert "0 signal(s) were dropped" in caplog.messages[-1]
    assert "3 more were not delivered" in caplog.messages[-1]

    slow.gate.set()
    assert receivers.thread is not None
    receivers.thread.join(30)
    assert slow.got == [first.id], "the others are not delivered after all"


def test_a_receiver_that_raises_or_exits_ends_nothing(
    receivers: Receivers, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if: SystemExit ends the thread, and the queue fills up."""
    got = []

    def raises(**values: Any) -> None:
        raise LookupError("no such metric")

    def exits(task_id: uuid.UUID, **values: Any) -> None:
        got.append(task_id)
        raise SystemExit(3)

    signals.task_started.connect(raises)
    signals.task_started.connect(exits)
    started = claims(3)

    receivers.started(started)
    receivers.stop()

    assert got == [claim.id for claim in started]
    assert (
        sum(
            "raises of task_started raised LookupError('no such metric')" in line
            for line in caplog.messages
        )
        == 3
    )
    assert sum(line.startswith("task_started of tests.nothing ") for line in caplog.messages) == 3


@pytest.mark.django_db(transaction=True)
def test_the_connection_of_a_receiver_is_closed_when_it_returns(
    receivers: Receivers,
) -> None:
    """The connection of a receiver is closed after it, and a broken one is not used again.

    Fails if: after an outage of the database, every query of a receiver fails until the worker is
    started again.
    """
    held: list[Any] = []

    def queries(task_id: uuid.UUID, **values: Any) -> None:
        Group.objects.create(name=str(task_id))
        held.append(connection.connection)
        held[-1].close()

    signals.task_started.connect(queries)
    started = claims(3)

    receivers.started(started)
    receivers.stop()

    assert len({id(each) for each in held}) == 3
    assert {group.name for group in Group.objects.all()} == {str(claim.id) for claim in started}


def test_order_stopped_is_sent_without_a_task_finished_receiver(
    receivers: Receivers,
) -> None:
    """``order_stopped`` is sent after the end of its task, with or without other receivers."""
    got = noted(signals.order_stopped)
    ended, other = claims(2)
    outcomes = [outcome(ended, "FAILED"), outcome(other, "FAILED")]
    decided = {str(ended.id): {"stops": '{"tenant": 7}'}}

    receivers.settled(outcomes, decided)
    signals.task_finished.connect(
        lambda signal, **values: got.append((signal.name, values)), weak=False
    )
    receivers.settled(outcomes, decided)
    receivers.stop()

    assert [name for name, _ in got] == [
        "order_stopped",
        "task_finished",
        "order_stopped",
        "task_finished",
    ]

    about = {**ABOUT, "task_id": ended.id, "metadata": {}, "worker_id": receivers.worker}
    assert got[0][1] == {**about, "partition": '{"tenant": 7}'}


def test_only_a_final_failure_sends_task_failed(
    receivers: Receivers,
) -> None:
    """Only a final failure sends ``task_failed``, with its exception.

    Fails if: a retried failure, a returned error or a cancelled task sends it, too.
    """
    told = noted(signals.task_failed)

    exception = {
        "module": "shop.errors",
        "type": "Outer.Refused",
        "traceback": "x" * 20_000 + "the end",
    }
    envelope = json.dumps({"err": {"error_code": "OH_NO", "exception": exception}})

    ways: list[tuple[str, dict[str, Any], dict[str, Any], str | None]] = [
        (
            "FAILED",
            {},
            {"result": envelope, "error_message": "Outer.Refused: no", "context": '{"cart": 3}'},
            "OH_NO",
        ),
        ("FAILED", AGAIN, {"result": envelope}, None),
        ("FAILED", {}, {"returned": True}, None),
        ("CANCELLED", {}, {}, None),
        ("SNOOZED", AGAIN, {"result": "{}"}, None),
        ("SNOOZED", {"code": "TOO_MANY_SNOOZES"}, {"result": "{}"}, "TOO_MANY_SNOOZES"),
        ("FAILED", {"code": "POISON"}, {"result": '{"err": {"exception": null}}'}, "POISON"),
        ("COMPLETED", {}, {}, None),
    ]

    ended = [claim._replace(options='{"metadata": {"tenant": 7}}') for claim in claims(len(ways))]
    outcomes = [
        outcome(claim, status, **more)
        for claim, (status, _, more, _) in zip(ended, ways, strict=True)
    ]
    receivers.settled(
        outcomes, {str(claim.id): way[1] for claim, way in zip(ended, ways, strict=True) if way[1]}
    )

    kinds = [
        ("failed", None, "WORKER_CRASHED"),
        ("failed", "POISON", "POISON"),
        ("retried", None, None),
        ("returned", None, None),
    ]
    rescued = claims(len(kinds))
    happened = zip(rescued, kinds, strict=True)

    receivers.rescued(
        [
            Happened(kind, one.id, one.task_name, 2, "mail", None, code)
            for one, (kind, code, _) in happened
        ]
    )
    receivers.stop()

    got = [values for _, values in told]
    codes = [way[-1] for way in (*ways, *kinds)]
    assert [(each["task_id"], each["error_code"]) for each in got] == [
        (claim.id, code) for claim, code in zip((*ended, *rescued), codes, strict=True) if code
    ]

    about = {**ABOUT, "worker_id": receivers.worker}
    no_exception = {"exception_class": None, "traceback": None}
    assert got[0] == {
        **about,
        "task_id": ended[0].id,
        "metadata": {"tenant": 7},
        "error_code": "OH_NO",
        "error_message": "Outer.Refused: no",
        "seconds": 0.5,
        "child_pid": 77,
        "exception_class": "shop.errors.Outer.Refused",
        "traceback": "x" * (16_384 - 7) + "the end",
        "context": {"cart": 3},
    }

    assert all(no_exception.items() <= each.items() for each in got[1:])
    assert got[3] == {
        **about,
        **no_exception,
        "task_id": rescued[0].id,
        "queue_name": "mail",
        "attempt": 2,
        "metadata": {},
        "seconds": None,
        "error_code": "WORKER_CRASHED",
        "error_message": "the worker that ran the task is gone",
        "child_pid": None,
        "context": {},
    }


def test_a_worker_always_sends_worker_stopping_last(
    receivers: Receivers, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if: a worker in which no task failed sends no ``worker_stopping``, on which receivers
    send the data that they collected.
    """
    got: list[Any] = []

    def ended(worker_id: uuid.UUID, **values: Any) -> None:
        got.append((worker_id, threading.current_thread().name))
        raise SystemExit(3)

    signals.worker_stopping.connect(ended)
    signals.task_started.connect(lambda task_id, **values: got.append(task_id), weak=False)

    (claim,) = claims(1)
    receivers.started([claim])
    assert wait_until(lambda: got, "it is told") == [claim.id], "the worker goes on"

    receivers.stop()
    assert got == [claim.id, (receivers.worker, "horsies-receivers")]
    assert "a receiver of worker_stopping raised an exception" in caplog.text

    idle = Receivers(uuid.uuid4())
    idle.stop()
    assert got[-1] == (idle.worker, "horsies-receivers")


def test_what_receivers_get_about_each_event(receivers: Receivers) -> None:
    got = noted(
        signals.task_started, signals.task_retried, signals.task_finished, signals.task_rescued
    )
    (claim,) = claims(1)
    claim = claim._replace(
        options='{"wire": 1, "metadata": {"tenant": 7}}', attempt=2, queue_name="mail"
    )

    receivers.started([claim])
    receivers.settled([outcome(claim, "FAILED", error_message="it broke")], {str(claim.id): AGAIN})
    receivers.settled([outcome(claim, "FAILED")], {str(claim.id): {"retry": None}})
    receivers.settled(
        [outcome(claim, "FAILED"), outcome(claim)], {str(claim.id): {"code": "POISON"}}
    )
    receivers.rescued([Happened("returned", claim.id, "tests.nothing", 2, "mail", claim.options)])
    receivers.stop()

    about = {
        **ABOUT,
        "task_id": claim.id,
        "queue_name": "mail",
        "attempt": 2,
        "worker_id": receivers.worker,
    }
    about["metadata"] = {"tenant": 7}
    ended = {**about, "error_code": "OH_NO", "error_message": None, "seconds": 0.5, "child_pid": 77}

    assert [name.removeprefix("task_") for name, _ in got] == [
        "started",
        "retried",
        "retried",
        "finished",
        "finished",
        "rescued",
    ]

    assert got[0][1] == about
    retry_at = got[1][1].pop("retry_at")
    assert (retry_at.timestamp(), str(retry_at.tzinfo)) == (AGAIN["at"], "UTC")
    assert got[1][1] == {**ended, "error_message": "it broke"}
    assert got[2][1] == {**ended, "retry_at": None}
    assert got[3][1] == {**ended, "error_code": "POISON", "status": "FAILED"}
    assert got[5][1] == {**about, "outcome": "returned"}


def test_events_wait_if_the_thread_cannot_be_started(
    receivers: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if: the engine ends, or all signals are lost, because a limit of threads is reached for
    a moment.
    """
    got = noted(signals.task_started)

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse_to_start)
        receivers.started(claims(1))
    receivers.started(claims(1))

    wait_until(lambda: len(got) == 2, "both are delivered")


def refuse_to_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("text", [None, "", "{", "[1]", "7", "[" * 8_000])
def test_a_context_that_is_no_object_is_none(text: str | None) -> None:
    """Fails if: the engine ends, or a receiver gets a list."""
    assert receivers_module.read_context(text) == {}
