"""Processes of a worker: the channels and pipes of children, the place of a failure, and signals.

Signals may arrive at any moment.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.utils.dateparse import parse_date

from horsies_django.core.errors import StopRequested
from horsies_django.core.records import Claim, Reply, packed_claim
from horsies_django.worker.child.executor import AsyncLane
from horsies_django.worker.child.interrupts import Control
from horsies_django.worker.child.run_task import project_path, site_of
from horsies_django.worker.ipc import HEADER, MARK, ODD, send_all, wait_receive
from horsies_django.worker.limits.memory import Gauge, memory_bytes
from horsies_django.worker.maintenance.heartbeat import cpu_seconds
from horsies_django.worker.pool.messages import OddMessage, checked_message
from horsies_django.worker.pool.pool import Pool
from horsies_django.worker.pool.process import InProcess
from horsies_django.worker.pool.timeouts import is_stopped
from horsies_django.worker.process import shutdown
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.process.shutdown import Shutdown, urgency_after
from tests.apps.project import tasks
from tests.conftest import wait_until
from tests.worker.conftest import channel_pair


def test_messages_arrive_whole_and_in_order() -> None:
    """Messages arrive whole and in order, before the end of the other side."""
    here, there = channel_pair()
    assert here.receive() == there.receive() == []

    for number in range(100):
        here.send([(number, "x" * number)])
    here.close()

    got: list[object] = []
    while len(got) < 100:
        got += wait_receive(there)
    assert got == [[(number, "x" * number)] for number in range(100)]

    with pytest.raises(EOFError):
        wait_receive(there)


def test_a_sender_does_not_wait_for_a_peer_that_does_not_read() -> None:
    """A sender does not wait for a peer that does not read."""
    here, there = channel_pair()
    big = "x" * 4_000_000

    here.send(big)
    assert not here.flush()  # the rest is kept, and the sender goes on

    reader = threading.Thread(target=lambda: got.extend(wait_receive(there)))
    got: list[str] = []
    reader.start()
    send_all(here, "after")
    reader.join(30)

    while len(got) < 2:
        got += wait_receive(there)

    assert got == [big, "after"]


def test_sending_to_a_peer_that_is_gone_raises_nothing() -> None:
    here, there = channel_pair()
    there.close()

    here.send("nobody hears this")
    assert here.flush()


class Runs:
    """An object that runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    "frame",
    [
        HEADER.pack(MARK, 4) + b"\x80\x05..",
        HEADER.pack(MARK, 3) + b"abc",
        b"Traceback (most recent call last)",
        *(
            HEADER.pack(MARK, len(body)) + body
            for body in map(pickle.dumps, [Runs(), uuid.uuid4(), print])
        ),
    ],
    ids=["nothing", "no pickle", "text", "code", "an object", "a function"],
)
def test_a_channel_reads_plain_values_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frame: bytes
) -> None:
    """Fails if: a message can name a class or a function, or stops the reader."""
    monkeypatch.chdir(tmp_path)
    here, there = channel_pair()
    here.send(("before", None))
    here.end.send(frame)
    here.send(("after", None))

    before, (kind, _) = there.receive()

    assert (before, kind) == (("before", None), ODD)
    assert there.receive() == []
    assert list(tmp_path.iterdir()) == []


REPLY = ("CANCELLED", "{}", None, None, None, False, (), None)


def test_a_reply_of_a_child_is_an_ordinary_message() -> None:
    """Fails if: the check lacks a field of Reply, and each child is killed at its first reply."""
    failed = Reply("FAILED", "{}", "OH_NO", "no", 1.5, False, ("LookupError",), '{"cart": 3}')

    for reply in (failed, Reply("COMPLETED", '{"ok":1}')):
        assert checked_message(("ran", (1, reply.packed(), 0.1))) == (
            "ran",
            (1, reply.packed(), 0.1),
        )
        assert Reply.unpacked(reply.packed()) == reply


