"""Middleware around the bodies of tasks, metadata that is sent with tasks, and traces."""

from __future__ import annotations

import contextvars
import datetime as dt
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, override_settings
from django.urls import reverse
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from horsies_django import (
    Retry,
    RetryPolicy,
    Skip,
    Snooze,
    TaskSendError,
    Workflow,
    WorkflowError,
    checks,
    current_task,
    get_handle,
    task,
)
from horsies_django.contrib import opentelemetry as contrib
from horsies_django.core.errors import WorkerStartError
from horsies_django.core.metadata import encode_metadata
from horsies_django.core.records import Claim, packed_claim, unpacked_claim
from horsies_django.models import Task, WorkflowNode
from horsies_django.schedules import create, run_now
from horsies_django.tasks import operations
from horsies_django.tasks.context import CurrentTask
from horsies_django.tasks.redaction import redact
from horsies_django.testing import drain
from horsies_django.worker import startup
from horsies_django.worker.child import middleware
from horsies_django.worker.child.interrupts import SyncRun
from horsies_django.worker.child.run_task import run_sync
from tests.apps.hooked import around
from tests.apps.project import flows, tasks
from tests.desk.test_admin import body

pytestmark = pytest.mark.django_db

AROUND = "tests.apps.hooked.around"


def using(key: str, *names: str) -> Any:
    return override_settings(
        HORSIES={**settings.HORSIES, key: [f"{AROUND}.{name}" for name in names]}
    )


@pytest.fixture(autouse=True)
def seen(own_registry: None) -> Iterator[list[tuple[Any, ...]]]:
    yield around.seen
    around.seen.clear()


def test_each_middleware_may_change_arguments_and_result(
    seen: list[Any],
) -> None:
    """Each middleware may change the arguments and the result of a task.

    The first middleware is the outermost one.
    """

    @task(name="tests.mixed")
    def mixed(a: int, /, b: int, *, c: int = 3) -> int:
        return a + b + c

    handle = mixed.with_options(metadata={"tenant": 7}).send(1, b=4)

    with using("MIDDLEWARE", "Noting", "not_used", "doubling"):
        drain()
        tasks.anoop.send()
        drain()

    assert seen == [
        ("noting", "tests.mixed", [1], {"b": 4}, {"tenant": 7}),
        ("doubling", "tests.mixed"),
        ("noting", tasks.anoop.name, [], {}, {}),
        ("doubling", tasks.anoop.name),
    ]
    assert handle.get().ok_value == 2 * (1 + 8 + 3)
    assert middleware.chain((f"{AROUND}.not_used",), "sync") is middleware.body, (
        "a chain of nothing costs nothing"
    )


def test_middleware_of_integrations_is_inside_of_the_project_s(
    seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "added_middleware", [f"{AROUND}.doubling"])
    tasks.noop.send()

    with using("MIDDLEWARE", "Noting"):
        drain()

    assert [kind for kind, *_ in seen] == ["noting", "doubling"]


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ({"cart": 3}, '{"cart": 3}'),
        ({}, None),
        ({"id": dt.date(2026, 1, 2)}, '{"id": "2026-01-02"}'),
    ]
    + [({"text": "x" * 9_000}, None), ({(1, 2): 3}, None)],
    ids=["some", "none", "other types", "too long", "no JSON"],
)
def test_a_failure_contains_the_failure_context_of_its_task(
    left: dict[Any, Any], told: str | None
) -> None:
    @task(name="tests.leaves")
    def leaves() -> None:
        current_task().failure_context.update(left)
        raise LookupError("no")

    claim = Claim(uuid.uuid4(), 1, "sync", "tests.leaves", "{}")
    current = CurrentTask(unpacked_claim(packed_claim(claim)), "")

    reply = contextvars.copy_context().run(run_sync, SyncRun(current), claim.kwargs)

    assert (reply.status, reply.context) == ("FAILED", told)


@pytest.mark.parametrize("name", ["raising", "passes_something_else"])
@pytest.mark.parametrize("sender", [tasks.noop, tasks.anoop], ids=["sync", "async"])
def test_an_error_of_a_middleware_is_the_error_of_the_task(sender: Any, name: str) -> None:
    """An exception of a middleware, or a wrong value that it passes on, is the error of the task.

    Fails if: an exception outside of the function ends the child, or leaves the task RUNNING.
    """
    handle = sender.send()

    with using("MIDDLEWARE", name):
        assert drain(raise_errors=False) == 1

    error = handle.get().err_value
    assert error.error_code == "UNHANDLED_ERROR"

    said = (
        "PermissionError: .*has no tenant"
        if name == "raising"
        else "a middleware passed 'tests.apps.project"
    )
    assert re.search(said, error.message)


