"""The shape of a dataclass: an object of its fields; nothing on the wire names the class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horsies_django.core.shapes import CodecError, Record, Shape, misfit


def record_shape(cls: type, record: Record) -> tuple[Shape, Callable[[dict[str, Shape]], None]]:
    """Make the shape of a dataclass, and the function that completes it with its fields: one may lead back to it."""
    name, names, required = cls.__name__, record.names, record.required
    dumps: list[tuple[str, Callable[[Any], Any]]] = []
    loads: dict[str, Callable[[Any], Any]] = {}

    def added(value: Any) -> list[str]:
        return [each for each, field in type(value).__dataclass_fields__.items() if field.init and each not in names]

    def dump(value: Any) -> dict[str, Any]:
        if type(value) is not cls:
            if not isinstance(value, cls):
                raise misfit(name, value)
            if more := added(value):
                raise CodecError(
                    f"expected {name}, got {type(value).__name__}, whose {', '.join(map(repr, more))} would be lost"
                )
        made = {}
        for field, convert in dumps:
            try:
                made[field] = convert(getattr(value, field))
            except CodecError as error:
                error.within(f".{field}")
                raise
        return made

    def load(stored: Any) -> Any:
        if type(stored) is not dict:
            raise misfit(f"{name} as an object", stored)
        if unknown := stored.keys() - names:
            raise CodecError(f"{name} has no field {', '.join(map(repr, sorted(unknown)))}")
        if missing := required - stored.keys():
            raise CodecError(f"the stored object has no {', '.join(map(repr, sorted(missing)))}, which {name} needs")
        made = {}
        for field, convert in loads.items():
            if field in stored:
                try:
                    made[field] = convert(stored[field])
                except CodecError as error:
                    error.within(f".{field}")
                    raise
        try:
            return cls(**made)
        except Exception as error:  # __post_init__ is user code
            raise CodecError(f"{name}() refused the stored fields: {type(error).__name__}: {error}", "value") from error

    def complete(shapes: dict[str, Shape]) -> None:
        dumps.extend((field, shape.dump) for field, shape in shapes.items())
        record.choices = {field: shape.values for field, shape in shapes.items() if shape.values and field in required}
        # Fields of few values first: in a union they turn a stranger away before anything deep is read.
        for field in sorted(shapes, key=lambda field: field not in record.choices):
            loads[field] = shapes[field].load

    accepts = lambda value: isinstance(value, cls) and (type(value) is cls or not added(value))  # noqa: E731
    return Shape(name, frozenset({dict}), accepts, dump, load, record=record), complete
