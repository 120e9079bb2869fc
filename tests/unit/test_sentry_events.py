"""The events that Sentry gets about failures, with exceptions and frames as in a traceback; and the
advice of integrations on what to install.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
import sentry_sdk
from asgiref.sync import async_to_sync
from sentry_sdk.transport import Transport

from horsies_django.contrib import sentry
from horsies_django.core.metadata import encode_metadata

OWN = "tests.unit.test_sentry_events"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


class Outer:
    class Refused(LookupError):
        """A class inside of another one."""


def told(error: Exception | str | None = None, **more: Any) -> dict[str, Any]:
    """Return the arguments of ``task_failed`` for an exception, or for the text of a traceback."""
    path = message = trace = None

    if isinstance(error, Exception):
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        message = f"{type(error).__qualname__}: {error}"
        trace = "".join(traceback.format_exception(error))
    elif error is not None:
        path = "builtins.LookupError"
        message = "LookupError: no"
        trace = error

    about = {
        "task_id": uuid4(),
        "worker_id": uuid4(),
        "child_pid": 77,
        "attempt": 1,
        "metadata": {},
    }
    about |= {"task_name": "shop.tasks.pay", "queue_name": "mail", "error_code": "UNHANDLED_ERROR"}

    return {**about, "error_message": message, "exception_class": path, "traceback": trace, **more}


def exceptions(given: Any, **how: Any) -> list[dict[str, Any]]:
    return list(sentry.event_of(told(given), **how)["exception"]["values"])


def functions(exception: dict[str, Any]) -> list[str]:
    return [frame["function"] for frame in exception["stacktrace"]["frames"]]


def caught(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def refuse() -> None:
    raise Outer.Refused("no such order")


def dumped() -> None:
    json.loads("{")


def caused() -> None:
    try:
        refuse()
    except LookupError as error:
        raise ValueError("first\n  second: line") from error


def while_handling() -> None:
    try:
        caused()
    except ValueError:
        dumped()


def grouped() -> None:
    raise ExceptionGroup("some", [caught(refuse), caught(dumped)])


def deep(depth: int = 50) -> None:
    deep(depth - 1) if depth else refuse()


def test_an_exception_has_frames_like_those_of_the_sdk() -> None:
    """An exception has its class, its text, and frames like those of the SDK itself.

    Fails if: the module is missing, so that the same error of a view and of a task are two groups.
    """
    error = caught(refuse)
    (found,) = exceptions(error)

    assert (found["module"], found["type"], found["value"]) == (
        f"{OWN}.Outer",
        "Refused",
        "no such order",
    )

    event, _ = sentry_sdk.utils.event_from_exception(error)
    (known,) = event["exception"]["values"]
    names = ("filename", "abs_path", "module", "function", "lineno")
    frames = [{name: frame[name] for name in names} for frame in known["stacktrace"]["frames"]]

    assert [
        {name: frame[name] for name in names} for frame in found["stacktrace"]["frames"]
    ] == frames
    assert (
        found["stacktrace"]["frames"][-1]["context_line"] == 'raise Outer.Refused("no such order")'
    )


def test_frames_of_python_and_of_packages_are_not_in_app() -> None:
    """Frames are in app unless they belong to Python, to packages or to horsies-django."""
    (found,) = exceptions(caught(dumped))
    assert (found["type"], "module" in found) == ("JSONDecodeError", True)

    files = [(frame["filename"], frame["in_app"]) for frame in found["stacktrace"]["frames"]]
    assert files[1] == ("tests/unit/test_sentry_events.py", True)
    assert set(files[2:]) == {("json/__init__.py", False), ("json/decoder.py", False)}
    assert [frame["module"] for frame in found["stacktrace"]["frames"]][2] == "json"

    packages = os.path.dirname(os.path.dirname(pytest.__file__))
    paths = [
        f"{packages}/requests/api.py",
        sentry.__file__,
        "<string>",
        "<frozen runpy>",
        "/srv/shop/tasks.py",
    ]

    (found,) = exceptions("".join(f'  File "{path}", line 1, in pay\n' for path in paths))
    assert [frame["in_app"] for frame in found["stacktrace"]["frames"]] == [False] * 4 + [True]


def test_modules_in_the_sentry_settings_are_left_to_the_sdk() -> None:
    """Frames of modules that the settings of Sentry list are left to the SDK.

    Fails if: ``in_app`` is set for all frames, so that the SDK ignores its own options.
    """
    text = "".join(
        f'  File "/srv/{path}", line 1, in pay\n'
        for path in ("shop/legacy.py", "shop/legacy/a.py", "shops.py")
    )

    (found,) = exceptions(text)
    modules = [frame["module"] for frame in found["stacktrace"]["frames"]]
    (found,) = exceptions(text, listed=(modules[0],))

    assert ["in_app" in frame for frame in found["stacktrace"]["frames"]] == [False, False, True]


def test_causes_are_in_their_order_before_the_exception() -> None:
    found = exceptions(caught(while_handling))

    assert [(each["type"], each["value"]) for each in found[:2]] == [
        ("Refused", "no such order"),
        ("ValueError", "first"),
    ]
    assert [each.get("module") for each in found] == [f"{OWN}.Outer", None, "json.decoder"]
    assert [functions(each)[:2] for each in found] == [
        ["caused", "refuse"],
        ["while_handling", "caused"],
        ["caught", "while_handling"],
    ]
    assert not any(each["mechanism"]["handled"] for each in found)


def test_a_group_has_its_own_frames_and_not_those_of_its_members() -> None:
    (found,) = exceptions(caught(grouped))

    assert (found["type"], found["value"], functions(found)) == (
        "ExceptionGroup",
        "some (2 sub-exceptions)",
        ["caught", "grouped"],
    )
    assert found["stacktrace"]["frames"][-1]["context_line"].startswith("raise ExceptionGroup(")


def test_a_recursion_keeps_the_frames_that_the_text_names() -> None:
    (found,) = exceptions(caught(deep))
    assert functions(found) == ["caught", *["deep"] * 3, "refuse"]


MULTILINE = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 7, in pay
    charge(
    ~~~~~~^
        order,
        ^^^^^^
    )
    ^
  File "/srv/shop/gone.py", line 9, in charge
LookupError: no
"""


