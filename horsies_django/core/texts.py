"""Checks of texts that callers pass and PostgreSQL stores, such as keys, actors and reasons.

There are also functions for texts in messages, such as suggestions for misspelt names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

LONGEST_NAME = 255  # the most characters of names, keys and actors
LONGEST_REASON = 10_000
LONGEST_IN_LOG = 200  # the most characters of a name in a log line
LAZY_TEXT = "a lazy text, which differs between languages: pass str() of it"
NEEDS_REASON = (
    "a redaction needs a reason, which is recorded in the audit and must not contain personal data"
)
# The characters that control a terminal, or that forge, hide or reorder its text. These are control
# characters, line separators, direction marks, invisible characters except the joiners that scripts
# and emoji need, and surrogates, which cannot be encoded.
UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)


def visible(text: object, *, keep: str = "") -> str:
    """Return a text for a terminal or a log, whose unsafe characters are escaped.

    Characters in ``keep`` are not escaped.
    """

    def escaped(found: re.Match[str]) -> str:
        return found[0] if found[0] in keep else found[0].encode("unicode_escape").decode()

    return UNSAFE.sub(escaped, str(text))


def is_lazy(value: object) -> bool:
    """Return whether a value is one of Django's lazy texts.

    Lazy texts are recognized by the name of their class.
    """
    # type(value).__name__ could call user code in a metaclass.
    name = type.__dict__["__name__"].__get__(type(value))
    return bool(name == "__proxy__")


def as_text(value: Any) -> Any:
    """Return a lazy text as a str in the active language, and any other value unchanged."""
    return str(value) if is_lazy(value) else value


def text_problem(what: str, value: object, most: int = LONGEST_NAME) -> str | None:
    """Return the problem with a value that must be a text, or None if it is valid.

    A valid text has 1 to ``most`` characters, and PostgreSQL can store it. ``what`` is the name of
    the value in the message.
    """
    if is_lazy(value):
        return f"{what} is {LAZY_TEXT}"
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        return f"{what} must be a str of 1 to {most:,} characters, not {value!r:.80}"
    if "\x00" in value or (
        not value.isascii() and any("\ud800" <= each <= "\udfff" for each in value)
    ):
        return (
            f"{what} must be a str without NUL bytes and lone surrogates, which PostgreSQL cannot "
            f"store, not {value!a:.80}"
        )

    return None


def is_name(value: object, most: int = LONGEST_NAME) -> bool:
    """Return whether a value is a text of 1 to ``most`` printable characters."""
    return isinstance(value, str) and 1 <= len(value) <= most and value.isprintable()


def name_problem(what: str, value: object, most: int = LONGEST_NAME) -> str | None:
    """Return the problem with a value that must be a name, or None if it is valid.

    A valid name has 1 to ``most`` printable characters. ``what`` is the name of the value in the
    message.
    """
    if is_name(value, most):
        return None
    if is_lazy(value):
        return f"{what} is {LAZY_TEXT}"
    return f"{what} must be a str of 1 to {most} printable characters, not {short_repr(value, 80)}"


def short_repr(value: object, most: int = 100) -> str:
    """Return the repr of a value, which is cut off if it has more than ``most`` characters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 20]}... ({len(text):,} characters)"


def storable_actor(
    error: type[Exception], refused: str, actor: Any, reason: Any
) -> tuple[str, Any]:
    """Return an actor and a reason as they are stored.

    Lazy texts are stored in the active language. The reason may be None or empty. Raises an
    exception of the class ``error``, whose message begins with ``refused``, if the actor or the
    reason cannot be stored.
    """
    actor = as_text(actor)
    reason = as_text(reason)
    problem = (
        None if reason is None or reason == "" else text_problem("reason", reason, LONGEST_REASON)
    )
    if problem := text_problem("actor", actor) or problem:
        raise error(f"{refused}: {problem}")

    return actor, reason


def name_of_user(user: Any) -> str:
    """Return the name of a Django user as the audit stores it.

    The names of a project's own user model may be empty, too long for a column, or not texts. An
    empty name is replaced by one with the primary key. A long name is cut off, and the primary key
    is added to distinguish it from names with the same beginning.
    """
    name = user.get_username()
    text = "" if name is None else str(name)

    if not text.strip():
        return f"user {user.pk}"[:LONGEST_NAME]
    if len(text) <= LONGEST_NAME:
        return text

    end = f"… (user {user.pk})"[:100]
    return text[: LONGEST_NAME - len(end)] + end


def amount(count: int, noun: str, more: bool = False) -> str:
    """Return a number with a noun, such as "1 task" or "3 tasks".

    With ``more``, return "at least 3 tasks".
    """
    least = "at least " if more else ""
    return f"{least}{count:,} {noun}{'' if count == 1 else 's'}"


def close_to(name: str, names: Iterable[str]) -> str:
    """Return a suggestion for a misspelt name, or "" if no name is similar."""
    close = get_close_matches(name, list(names), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def printable_name(name: object) -> str:
    """Return a name or key of a row for a log line, without unprintable characters and shortened.

    A role that may write a row can store any name.
    """
    text = str(name)
    if not text.isprintable():
        text = "".join(
            sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
        )
    return text if len(text) <= LONGEST_IN_LOG else f"{text[: LONGEST_IN_LOG - 3]}..."
