"""Rows whose options are none: each fails by itself, with a code, and the worker goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from horsies_django.models import Task
from tests.apps.project import tasks
from tests.conftest import put, wait_until
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)

HOSTILE = [
    '{"timeout_ms": "abc"}',
    '{"wire": "x"}',
    '{{"x": {}{}}}'.format("[" * 3_000, "]" * 3_000),
    '{"timeout_ms": %s}' % ("9" * 5_000),
    '{"timeout_ms": -1}',
]


def test_options_that_cannot_be_read_fail_their_task_with_a_code_and_end_no_worker(
    worker: Callable[..., WorkerProcess],
) -> None:
    process = worker("--processes=1").ready()
    ids = [id_ for text in HOSTILE for id_ in put(name="tests.apps.project.tasks.noop", options=text)]
    ids += put(name="tests.apps.project.tasks.anoop", lane="async", options=HOSTILE[0])
    assert tasks.add.send(1).get(30_000).is_ok()
    hostile = Task.objects.filter(pk__in=ids)
    wait_until(lambda: not hostile.exclude(status="FAILED").exists(), "each of them fails")
    assert set(hostile.values_list("error_code", flat=True)) == {"WORKER_SERIALIZATION_ERROR"}
    assert process.stop() == 0
    assert "Traceback" not in process.log