def test_source_of_several_lines_and_source_that_is_missing() -> None:
    """Fails if: the next frame, or a line of markers, is parsed as the source."""
    (found,) = exceptions(MULTILINE)
    frames = found["stacktrace"]["frames"]

    assert [(frame["lineno"], frame.get("context_line")) for frame in frames] == [
        (7, "charge("),
        (9, None),
    ]


def test_the_end_of_a_long_traceback_is_parsed() -> None:
    """The end of a long text is enough, and a text without a traceback gives no frames."""
    error = caught(while_handling)
    text = "".join(traceback.format_exception(error))

    for cut in range(0, len(text), 7):
        found = exceptions(text[cut:])[-1]
        assert "stacktrace" not in found or functions(found)[-1] == "raw_decode"

    assert "stacktrace" not in exceptions("<traceback not available: TypeError>")[0]


def test_a_traceback_in_the_text_of_an_exception_is_not_its_own() -> None:
    """Fails if: text that a program printed becomes frames and causes, so that all its callers are
    one group, or one without frames.
    """
    printed = "".join(traceback.format_exception(caught(while_handling)))

    def run() -> None:
        raise RuntimeError(f"the program failed:\n{printed}")

    def run_again() -> None:
        try:
            run()
        except RuntimeError as error:
            raise LookupError("no") from error

    (found,) = exceptions(caught(run))
    assert (found["type"], functions(found)) == ("RuntimeError", ["caught", "run"])
    assert found["value"].endswith(printed)
    assert functions(exceptions(caught(run_again))[-1]) == ["caught", "run_again"]


def test_a_failure_without_frames_is_grouped_by_task_and_code() -> None:
    """A failure without frames is grouped by task and code, and others by Sentry's own rules."""
    event = sentry.event_of(
        told(error_code="WORKER_CRASHED", error_message="the process was killed by SIGKILL")
    )

    (found,) = event["exception"]["values"]
    assert (found["type"], found["value"]) == (
        "WORKER_CRASHED",
        "the process was killed by SIGKILL",
    )
    assert event["fingerprint"] == ["shop.tasks.pay", "WORKER_CRASHED"]

    assert "fingerprint" not in sentry.event_of(told(caught(refuse)))


