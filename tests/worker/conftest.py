"""Fixtures and helpers for tests of the parts of a worker.

The parts are put together without the loop that drives them.
"""

from __future__ import annotations

import http.client
import math
import socket
from collections.abc import Callable, Iterator

import pytest

from horsies_django.conf import Config, config
from horsies_django.core.records import Claim
from horsies_django.tasks.ids import uuid7
from horsies_django.worker.ipc import Channel
from horsies_django.worker.maintenance.health_server import serving_health
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.supervisor import Supervisor
from tests.conftest import wait_until

Build = Callable[..., Supervisor]


@pytest.fixture
def build(transactional_db: None) -> Iterator[Build]:
    """Return a function that puts the parts of a worker together.

    By default, the worker is connected, and runs tasks without children.
    """
    built: list[Supervisor] = []

    def build_(
        settings: Config | None = None, *, started: bool = True, **options: object
    ) -> Supervisor:
        chosen = {"queues": ("default",), "processes": 0, **options}
        parts = Supervisor(settings or config(), WorkerOptions(**chosen))  # type: ignore[arg-type]
        built.append(parts)

        if started:
            parts.outbox.connect()
            parts.pool.start()
            turns_until(parts, lambda: parts.pool.ready)

        return parts

    yield build_
    for parts in built:
        parts.pool.stop()
        parts.outbox.disconnect()
        parts.kill_timer.disarm()
        parts.engine.close()
        parts.selector.close()


@pytest.fixture
def parts(build: Build) -> Iterator[Supervisor]:
    """Return the parts of a worker that is ready, with its probes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = build(health_port=port)

    with serving_health(made.options, lambda: made.engine):
        made.engine.trusted_until = math.inf
        made.engine.publish()
        yield made


def ask(parts: Supervisor, path: str, method: str = "GET") -> tuple[int, str]:
    """Return the status and text of an answer of the probes."""
    client = http.client.HTTPConnection("127.0.0.1", parts.options.health_port, timeout=10)
    try:
        client.request(method, path)
        answer = client.getresponse()
        return answer.status, answer.read().decode()
    finally:
        client.close()


def turns_until(parts: Supervisor, condition: Callable[[], object]) -> None:
    """Turn the engine until a condition is true."""
    wait_until(lambda: parts.engine.turn(0.01) or condition(), "it has turned")


def claims(count: int, lane: str = "sync") -> list[Claim]:
    """Return claims of tasks that exist nowhere."""
    return [
        Claim(uuid7(), 1, lane, "tests.nothing", "{}", 1, None, "default") for _ in range(count)
    ]


def channel_pair() -> tuple[Channel, Channel]:
    """Return both ends of a channel."""
    here, there = socket.socketpair()
    return Channel(here), Channel(there)
