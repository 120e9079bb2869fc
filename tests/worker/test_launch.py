"""Children: the channels that carry their messages, and how they hear that their worker is gone."""

from __future__ import annotations

import os
import pickle
import selectors
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from horsies_django.core.records import Claim
from horsies_django.worker.child.executor import AsyncLane
from horsies_django.worker.child.interrupts import Control
from horsies_django.worker.ipc import HEADER, send_all, wait_receive
from horsies_django.worker.pool.pool import Pool
from horsies_django.worker.pool.process import InProcess
from horsies_django.worker.process.memory import Gauge
from horsies_django.worker.process.options import WorkerOptions
from tests.worker.conftest import channel_pair


def test_what_prints_after_the_reader_of_its_output_has_gone_goes_on(tmp_path: Path) -> None:
    """Naive: once a log shipper has died, each task that prints fails."""
    code = (
        "import sys; from pathlib import Path; from horsies_django.worker.child import bootstrap; bootstrap.outlive_output(); "
        "print('x' * 100_000, flush=True); print('y', end='', flush=True); print('z', file=sys.stderr); "
        "Path(sys.argv[1]).write_text('went on')"
    )
    reader, writer = os.pipe()
    os.close(reader)
    told = tmp_path / "told"
    done = subprocess.run([sys.executable, "-c", code, told], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr, told.read_text()) == (0, "z\n", "went on")


def test_messages_arrive_whole_in_order_and_before_the_end_of_the_other_side() -> None:
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


def test_a_sender_does_not_wait_for_a_receiver_that_does_not_read() -> None:
    here, there = channel_pair()
    big = "x" * 4_000_000
    here.send(big)
    assert not here.flush()  # the rest is kept, the sender goes on
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


CHILD = """
import os, socket, sys, threading, types
import django
from django.conf import settings
settings.configure(DATABASES={}, INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "horsies_django"])
django.setup()
from horsies_django import task
from horsies_django.worker.ipc import Channel
from horsies_django.worker.child.main import give_up
from horsies_django.worker.child.executor import Executor

@task(name="endless")
def endless() -> None:
    print("it runs", flush=True)
    threading.Event().wait()

lanes = [Channel(socket.socket(fileno=int(number))) for number in sys.argv[2:]]
Executor(*lanes, int(sys.argv[1]), [0, 0], give_up).run()
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_child_ends_in_the_middle_of_a_sync_task_when_its_pipes_do(threads: int) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    theirs = [there.fileno() for _, there in pairs]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(threads), *map(str, theirs)],
        pass_fds=theirs,
        cwd=root,
        stdout=subprocess.PIPE,
    ) as child:
        for _, there in pairs:
            there.close()
        try:
            jobs = pickle.dumps([(1, Claim(uuid.uuid4(), 1, "sync", "endless", "{}").packed(), "")])
            pairs[0][0].sendall(HEADER.pack(len(jobs)) + jobs)
            assert child.stdout is not None
            assert child.stdout.readline() == b"it runs\n"
            for here, _ in pairs:
                here.close()
            assert child.wait(30) == 1
        finally:
            child.kill()


def test_what_a_worker_without_children_leaves_behind_when_it_starts_anew_does_not_end_it_later() -> None:
    """Naive: its lanes find their channels closed, and take that for a worker that hangs."""
    with selectors.DefaultSelector() as selector:
        pool = Pool(WorkerOptions(("default",), processes=0), selector)
        pool.start()
        (member,) = pool.members
        assert isinstance(member, InProcess)
        pool.kill("belonged to a worker that was declared dead")
        member.thread.join(30)
    assert not member.thread.is_alive()
    assert not [one for one in threading.enumerate() if isinstance(one, threading.Timer)]


def test_a_loop_whose_worker_was_gone_before_it_ran_does_not_end_as_if_all_were_done() -> None:
    (ours, theirs), (_, control) = channel_pair(), channel_pair()
    lane = AsyncLane(theirs, [0, 0], Control(control), Gauge(None))
    ours.close()
    with pytest.raises(EOFError):
        lane.serve()
