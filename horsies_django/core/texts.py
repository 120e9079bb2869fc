"""Texts that callers give, and that PostgreSQL has to store: keys, actors and reasons; and names
that they misspell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

LONGEST = 255  # characters of names, keys and actors
LONGEST_REASON = 10_000
LAZY = "a lazy text, which means another one in each language: give str() of it"
NEEDS_REASON = (
    "a redaction needs a reason, which is recorded in the audit and must not contain personal data"
)
# Characters that a terminal obeys, or that forge, hide or reorder what stands there: control
# characters, separators of lines, marks of direction, invisible characters but for the joiners that
# scripts and emoji need, and surrogates, which cannot be encoded.
UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)


def visible(text: object, *, keep: str = "") -> str:
    """Return a text for a terminal or a log, unsafe characters escaped but those to ``keep``."""

    def escaped(found: re.Match[str]) -> str:
        return found[0] if found[0] in keep else found[0].encode("unicode_escape").decode()

    return UNSAFE.sub(escaped, str(text))


def is_lazy(value: object) -> bool:
    """Return whether a value is one of Django's lazy texts, by the name of their class."""
    name = type.__dict__["__name__"].__get__(type(value))  # without calling its metaclass
    return bool(name == "__proxy__")


def as_text(value: Any) -> Any:
    """Return a lazy text in the language that is active now, and any other value as it is."""
    return str(value) if is_lazy(value) else value


def text_problem(what: str, value: object, most: int = LONGEST) -> str | None:
    """Return why a value is no text of 1 to ``most`` characters that PostgreSQL can store, None if
    it is one.
    """
    if is_lazy(value):
        return f"{what} is {LAZY}"
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


def is_name(value: object, most: int = LONGEST) -> bool:
    """Return whether a value is a text of 1 to ``most`` printable characters."""
    return isinstance(value, str) and 1 <= len(value) <= most and value.isprintable()


def name_problem(what: str, value: object, most: int = LONGEST) -> str | None:
    """Return why a value is no name of 1 to ``most`` printable characters, None if it is one."""
    if is_name(value, most):
        return None
    if is_lazy(value):
        return f"{what} is {LAZY}"
    return f"{what} must be a str of 1 to {most} printable characters, not {shown(value, 80)}"


def shown(value: object, most: int = 100) -> str:
    """Return the repr of a value, cut off if it has more than ``most`` characters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 20]}... ({len(text):,} characters)"


def storable_who(error: type[Exception], refused: str, actor: Any, reason: Any) -> tuple[str, Any]:
    """Return an actor and a reason as they are stored: lazy texts in the language that is active
    now.

    Raises the error, which says what was ``refused``, for one that cannot be stored. There may be
    no reason.
    """
    actor = as_text(actor)
    reason = as_text(reason)
    problem = (
        None if reason is None or reason == "" else text_problem("reason", reason, LONGEST_REASON)
    )
    if problem := text_problem("actor", actor) or problem:
        raise error(f"{refused}: {problem}")

    return actor, reason


def name_of(user: Any) -> str:
    """Return the name of a Django user as the audit stores it.

    A project's own user model may have names that are no texts, that are empty, or that are too
    long for a column. The primary key stands for an empty name, and tells apart long ones that
    begin alike.
    """
    name = user.get_username()
    text = "" if name is None else str(name)

    if not text.strip():
        return f"user {user.pk}"[:LONGEST]
    if len(text) <= LONGEST:
        return text

    end = f"… (user {user.pk})"[:100]
    return text[: LONGEST - len(end)] + end


def amount(count: int, noun: str, more: bool = False) -> str:
    """Return "1 task" or "3 tasks"; ``more``: "at least 3 tasks"."""
    least = "at least " if more else ""
    return f"{least}{count:,} {noun}{'' if count == 1 else 's'}"


def close_to(name: str, names: Iterable[str]) -> str:
    """Return a suggestion for a misspelt name, or nothing."""
    close = get_close_matches(name, list(names), 1)
    return f"; did you mean {close[0]!r}?" if close else ""