@pytest.mark.parametrize(
    "message",
    [
        None,
        7,
        ("ran",),
        ("bad", 1),
        ([], []),
        ("ran", None),
        ("ran", (1, REPLY)),
        ("ran", ("1", REPLY, 0.1)),
        ("ran", (1, REPLY[1:], 0.1)),
        ("ran", (1, "\0", 0.1)),
        ("ran", (1, b"{}", 0.1)),
        ("ran", (1, ("RUNNING", *REPLY[1:]), 0.1)),
        ("ran", (1, ("FAILED", b"{}", *REPLY[2:]), 0.1)),
        ("ran", (1, ("FAILED", "\0", *REPLY[2:]), 0.1)),
        ("ran", (1, ("FAILED", "\ud800", *REPLY[2:]), 0.1)),
        ("ran", (1, ("FAILED", "{}", 5, *REPLY[3:]), 0.1)),
        ("ran", (1, ("FAILED", "{}", "A", "b", {"most": {1}}, False, (), None), 0.1)),
        ("ran", (1, ("FAILED", "{}", "A", "b", None, False, (), 5), 0.1)),
        ("done", [(1, REPLY, 0.1), 5]),
        ("back", ["1"]),
        ("full", "much"),
        ("ready", "much"),
        ("failed", None),
    ],
)
def test_a_message_of_another_shape_is_refused(message: Any) -> None:
    """Fails if: a message of another shape raises an error in the worker's own process later."""
    with pytest.raises(OddMessage):
        checked_message(message)


CHILD = """
import socket, sys
import django
from horsies_django.tasks import registry
from horsies_django.worker.ipc import Channel
from horsies_django.worker.child.executor import Executor
from horsies_django.worker.child.main import give_up

django.setup()
registry.autodiscover()
lanes = [Channel(socket.socket(fileno=int(number))) for number in sys.argv[2:]]
Executor(*lanes, int(sys.argv[1]), [0, 0], give_up).run()
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_child_ends_during_a_sync_task_when_its_pipes_close(tmp_path: Path, threads: int) -> None:
    """A child ends in the middle of a sync task when its pipes close."""
    pairs = [socket.socketpair() for _ in range(3)]
    path = tmp_path / "runs"
    theirs = [there.fileno() for _, there in pairs]
    command = [sys.executable, "-c", CHILD, str(threads), *map(str, theirs)]

    with subprocess.Popen(command, pass_fds=theirs, cwd=Path(__file__).parents[2]) as child:
        for _, there in pairs:
            there.close()

        try:
            endless = Claim(
                uuid.uuid4(), 1, "sync", tasks.linger.name, json.dumps({"path": str(path)})
            )
            jobs = pickle.dumps([(1, packed_claim(endless), "")])
            pairs[0][0].sendall(HEADER.pack(MARK, len(jobs)) + jobs)
            wait_until(path.exists, "it runs")

            for here, _ in pairs:
                here.close()
            assert child.wait(30) == 1
        finally:
            child.kill()


def test_a_restarted_worker_without_children_leaves_no_timer() -> None:
    """A restart of a worker without children leaves no timer that ends the process later.

    Fails if: its lanes find their channels closed, and start the timer as if their worker hung.
    """
    with selectors.DefaultSelector() as selector:
        pool = Pool(WorkerOptions(("default",), processes=0), selector)
        pool.start()
        (member,) = pool.members
        assert isinstance(member, InProcess)

        pool.kill("belonged to a worker that was declared dead")
        member.thread.join(30)

    assert not member.thread.is_alive()
    assert not [one for one in threading.enumerate() if isinstance(one, threading.Timer)]


def test_a_lane_without_a_worker_raises_eof_error() -> None:
    """A lane whose worker is gone before it runs raises EOFError, and does not end normally."""
    (ours, theirs) = channel_pair()
    (_, control) = channel_pair()
    lane = AsyncLane(theirs, [0, 0], Control(control), Gauge(None))

    ours.close()
    with pytest.raises(EOFError):
        lane.serve()


def test_processes_are_not_read_while_no_file_can_be_opened() -> None:
    """Fails if: the heartbeat, or a task, ends with an error of the operating system."""
    gauge = Gauge(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        read = (
            memory_bytes(os.getpid()),
            cpu_seconds(os.getpid()),
            is_stopped(os.getpid()),
            gauge.full(),
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert read == (0, 0.0, False, None)


HERE = "tests/worker/test_processes.py in "


def raised(function: Any, *arguments: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - any
        function(*arguments)
    return caught.value


def nested() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        raise LookupError from error


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (json.loads, "{", "raised"),
        (parse_date, 5, "raised"),
        (nested, None, "nested"),
        (tasks.add.send, object(), "raised"),
    ],
    ids=["Python", "Django", "a cause", "this package"],
)
def test_frames_of_libraries_are_passed_over(function: Any, arguments: Any, name: str) -> None:
    """Fails if: all failures of a kind are one group, which has the name of a line of the standard
    library or of Django.
    """
    error = raised(function, *(() if arguments is None else (arguments,)))
    site = site_of(error)

    assert site is not None
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.name == name
    ]
    assert site == (f"{HERE}{name}", lines[-1])


def test_an_error_without_a_frame_of_the_project_has_no_site() -> None:
    assert site_of(LookupError()) is None
    assert site_of(raised(eval, "1 / 0").with_traceback(None)) is None

    inner = raised(json.loads, "{")
    assert inner.__traceback__ is not None
    assert site_of(inner.with_traceback(inner.__traceback__.tb_next)) is None


def test_a_path_begins_below_the_folder_that_is_imported_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner = tmp_path / "src"
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(inner), *sys.path])
    project_path.cache_clear()

    assert project_path(str(inner / "shop" / "tasks.py")) == "shop/tasks.py"
    assert project_path("/elsewhere/shop/tasks.py") == "/elsewhere/shop/tasks.py"
    assert project_path("<string>") is None

    project_path.cache_clear()


FILE = shutdown.__file__

MANY = 5_000  # more than a socket holds without a reader


@pytest.fixture
def handlers() -> Iterator[dict[int, Any]]:
    """Yield the signal handlers of the process, and restore them afterwards."""
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_volley_of_signals_that_nobody_reads_raises_nothing(handlers: dict[int, Any]) -> None:
    """A volley of signals raises no error while the engine is too busy to read them.

    Fails if: an error ends the process with -2, or before its last records are written.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run with it ignored

    with Shutdown() as stopping:
        for _ in range(MANY):
            signal.raise_signal(signal.SIGHUP)

    assert stopping.seen
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def signalled_again(instruction: int) -> tuple[Shutdown, bool]:
    """Send a signal, and a second one while the handler of the first is at an ``instruction``.

    The second is not sent if the handler ends before.
    """
    left = [instruction]
    sent = []

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., object] | None:
        if frame.f_code.co_filename != FILE or sent:
            return None

        frame.f_trace_opcodes = True
        if event == "opcode":
            left[0] -= 1
            if left[0] < 0:
                sent.append(True)
                signal.raise_signal(signal.SIGTERM)

        return trace

    before = sys.gettrace()
    with Shutdown() as stopping:
        stopping.timeout = 300.0
        sys.settrace(trace)
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            sys.settrace(before)

    return stopping, bool(sent)


