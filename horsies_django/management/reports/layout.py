"""Shared parts of the reports: tables and datetimes as text, and records as JSON."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

from horsies_django.core.queues import CLUSTER
from horsies_django.models.fields import aware


def as_json(value: Any, indent: int | None = 2) -> str:
    """Return JSON, with named tuples as objects and datetimes in ISO 8601; on one line without an indent."""
    return json.dumps(_plain(value), cls=DjangoJSONEncoder, indent=indent)


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return columns as wide as their longest cell, two spaces apart; a cell of None is shown as "-".

    Control characters, which partition keys may contain, are shown as "?".
    """
    lines = [list(headings), *([visible("-" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(headings))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def page(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    """Return a title, and a line for each of its rows."""
    return "\n".join([title, *(f"  {label:<16}{value}" for label, value in rows)])


def visible(text: str, *, keep: str = "") -> str:
    """Return a text with its control characters, but those to ``keep``, shown as "?"."""
    return re.sub(rf"[^{keep}\x20-\x7e\xa0-\U0010ffff]", "?", text)


def bounded(count: int, more: bool) -> str:
    """Return a number, with "+" if the count stopped at its bound."""
    return f"{count:,}{'+' if more else ''}"


def title(name: str) -> str:
    """Return the name of a queue, or "whole cluster"."""
    return "whole cluster" if name == CLUSTER else name


def moment(value: dt.datetime | None) -> str:
    """Return a datetime to the second, with its time zone."""
    return "-" if value is None else aware(value).isoformat(sep=" ", timespec="seconds")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dt.datetime):
        return aware(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
