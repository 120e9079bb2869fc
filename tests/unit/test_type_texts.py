"""Annotations as texts: what is written is read again, and a text from a table runs nothing."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import sys
import types
import uuid
from typing import Annotated, Any, Literal, Optional

import pytest

from horsies_django.core.codec.type_texts import Unknown, annotation_of, problem, text_of


@dataclasses.dataclass
class Payment:
    amount: int


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (None, "None"),
        (list[int], "list[int]"),
        (dict[str, list[Any]], "dict[str, list[Any]]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (int | None, "int | None"),
        (Optional[str], "str | None"),  # noqa: UP045
        (Literal["a", 3, True], "Literal['a', 3, True]"),
        (dt.datetime, "datetime.datetime"),
        (uuid.UUID, "uuid.UUID"),
        (list[Payment | Colour], f"list[{__name__}.Payment | {__name__}.Colour]"),
        (Annotated[int, "pence"], "int"),
        (decimal.Decimal | None, "decimal.Decimal | None"),
    ],
)
def test_what_is_written_is_read_again(annotation: Any, text: str) -> None:
    assert text_of(annotation) == text
    assert text_of(annotation_of(text)) == text


def test_what_has_no_text_is_not_checked() -> None:
    @dataclasses.dataclass
    class Local:
        amount: int

    class Moved:
        pass

    Moved.__module__, Moved.__qualname__ = "datetime", "date"
    for annotation in (Any, Local, list[Local], Moved, "Payment", Literal[Colour.RED], Literal["x" * 2_000], 3):
        assert text_of(annotation) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "(", "x", "print('boom')", "__import__('os')", "os.system('true')", "[int for _ in x]", "lambda: 0",
        "nowhere.Payment", "int()", "list[print]", "list[int()]", "(" * 900, "a." * 400 + "b", "sys.modules",
        "list[...][int]", "list[int](3)", "dict[str]", "Literal[print]", "Literal[f'{x}']", "types.SimpleNamespace[int]",
        "int if x else str", "x" * 5_000, "\x00",
    ],
)  # fmt: skip
def test_a_text_from_a_table_runs_nothing_and_an_unknown_one_checks_nothing(text: str) -> None:
    """Naive: eval()."""
    assert problem(text, "3") is None
    if text not in ("dict[str]",):
        with pytest.raises(Unknown):
            annotation_of(text)


def test_a_text_computes_no_attribute_of_a_module_or_a_class() -> None:
    asked = []
    module = types.ModuleType("horsies_lazy")
    module.__getattr__ = asked.append  # type: ignore[method-assign, assignment]

    class Meta(type):
        def __getattr__(cls, name: str) -> Any:
            asked.append(name)
            return int

    module.Holder = Meta("Holder", (), {})  # type: ignore[attr-defined]
    sys.modules["horsies_lazy"] = module
    try:
        for text in ("horsies_lazy.thing", "horsies_lazy.Holder.thing", "horsies_unimported.Thing"):
            with pytest.raises(Unknown):
                annotation_of(text)
    finally:
        del sys.modules["horsies_lazy"]
    assert asked == []


def test_a_problem_says_where_and_which_types_and_no_value() -> None:
    assert problem("dict[str, int]", '{"amount": 12}') is None
    assert problem("dict[str, int]", '{"amount": "12 EUR"}') == "data[key 1] does not fit: expected int, got str"
    assert problem("int", '"secret"') == "data does not fit: expected int, got str"
    assert problem(f"{__name__}.Payment", '{"amount": 1}') is None
    assert "data.amount does not fit" in (problem(f"{__name__}.Payment", '{"amount": "1"}') or "")