def test_a_second_signal_counts_during_the_handler_of_the_first() -> None:
    """A second signal counts at every point of the handler of the first.

    Fails if: the outer handler writes a value that it computed before, and the worker waits for its
    tasks for ten minutes.
    """
    for instruction in count():
        stopping, sent = signalled_again(instruction)
        if not sent:
            break

        deadline = stopping.deadline()
        assert stopping.urgency == 2, instruction
        assert deadline is not None
        assert deadline <= time.monotonic(), instruction

    assert instruction > 30


@pytest.mark.parametrize(
    ("signals", "urgency"),
    [
        ("TERM", 1),
        ("HUP", 1),
        ("HUP HUP", 1),
        ("TERM HUP", 1),
        ("HUP 9 HUP", 1),
        ("TERM TERM", 1),
        ("TERM 0.5 TERM 0.4 TERM", 1),
        ("TERM 0.5 TERM 0.6 TERM", 2),
        ("TERM 1 TERM", 2),
        ("QUIT", 2),
        ("INT INT", 2),
        ("TERM INT", 2),
        ("INT TERM", 2),
        ("HUP TERM", 2),
        ("TERM HUP INT", 2),
        ("TERM HUP TERM", 1),
    ],
)
def test_sigterm_twice_within_a_second_is_one(signals: str, urgency: int) -> None:
    """Fails if: running tasks end because a platform signals each process, and a wrapper passes its
    signal on.
    """
    now = 0.0
    came = []
    for word in signals.split():
        if word.isalpha():
            came.append((signal.Signals[f"SIG{word}"], now))
        else:
            now += float(word)

    assert urgency_after(came) == urgency


@pytest.mark.parametrize("ends_process", [False, True])
def test_once_it_shall_end_now_further_signals_are_ignored(
    handlers: dict[int, Any], ends_process: bool
) -> None:
    """Fails if: a volley of signals keeps the main thread in the handler, which stores each of
    them.
    """
    with Shutdown(ends_process=ends_process) as stopping:
        signal.raise_signal(signal.SIGTERM)
        for _ in range(MANY):
            signal.raise_signal(signal.SIGINT)

        assert len(stopping.signals) == 2
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    for number in (signal.SIGINT, signal.SIGTERM):
        assert signal.getsignal(number) == (signal.SIG_IGN if ends_process else handlers[number])


def test_a_signal_interrupts_a_start() -> None:
    with Shutdown() as stopping, pytest.raises(StopRequested), stopping.interruptible():
        signal.raise_signal(signal.SIGINT)
