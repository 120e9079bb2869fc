"""The shapes of lists, sets, tuples and dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horsies_django.core.codec.errors import CodecError, misfit
from horsies_django.core.codec.jsondata import each_entry, each_item, write_json
from horsies_django.core.codec.shapes import Shape

Convert = Callable[[Any], Any]


def list_shape(item: Shape) -> Shape:
    return _uniform(list, each_item, f"list[{item.name}]", item)


def dict_shape(item: Shape) -> Shape:
    return _uniform(dict, each_entry, f"dict[str, {item.name}]", item)


def _uniform(cls: type, each: Callable[[Any, Convert], Any], name: str, item: Shape) -> Shape:
    """Return the shape of a container that is one in JSON, too."""

    def walk(convert: Convert) -> Convert:
        def call(value: Any) -> Any:
            if isinstance(value, cls):
                return each(value, convert)
            raise misfit(name, value)

        return call

    return Shape(
        name, frozenset({cls}), lambda value: isinstance(value, cls), walk(item.dump), walk(item.load), plain=item.plain
    )


def row_shape(cls: type[Any], item: Shape) -> Shape:
    """Return the shape of a tuple of any length or of a set. Equal sets have one text."""
    inner = list_shape(item)
    name = f"tuple[{item.name}, ...]" if cls is tuple else f"{cls.__name__}[{item.name}]"

    def dump(value: Any) -> list[Any]:
        if not isinstance(value, cls):
            raise misfit(name, value)
        made: list[Any] = inner.dump(list(value))
        return made if cls is tuple else sorted(made, key=write_json)

    def load(stored: Any) -> Any:
        try:
            return cls(inner.load(stored))
        except TypeError:  # a list in a set
            raise CodecError(f"the stored list has an element that cannot be in a {cls.__name__}") from None

    return Shape(name, frozenset({list}), lambda value: isinstance(value, cls), dump, load)


def tuple_shape(items: Sequence[Shape], cls: type[Any] = tuple) -> Shape:
    """Return the shape of a tuple with a type for each element, or of a NamedTuple ``cls``."""
    name = f"tuple[{', '.join(item.name for item in items)}]" if cls is tuple else cls.__name__
    dumps, loads = [item.dump for item in items], [item.load for item in items]

    def walk(value: Any, expected: type[Any], converts: list[Convert]) -> list[Any]:
        if not isinstance(value, expected):
            raise misfit(name, value)
        if len(value) != len(converts):
            raise CodecError(f"expected {name}, got {len(value)} items instead of {len(converts)}")
        return each_item(zip(converts, value, strict=True), lambda pair: pair[0](pair[1]))

    def load(stored: Any) -> Any:
        made = walk(stored, list, loads)
        return tuple(made) if cls is tuple else cls(*made)

    return Shape(
        name,
        frozenset({list}),
        lambda value: isinstance(value, cls) and len(value) == len(items),
        lambda value: walk(value, cls, dumps),
        load,
    )
