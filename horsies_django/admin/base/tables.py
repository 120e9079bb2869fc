"""Tables on the pages of rows, as data: one template shows them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

T = TypeVar("T")


class Table(NamedTuple):
    """A table with a heading, and texts ``above`` and below it (``note``). ``id`` is the last part of that of the heading.

    The first cell of a row is its heading. ``rows`` is None if reading them took too long. Without ``heads``, there is no head.
    """

    id: str
    title: Any
    heads: Sequence[Any]
    rows: Sequence[Sequence[Any]] | None
    note: Any = ""
    empty: Any = gettext_lazy("None.")
    above: Any = ""


def rows_or_none(found: Iterable[T] | None, row: Any) -> list[Any] | None:
    """Return a row of cells for each of what was found, None if reading it took too long."""
    return None if found is None else [row(one) for one in found]


def marked(kind: str, value: Any) -> SafeString:
    """Return a cell in the style of a ``kind``; the stylesheet has a class for each."""
    return format_html('<span class="horsies-{}">{}</span>', kind, value)
