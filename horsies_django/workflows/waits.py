"""Nodes that wait for a time, for signals or for a person. They hold no slot and no connection.

The functions write into the node, and yield what is wrong, without its name.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal, get_args

from horsies_django.core.codec.fits import optional, plain
from horsies_django.core.codec.type_texts import text_of
from horsies_django.core.texts import text_problem
from horsies_django.tasks.options import LONGEST_DELAY
from horsies_django.workflows.nodes import Node, Problems

OnTimeout = Literal["fail", "skip", "complete"]
ON_TIMEOUT = get_args(OnTimeout)


def sleep(node: Node, delay: object) -> Problems:
    """Let a node complete some time after it is ready."""
    node.type = type(None)
    node.columns = {"on_timeout": "complete", "delay": (yield from span("delay", delay))}


def until(node: Node, moment: Any) -> Problems:
    """Let a node complete at a time."""
    node.type = type(None)
    if not is_moment(moment):
        yield f"until() takes an aware datetime between the years 3 and 9998, not {moment!r:.80}"
        return
    node.columns = {"on_timeout": "complete", "due_at": moment.isoformat()}


def signal(node: Node, name: Any, key: Any, annotation: Any, timeout: object, on_timeout: object) -> Problems:
    if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable():
        yield f"the name of a signal is a str of 1 to 200 printable characters, not {name!r:.80}"
        name = None
    if key is not None and (problem := text_problem("key", key, 255)):
        yield problem
    node.type = plain(annotation)
    columns = {"signal": name, "signal_key": key, "signal_type": text_of(annotation)}
    yield from wait(node, timeout, on_timeout, columns)


def gate(node: Node, permission: Any, timeout: object, on_timeout: object) -> Problems:
    """Let a node wait for a decision."""
    text = isinstance(permission, str) and permission.isprintable() and len(permission) <= 255
    if permission is not None and not (text and all(permission.partition("."))):
        yield f"permission must be a str like 'shop.approve', not {permission!r:.80}"
    node.type = dict[str, Any]
    yield from wait(node, timeout, on_timeout, {"signal": node.name, "permission": permission})


def wait(node: Node, timeout: object, on_timeout: object, columns: dict[str, Any]) -> Problems:
    """Let a node wait, for some time at most; its value may be None after that."""
    delay = None if timeout is None else (yield from span("timeout", timeout))
    if on_timeout not in ON_TIMEOUT:
        yield f"on_timeout must be 'fail', 'skip' or 'complete', not {on_timeout!r:.80}"
    if delay is not None and on_timeout == "complete" and node.type is not Any:
        node.type = optional(node.type)
    columns = {"on_timeout": on_timeout, "delay": delay, **columns}
    node.columns = {name: value for name, value in columns.items() if value is not None}


def span(what: str, value: object) -> Problems[str]:
    """Return a time from when a node is ready, as an interval; yield the problem with one that is wrong."""
    found = value
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            found = dt.timedelta(seconds=value)
        except (OverflowError, ValueError):
            found = None
    if isinstance(found, dt.timedelta) and dt.timedelta(0) <= found <= LONGEST_DELAY:
        return f"{found.total_seconds():f} s"
    yield f"{what} must be a timedelta or seconds, from 0 to 100 years, not {value!r:.80}"
    return "0 s"


def is_moment(value: object) -> bool:
    """Return whether a value is an aware datetime that PostgreSQL and Python can both count with in any time zone."""
    return isinstance(value, dt.datetime) and value.utcoffset() is not None and 2 < value.year < 9999
