"""The shapes of a dataclass and of a TypedDict: a JSON object of their fields, without the name of the class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from horsies_django.core.codec.errors import CodecError, misfit
from horsies_django.core.codec.shapes import Record, Shape


class Fields:
    """The fields of a dataclass, with their encoders and decoders; they may be recursive, so ``complete`` sets them later."""

    def __init__(self, cls: type, name: str, record: Record) -> None:
        self.cls = cls
        self.name = name
        self.record = record
        self.dumps: list[tuple[str, Callable[[Any], Any]]] = []
        self.loads: list[tuple[str, Callable[[Any], Any]]] = []

    def shape(self) -> Shape:
        return Shape(self.name, frozenset({dict}), self.accepts, self.dump, self.load, record=self.record)

    def complete(self, shapes: Mapping[str, Shape]) -> None:
        """Set the shapes of the fields, by name."""
        choices = {
            field: shape.values for field, shape in shapes.items() if shape.values and field in self.record.required
        }
        self.record.choices = choices
        self.dumps = [(field, shape.dump) for field, shape in shapes.items()]
        # Fields with few values first: in a union they exclude other classes before nested values are decoded.
        self.loads = [(field, shapes[field].load) for field in sorted(shapes, key=lambda field: field not in choices)]

    def accepts(self, value: Any) -> bool:
        """Return whether ``value`` is an instance of the class without additional fields."""
        return isinstance(value, self.cls) and (type(value) is self.cls or not self._added(value))

    def _added(self, value: Any) -> list[str]:
        return [field.name for field in dataclasses.fields(value) if field.init and field.name not in self.record.names]

    def dump(self, value: Any) -> dict[str, Any]:
        """Return the fields of ``value`` as an object. Raises CodecError."""
        if type(value) is not self.cls:
            if not isinstance(value, self.cls):
                raise misfit(self.name, value)
            if added := ", ".join(map(repr, self._added(value))):
                raise CodecError(f"expected {self.name}, got {type(value).__name__}, whose {added} would be lost")
        made = {}
        for field, convert in self.dumps:
            try:
                part = getattr(value, field)
            except AttributeError:
                raise CodecError(f"this {self.name} has no value for its field {field!r}", "value") from None
            try:
                made[field] = convert(part)
            except CodecError as error:
                error.within(f".{field}")
                raise
        return made

    def load(self, stored: Any) -> Any:
        """Return the instance with the fields ``stored`` and defaults for missing ones. Raises CodecError."""
        if type(stored) is not dict:
            raise misfit(f"{self.name} as an object", stored)
        made = self._converted(stored, self.loads, "the stored object")
        try:
            return self.cls(**made)
        except Exception as error:  # __post_init__ is user code
            problem = f"{self.name}() refused the stored fields: {type(error).__name__}: {error}"
            raise CodecError(problem, "value") from error

    def _converted(
        self, given: dict[Any, Any], converts: list[tuple[str, Callable[[Any], Any]]], what: str
    ) -> dict[str, Any]:
        if unknown := len(given.keys() - self.record.names):  # whose names are data
            raise CodecError(f"{what} has {unknown} field{'s' * (unknown > 1)} that {self.name} does not have")
        if missing := self.record.required - given.keys():
            raise CodecError(f"{what} has no {', '.join(map(repr, sorted(missing)))}, which {self.name} needs")
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
    """The fields of a TypedDict, whose values are dicts. One that is not required and missing stays missing."""

    def accepts(self, value: Any) -> bool:
        """Return whether ``value`` may have the fields."""
        return isinstance(value, dict)

    def dump(self, value: Any) -> dict[str, Any]:
        """Return the fields of ``value`` as an object. Raises CodecError."""
        if not isinstance(value, dict):
            raise misfit(self.name, value)
        return self._converted(value, self.dumps, "the dict")