def test_an_exception_of_the_function_passes_through_middleware() -> None:
    """An exception of the function passes through the middleware, and the retry policy applies."""
    handle = tasks.mails.send(1)

    with using("MIDDLEWARE", "Noting", "doubling"):
        assert drain(until=dt.timedelta(minutes=1)) == 2

    assert handle.get().ok_value == 4
    assert handle.info().attempts[0].error_code == "MAIL_DOWN"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("returns_nothing", "returned None instead of a callable: a factory takes 'call'"),
        (
            "sync_only",
            "returned a sync callable for async tasks: return an async one when "
            "iscoroutinefunction",
        ),
    ],
)
def test_a_factory_without_a_middleware_is_named_at_the_start(name: str, message: str) -> None:
    """A factory that does not return a middleware is named before the first task runs.

    Fails if: each task fails with "'NoneType' object is not callable".
    """
    handle = tasks.noop.send()

    with (
        using("MIDDLEWARE", name),
        pytest.raises(ImproperlyConfigured, match=f"around.{name} {message}"),
    ):
        drain()

    assert handle.info().status == "PENDING"  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["MIDDLEWARE", "METADATA"])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "shop.gone.timing",
            r"'shop\.gone\.timing' cannot be imported: ModuleNotFoundError: No module named 'shop'",
        ),
        (
            f"{AROUND}.gone",
            r"'tests\.apps\.hooked\.around\.gone' cannot be imported: ImportError: .*\"gone\"",
        ),
        (f"{AROUND}.NOTHING_TO_CALL", "is not a function or a class, but of type int"),
    ],
)
def test_a_bad_path_is_refused_by_a_check_and_a_worker(key: str, path: str, message: str) -> None:
    """An invalid path is refused by a check and by the start of a worker."""
    with override_settings(HORSIES={**settings.HORSIES, key: [path]}):
        (found,) = [one for one in checks.check_tasks() if one.id == "horsies.E024"]
        assert found.obj == f"HORSIES[{key!r}]"

        with pytest.raises(WorkerStartError, match=message) as refused:
            startup.refuse_paths(key, [path])

    assert f"HORSIES[{key!r}]: {found.msg}" == f"{refused.value}."


GIVEN = {"trace": "00-4bf9", "tenant": 7, "roles": ["editor"]}


@task(name="tests.tells", retry_policy=RetryPolicy.fixed([1]))
def tells(attempts: int = 1) -> dict[str, Any]:
    """Return the metadata of the last attempt."""
    if current_task().attempt < attempts:
        raise LookupError("once more")
    return dict(current_task().metadata)


def stored(handle: Any) -> Any:
    return (Task.objects.get(pk=handle.task_id).options or {}).get("metadata")


def test_each_attempt_reads_the_metadata_of_its_send() -> None:
    """Each attempt reads the metadata of its send, which does not change the arguments.

    Fails if: the metadata is only in the first message to the child.
    """
    handle = tells.with_options(metadata=GIVEN, timeout_ms=500).send(attempts=2)
    without = tells.send()

    assert drain(until=dt.timedelta(hours=1)) == 3
    assert handle.get().ok_value == GIVEN
    assert without.get().ok_value == dict(current_task().metadata) == {}
    assert Task.objects.get(pk=handle.task_id).kwargs == {"attempts": 2}
    assert stored(handle) == GIVEN


def test_every_way_to_send_and_to_send_again_passes_it_on() -> None:
    @task(name="tests.passes_on")
    def passes_on() -> None:
        tasks.add.with_options(metadata=current_task().metadata).send(1)

    passes_on.with_options(metadata=GIVEN).send()
    drain()
    (passed_on,) = Task.objects.filter(task_name=tasks.add.name)

    failed = tasks.raises.with_options(metadata=GIVEN).send("no")
    drain(raise_errors=False)

    handles = [
        get_handle(passed_on.pk),
        get_handle(operations.copy(failed.task_id, actor="ada")),
        tasks.add.with_options(metadata=GIVEN).with_options(priority=3).send(1),
        *tasks.add.with_options(metadata=GIVEN).send_many([{"a": 1}, {"a": 2}]),
    ]

    assert [stored(handle) for handle in handles] == [GIVEN] * 5


def test_redaction_erases_it_and_keeps_the_other_options() -> None:
    sender = tasks.add.with_options(metadata={"mail": "ann@example.org"})
    handles = [sender.send(1), sender.with_options(timeout_ms=500).send(1)]
    drain()

    for handle, left in zip(handles, (None, {"wire": 1, "timeout_ms": 500}), strict=True):
        redact(handle.task_id, actor="ada", reason="request 17")
        assert Task.objects.get(pk=handle.task_id).options == left


