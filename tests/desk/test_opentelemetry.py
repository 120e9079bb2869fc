"""What OpenTelemetry is told in the process that runs a task: its spans, and what must not disturb the task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import override_settings
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from horsies_django import Retry, Skip, Snooze, task
from horsies_django.contrib import opentelemetry as contrib
from horsies_django.core.metadata import encode_metadata
from horsies_django.models import Task
from horsies_django.testing import drain
from tests.apps.project import tasks

PATH = "horsies_django.contrib.opentelemetry"
IDS = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
PARENT = f"00-{IDS[0]:032x}-{IDS[1]:016x}-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Collect the spans of this process, in which the settings name the middleware and the carrier."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(contrib, "tracer", provider.get_tracer("tests"))
    return exporter


@contextmanager
def hooked() -> Iterator[None]:
    with override_settings(HORSIES={"METADATA": [f"{PATH}.carrier"], "MIDDLEWARE": [f"{PATH}.tracing"]}):
        yield


@contextmanager
def within(state: list[tuple[str, str]] | None = None) -> Iterator[None]:
    """Be in a span of a request."""
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    found = trace.SpanContext(*IDS, is_remote=False, trace_flags=flags, trace_state=trace.TraceState(state or []))
    with trace.use_span(trace.NonRecordingSpan(found)):
        yield


class Hostile(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


@task
def ends(how: str) -> None:
    raise {
        "skip": Skip("no"),
        "snooze": Snooze(60),
        "retry": Retry("later"),
        "hostile": Hostile(),
        "exit": SystemExit(3),
    }[how]


def ended(exporter: InMemorySpanExporter) -> ReadableSpan:
    (found,) = exporter.get_finished_spans()
    exporter.clear()
    return found


def test_the_carrier_gives_the_span_of_the_sender_alone_and_what_is_too_long_not_at_all() -> None:
    """Naive: it is the propagator of the project, and baggage of any size, or a state of 10 KiB, fails the send."""
    assert contrib.carrier() == {}
    with within([("vendor", "a")]):
        token = context.attach(baggage.set_baggage("customer", "ann@example.org"))
        try:
            assert contrib.carrier() == {"traceparent": PARENT, "tracestate": "vendor=a"}
        finally:
            context.detach(token)
    with within([(f"v{number}", "x" * 200) for number in range(30)]):
        sent = contrib.carrier()
        assert sent == {"traceparent": PARENT}
        encode_metadata(sent)


@pytest.mark.django_db
def test_the_span_of_the_sender_is_the_parent_and_a_link_and_its_state_goes_on(spans: InMemorySpanExporter) -> None:
    with hooked():
        with within([("vendor", "a")]):
            tasks.add.send(1)
        drain()
    span = ended(spans)
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id, span.parent.is_remote) == (*IDS, True)
    assert span.parent.trace_state == trace.TraceState([("vendor", "a")])
    assert [link.context for link in span.links] == [span.parent]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "metadata",
    [
        {"traceparent": 7},
        {"traceparent": ["00"]},
        {"traceparent": "00-zz"},
        {"traceparent": PARENT, "tracestate": {"a": 1}},
    ],
    ids=repr,
)
def test_metadata_of_others_under_these_names_fails_no_task(spans: InMemorySpanExporter, metadata: Any) -> None:
    with hooked():
        handle = tasks.add.with_options(metadata=metadata).send(1)
        drain()
    assert handle.get().is_ok()
    assert (ended(spans).parent is not None) is (metadata["traceparent"] == PARENT)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("how", "kind", "code"),
    [
        ("skip", None, None),
        ("snooze", None, None),
        ("retry", "horsies_django.core.retry.Retry", "RETRY_REQUESTED"),
        ("hostile", f"{__name__}.Hostile", "UNHANDLED_ERROR"),
        ("exit", "SystemExit", "UNHANDLED_ERROR"),
    ],
)
def test_an_attempt_that_raises_is_an_error_unless_it_skips_or_snoozes(
    spans: InMemorySpanExporter, how: str, kind: str | None, code: str | None
) -> None:
    """Naive: the text of the exception raises while it is recorded, and the task fails for another reason."""
    with hooked():
        handle = ends.send(how)
        drain(raise_errors=False)
    span = ended(spans)
    assert span.attributes is not None
    assert span.attributes.get("error.type") == kind
    assert span.status.is_ok is (kind is None)
    assert (span.status.status_code is trace.StatusCode.ERROR) is (kind is not None)
    assert [event.name for event in span.events] == (["exception"] if kind and how != "hostile" else [])
    if code:
        row = Task.objects.get(pk=handle.task_id)
        assert row.error_code == code
        assert kind.rpartition(".")[2] in row.result["err"]["exception"]["traceback"].splitlines()[-1]


@pytest.mark.django_db
def test_async_tasks_and_what_they_send_go_on_with_it(spans: InMemorySpanExporter) -> None:
    with hooked():
        with within():
            async_to_sync(tasks.anoop.asend)()
            tasks.sends_more.send(1)
        drain()
    found = {(span.attributes or {})["horsies.task"]: span for span in spans.get_finished_spans()}
    first, last = [
        span for span in spans.get_finished_spans() if (span.attributes or {})["horsies.task"] == tasks.sends_more.name
    ]
    assert {span.context.trace_id for span in spans.get_finished_spans() if span.context} == {IDS[0]}
    assert found[tasks.anoop.name].name == "process default"
    assert first.context is not None
    assert last.parent is not None
    assert last.parent.span_id == first.context.span_id
