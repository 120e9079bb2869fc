"""The engine, one turn of its loop at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest

from horsies_django.conf import config
from horsies_django.models import Task
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.supervisor import Supervisor
from tests.apps.project import tasks
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def parts(transactional_db: None) -> Iterator[Supervisor]:
    """The parts of a worker that runs tasks itself, connected and ready; no loop runs."""
    made = Supervisor(config(), WorkerOptions(queues=("default",), processes=0))
    made.outbox.connect()
    made.pool.start()
    wait_until(lambda: made.engine.turn(0.01) or made.pool.ready, "the pool is ready")
    yield made
    made.pool.stop()
    made.outbox.disconnect()
    made.kill_timer.disarm()
    made.engine.close()
    made.selector.close()


def test_nothing_is_claimed_after_the_moment_up_to_which_the_last_beat_is_trusted(parts: Supervisor) -> None:
    """Others may have declared the worker dead since, and what it claims then would be given away while it runs."""
    id_ = tasks.noop.send().task_id
    parts.engine.trusted_until = time.monotonic() - 1
    parts.engine.wakeups.look_everywhere()
    parts.engine.turn(0.0)
    assert Task.objects.get(pk=id_).status == "PENDING"
    parts.engine.trusted_until = math.inf
    parts.engine.turn(0.0)
    assert Task.objects.get(pk=id_).status != "PENDING"
    wait_until(lambda: parts.engine.turn(0.01) or Task.objects.get(pk=id_).status == "COMPLETED", "it runs")
