"""Hooks in real workers.

The tests cover the places where receivers run, the effect of bad receivers on the worker, and
middleware around real timeouts and cancels.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group

from horsies_django import RetryPolicy
from horsies_django.models import Task, Worker
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.support.workers import Start, apps, given

AROUND = "tests.apps.hooked.around"
IN_PARENT = ("task_started", "task_retried", "task_finished", "task_failed", "task_rescued")


class Notes:
    """The notes that the receivers of the workers write, and the harm that the test orders."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self, *names: str) -> list[dict[str, Any]]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [note for note in map(json.loads, lines) if note["signal"] in names or not names]

    def come(self, count: int, *names: str) -> list[dict[str, Any]]:
        return list(
            wait_until(
                lambda: len(found := self.all(*names)) >= count and found, f"{count} of {names}"
            )
        )

    def order(self, name: str, harm: str) -> None:
        Path(f"{self.path}.{name}").write_text(harm)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def hooked(worker: Start, notes: Notes) -> Start:
    """Return a function that starts workers of a project with hooks."""
    return partial(worker, **apps("project", "hooked"), HORSIES_TEST_NOTES=str(notes.path))


KINDS = [("--processes=1",), ("--processes=1", "--start-method=spawn"), ("--processes=0",)]
SHAPES = [*KINDS, ("--processes=1", "--threads=2")]


@pytest.mark.parametrize("options", SHAPES, ids=" ".join)
def test_each_signal_comes_once_from_its_process_and_thread(
    hooked: Start, notes: Notes, options: tuple[str, ...]
) -> None:
    process = hooked(*options).ready()
    policy = RetryPolicy.fixed([0.1], jitter=False)
    completed = tasks.pid.with_options(metadata={"tenant": 7}).send()
    failed = tasks.raises.with_options(retry_policy=policy).send("no")

    child = completed.get().unwrap()
    assert failed.get().is_err()
    assert process.stop() == 0

    own = options == ("--processes=0",)
    parent = process.process.pid
    worker_id = str(Worker.objects.get().pk)
    assert (child == parent) is own

    (began,) = notes.all("child_started")
    (ended,) = notes.all("child_stopping")

    lifetime = notes.all()
    assert (lifetime[0], lifetime[-1]["signal"], lifetime[-1]["process"]) == (
        began,
        "worker_stopping",
        parent,
    )
    assert lifetime.index(ended) == len(lifetime) - 2 or own

    for note in (began, ended):
        assert (note["process"], note["pid"], note["worker_pid"]) == (child, child, parent)
        assert note["thread"] == ("horsies-executor" if own else "MainThread")

    in_parent = notes.all(*IN_PARENT)
    where = {(note["process"], note["thread"], note["worker_id"]) for note in in_parent}
    assert where == {(parent, "horsies-receivers", worker_id)}

    told = {str(handle.task_id): [] for handle in (completed, failed)}
    for note in in_parent:
        told[note["task_id"]].append(f"{note['signal']} {note['attempt']}")
    assert list(told.values()) == [
        ["task_started 1", "task_finished 1"],
        ["task_started 1", "task_retried 1", "task_started 2", "task_finished 2", "task_failed 2"],
    ]

    last = notes.all("task_finished")[-2:]
    assert {note["child_pid"] for note in last} == {child}
    assert (notes.all("task_finished")[0]["metadata"], last[0]["sender"]) == (
        {"tenant": 7},
        tasks.pid.name,
    )


