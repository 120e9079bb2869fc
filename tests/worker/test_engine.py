"""The engine one turn at a time, its probes over real HTTP, and the listener that wakes it.

For the comparison after a reconnect, the tests simulate a database that has lost claims: they
change the rows back to their earlier state. The listener detects a silent connection, and keeps a
connection on which notifications arrive.
"""

from __future__ import annotations

import json
import logging
import math
import selectors
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from horsies_django import Workflow
from horsies_django.conf import Resilience, config
from horsies_django.core.errors import WorkerStartError
from horsies_django.core.notifications import Stalled
from horsies_django.models import Task, WorkflowNode
from horsies_django.store.notify import Listener, channel_prefix
from horsies_django.worker.engine.listener import (
    LONGEST_SELF_TEST_SECONDS,
    SELF_TEST_SECONDS,
    NotificationListener,
)
from horsies_django.worker.engine.outage import ClaimsLost
from horsies_django.worker.engine.stalled_partitions import StalledPartitions
from horsies_django.worker.maintenance import health_server
from horsies_django.worker.maintenance.health_server import HealthServer, serving_health
from horsies_django.worker.maintenance.heartbeat import ENGINE_STUCK_SECONDS
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.supervisor import Supervisor
from horsies_django.workflows import advancer
from tests.apps.project import tasks
from tests.conftest import Connect, limit, put, wait_until
from tests.support.factories import HeartbeatFactory, now
from tests.worker.conftest import Build, ask, turns_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_engine_claims_nothing_after_its_last_beat_expires(
    build: Build,
) -> None:
    """The engine claims nothing after its last heartbeat has expired.

    Other workers may have declared the worker dead by then, and would rescue its new claims while
    they run.
    """
    parts = build()
    id_ = tasks.noop.send().task_id
    engine = parts.engine

    engine.trusted_until = time.monotonic() - 1
    engine.wakeups.check_everywhere()
    engine.turn(0.0)
    assert Task.objects.get(pk=id_).status == "PENDING"

    engine.trusted_until = math.inf
    engine.turn(0.0)
    assert Task.objects.get(pk=id_).status != "PENDING"

    turns_until(parts, lambda: Task.objects.get(pk=id_).status == "COMPLETED")


NEVER_CLAIMED = (
    "status = 'PENDING', claimed_by = NULL, claimed_at = NULL, started_at = NULL, claim_expires_at "
    "= NULL, "
    "claim_generation = claim_generation - 1"
)
NEVER_STARTED = (
    "status = 'CLAIMED', started_at = NULL, claim_expires_at = now() + interval '1 hour'"
)


class Here:
    """A worker in soft mode without children, which the test drives one turn at a time."""

    def __init__(self, parts: Supervisor, folder: Path) -> None:
        self.parts = parts
        self.engine = parts.engine
        self.folder = folder

    def until(self, condition: Callable[[], object]) -> None:
        turns_until(self.parts, condition)

    def send(self, name: str) -> uuid.UUID:
        """Send a ``linger`` task."""
        self.engine.wakeups.check_everywhere()
        return tasks.linger.send(str(self.folder / name)).task_id

    def runs_one(self) -> uuid.UUID:
        """Send a task, and wait until it runs."""
        one = self.send("one")
        self.until(lambda: status(one) == "RUNNING")
        return one

    def end(self, name: str) -> None:
        """End that task."""
        (self.folder / f"{name}.go").touch()

    def finishes_cut_off(self) -> None:
        """End the task while there is no connection, then connect.

        Its outcome is in the outbox afterwards.
        """
        self.parts.outbox.disconnect()
        self.engine.outage.retry_at = time.monotonic() + 3600
        self.end("one")
        self.until(lambda: self.parts.outbox.outcomes)
        self.parts.outbox.connect()

    def reconnects(self) -> None:
        """Compare claims as after a reconnect."""
        self.engine.comparison.reconnected()
        self.engine.comparison.run(time.monotonic())