@pytest.mark.parametrize(
    ("metadata", "parent"),
    [
        ({"sentry-trace": f"{TRACE}-{SPAN}-1"}, SPAN),
        ({"sentry-trace": f"{TRACE}-{SPAN}"}, SPAN),
        ({"traceparent": f"00-{TRACE}-{SPAN}-01"}, SPAN),
        (
            {"sentry-trace": f"{TRACE}-{SPAN}-1", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"},
            SPAN,
        ),
        ({"sentry-trace": 7, "traceparent": None}, None),
        ({"sentry-trace": f"{TRACE}{TRACE}-{SPAN}"}, None),
        ({}, None),
    ],
)
def test_an_event_has_the_trace_of_its_sender_or_a_new_one(
    metadata: Any, parent: str | None
) -> None:
    """An event belongs to the trace of its sender, or to a new one of its own."""
    contexts = [sentry.event_of(told(metadata=metadata))["contexts"]["trace"] for _ in range(2)]

    assert contexts[0].get("parent_span_id") == parent
    assert (contexts[0]["trace_id"] == TRACE) is (parent is not None)
    assert (contexts[0]["trace_id"] == contexts[1]["trace_id"]) is (parent is not None)
    assert contexts[0]["span_id"] != contexts[1]["span_id"]


def test_the_trace_carrier_fits_into_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trace carrier fits into metadata, and is None without Sentry."""
    assert sentry.trace() is None

    client = sentry_sdk.Client("http://key@127.0.0.1/1", default_integrations=False)
    with sentry_sdk.isolation_scope() as scope:
        scope.set_client(client)
        scope.set_new_propagation_context()

        found = sentry.trace()
        assert found is not None
        assert set(found) == {"sentry-trace", "baggage"}
        assert sentry.TRACE.search(found["sentry-trace"])

        incoming = {
            "sentry-trace": f"{TRACE}-{SPAN}-1",
            "baggage": f"sentry-trace_id={TRACE},sentry-release={'r' * 2_000}",
        }
        sentry_sdk.continue_trace(incoming)

        found = sentry.trace()
        assert found is not None
        assert set(found) == {"sentry-trace"}, "what is too long is left out"
        assert found["sentry-trace"].startswith(TRACE)

    encode_metadata(found)


def test_only_a_client_with_the_integration_gets_events() -> None:
    """Fails if: Sentry is started again without the integration, for example by a test, and still
    gets events.
    """
    kept: list[Any] = []
    client = sentry_sdk.Client(
        "http://key@127.0.0.1/1",
        before_send=lambda event, hint: kept.append(event),
        default_integrations=False,
    )

    with sentry_sdk.isolation_scope() as scope:
        scope.set_client(client)
        sentry.report(**told(caught(refuse)))
        assert kept == []

        client.integrations = {"horsies": sentry.HorsiesIntegration()}
        sentry.report(**told(caught(refuse)))

    (event,) = kept
    assert event["transaction"] == "shop.tasks.pay"


@pytest.mark.parametrize(
    ("module", "package", "distribution"),
    [
        ("sentry", "sentry_sdk", "sentry-sdk"),
        ("opentelemetry", "opentelemetry", "opentelemetry-api"),
    ],
)
def test_the_error_of_an_integration_names_the_missing_package(
    module: str, package: str, distribution: str
) -> None:
    name = f"horsies_django.contrib.{module}"
    code = f"import sys; sys.modules[{package!r}] = None\nimport {name}"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (
        f"ImportError: {name} needs {distribution}: pip install 'horsies-django[{module}]'"
        in result.stderr
    )


class Picky(Exception):
    """An exception with a constructor of its own."""

    def __init__(self, order: int, *, amount: int) -> None:
        raise AssertionError("it is called")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (f"{OWN}.Picky", Picky),
        (f"{OWN}.Outer.Refused", Outer.Refused),
        ("builtins.KeyError", KeyError),
        ("builtins.OSError", OSError),
    ],
)
def test_the_hint_has_the_class_of_the_exception(path: str, kind: type[BaseException]) -> None:
    """Fails if: ``ignore_errors`` and ``before_send`` cannot recognize the failures that the
    project filters out.
    """
    found, error, trace = sentry.hint_of(path, "no such order")["exc_info"]

    assert (found, type(error), error.args, trace) == (kind, kind, ("no such order",), None)


@pytest.mark.parametrize(
    "path", ["shop.errors.Refused", "antigravity.Refused", f"{OWN}.refuse", f"{OWN}.pytest.fail"]
)
def test_the_hint_of_a_class_that_is_not_loaded_has_its_name(path: str) -> None:
    found, error, _ = sentry.hint_of(path, "no")["exc_info"]

    assert f"{found.__module__}.{found.__qualname__}" == path
    assert isinstance(error, Exception)
    assert "antigravity" not in sys.modules


def test_a_failure_without_an_exception_has_no_hint() -> None:
    assert sentry.hint_of(None, "") == {}


class Filtered(Exception):
    """A failure that the project filters out."""


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (Outer.Refused("no"), {"ignore_errors": [LookupError]}),
        (Outer.Refused("no"), {"ignore_errors": ["Outer.Refused"]}),
        (Filtered("no"), {"ignore_errors": [f"{OWN}.Filtered"]}),
        (
            Filtered("no"),
            {"before_send": lambda event, hint: None if hint["exc_info"][0] is Filtered else event},
        ),
        (
            Filtered("no"),
            {"error_sampler": lambda event, hint: 1 - isinstance(hint["exc_info"][1], Filtered)},
        ),
    ],
    ids=["base class", "name", "path", "before_send", "sampler"],
)
def test_the_options_of_sentry_decide_about_failures(
    error: Exception, options: dict[str, Any]
) -> None:
    sent: list[Any] = []

    class Kept(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            sent.append(envelope.get_event()["exception"]["values"][-1]["type"])

    client = sentry_sdk.Client(
        "http://key@127.0.0.1/1",
        transport=Kept,
        integrations=[sentry.HorsiesIntegration()],
        **options,
    )

    with sentry_sdk.new_scope() as scope:
        scope.set_client(client)
        sentry.report(**told(error))
        sentry.report(**told(ZeroDivisionError("wanted")))

    assert sent == ["ZeroDivisionError"]


def test_what_a_task_set_in_its_scope_is_on_its_event() -> None:
    left = {
        "tags": {"tenant": "acme", "queue": "not so"},
        "user": {"id": 7},
        "extras": {"order": 12},
        "contexts": {"cart": {"items": 3}, "task": {"task_id": "not so"}},
    }

    event = sentry.event_of(told(LookupError("no"), context={"sentry": left}))

    assert (event["user"], event["extra"]) == ({"id": 7}, {"order": 12})
    assert event["tags"] == {
        "tenant": "acme",
        "queue": "mail",
        "code": "UNHANDLED_ERROR",
        "attempt": "1",
    }
    assert event["contexts"]["cart"] == {"items": 3}
    assert event["contexts"]["task"]["task_id"] != "not so"


class Current:
    """The part of the current task that a middleware uses."""

    def __init__(self) -> None:
        self.failure_context: dict[str, Any] = {}


def set_and_fail(current: Current, args: Any, kwargs: Any) -> None:
    sentry_sdk.set_tag("tenant", "acme")
    sentry_sdk.set_user({"id": 7})
    raise LookupError("no")


async def aset_and_fail(current: Current, args: Any, kwargs: Any) -> None:
    set_and_fail(current, args, kwargs)


@pytest.mark.parametrize("function", [set_and_fail, aset_and_fail], ids=["sync", "async"])
def test_the_scope_of_a_task_is_its_own(function: Callable[..., Any]) -> None:
    """Fails if: the event of a task lacks its tags, or the next task has them."""
    current = Current()
    call = sentry.scoped(function)
    run = async_to_sync(call) if function is aset_and_fail else call

    with pytest.raises(LookupError):
        run(current, (), {})

    assert current.failure_context == {"sentry": {"tags": {"tenant": "acme"}, "user": {"id": 7}}}
    assert "tenant" not in sentry_sdk.get_isolation_scope()._tags


def test_a_frame_whose_line_is_no_number_of_a_line_is_none() -> None:
    """Fails if: the text of an exception prevents the event of the task, because int() refuses
    5,000 digits.
    """
    forged = f'  File "a.py", line {"9" * 5_000}, in forged\n'
    real = '  File "shop/tasks.py", line 7, in pay\n    refuse()\n'
    cause = f"Traceback (most recent call last):\n{forged}{real}KeyError: 1\n"
    between = "\nThe above exception was the direct cause of the following exception:\n\n"
    last = f"Traceback (most recent call last):\n{forged}{real}LookupError: no"

    first, second = exceptions(f"{cause}{between}{last}")

    assert functions(first) == functions(second) == ["pay"]
    assert (first["type"], second["type"]) == ("KeyError", "LookupError")
