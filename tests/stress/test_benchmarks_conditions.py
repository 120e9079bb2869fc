"""Drains under conditions, memory and fairness are measured, and the link that delays delays; figures are not judged here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.link import far_away
from tests.support.workers import ROOT, database_url

pytestmark = pytest.mark.stress

MEGABYTE = 1_048_576
# scenario -> the units of its readings, by their names
READINGS = {
    "growth": {
        "growth drain, empty table": "tasks/s",
        "growth drain, finished rows": "tasks/s",
        "growth drain, pending rows": "tasks/s",
        "growth drain, far-future rows": "tasks/s",
    },
    "xmin": {
        "xmin first tenth": "tasks/s",
        "xmin last tenth": "tasks/s",
        "xmin first tenth, queue cap": "tasks/s",
        "xmin last tenth, queue cap": "tasks/s",
    },
    "rtt": {
        "rtt drain sync, soft mode, 2 processes": "tasks/s",
        "rtt tasks of 20 ms, hard mode, 4 processes, share of what is possible": "share",
    },
    "memory": {
        "memory parent": "MB",
        "memory further child": "MB",
        "memory child with waiting coroutines": "MB",
    },
    "mixed": {"mixed wait, with tasks of 1 s": "ms", "mixed wait, without": "ms"},
}


def readings(name: str) -> list[dict[str, Any]]:
    """Run a scenario, as small as it can be, and return the readings that it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--scale=0.001", "--repeats=1"],
        cwd=ROOT, env={**os.environ, "DATABASE_URL": database_url()},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line for line in lines if {"name", "value", "unit"} <= line.keys()]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name in ("memory", "mixed"))) for name in READINGS]
)
def test_each_condition_is_measured_once_a_repeat(name: str) -> None:
    found = readings(name)
    assert sorted((line["name"], line["unit"]) for line in found) == sorted(READINGS[name].items())
    assert all(line["value"] > 0 for line in found)


@contextmanager
def echo() -> Iterator[str]:
    """Answer on one connection with what comes, and give the URL of it."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            client, _ = door.accept()
            with client:
                while data := client.recv(MEGABYTE):
                    client.sendall(data)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"postgresql://user:secret@127.0.0.1:{door.getsockname()[1]}/name"
        thread.join(60)
        assert not thread.is_alive()


def door_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)


def test_a_round_trip_through_the_link_takes_at_least_twice_its_delay() -> None:
    with echo() as url, far_away(url, 5) as further, socket.create_connection(door_of(further)) as client:
        for _ in range(20):
            sent = time.monotonic()
            client.sendall(b"?")
            assert client.recv(1) == b"?"
            assert time.monotonic() - sent >= 0.01


def test_the_link_passes_on_every_byte_in_order_and_then_the_end() -> None:
    sent = os.urandom(20 * MEGABYTE)

    def send() -> None:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)

    with echo() as url, far_away(url, 1) as further, socket.create_connection(door_of(further)) as client:
        client.settimeout(60)
        sender = threading.Thread(target=send)
        sender.start()
        received = bytearray()
        while data := client.recv(MEGABYTE):
            received += data
        sender.join()
    assert received == sent


def test_the_url_of_the_link_differs_in_its_door_only() -> None:
    url = "postgresql://user:secret@127.0.0.1:1/name?sslmode=disable"
    with far_away(url, 1) as further:
        assert further == url.replace("127.0.0.1:1/", f"127.0.0.1:{door_of(further)[1]}/")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(door_of(further))


def test_who_comes_while_the_server_is_away_is_turned_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        url = f"postgresql://user:secret@127.0.0.1:{door.getsockname()[1]}/name"
    with far_away(url, 1) as further, socket.create_connection(door_of(further)) as client:
        client.settimeout(60)
        assert client.recv(1) == b""
