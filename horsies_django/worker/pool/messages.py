"""The check of messages from children.

A task can write any bytes into the channels of its process. So the worker accepts only messages
with the shape and the values that children send, and kills a child that has sent another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horsies_django.core.errors import HorsiesError
from horsies_django.core.records import SNOOZED
from horsies_django.worker.ipc import ODD

# of a completed task, only the result is sent
UNCOMPLETED_STATUSES = frozenset({"FAILED", "CANCELLED", SNOOZED})
SCALAR_TYPES = (str, int, float, bool, type(None))


class OddMessage(HorsiesError):  # noqa: N818 - named for what it is about
    """A child has sent something that children do not send."""


def checked_message(message: Any) -> tuple[str, Any]:
    """Return the kind and the payload of a message from a child.

    Raises OddMessage if children do not send such messages.
    """
    try:
        kind, payload = message
        fits = FITS[kind](payload)
    except (TypeError, ValueError, KeyError) as error:
        raise OddMessage(f"children send no such message: {message!r:.200}") from error

    if not fits:
        raise OddMessage(payload if kind == ODD else f"a {kind!r} message cannot have these values")
    return kind, payload


def is_done(done: Any) -> bool:
    """Return whether this is the number of a task, its reply, and its duration in seconds.

    Raises TypeError and ValueError for other shapes.
    """
    number, sent, seconds = done
    if type(number) is not int or type(seconds) is not float:
        return False

    if type(sent) is str:
        return is_text(sent)

    status, result, code, message, retry, returned, classes, context = sent
    if (
        status not in UNCOMPLETED_STATUSES
        or type(returned) is not bool
        or type(classes) is not tuple
    ):
        return False

    texts = [text for text in (code, message, context, *classes) if text is not None]
    return is_text(result) and all(map(is_text, texts)) and is_retry(retry)


def is_retry(retry: Any) -> bool:
    if type(retry) is dict:
        return all(type(key) is str and type(value) in SCALAR_TYPES for key, value in retry.items())
    return type(retry) in (int, float, bool, type(None))


def is_text(text: Any) -> bool:
    """Return whether this is a text that the database can store."""
    if type(text) is not str or "\0" in text:
        return False
    if text.isascii():
        return True

    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


FITS: dict[Any, Callable[[Any], bool]] = {
    "ran": is_done,
    "done": lambda payload: type(payload) is list and all(map(is_done, payload)),
    "back": lambda payload: (
        type(payload) is list and all(type(number) is int for number in payload)
    ),
    "full": lambda payload: type(payload) is float,
    "altered": lambda payload: payload is None,
    "ready": lambda payload: type(payload) is str and float(payload or 0) >= 0,
    "failed": lambda payload: type(payload) is str,
    ODD: lambda payload: False,
}
