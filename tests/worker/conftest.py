"""What tests of the parts of a worker share: the parts, put together, without the loop that drives them."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator

import pytest

from horsies_django.conf import Config, config
from horsies_django.worker.ipc import Channel
from horsies_django.worker.maintenance.health_server import serving_health
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.supervisor import Supervisor
from tests.conftest import wait_until

Build = Callable[..., Supervisor]


@pytest.fixture
def build(transactional_db: None) -> Iterator[Build]:
    """Give a function that puts the parts of a worker together; it runs tasks itself, and is connected, unless told otherwise."""
    built: list[Supervisor] = []

    def build_(settings: Config | None = None, *, started: bool = True, **options: object) -> Supervisor:
        chosen = {"queues": ("default",), "processes": 0, **options}
        parts = Supervisor(settings or config(), WorkerOptions(**chosen))  # type: ignore[arg-type]
        built.append(parts)
        if started:
            parts.outbox.connect()
            parts.pool.start()
            wait_until(lambda: parts.engine.turn(0.01) or parts.pool.ready, "the pool is ready")
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
    """The parts of a worker, ready, and its probes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = build(health_port=port)
    with serving_health(made.options, lambda: made.engine):
        made.engine.trusted_until = math.inf
        made.engine.publish()
        yield made


def channel_pair() -> tuple[Channel, Channel]:
    """Return both ends of a channel."""
    here, there = socket.socketpair()
    return Channel(here), Channel(there)
