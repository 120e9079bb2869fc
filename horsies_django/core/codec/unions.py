"""The shapes of unions, and the rule that their members must be distinguishable in JSON.

The JSON does not contain the member of the union that encoded a value. So members that could be
confused are refused when the task is defined. Plain members may overlap, because they decode to the
same value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from types import NoneType
from typing import Any

from horsies_django.core.codec.errors import CodecError, misfit
from horsies_django.core.codec.scalars import FLOAT, INT, NONE, scalar_key
from horsies_django.core.codec.shapes import Record, Shape, passes

TYPE_WORDS: dict[type, str] = {
    str: "a string",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    bool: "a bool",
    NoneType: "null",
}


def union_shape(members: Sequence[Shape]) -> Shape:
    """Return the shape of a union whose members do not clash.

    The first member that accepts a value encodes or decodes it.
    """
    name = " | ".join(member.name for member in members)
    # float is the last member, because it accepts ints too.
    ordered = sorted(members, key=lambda member: member is FLOAT)

    if len(ordered) == 2 and NONE in ordered:
        return _optional_shape(name, next(member for member in ordered if member is not NONE))

    by_kind: dict[type, list[Shape]] = {}
    for member in ordered:
        for kind in member.kinds:
            by_kind.setdefault(kind, []).append(member)

    def dump(value: Any) -> Any:
        return first([member.dump for member in ordered if member.accepts(value)], value)

    def load(stored: Any) -> Any:
        return first([member.load for member in by_kind.get(type(stored), ())], stored)

    def first(converts: list[Callable[[Any], Any]], value: Any) -> Any:
        worst: CodecError | None = None
        for convert in converts:
            try:
                return convert(value)
            except CodecError as error:
                # The error with the longest path is probably that of the intended member.
                if worst is None or len(error.path) > len(worst.path):
                    worst = error

        raise worst or misfit(name, value)

    return Shape(
        name,
        frozenset(by_kind),
        lambda value: any(member.accepts(value) for member in ordered),
        dump,
        load,
        plain=all(member.plain for member in members),
        values=_union_values(members),
    )


def _optional_shape(name: str, some: Shape) -> Shape:
    dump_some = some.dump
    load_some = some.load
    accepts_some = some.accepts

    return Shape(
        name,
        some.kinds | NONE.kinds,
        lambda value: value is None or accepts_some(value),
        lambda value: None if value is None else dump_some(value),
        lambda stored: None if stored is None else load_some(stored),
        plain=some.plain,
        values=_union_values([NONE, some]),
    )


def _union_values(members: Sequence[Shape]) -> tuple[Any, ...] | None:
    values = [(None,) if member is NONE else member.values for member in members]
    few = [each for each in values if each is not None]
    return tuple(chain.from_iterable(few)) if len(few) == len(values) else None


def clash(one: Shape, other: Shape) -> str | None:
    """Return why two members of a union cannot be distinguished in JSON, or None if they can."""
    if not one.kinds & other.kinds or (one.plain and other.plain):
        return None
    if {one.name, other.name} == {INT.name, FLOAT.name}:
        return None  # 1 and 1.0 are different in jsonb

    for few, many in ((one, other), (other, one)):
        if few.values is not None and many.record is None:
            return (
                "both may be the same JSON value"
                if any(passes(many.load, stored) for stored in few.values)
                else None
            )

    if one.record and other.record:
        return _record_clash(one.record, other.record)

    shared = one.kinds & other.kinds
    word = next(word for kind, word in TYPE_WORDS.items() if kind in shared)
    return f"both are stored as {word}"


def _record_clash(one: Record, other: Record) -> str | None:
    if one.required - other.names and other.required - one.names:
        return None

    for field in one.choices.keys() & other.choices.keys():
        if not {*map(scalar_key, one.choices[field])} & {*map(scalar_key, other.choices[field])}:
            return None

    return (
        "their fields do not distinguish them: give each a field without a default that the other "
        "does not have, "
        "or both a field such as kind: Literal['...'] with different values"
    )
