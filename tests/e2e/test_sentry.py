"""Sentry in real workers.

The main process of the worker sends one event for each task that failed for good.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.collector import Collector
from tests.support.workers import SHORT, Start, held_by

Events = Callable[[], list[dict[str, Any]]]
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


@pytest.fixture
def reporting(worker: Start, tmp_path: Path) -> Start:
    """Return a function that starts workers of a project with Sentry."""
    return partial(
        worker,
        DJANGO_SETTINGS_MODULE="tests.settings.sentry",
        HORSIES_TEST_NOTES=str(tmp_path / "events"),
    )


@pytest.fixture
def events(tmp_path: Path) -> Events:
    """Return a function that returns all captured events."""
    path = tmp_path / "events"
    return lambda: (
        [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    )


def last(event: dict[str, Any]) -> Any:
    """Return the exception with which the task failed."""
    return event["exception"]["values"][-1]


def group(event: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values by which Sentry groups events by default.

    These are the class of the exception, and its frames that are in_app.
    """
    frames = [frame for frame in last(event)["stacktrace"]["frames"] if frame["in_app"]]
    return last(event)["type"], *(
        (each["module"], each["function"], each["context_line"]) for each in frames
    )


SHAPES = [("--processes=1",), ("--processes=1", "--start-method=spawn"), ("--processes=0",)]


@pytest.mark.boundary
@pytest.mark.parametrize("options", SHAPES, ids=" ".join)
def test_failures_are_grouped_by_place_and_each_is_one_event(
    reporting: Start, events: Events, options: tuple[str, ...]
) -> None:
    """Failures are grouped by their place in the code, and each is one event.

    Fails if: the log reports them all as one class without frames, or a retried failure or a
    returned error is an event, too.
    """
    process = reporting(*options).ready()
    sent = {"metadata": {"sentry-trace": f"{TRACE}-{SPAN}-1"}}
    traced = tasks.raises.with_options(**sent).send("tea with milk")
    failed = [traced, tasks.araises.send(), tasks.raises.send("two"), tasks.araises.send()]

    assert tasks.mails.send(1).get().unwrap() == 2
    assert [handle.get().is_err() for handle in (*failed, tasks.blames.send("nobody"))] == [
        True
    ] * 5
    assert process.stop() == 0
    assert "cannot be forked" not in process.log

    found = events()
    assert {event["process"] for event in found} == {process.process.pid}
    assert Counter(map(group, found)) == {
        ("LookupError", ("tests.apps.project.tasks", "raises", "raise LookupError(message)")): 2,
        ("LookupError", ("tests.apps.project.tasks", "araises", 'raise LookupError("async")')): 2,
    }

    assert len({event["contexts"]["trace"]["trace_id"] for event in found}) == 4, (
        "not one for the life of the worker"
    )

    (event,) = [event for event in found if event["contexts"]["trace"]["trace_id"] == TRACE]
    assert event["contexts"]["task"]["task_id"] == str(traced.task_id)
    assert not (event.get("breadcrumbs") or {}).get("values"), (
        "the log before it is about other tasks"
    )
    assert json.dumps(event).count("tea with milk") == 1, "the arguments are not in it"


def test_a_killed_process_is_one_event_if_its_task_fails(reporting: Start, events: Events) -> None:
    """The death of a process by a signal or a timeout is one event if its task fails.

    A death whose task is retried is no event.

    Fails if: the log line about the process is a second event, and all such tasks are one group.
    """
    process = reporting("--processes=1", HORSIES_TEST_KILL_GRACE_MS="100").ready()

    assert tasks.dies_once.send("kill").get().is_ok()
    assert tasks.dies.send("kill").get().is_err()
    assert tasks.ignores_its_timeout.send().get().is_err()
    assert process.stop() == 0

    fingerprints = [
        [tasks.dies.name, "WORKER_CRASHED"],
        [tasks.ignores_its_timeout.name, "TASK_TIMEOUT"],
    ]
    assert [event["fingerprint"] for event in events()] == fingerprints
    assert process.log.count("was killed by SIGKILL: ") == 3, "the log has it all the same"


def test_a_task_of_a_dead_worker_is_one_event_of_its_rescuer(
    reporting: Start, events: Events
) -> None:
    """A task of a dead worker is one event of the worker that rescues it."""
    first = reporting("--processes=1", **SHORT).ready()
    lost = tasks.hold.send("lost")
    held_by("lost")
    first.signal(signal.SIGKILL)

    second = reporting("--processes=1", **SHORT).ready()
    assert lost.get().is_err()
    assert second.stop() == 0

    died, event = sorted(events(), key=lambda each: "exception" in each)
    assert died["logentry"]["message"] == "worker %s sent no heartbeat for %s; declaring it dead"
    assert (event["transaction"], event["process"]) == (tasks.hold.name, second.process.pid)
    assert (last(event)["type"], last(event)["value"]) == (
        "WORKER_CRASHED",
        "the worker that ran the task is gone",
    )


def test_a_worker_goes_on_and_ends_while_sentry_does_not_answer(
    reporting: Start, collector: Collector
) -> None:
    """Fails if: the receiver waits for Sentry, so further signals wait, too, and are dropped at the
    end of the worker.
    """
    collector.answers.clear()
    process = reporting("--processes=1", HORSIES_TEST_COLLECTOR=collector.address).ready()

    handles = [tasks.raises.send(f"{number}") for number in range(30)]
    assert all(handle.get().is_err() for handle in handles)
    assert collector.arrived.acquire(timeout=60)

    assert process.stop() == 0
    assert "not delivered" not in process.log
    assert "Worker stopped" in process.log


@pytest.mark.parametrize("name", ["child_stopping", "worker_stopping"])
def test_what_waits_for_sentry_is_sent_before_a_process_ends(
    reporting: Start, collector: Collector, name: str
) -> None:
    """Fails if: the process ends while the events of its last tasks are in the queue of the SDK's
    thread.
    """
    collector.answers.clear()
    own = {"HORSIES_TEST_COLLECTOR": collector.address, "HORSIES_TEST_TELLS": name}
    process = reporting("--processes=1", **own).ready()

    for number in range(5):
        text = f"number {number}"
        handle = (
            tasks.raises.send(text) if name == "worker_stopping" else tasks.says.send(text, "ERROR")
        )
        assert handle.get().is_ok() is (name == "child_stopping")

    process.signal(signal.SIGTERM)
    wait_until(lambda: name.encode() in collector.bodies, "the process is about to end")
    collector.answers.set()
    assert process.wait() == 0

    events = [place for place, body in enumerate(collector.bodies) if b"number " in body]
    *_, ended = [place for place, body in enumerate(collector.bodies) if body == name.encode()]

    assert len(events) == 5
    assert max(events) < ended, "they were sent before the receiver of the integration returned"
