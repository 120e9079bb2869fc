"""Where no kernel tells a child that its worker is gone, the end of its pipes does."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from horsies_django.worker.child.executor import AsyncLane
from horsies_django.worker.child.interrupts import Control
from horsies_django.worker.ipc.channel import HEADER, memory_pair
from horsies_django.worker.process.memory import Gauge

CHILD = """
import os, socket, sys, threading, types
import django
from django.conf import settings
settings.configure(DATABASES={}, INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "horsies_django"])
django.setup()
from horsies_django import task
from horsies_django.worker.ipc.channel import SocketChannel
from horsies_django.worker.child.main import give_up
from horsies_django.worker.child.executor import Executor

@task(name="endless")
def endless() -> None:
    print("it runs", flush=True)
    threading.Event().wait()

lanes = [SocketChannel(socket.socket(fileno=int(number))) for number in sys.argv[2:]]
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
            jobs = pickle.dumps([(1, "{}", ("0", "endless", 1, "default", "", 1))])
            pairs[0][0].sendall(HEADER.pack(len(jobs)) + jobs)
            assert child.stdout is not None
            assert child.stdout.readline() == b"it runs\n"
            for here, _ in pairs:
                here.close()
            assert child.wait(30) == 1
        finally:
            child.kill()


def test_a_loop_whose_worker_was_gone_before_it_ran_does_not_end_as_if_all_were_done() -> None:
    (ours, theirs), (_, control) = memory_pair(), memory_pair()
    lane = AsyncLane(theirs, [0, 0], Control(control), Gauge(None))
    ours.close()
    with pytest.raises(EOFError):
        lane.serve()
