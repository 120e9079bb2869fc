"""OpenTelemetry in real workers.

The span of each attempt arrives in the trace of its sender, whatever happens to its process.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.apps.project import tasks
from tests.support.collector import Collector
from tests.support.workers import Start

CONSUMER = 5


@pytest.fixture
def tracing(worker: Start, collector: Collector) -> Start:
    """Return a function that starts workers of a project with OpenTelemetry."""
    exporter = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.address}"}
    return partial(worker, DJANGO_SETTINGS_MODULE="tests.settings.opentelemetry", **exporter)


@contextmanager
def span() -> Iterator[str]:
    """Enter the span of a request, and yield its id, which tasks sent inside carry."""
    ids = random.getrandbits(128) | 1, random.getrandbits(64) | 1
    context = trace.SpanContext(
        *ids, is_remote=False, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED)
    )
    hooks = {**settings.HORSIES, "METADATA": ["horsies_django.contrib.opentelemetry.carrier"]}
    with trace.use_span(trace.NonRecordingSpan(context)), override_settings(HORSIES=hooks):
        yield f"{ids[0]:032x}-{ids[1]:016x}"


def spans(collector: Collector) -> list[dict[str, Any]]:
    """Return the spans that have arrived."""
    found = []
    for body in collector.bodies:
        request = ExportTraceServiceRequest.FromString(body)
        for one in [
            one for of in request.resource_spans for scope in of.scope_spans for one in scope.spans
        ]:
            attributes = {
                each.key: each.value.string_value or each.value.int_value for each in one.attributes
            }
            parent = f"{one.trace_id.hex()}-{one.parent_span_id.hex()}"
            found.append({"kind": one.kind, "parent": parent, "attributes": attributes})

    return found


@pytest.mark.boundary
def test_every_span_arrives_except_that_of_a_killed_task(
    tracing: Start, collector: Collector
) -> None:
    """Every span of many processes arrives, except that of a killed task.

    Fails if: a process ends while its last spans wait to be sent, or inherits the threads of
    another process.
    """
    process = tracing(
        "--processes=2", "--max-tasks-per-child=1", HORSIES_TEST_KILL_GRACE_MS="100"
    ).ready()
    parents: dict[str, str] = {}
    handles = []

    for number in range(100):
        with span() as parent:
            handles.append(tasks.pid.send())
        parents[str(handles[-1].task_id)] = parent
        if number == 50:
            killed = tasks.ignores_its_timeout.send()

    pids = {handle.get().unwrap() for handle in handles}
    assert len(pids) > 50, "while six children are ending, others take a task more"
    assert killed.get().is_err()
    assert process.stop() == 0

    found = spans(collector)
    assert {one["attributes"]["messaging.message.id"]: one["parent"] for one in found} == parents
    assert [one["kind"] for one in found] == [CONSUMER] * 100

    assert found[0]["attributes"] == {
        "messaging.system": "horsies",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": found[0]["attributes"]["messaging.message.id"],
        "horsies.task": tasks.pid.name,
        "horsies.attempt": 1,
    }


def test_a_silent_collector_delays_the_end_by_seconds_only(
    tracing: Start, collector: Collector
) -> None:
    """A collector that does not answer delays the end of a process by seconds only."""
    collector.answers.clear()
    process = tracing("--processes=1").ready()

    assert tasks.noop.send().get().is_ok()
    assert process.stop() == 0
    assert collector.bodies == []
