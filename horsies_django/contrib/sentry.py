"""Sentry: one event for each task that failed for good.

The event is made by a receiver of the signal ``task_failed`` in the worker's main process. That
process has the exception only as text, so its stack trace is read from the text of its traceback.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any
from uuid import uuid4

from asgiref.sync import iscoroutinefunction

from horsies_django import signals

try:
    import sentry_sdk
    from sentry_sdk.integrations import Integration
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.scope import add_global_event_processor
except ImportError as error:
    raise ImportError(
        f"{__name__} needs sentry-sdk: pip install 'horsies-django[sentry]'"
    ) from error

__all__ = ["HorsiesIntegration", "trace"]

NEXT = re.compile(
    r"^\n(?:The above exception was the direct cause of the following exception:"
    r"|During handling of the above exception, another exception occurred:)\n\n",
    re.MULTILINE,
)
# A frame, and its line of source if there is one. The frames of an exception group itself have a
# bar before them.
FRAME = re.compile(
    r'^(?P<bar>(?:  \| )?)  File "(.+)", line (\d{1,9}), in (.+)(?:\n(?P=bar) {4}(\S.*))?$',
    re.MULTILINE,
)
# The class of an exception, and its text
LAST_LINE = re.compile(r"^(?:  \| )?([\w.<>]+)(?:: (.*))?$", re.MULTILINE)
# In "sentry-trace", and in the "traceparent" of OpenTelemetry
TRACE = re.compile(r"\b([0-9a-f]{32})-([0-9a-f]{16})\b")
INSTALLED_PATH = re.compile(r"[\\/](?:site|dist)-packages[\\/]")
NOT_IN_APP = (
    "<",
    os.path.join(os.path.dirname(signals.__file__), ""),
    os.path.join(sysconfig.get_path("stdlib"), ""),
)


SCOPED = f"{__name__}.scoped"
SET_BY_TASKS = ("tags", "user", "extras", "contexts")  # attributes of a scope that its events have


class HorsiesIntegration(Integration):
    """The integration for ``sentry_sdk.init(integrations=[HorsiesIntegration()])``."""

    identifier = "horsies"

    @staticmethod
    def setup_once() -> None:
        """Connect the signals, and ignore the log lines of failed tasks.

        These lines would become a second event for each failed task.
        """
        signals.task_failed.connect(report, dispatch_uid=__name__)
        signals.child_stopping.connect(flush, dispatch_uid=__name__)
        signals.worker_stopping.connect(flush, dispatch_uid=__name__)
        ignore_logger("horsies.task")
        if SCOPED not in signals.added_middleware:
            signals.added_middleware.append(SCOPED)
        add_global_event_processor(without_second_ones)


def scoped(call: Callable[..., Any]) -> Callable[..., Any]:
    """Run each task in a scope of its own.

    The tags, user, extras and contexts of the scope are on the event if the task fails.
    """

    def middleware(current: Any, args: Any, kwargs: Any) -> Any:
        with attempt_scope(current):
            return call(current, args, kwargs)

    async def async_middleware(current: Any, args: Any, kwargs: Any) -> Any:
        with attempt_scope(current):
            return await call(current, args, kwargs)

    return async_middleware if iscoroutinefunction(call) else middleware


@contextmanager
def attempt_scope(current: Any) -> Iterator[None]:
    with sentry_sdk.isolation_scope() as isolation, sentry_sdk.new_scope() as scope:
        try:
            yield
        except BaseException:
            found = {
                name: {**of_scope(isolation, name), **of_scope(scope, name)}
                for name in SET_BY_TASKS
            }
            if found := {name: values for name, values in found.items() if values}:
                current.failure_context["sentry"] = found
            raise


def of_scope(scope: Any, name: str) -> dict[str, Any]:
    """Return the values of one kind that were set in a scope.

    The SDK has no other way to read them.
    """
    found = getattr(scope, f"_{name}", None)
    return dict(found) if isinstance(found, dict) else {}


def trace() -> dict[str, str] | None:
    """Return the current trace, for HORSIES["METADATA"], or None if Sentry is not active.

    ``sentry_sdk.continue_trace`` takes it from the metadata of a task.
    """
    if not sentry_sdk.get_client().is_active():
        return None

    found = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
    sent = {name: text for name, text in found.items() if text}
    if sum(map(len, sent.values())) > 1_024:  # the most characters of a trace in the metadata
        sent.pop("baggage", None)
    return sent


def without_second_ones(event: Any, hint: Any) -> Any:
    """Drop the events of log lines about a process that ended with a task.

    The failure of that task is an event of its own.
    """
    record = hint.get("log_record")
    second = (
        getattr(record, "name", None) == "horsies.worker" and getattr(record, "task_id", "-") != "-"
    )
    return None if second else event


def flush(**values: Any) -> None:
    """Send the events that wait in this process, which is about to end."""
    sentry_sdk.flush(timeout=1.5)  # shorter than the time of a process for child_stopping


def report(**values: Any) -> None:
    """Capture the event of a task that failed.

    It never waits for Sentry, because the SDK sends events on a thread of its own.
    """
    client = sentry_sdk.get_client()
    if client.get_integration(HorsiesIntegration) is None:
        return

    listed = (*(client.options["in_app_include"] or ()), *(client.options["in_app_exclude"] or ()))
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()  # they are of other tasks
        event = event_of(values, listed)
        sentry_sdk.capture_event(
            event, hint_of(values["exception_class"], event["exception"]["values"][-1]["value"])
        )


def hint_of(path: str | None, message: str) -> dict[str, Any]:
    """Return the hint for an event, which ``ignore_errors`` and ``before_send`` of Sentry read.

    The hint is empty if the task failed without an exception.
    """
    if path is None:
        return {}

    kind = class_of(path)
    try:
        # __init__ is not called, because it may take other arguments.
        error = kind.__new__(kind, message)
    except Exception:
        kind = stand_in(path)
        error = kind(message)

    return {"exc_info": (kind, error, None)}


def class_of(path: str) -> type[BaseException]:
    """Return the class of an exception by its dotted path.

    No module is imported: a class that is not loaded in this process is replaced by a stand-in.
    """
    names = path.split(".")
    for end in range(len(names) - 1, 0, -1):
        if (module := sys.modules.get(".".join(names[:end]))) is None:
            continue

        found: Any = module
        for name in names[end:]:
            found = vars(found).get(name) if isinstance(found, ModuleType | type) else None

        if isinstance(found, type) and issubclass(found, BaseException):
            return found
        break

    return stand_in(path)


@lru_cache(maxsize=1_000)
def stand_in(path: str) -> type[BaseException]:
    """Return a class with the name of one that is not loaded here. It is the same for each call."""
    module, _, name = path.rpartition(".")
    return type(name, (Exception,), {"__module__": module, "__qualname__": name})


def event_of(values: dict[str, Any], listed: tuple[str, ...] = ()) -> Any:
    """Return the event for the arguments of ``task_failed``.

    The SDK itself decides whether ``listed`` modules are in_app.
    """
    name = values["task_name"]
    code = values["error_code"]
    exceptions = exceptions_of(values, listed)
    own = values.get("context", {}).get("sentry", {})

    event = {
        "level": "error",
        "transaction": name,
        "transaction_info": {"source": "task"},
        "tags": {
            **own.get("tags", {}),
            "queue": values["queue_name"],
            "code": code,
            "attempt": str(values["attempt"]),
        },
        "exception": {"values": exceptions},
        "contexts": {
            **own.get("contexts", {}),
            "trace": context_of(values["metadata"]),
            "task": {
                key: str(values[key])
                for key in ("task_id", "worker_id", "child_pid")
                if values[key]
            },
        },
    }

    event.update(
        {key: own[name] for key, name in (("user", "user"), ("extra", "extras")) if name in own}
    )

    if "stacktrace" not in exceptions[-1]:
        # Without it, Sentry would put all tasks with this code into one group.
        event["fingerprint"] = [name, code]
    return event


def context_of(metadata: Any) -> dict[str, str]:
    """Return the trace context of an event: in the trace of the sender, or in a new trace."""
    sent = TRACE.search(f"{metadata.get('sentry-trace') or metadata.get('traceparent')}")
    context = (
        {"trace_id": sent[1], "parent_span_id": sent[2]} if sent else {"trace_id": uuid4().hex}
    )
    return {**context, "span_id": uuid4().hex[16:]}


def exceptions_of(values: dict[str, Any], listed: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the exception with which a task failed, after its causes.

    The causes are read from the text of the traceback, as far as they are in it.
    """
    path = values["exception_class"] or values["error_code"]
    message = values["error_message"] or ""
    text = message
    traced = values["traceback"] or ""
    name, _, rest = message.partition(": ")

    # The message begins with the class, as in "Refused: no such order". Tasks may instead have a
    # code and a message of their own.
    if f".{path}".endswith(f".{name}"):
        text = rest
        # A text may quote another traceback.
        traced = traced.rpartition(message)[0] or traced

    *causes, last = NEXT.split(traced)
    found = []
    for cause in causes:
        frames = [*FRAME.finditer(cause)]
        if frames and (line := LAST_LINE.search(cause, frames[-1].end())):
            found.append(exception_entry(line[1], line[2] or "", frames, listed))

    return [*found, exception_entry(path, text, [*FRAME.finditer(last)], listed)]


