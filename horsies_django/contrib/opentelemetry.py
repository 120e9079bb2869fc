"""OpenTelemetry: the trace of a sender continues in its tasks, and each attempt is a span.

Only the API of OpenTelemetry is used. The project that runs the tasks sets up the SDK; see
``docs/howto/traces.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from asgiref.sync import iscoroutinefunction

from horsies_django.core.errors import Skip
from horsies_django.core.retry import Snooze
from horsies_django.tasks.context import CurrentTask

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        f"{__name__} needs opentelemetry-api: pip install 'horsies-django[opentelemetry]'"
    ) from error

__all__ = ["carrier", "tracing"]

PROPAGATOR = TraceContextTextMapPropagator()
tracer = trace.get_tracer("horsies_django")  # uses the provider that the project sets later


def carrier() -> dict[str, str]:
    """Return ``traceparent`` and ``tracestate`` of the current span, for HORSIES["METADATA"].

    Returns {} outside of spans.
    """
    sent: dict[str, str] = {}
    PROPAGATOR.inject(sent)
    if sum(map(len, sent.values())) > 1_024:  # the most characters of a trace in the metadata
        sent.pop("tracestate")
    return sent


def tracing(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make a span of each attempt of a task, for HORSIES["MIDDLEWARE"].

    The span is a child of the span in which the task was sent.
    """

    def middleware(current: CurrentTask, args: Any, kwargs: Any) -> Any:
        with attempt_span(current):
            return call(current, args, kwargs)

    async def async_middleware(current: CurrentTask, args: Any, kwargs: Any) -> Any:
        with attempt_span(current):
            return await call(current, args, kwargs)

    return async_middleware if iscoroutinefunction(call) else middleware


@contextmanager
def attempt_span(current: CurrentTask) -> Iterator[None]:
    """Run a block in the span of an attempt.

    The span fails if the block raises an exception other than Skip and Snooze.
    """
    sent = {
        name: text
        for name in PROPAGATOR.fields
        if isinstance(text := current.metadata.get(name), str)
    }
    parent = PROPAGATOR.extract(sent)
    sender = trace.get_current_span(parent).get_span_context()

    attributes: dict[str, str | int] = {
        "messaging.system": "horsies",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": current.queue_name,
        "messaging.message.id": str(current.task_id),
        "horsies.task": current.name,
        "horsies.attempt": current.attempt,
    }

    with tracer.start_as_current_span(
        f"process {current.queue_name}",
        parent,
        trace.SpanKind.CONSUMER,
        attributes,
        [trace.Link(sender)],
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except (Skip, Snooze):
            raise
        except BaseException as error:
            kind = type(error)
            span.set_attribute(
                "error.type", f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
            )
            span.set_status(trace.StatusCode.ERROR)
            with suppress(Exception):  # the text of the error comes from code of the project
                span.record_exception(error)
            raise