def test_sources_give_metadata_and_the_sender_overrides_them() -> None:
    """Sources add metadata to every send; a later source overrides earlier ones, the sender all."""
    create("nightly", {"task": tasks.noop.name, "pattern": "daily at 04:30"}, actor="ada")
    token = around.trace.set("00-4bf9")

    with using("METADATA", "carrier", "forgetful", "tenant"):
        plain = tasks.add.send(1)
        own = tasks.add.with_options(metadata={"tenant": 8}).send(1)
        others = [
            *tasks.add.send_many([{"a": 1}, {"a": 2}]),
            get_handle(run_now("nightly", actor="ada")),
        ]
    around.trace.reset(token)

    assert stored(plain) == {"trace": "00-4bf9", "by": "tenant", "tenant": 7}
    assert stored(own) == {"trace": "00-4bf9", "by": "tenant", "tenant": 8}
    assert [stored(handle) for handle in others] == [stored(plain)] * 3

    with using("METADATA", "carrier", "forgetful"):
        nothing = tasks.add.send(1)
    assert Task.objects.get(pk=nothing.task_id).options is None


@pytest.mark.django_db(transaction=True)
def test_a_source_runs_in_the_context_of_an_async_sender() -> None:
    """Fails if: the thread for sync code has no context variables."""

    async def view() -> Any:
        around.trace.set("of the request")
        return await tasks.add.asend(1)

    with using("METADATA", "carrier"):
        handle = async_to_sync(view)()

    assert stored(handle) == {"trace": "of the request", "by": "carrier"}


@pytest.mark.parametrize(
    ("metadata", "sources", "message"),
    [
        (["a"], [], r"tests\.apps\.project\.tasks\.add: metadata: it must be a dict, not list"),
        (
            {},
            ["breaks"],
            r"'tests\.apps\.hooked\.around\.breaks': it raised LookupError: no tenant is active",
        ),
        (
            {},
            ["a_list"],
            r"'tests\.apps\.hooked\.around\.a_list': it returned list instead of a dict",
        ),
        ({}, ["an_object"], r"""'metadata\[key 1\]': expected plain JSON"""),
        ({}, ["gone"], r"'tests\.apps\.hooked\.around\.gone': it raised ImportError: .*gone"),
    ],
)
def test_metadata_that_cannot_be_stored_fails_the_send(
    metadata: Any, sources: list[str], message: str
) -> None:
    """A send fails if its metadata cannot be stored or if a source fails."""
    with using("METADATA", *sources), pytest.raises(TaskSendError, match=message) as caught:
        tasks.add.with_options(metadata=metadata).send(1)

    assert caught.value.code == "VALIDATION_FAILED"
    assert not Task.objects.exists()


def test_nodes_maps_and_undos_have_the_metadata_of_their_task() -> None:
    """Nodes, maps and undos have the metadata with which their task was added."""
    flow = Workflow("import", on_error="fail")
    one = flow.add(flows.number.with_options(metadata={"n": 1}), 4)
    flow.map(flows.plus.with_options(metadata={"n": 2}), a=[1, 2], b=one)
    paid = flow.add(flows.charge, 5, undo=flows.refund.with_options(metadata={"n": 3}))
    flow.add(flows.broken, after=paid)

    flow.send()
    drain(raise_errors=False)

    found = Task.objects.order_by("task_name").values_list("task_name", "options__metadata__n")
    named = [(name.rpartition(".")[2], number) for name, number in found]
    assert named == [
        ("broken", None),
        ("charge", None),
        ("number", 1),
        ("plus", 2),
        ("plus", 2),
        ("refund", 3),
    ]


def keyed(metadata: dict[str, Any] | None, number: int = 1, priority: int = 5) -> Workflow:
    """Return a workflow with a key, with metadata wherever a graph can have it."""
    inner = Workflow("inner")
    inner.add(flows.number.with_options(metadata=metadata, priority=priority), number)

    flow = Workflow("import", key="book 7")
    flow.add(flows.number.with_options(metadata=metadata, timeout_ms=500), number)
    flow.add(flows.charge, number, undo=flows.refund.with_options(metadata=metadata))
    flow.add(inner)

    return flow


def test_a_key_finds_its_run_also_with_other_metadata_or_none() -> None:
    """A key finds its run, whatever the metadata of the graph is.

    Fails if: the hash of the graph includes the trace, so that a view cannot send its workflow
    twice.
    """
    first = keyed({"trace": "1"}).send()

    for metadata in ({"trace": "2"}, None, {"trace": "1"}):
        assert keyed(metadata).send().workflow_id == first.workflow_id
    assert not WorkflowNode.objects.filter(options__metadata__trace="2").exists()

    for other in (keyed({"trace": "1"}, number=2), keyed({"trace": "1"}, priority=6)):
        with pytest.raises(WorkflowError, match="another graph"):
            other.send()


