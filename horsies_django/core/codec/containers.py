"""The shapes of lists, dictionaries and tuples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horsies_django.core.codec.shapes import CodecError, Shape, check_key, key_step, misfit


def list_shape(item: Shape) -> Shape:
    name, dump_item, load_item = f"list[{item.name}]", item.dump, item.load

    def walk(value: Any, convert: Callable[[Any], Any]) -> list[Any]:
        if not isinstance(value, list):
            raise misfit(name, value)
        made: list[Any] = []
        try:
            for each in value:
                made.append(convert(each))
        except CodecError as error:
            error.within(f"[{len(made)}]")
            raise
        return made

    return Shape(
        name,
        frozenset({list}),
        lambda value: isinstance(value, list),
        lambda value: walk(value, dump_item),
        lambda stored: walk(stored, load_item),
        plain=item.plain,
    )


def dict_shape(item: Shape) -> Shape:
    name, dump_item, load_item = f"dict[str, {item.name}]", item.dump, item.load

    def walk(value: Any, convert: Callable[[Any], Any]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise misfit(name, value)
        made: dict[str, Any] = {}
        for key, each in value.items():
            check_key(key)
            try:
                made[key] = convert(each)
            except CodecError as error:
                error.within(key_step(len(made)))
                raise
        return made

    return Shape(
        name,
        frozenset({dict}),
        lambda value: isinstance(value, dict),
        lambda value: walk(value, dump_item),
        lambda stored: walk(stored, load_item),
        plain=item.plain,
    )


def tuple_shape(items: Sequence[Shape]) -> Shape:
    name = f"tuple[{', '.join(item.name for item in items)}]"
    dumps, loads = [item.dump for item in items], [item.load for item in items]

    def walk(
        value: Any, cls: type[list[Any]] | type[tuple[Any, ...]], converts: list[Callable[[Any], Any]]
    ) -> list[Any]:
        if not isinstance(value, cls):
            raise misfit(name, value)
        if len(value) != len(converts):
            raise CodecError(f"expected {name}, got {len(value)} items instead of {len(converts)}")
        made: list[Any] = []
        try:
            for convert, each in zip(converts, value, strict=True):
                made.append(convert(each))
        except CodecError as error:
            error.within(f"[{len(made)}]")
            raise
        return made

    return Shape(
        name,
        frozenset({list}),
        lambda value: isinstance(value, tuple) and len(value) == len(items),
        lambda value: walk(value, tuple, dumps),
        lambda stored: tuple(walk(stored, list, loads)),
    )


def row_shape(item: Shape) -> Shape:
    inner, name = list_shape(item), f"tuple[{item.name}, ...]"

    def dump(value: Any) -> list[Any]:
        if not isinstance(value, tuple):
            raise misfit(name, value)
        made: list[Any] = inner.dump(list(value))
        return made

    return Shape(
        name, frozenset({list}), lambda value: isinstance(value, tuple), dump, lambda stored: tuple(inner.load(stored))
    )