@pytest.mark.parametrize("options", KINDS, ids=" ".join)
@pytest.mark.parametrize(
    ("harm", "said"), [("raise", "raised LookupError"), ("exit", "SystemExit: 3")]
)
def test_receivers_that_raise_or_exit_do_not_end_their_process(
    hooked: Start, notes: Notes, options: tuple[str, ...], harm: str, said: str
) -> None:
    """Receivers that raise or exit end neither their process nor their thread."""
    for name in ("task_finished", "child_started", "child_stopping"):
        notes.order(name, harm)
    process = hooked(*options).ready()

    for n in range(3):
        assert tasks.add.send(n).get().unwrap() == n
    assert len(notes.come(3, "task_started")) == 3
    assert process.stop() == 0

    goes_on = harm == "raise"  # the other receivers of the same signal
    assert (len(notes.all("task_finished")), len(notes.all("child_stopping"))) == (
        3 * goes_on,
        goes_on,
    )
    assert process.log.count(said) == 5, "three tasks, and the begin and the end of the child"


def test_a_receiver_that_hangs_delays_the_end_by_seconds_only(hooked: Start, notes: Notes) -> None:
    """A ``child_stopping`` receiver that hangs delays the end of the worker by seconds only."""
    notes.order("child_stopping", "hang")
    process = hooked("--processes=2").ready()

    assert process.stop() == 0
    assert process.log.count("a receiver of child_stopping has not returned") == 2


# Middleware


@pytest.mark.parametrize("options", KINDS, ids=" ".join)
def test_middleware_and_metadata_reach_the_tasks_of_a_worker(
    hooked: Start, options: tuple[str, ...]
) -> None:
    """Middleware and metadata reach the tasks of a worker, and the tasks that those send."""
    around = [f"{AROUND}.raising", f"{AROUND}.doubling"]
    hooked(*options, **given(MIDDLEWARE=around, METADATA=[f"{AROUND}.tenant"])).ready()
    with_tenant = tasks.add.with_options(metadata={"tenant": 7})

    assert with_tenant.send(1, b=4).get().unwrap() == 18
    assert tasks.anoop.with_options(metadata={"tenant": 7}).send().get().is_ok()

    for handle in (tasks.add.send(1), tasks.anoop.send()):
        assert "has no tenant" in handle.get().err_value.message

    first = tasks.sends_more.with_options(metadata={"tenant": 7}).send(1)
    others = Task.objects.filter(task_name=tasks.sends_more.name).exclude(pk=first.task_id)
    sent = wait_until(others.first, "it sends one")
    assert sent.options["metadata"] == {"tenant": 7, "by": "tenant"}


def test_timeouts_and_cancels_interrupt_middleware(hooked: Start) -> None:
    """Fails if: only the task function can be interrupted, and the process is killed because of the
    middleware around it.
    """
    process = hooked("--processes=1", **given(MIDDLEWARE=[f"{AROUND}.holding"])).ready()

    for sender in (tasks.noop, tasks.anoop):
        handle = sender.with_options(timeout_ms=200).send()
        assert handle.get().err_value.error_code == "TASK_TIMEOUT"
        assert Group.objects.filter(name=f"interrupted {handle.task_id}").exists()

    waits = tasks.anoop.send()
    wait_until(lambda: Task.objects.get(pk=waits.task_id).status == "RUNNING", "it runs")
    waits.cancel()

    assert waits.get().err_value.error_code == "TASK_CANCELLED"
    assert "killing process" not in process.log


@pytest.mark.parametrize(
    ("options", "name", "message"),
    [
        (KINDS[0], "gone", "'tests.apps.hooked.around.gone' cannot be imported: ImportError"),
        (KINDS[1], "fails_at_start", "the tracing service has no address"),
        (
            KINDS[2],
            "sync_only",
            "tests.apps.hooked.around.sync_only returned a sync callable for async tasks",
        ),
    ],
)
def test_a_worker_with_wrong_middleware_refuses_to_start(
    hooked: Start, options: tuple[str, ...], name: str, message: str
) -> None:
    """Fails if: the worker starts, and each task fails."""
    handle = tasks.noop.send()
    process = hooked(*options, **given(MIDDLEWARE=[f"{AROUND}.{name}"]))

    assert process.wait() == 1
    assert message in process.log
    assert handle.info().status == "PENDING"  # type: ignore[union-attr]
    assert not Task.objects.exclude(status="PENDING").exists()