def test_the_admin_shows_it_once_and_not_among_the_options(boss: Client) -> None:
    def page(handle: Any) -> str:
        return body(boss, reverse("admin:horsies_task_change", args=(handle.task_id,)))

    sender = tasks.add.with_options(metadata={"by": "s3cret"})
    html = page(sender.send(1))
    timed = page(sender.with_options(timeout_ms=86_399_123).send(1))

    assert (html.count("s3cret"), "field-shown_options" in html) == (1, False)
    assert (timed.count("s3cret"), timed.count("86399123")) == (1, 1)


# The spans of OpenTelemetry in the process that runs a task

IDS = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
PARENT = f"00-{IDS[0]:032x}-{IDS[1]:016x}-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Collect the spans of this process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(contrib, "tracer", provider.get_tracer("tests"))

    return exporter


def hooked() -> Any:
    path = contrib.__name__
    return override_settings(
        HORSIES={"METADATA": [f"{path}.carrier"], "MIDDLEWARE": [f"{path}.tracing"]}
    )


@contextmanager
def within(state: list[tuple[str, str]] | None = None) -> Iterator[None]:
    """Run the block in a span of a request."""
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    found = trace.SpanContext(
        *IDS, is_remote=False, trace_flags=flags, trace_state=trace.TraceState(state or [])
    )
    with trace.use_span(trace.NonRecordingSpan(found)):
        yield


class Hostile(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


# The exception of a task, the type of the error, and its code.
HOW: dict[str, tuple[Any, str | None, str | None]] = {
    "skip": (Skip("no"), None, None),
    "snooze": (Snooze(60), None, None),
    "retry": (Retry("later"), "horsies_django.core.retry.Retry", "RETRY_REQUESTED"),
    "hostile": (Hostile(), f"{__name__}.Hostile", "UNHANDLED_ERROR"),
    "exit": (SystemExit(3), "SystemExit", "UNHANDLED_ERROR"),
}


@task
def ends(how: str) -> None:
    raise HOW[how][0]


def ended(exporter: InMemorySpanExporter) -> ReadableSpan:
    (found,) = exporter.get_finished_spans()
    exporter.clear()
    return found


def test_the_carrier_holds_only_the_span_of_the_sender() -> None:
    """The carrier contains only the span of the sender, and leaves out a state that is too long.

    Fails if: it is the propagator of the project, and baggage of any size, or a state of 10 KiB,
    fails the send.
    """
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


def test_the_span_of_the_sender_is_the_parent_of_sent_tasks(
    spans: InMemorySpanExporter,
) -> None:
    """The span of the sender is the parent of the tasks, including those that tasks send."""
    with hooked():
        with within([("vendor", "a")]):
            async_to_sync(tasks.anoop.asend)()
            tasks.sends_more.send(1)
        drain()

    found: list[Any] = sorted(
        spans.get_finished_spans(), key=lambda span: str(span.attributes["horsies.task"])
    )
    of_async, first, last = found

    for span in (of_async, first):
        assert (span.name, span.context.trace_id) == ("process default", IDS[0])
        assert (span.parent.trace_id, span.parent.span_id, span.parent.is_remote) == (*IDS, True)
        assert [link.context for link in span.links] == [span.parent]

    assert (last.context.trace_id, last.parent.span_id) == (IDS[0], first.context.span_id)
    assert last.parent.trace_state == trace.TraceState([("vendor", "a")])


OF_OTHERS = (
    {"traceparent": ["00"]},
    {"traceparent": "00-zz"},
    {"traceparent": PARENT, "tracestate": {"a": 1}},
)


@pytest.mark.parametrize("metadata", OF_OTHERS, ids=repr)
def test_metadata_of_others_under_these_names_fails_no_task(
    spans: InMemorySpanExporter, metadata: Any
) -> None:
    with hooked():
        handle = tasks.add.with_options(metadata=metadata).send(1)
        drain()

    assert handle.get().is_ok()
    assert (ended(spans).parent is not None) is (metadata["traceparent"] == PARENT)


@pytest.mark.parametrize("how", HOW)
def test_the_span_of_an_attempt_that_fails_is_an_error(
    spans: InMemorySpanExporter, how: str
) -> None:
    """The span of an attempt that raises is an error, except for a skip and a snooze.

    Fails if: the text of the exception raises while it is recorded, and the task fails for another
    reason.
    """
    _, kind, code = HOW[how]

    with hooked():
        handle = ends.send(how)
        drain(raise_errors=False)

    span: Any = ended(spans)
    assert span.attributes.get("error.type") == kind
    assert (span.status.is_ok, span.status.status_code is trace.StatusCode.ERROR) == (
        kind is None,
        kind is not None,
    )
    assert [event.name for event in span.events] == (
        ["exception"] if kind and how != "hostile" else []
    )

    if code:
        row = Task.objects.get(pk=handle.task_id)
        assert row.error_code == code
        assert (
            kind.rpartition(".")[2] in row.result["err"]["exception"]["traceback"].splitlines()[-1]
        )
