"""The shapes of lists, sets, tuples and dictionaries, and of dataclasses and TypedDicts.

Dataclasses and TypedDicts are stored as JSON objects of their fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horsies_django.core.codec.errors import CodecError, misfit
from horsies_django.core.codec.jsondata import each_entry, each_item, write_json
from horsies_django.core.codec.shapes import Record, Shape

Convert = Callable[[Any], Any]


class Fields:
    """The fields of a dataclass, with their encoders and decoders.

    A field may have the type of the dataclass itself, so ``complete`` sets the encoders and the
    decoders later.
    """

    def __init__(self, cls: type, name: str, record: Record) -> None:
        self.cls = cls
        self.name = name
        self.record = record
        self.dumps: list[tuple[str, Convert]] = []
        self.loads: list[tuple[str, Convert]] = []

    def shape(self) -> Shape:
        return Shape(
            self.name, frozenset({dict}), self.accepts, self.dump, self.load, record=self.record
        )

    def complete(self, shapes: Mapping[str, Shape]) -> None:
        """Set the encoders and the decoders of the fields, from their shapes by name."""
        choices = {
            field: shape.values
            for field, shape in shapes.items()
            if shape.values and field in self.record.required
        }
        self.record.choices = choices
        self.dumps = [(field, shape.dump) for field, shape in shapes.items()]
        # Fields with few values are decoded first, because they exclude other classes of a union
        # before nested values are decoded.
        self.loads = [
            (field, shapes[field].load)
            for field in sorted(shapes, key=lambda field: field not in choices)
        ]

    def accepts(self, value: Any) -> bool:
        """Return whether ``value`` is an instance of the class without additional fields."""
        return isinstance(value, self.cls) and (type(value) is self.cls or not self._added(value))

    def _added(self, value: Any) -> list[str]:
        return [
            field.name
            for field in dataclasses.fields(value)
            if field.init and field.name not in self.record.names
        ]

    def dump(self, value: Any) -> dict[str, Any]:
        """Return the fields of ``value`` as an object.

        Raises CodecError if ``value`` is not an instance of the class or cannot be encoded.
        """
        if type(value) is not self.cls:
            if not isinstance(value, self.cls):
                raise misfit(self.name, value)
            if added := ", ".join(map(repr, self._added(value))):
                raise CodecError(
                    f"expected {self.name}, got {type(value).__name__}, whose {added} would be lost"
                )

        made = {}
        for field, convert in self.dumps:
            try:
                part = getattr(value, field)
            except AttributeError:
                raise CodecError(
                    f"this {self.name} has no value for its field {field!r}", "value"
                ) from None

            try:
                made[field] = convert(part)
            except CodecError as error:
                error.within(f".{field}")
                raise

        return made

    def load(self, stored: Any) -> Any:
        """Return an instance with the stored fields, and defaults for missing fields.

        Raises CodecError if the stored fields do not fit the class.
        """
        if type(stored) is not dict:
            raise misfit(f"{self.name} as an object", stored)

        made = self._converted(stored, self.loads, "the stored object")
        try:
            return self.cls(**made)
        except Exception as error:  # __post_init__ is user code, which may raise anything
            problem = f"{self.name}() refused the stored fields: {type(error).__name__}: {error}"
            raise CodecError(problem, "value") from error

    def _converted(
        self, given: dict[Any, Any], converts: list[tuple[str, Convert]], what: str
    ) -> dict[str, Any]:
        # The message has only the number of unknown fields, because their names are data.
        if unknown := len(given.keys() - self.record.names):
            raise CodecError(
                f"{what} has {unknown} field{'s' * (unknown > 1)} that {self.name} does not have"
            )
        if missing := self.record.required - given.keys():
            raise CodecError(
                f"{what} has no {', '.join(map(repr, sorted(missing)))}, which {self.name} needs"
            )

        made = {}
        for field, convert in converts:
            if field in given:
                try:
                    made[field] = convert(given[field])
                except CodecError as error:
                    error.within(f".{field}")
                    raise

        return made


class TypedFields(Fields):
    """The fields of a TypedDict, whose values are dicts.

    A missing field that is not required has no default, so it is also missing after decoding.
    """

    def accepts(self, value: Any) -> bool:
        return isinstance(value, dict)

    def dump(self, value: Any) -> dict[str, Any]:
        """Return the fields of ``value`` as an object.

        Raises CodecError if ``value`` is not a dict with these fields or cannot be encoded.
        """
        if not isinstance(value, dict):
            raise misfit(self.name, value)
        return self._converted(value, self.dumps, "the dict")


def list_shape(item: Shape) -> Shape:
    return _uniform(list, each_item, f"list[{item.name}]", item)


def dict_shape(item: Shape) -> Shape:
    return _uniform(dict, each_entry, f"dict[str, {item.name}]", item)


def _uniform(cls: type, each: Callable[[Any, Convert], Any], name: str, item: Shape) -> Shape:
    """Return the shape of a list or a dict, which is of the same type in JSON."""

    def walk(convert: Convert) -> Convert:
        def call(value: Any) -> Any:
            if isinstance(value, cls):
                return each(value, convert)
            raise misfit(name, value)

        return call

    return Shape(
        name,
        frozenset({cls}),
        lambda value: isinstance(value, cls),
        walk(item.dump),
        walk(item.load),
        plain=item.plain,
    )


def row_shape(cls: type[Any], item: Shape) -> Shape:
    """Return the shape of a tuple of any length or of a set.

    The elements of a set are sorted, so that equal sets have the same text.
    """
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
        except TypeError:  # for example, a list cannot be an element of a set
            raise CodecError(
                f"the stored list has an element that cannot be in a {cls.__name__}"
            ) from None

    return Shape(name, frozenset({list}), lambda value: isinstance(value, cls), dump, load)


def tuple_shape(items: Sequence[Shape], cls: type[Any] = tuple) -> Shape:
    """Return the shape of a tuple with a type for each element, or of a NamedTuple ``cls``."""
    name = f"tuple[{', '.join(item.name for item in items)}]" if cls is tuple else cls.__name__
    dumps = [item.dump for item in items]
    loads = [item.load for item in items]

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