@pytest.fixture
def here(build: Build, tmp_path: Path) -> Iterator[Here]:
    made = Here(build(replace(config(), prefetch_buffer=2, claim_lease_ms=60_000)), tmp_path)
    yield made
    for name in ("one", "two"):
        made.end(name)


def status(id_: uuid.UUID) -> str:
    return str(Task.objects.get(pk=id_).status)


def lose(id_: uuid.UUID, columns: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE horsies_tasks SET {columns} WHERE id = %s", [id_])
        assert cursor.rowcount == 1


@pytest.mark.parametrize("finished", [False, True], ids=["runs", "finished"])
@pytest.mark.parametrize("columns", [NEVER_CLAIMED, NEVER_STARTED], ids=["claim", "start"])
def test_a_lost_claim_or_start_ends_the_worker(here: Here, columns: str, finished: bool) -> None:
    """A lost claim or start of a task ends the worker, and the outcome is dropped.

    Fails if: the worker claims the task again under the same generation, and the outcome of the
    lost claim is written for the new one.
    """
    one = here.runs_one()
    if finished:
        here.finishes_cut_off()
    else:
        here.reconnects()

    lose(one, columns)
    if not finished:  # the row may have been changed by hand, because the server has not been away
        here.engine.comparison.run(time.monotonic())

    with pytest.raises(ClaimsLost, match=rf"lost 1 claim.*{one}"):
        here.reconnects()

    assert not here.parts.outbox.has_unwritten_entries
    assert status(one) == ("PENDING" if columns == NEVER_CLAIMED else "CLAIMED")


def test_a_prefetched_task_with_a_lost_claim_leaves_the_buffer(here: Here) -> None:
    """A prefetched task whose claim was lost leaves the buffer.

    Fails if: the task is claimed anew and runs, is found running under the old claim, too, and is
    dispatched once more.
    """
    here.runs_one()
    two = here.send("two")
    here.until(lambda: status(two) == "CLAIMED")

    here.reconnects()
    assert set(here.engine.prefetched) == {two}

    lose(two, NEVER_CLAIMED)
    here.reconnects()
    assert not here.engine.prefetched


def test_an_outcome_written_without_its_reply_is_not_lost(here: Here) -> None:
    """An outcome that was written although its reply was lost is not reported as lost."""
    here.runs_one()
    here.finishes_cut_off()
    outbox = here.parts.outbox
    written = list(outbox.outcomes)

    outbox.run_pass()
    outbox.outcomes += written
    here.reconnects()

    assert not outbox.has_unwritten_entries


def test_a_worker_declared_dead_is_disowned_at_its_reconnect(here: Here) -> None:
    """A worker that was declared dead is disowned at its reconnect, and reports no lost claims."""
    one = here.runs_one()
    worker = here.parts.worker
    HeartbeatFactory(id=worker, worker_id=worker, role="claimer", died_at=now())
    lose(one, NEVER_CLAIMED)

    here.engine.comparison.reconnected()
    here.engine.turn(0.0)

    assert here.engine.disowned


def test_a_workflow_advances_after_its_task_lands_at_a_reconnect(here: Here) -> None:
    """A workflow advances after the outcome of its task was written at a reconnect."""
    flow = Workflow("one step")
    flow.gate("open", after=flow.add(tasks.linger, str(here.folder / "one")))
    flow.send()
    here.engine.wakeups.check_everywhere()
    here.until(lambda: Task.objects.filter(status="RUNNING").exists())

    here.finishes_cut_off()
    here.reconnects()

    assert Task.objects.get().status == "COMPLETED"
    assert len(here.engine.advancer.pending_runs) == 1


@pytest.mark.parametrize(
    ("limit", "gathers", "counted"),
    [
        (None, True, [0, 1, 1, 1]),
        (None, False, [0, 1, 2, 2]),
        (2, False, [0, 1, 2, 3]),
    ],
)
def test_elements_of_a_map_are_counted_together_while_others_run(
    build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
    gathers: bool,
    counted: list[int],
) -> None:
    """Completed elements of a map are counted together while others run.

    They are counted at once if other elements may start when they end. The first element is always
    counted at once.

    Fails if: each pass that settles some elements is followed by an advance, which takes as long.
    """
    monkeypatch.setattr(advancer, "GATHER_ELEMENTS_SECONDS", 3600.0)
    parts = build(threads=2)
    flow = Workflow("map", max_in_flight=limit)
    flow.map(tasks.linger, path=[str(tmp_path / name) for name in "abcde"])
    handle = flow.send()
    parts.engine.wakeups.check_everywhere()

    def counted_after(ended: int) -> int:
        """End the first elements, up to this number.

        Returns how many of them the run has counted while others run.
        """
        for name in "abcde"[:ended]:
            (tmp_path / f"{name}.go").touch()
        turns_until(parts, lambda: statuses() == (["COMPLETED"] * ended + ["RUNNING"] * 2)[:5])
        return WorkflowNode.objects.get().items_ok

    def statuses() -> list[str]:
        return [
            *Task.objects.exclude(status="PENDING")
            .order_by("node_index")
            .values_list("status", flat=True)
        ]

    parts.engine.advancer.gathers = gathers
    assert [counted_after(ended) for ended in range(4)] == counted

    counted_after(5)
    turns_until(parts, lambda: handle.status() == "COMPLETED")


def test_an_element_that_failed_is_counted_at_once(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if: a failed element waits for others, as a completed one does, and ``on_error`` acts
    later.
    """
    monkeypatch.setattr(advancer, "GATHER_ELEMENTS_SECONDS", 3600.0)
    parts = build(threads=2)
    flow = Workflow("map")
    flow.map(tasks.linger, path=[str(tmp_path / "runs"), str(tmp_path / "nowhere" / "fails")])
    handle = flow.send()
    parts.engine.wakeups.check_everywhere()

    turns_until(parts, lambda: WorkflowNode.objects.get().items_bad)
    assert Task.objects.get(node_index=0).status == "RUNNING"

    (tmp_path / "runs.go").touch()
    turns_until(parts, lambda: handle.status() == "FAILED")


def asked(parts: Supervisor, path: str) -> tuple[int, Any]:
    status, text = ask(parts, path)
    return status, json.loads(text)


def test_a_healthy_worker_is_live_and_ready(
    parts: Supervisor,
) -> None:
    """A healthy worker is live and ready, and every answer names the worker."""
    for path in ("/live", "/ready", "/ready?verbose=1"):
        status, found = asked(parts, path)
        assert (status, found["ok"], found["reasons"], found["worker"]) == (
            200,
            True,
            [],
            str(parts.worker),
        )

    for path in ("/", "/live/x"):
        assert asked(parts, path) == (404, {"error": "there are only /live, /ready and /metrics"})

    assert ask(parts, "/ready", "HEAD") == (200, "")


def test_a_stuck_engine_is_not_live_until_its_next_turn(parts: Supervisor) -> None:
    """An engine that is stuck is not live until its next turn."""
    parts.engine.status = parts.engine.status._replace(
        busy_since=time.monotonic() - ENGINE_STUCK_SECONDS + 5
    )
    assert ask(parts, "/live")[0] == 200, "a turn may take its time"

    parts.engine.status = parts.engine.status._replace(
        busy_since=time.monotonic() - ENGINE_STUCK_SECONDS - 2
    )

    status, found = asked(parts, "/live")
    assert (status, found["ok"], len(found["reasons"])) == (503, False, 1)
    assert "been stuck for 12 s" in found["reasons"][0]
    assert ask(parts, "/ready")[0] == 503

    parts.engine.turn(0)
    assert parts.engine.status.busy_since is not None
    assert ask(parts, "/live")[0] == 200


def test_an_unready_worker_names_all_reasons_and_stays_live(
    parts: Supervisor,
) -> None:
    """A worker that is not ready names all reasons, and stays live."""
    parts.outbox.disconnect()
    parts.engine.trusted_until = time.monotonic() - 1
    parts.engine.stop()
    parts.engine.publish()
    for member in parts.pool.members:
        member.ready = False

    status, found = asked(parts, "/ready")
    assert status == 503
    for said in (
        "0 of 1 processes",
        "no connection to the database",
        "no heartbeat",
        "the worker is stopping",
    ):
        assert said in "; ".join(found["reasons"])

    assert asked(parts, "/live") == (200, {**found, "ok": True, "reasons": []})


def connected(parts: Supervisor) -> socket.socket:
    assert parts.options.health_port
    return socket.create_connection(("127.0.0.1", parts.options.health_port))


def cut_off(client: socket.socket, more: bytes) -> bool:
    """Return whether the server closes a connection without an answer.

    ``more`` is sent again and again meanwhile.
    """
    client.settimeout(0.1)
    deadline = time.monotonic() + 20

    while time.monotonic() < deadline:
        try:
            client.sendall(more)
            return client.recv(1) == b""
        except TimeoutError:
            continue
        except ConnectionError:
            return True

    return False


@pytest.mark.parametrize(
    ("seconds", "first", "more"),
    [
        (1.0, b"", b"X-Slow: 1\r\n"),
        (300.0, b"?" + b"x" * 6_000, b"X-Long: " + b"y" * 400 + b"\r\n"),
    ],
    ids=["slow", "endless"],
)
def test_a_client_with_slow_or_endless_headers_is_cut_off(
    parts: Supervisor, monkeypatch: pytest.MonkeyPatch, seconds: float, first: bytes, more: bytes
) -> None:
    """A client that sends headers slowly or without end is cut off."""
    monkeypatch.setattr(health_server, "REQUEST_SECONDS", seconds)

    with connected(parts) as client:
        client.sendall(b"GET /live" + first + b" HTTP/1.1\r\n")
        assert cut_off(client, more)

    assert ask(parts, "/live")[0] == 200


def test_a_crowd_of_silent_clients_keeps_no_probe_waiting(
    parts: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def threads() -> int:
        return sum("process_request_thread" in thread.name for thread in threading.enumerate())

    monkeypatch.setattr(health_server, "REQUEST_SECONDS", 300.0)
    with ExitStack() as stack:
        stack.enter_context(connected(parts)).sendall(b"\x16\x03\x01\xff\xfe\r\n\r\n")
        for _ in range(150):
            last = stack.enter_context(connected(parts))
        last.sendall(b"GET /live HTTP/1.0\r\n")

        assert ask(parts, "/live")[0] == 200
        wait_until(lambda: threads() <= 16, "the others are cut off")

        last.sendall(b"\r\n")
        assert last.recv(12) == b"HTTP/1.0 200", "who came last is answered"


def test_a_port_in_use_is_named_and_the_address_may_be_of_ipv6() -> None:
    engine: Any = None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        for address, said in (
            ({"health_port": port}, f"--health-port: cannot listen on 127.0.0.1:{port}"),
            ({"health_port": 0, "health_host": "192.0.2.1"}, "192.0.2.1"),
        ):
            options = WorkerOptions(queues=(), processes=1, **address)
            with pytest.raises(WorkerStartError, match=said), serving_health(options, engine):
                raise AssertionError("nothing may start")

    if socket.has_ipv6:
        try:
            server = HealthServer("::1", 0, engine)
        except OSError as error:
            pytest.skip(f"no IPv6 on the loopback interface: {error}")

        assert server.server_address[0] == "::1"
        server.server_close()


class Listening:
    """A listener, the connection of the engine that tests it, and the received notifications.

    These are words with their moments, and runs to advance.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.prefix = channel_prefix(connection)
        self.woken: list[str] = []
        self.moments: list[float] = []
        self.runs: list[uuid.UUID] = []
        self.selector = selectors.DefaultSelector()

        listener = Listener("default", "_new", application_name="horsies test", own="_alone")
        words = {
            word: partial(self.wake, word)
            for word in ("default", "sync default", "now sync default")
        }

        resilience = Resilience(db_retry_initial_ms=100)
        anew = partial(self.wake, "anew")
        self.notifications = NotificationListener(
            listener, self.selector, resilience, words, anew, self.runs.append
        )

    def wake(self, word: str, moment: float = 0.0) -> None:
        self.woken.append(word)
        self.moments.append(moment)

    def tick(self, after: float = 0.0) -> None:
        """Run the work of the listener that is due so many seconds from now."""
        self.notifications.tick(time.monotonic() + after, self.connection, self.prefix)

    def hears(self) -> None:
        """Wait until a notification arrives, and let the listener receive it."""
        wait_until(lambda: self.selector.select(0), "something arrives")
        self.notifications.receive()


@pytest.fixture
def listening(connect: Connect) -> Iterator[Listening]:
    made = Listening(connect())
    made.tick()
    assert made.woken == ["anew"]  # earlier notifications did not arrive here

    yield made

    made.notifications.close()
    made.selector.close()


def test_any_notification_proves_the_connection(
    listening: Listening,
) -> None:
    """Any notification, of a test or of a task, proves the connection.

    A notification of a test wakes no worker.
    """
    backend = listening.notifications.listener.connection
    listening.tick()
    assert listening.notifications.testing

    listening.hears()
    assert not listening.notifications.testing

    listening.tick(LONGEST_SELF_TEST_SECONDS + 1)
    listening.tick(SELF_TEST_SECONDS + 1)
    assert listening.notifications.testing  # again, after a while without any notification
    listening.hears()
    assert listening.woken == ["anew"]

    put()
    listening.hears()
    listening.tick(SELF_TEST_SECONDS + 1)
    assert not listening.notifications.testing
    assert listening.notifications.listener.connection is backend


@pytest.mark.parametrize("unread", [True, False], ids=["unread", "no call"])
def test_an_unread_answer_is_not_taken_for_a_missing_one(
    listening: Listening, unread: bool
) -> None:
    """An answer that is unread, or to a test that was never sent, does not count as missing."""
    listening.tick()

    if unread:
        wait_until(lambda: listening.selector.select(0), "the answer is there")
        listening.tick(LONGEST_SELF_TEST_SECONDS + 1)
    else:
        listening.notifications.tick(time.monotonic() + LONGEST_SELF_TEST_SECONDS + 1, None, "")

    assert listening.notifications.listener.connection is not None
    assert not listening.notifications.unreachable
    assert not listening.notifications.testing


def test_a_signal_to_a_workflow_names_its_run(listening: Listening) -> None:
    """A signal to a workflow names its run, and causes no search for tasks."""
    flow = Workflow("waits")
    flow.signal("go")
    handle = flow.send()

    for number in range(2):
        handle.signal("go", number)
        listening.hears()

    assert listening.runs == [handle.workflow_id] * 2
    assert listening.woken == ["anew"]


def test_only_due_tasks_of_its_own_queues_wake_a_worker(
    listening: Listening,
) -> None:
    """Due tasks are notified apart from later ones, and wake only workers of their queue.

    Unknown texts of strangers wake no worker.
    """
    listening.connection.execute(
        "SELECT pg_notify(%s, 'a text of a stranger')", [f"{listening.prefix}_new"]
    )
    listening.hears()

    for sent in ({"queue": "mail"}, {}, {"due_at": timezone.now() + timedelta(minutes=1)}):
        put(**sent)
        listening.hears()

    assert listening.woken == ["anew", "sync default", "default"]


def test_an_unelected_worker_receives_only_messages_to_itself(
    listening: Listening,
) -> None:
    """A worker that is not elected receives only messages to itself."""
    listening.notifications.listen_to_all(wanted=False)
    assert (listening.notifications.healthy, listening.notifications.receives_all) == (True, False)

    put()
    listening.connection.execute(
        "SELECT pg_notify(%s, 'now sync default')", [f"{listening.prefix}_alone"]
    )
    listening.hears()

    listening.notifications.listen_to_all(wanted=True)
    put()
    listening.hears()

    assert listening.woken == ["anew", "now sync default", "anew", "sync default"], (
        "what was sent first was not heard"
    )

    listening.notifications.listen_to_all(wanted=False)
    backend = listening.notifications.listener.connection
    listening.connection.execute("SELECT pg_terminate_backend(%s)", [backend.info.backend_pid])
    wait_until(lambda: listening.selector.select(0), "the server says so")

    listening.notifications.listen_to_all(wanted=True)
    assert not listening.notifications.healthy, (
        "a lost connection is found when the worker is elected"
    )

    listening.notifications.listen_to_all(wanted=True)
    listening.tick()
    assert listening.notifications.receives_all


def test_a_silent_connection_is_replaced_and_logged(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    silent = listening.notifications.listener.connection
    assert silent is not None
    silent.execute("UNLISTEN *")  # as a pooler that lends the session to another client
    listening.tick()

    with caplog.at_level(logging.INFO, "horsies"):
        listening.tick(LONGEST_SELF_TEST_SECONDS + 1)
        assert silent.closed
        assert "the LISTEN connection is silent" in caplog.text

        listening.tick(60)  # it listens anew
        assert listening.woken == ["anew", "anew"]
        assert listening.notifications.unreachable

        listening.tick()
        listening.hears()

    assert not listening.notifications.unreachable
    assert caplog.messages[-1] == "notifications arrive again"


@pytest.mark.promise("S2.11")
def test_all_notifications_of_a_queue_in_a_commit_are_received(listening: Listening) -> None:
    moments = [1763748000.5, 1763747999.5, 1763748002.5]

    with listening.connection.transaction():  # the notifications of one commit arrive together
        for moment in moments:
            listening.connection.execute(
                "SELECT pg_notify(%s, %s)", [listening.prefix + "_new", f"{moment} default"]
            )
    listening.hears()

    assert listening.moments[1:] == moments


def test_notifications_of_other_channels_are_ignored(
    listening: Listening,
) -> None:
    """Notifications of other channels on the same connection are ignored.

    Behind a pooler, another client may have used LISTEN on the connection of the server.
    """
    listener = listening.notifications.listener
    assert listener.connection is not None
    listener.connection.execute("LISTEN somebody_elses")

    listening.connection.execute("SELECT pg_notify('somebody_elses', '0 default')")
    listening.hears()

    assert listening.woken == ["anew"]
    assert not listener.received, "it proves nothing about our own channels"


def test_a_partition_that_a_lock_stalled_goes_on_soon(build: Build, connect: Connect) -> None:
    """Fails if: the worker waits for the lock, or the partition waits for the sweep, half a minute
    later.
    """
    limit("default", partition_by_args=["n"], partition_policy="stop")
    parts = build()
    other = connect()
    engine = parts.engine
    engine.notifications.listen()
    first, second = put(2, name=tasks.noop.name, kwargs=["{}"] * 2)
    Task.objects.filter(pk=second).update(parked=True)

    with other.transaction():
        other.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", [second])
        engine.wakeups.check_everywhere()
        turns_until(parts, lambda: status(first) == "COMPLETED")
        turns_until(parts, lambda: engine.stalled.tried)
        assert status(second) == "PENDING"
    engine.wakeups.poll_at = math.inf

    turns_until(parts, lambda: status(second) == "COMPLETED")


def test_a_partition_is_tried_less_often_while_its_lock_lasts() -> None:
    stalled = StalledPartitions(clock=lambda: 0.0)
    told = Stalled(uuid.uuid4(), at_once=False)
    waits = []

    for _ in range(7):
        stalled.add(told)
        waits.append(stalled.at)
        stalled.clock = partial(float, stalled.at)
        assert stalled.take() == [told.task]
        stalled.clock = lambda: 0.0

    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]

    stalled.add(told._replace(task=uuid.uuid4()))
    assert stalled.at == 0.1

    stalled.add(told._replace(at_once=True))
    assert stalled.at == 0.0


def test_a_flood_of_stalled_partitions_is_left() -> None:
    """Fails if: a role that may only notify fills the memory of workers."""
    stalled = StalledPartitions()

    for _ in range(2_000):
        stalled.add(Stalled(uuid.uuid4(), at_once=False))

    assert len(stalled.left) == 1_000