def exception_entry(
    path: str, message: str, frames: list[re.Match[str]], listed: tuple[str, ...]
) -> dict[str, Any]:
    module, _, name = path.rpartition(".")
    found: dict[str, Any] = {
        "type": name,
        "value": message,
        "mechanism": {"type": "horsies", "handled": False},
    }
    found["module"] = None if module in ("", "builtins") else module

    if frames:
        found["stacktrace"] = {"frames": [frame_of(frame, listed) for frame in frames]}
    return found


def frame_of(found: re.Match[str], listed: tuple[str, ...]) -> dict[str, Any]:
    """Return a frame.

    It is in_app if its file belongs neither to Python, nor to an installed package, nor to
    horsies_django.
    """
    _, path, line, function, source = found.groups()
    roots = [root for each in sys.path if path.startswith(root := os.path.join(each, ""))]
    filename = path.removeprefix(max(roots, key=len, default=""))
    module = filename.removesuffix(".py").removesuffix(f"{os.sep}__init__").replace(os.sep, ".")

    frame = {
        "filename": filename,
        "abs_path": path,
        "module": module,
        "function": function,
        "lineno": int(line),
    }

    if source:
        frame["context_line"] = source
    if not f"{module}.".startswith(tuple(f"{name}." for name in listed)):
        frame["in_app"] = not (path.startswith(NOT_IN_APP) or INSTALLED_PATH.search(path))
    return frame
