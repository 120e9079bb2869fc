"""The shapes of the models and types of pydantic, and of types with its constraints.

Pydantic itself writes and validates their values. It is imported for the first such type, so
projects without such types do not import it.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from horsies_django.core.codec.errors import CodecError, misfit
from horsies_django.core.codec.jsondata import write_json
from horsies_django.core.codec.scalars import SCALAR_SHAPES
from horsies_django.core.codec.shapes import ANY, Shape, passes

MOMENTS = {"date-time": dt.datetime, "date": dt.date, "time": dt.time}  # by format in JSON schemas


def is_pydantic(annotation: Any) -> bool:
    found: Any = sys.modules.get("pydantic")
    return (
        hasattr(found, "TypeAdapter")
        and isinstance(annotation, type)
        and issubclass(annotation, found.BaseModel)
    )


def has_discriminator(metadata: Iterable[Any]) -> bool:
    """Return whether the metadata of Annotated[...] contains a discriminator of pydantic.

    By it, pydantic distinguishes the members of a union.
    """
    return any(
        type(item).__module__.startswith("pydantic.")
        and getattr(item, "discriminator", None) is not None
        for item in metadata
    )


def has_constraints(metadata: Iterable[Any]) -> bool:
    """Return whether the metadata of Annotated[...] contains constraints that pydantic checks.

    Examples are Field(gt=0) and Len(1).
    """
    return any(
        type(item).__module__.partition(".")[0] in ("pydantic", "annotated_types")
        for item in metadata
    )


def is_pydantic_type(cls: type) -> bool:
    """Return whether pydantic has a schema for a class.

    The class belongs to pydantic, as its Url before version 2.10, or defines a schema itself.
    """
    return hasattr(cls, "__get_pydantic_core_schema__") or cls.__module__.startswith(
        "pydantic_core."
    )


def checked_shape(annotation: Any, inner: Shape) -> Shape:
    """Return the shape of a type with constraints.

    A value is stored as one of the type without constraints. Pydantic checks it when it is encoded
    and when it is decoded. If a validator changes the value, the change is made when it is decoded.
    """
    check = Adapter(annotation, inner.name, "type").check

    def dump(value: Any) -> Any:
        stored = inner.dump(value)
        check(value)
        return stored

    return replace(inner, dump=dump, load=lambda stored: check(inner.load(stored)), plain=False)


def pydantic_text_shape(annotation: Any, name: str) -> Shape:
    """Return the shape of a type that pydantic writes as text, such as a URL.

    Raises ValueError if pydantic does not write the type as text.
    """
    adapter = Adapter(annotation, name)
    schema = adapter.schema()
    if schema.get("type") != "string":
        raise ValueError("only types that are text in its JSON schema can be declared")

    if (moment := MOMENTS.get(schema.get("format"))) is not None:
        return checked_shape(annotation, SCALAR_SHAPES[moment])

    def dump(value: Any) -> Any:
        stored = ANY.dump(adapter.dump(adapter.check(value)))
        if adapter.load(stored) != value:  # for example, a secret is written as stars
            raise CodecError(
                f"this {type(value).__name__} would come back as another {name}", "value"
            )
        return stored

    return Shape(name, frozenset({str}), lambda value: passes(dump, value), dump, adapter.load)


def model_shape(annotation: Any, name: str) -> Shape:
    """Return the shape of a model, or of a union with a discriminator.

    Raises NameError if a field has an undefined name. Exceptions of pydantic about an invalid model
    are raised too.
    """
    classes = tuple(classes_in(annotation))
    cls: Any
    for cls in classes:
        if is_pydantic(cls) and not cls.__pydantic_complete__:
            cls.model_rebuild()

    adapter = Adapter(annotation, name)

    def dump(value: Any) -> Any:
        """Return a model in the form that pydantic writes, with its aliases as keys.

        The written data is validated, because pydantic does not check values that are assigned to a
        field, and may not accept the data that it has written. Raises CodecError if the value is
        not such a model or cannot be encoded.
        """
        if not isinstance(value, classes):
            raise misfit(name, value)
        if type(value) not in classes and (
            added := ", ".join(map(repr, added_fields(value, classes)))
        ):
            raise CodecError(
                f"expected {name}, got {type(value).__name__}, whose {added} would be lost"
            )

        stored = ANY.dump(adapter.dump(value))
        adapter.load(stored)
        return stored

    objects = frozenset(NoneType if cls is NoneType else dict for cls in classes)
    kinds = objects if all(map(is_object, classes)) else ANY.kinds
    return Shape(name, kinds, lambda value: isinstance(value, classes), dump, adapter.load)


def classes_in(annotation: Any) -> Iterator[type]:
    """Yield the classes in an annotation, which may be a class, a union or Annotated[...]."""
    args = get_args(annotation)
    if isinstance(annotation, type) and not args:
        yield annotation
    for each in args[:1] if get_origin(annotation) is Annotated else args:
        yield from classes_in(each)


def is_object(cls: Any) -> bool:
    """Return whether the JSON of a class is always an object.

    It may be another type for a root model, and for a model with its own serializer.
    """
    root = getattr(cls, "__pydantic_root_model__", False)
    decorators = getattr(cls, "__pydantic_decorators__", None)
    return not root and not getattr(decorators, "model_serializers", None)


def added_fields(value: Any, classes: Iterable[type]) -> list[str]:
    """Return the fields of a value that its declared classes do not have."""
    declared = {
        field
        for cls in classes
        if isinstance(value, cls)
        for field in getattr(cls, "model_fields", ())
    }
    return sorted(getattr(type(value), "model_fields", {}).keys() - declared)


class Adapter:
    """The TypeAdapter of pydantic for a type, with CodecError in place of its exceptions."""

    def __init__(self, annotation: Any, name: str, kind: str = "value") -> None:
        from pydantic import TypeAdapter, ValidationError  # here, because the import is slow

        self.adapter: Any = TypeAdapter(annotation)
        self.name = name
        self.kind = kind
        self.invalid = ValidationError

    def dump(self, value: Any) -> Any:
        """Return a value in the form that pydantic writes. Raises CodecError if that fails."""
        try:
            return self.adapter.dump_python(
                value, mode="json", by_alias=True, round_trip=True, warnings=False
            )
        except RecursionError:
            raise
        except Exception as error:  # serializers are user code
            raise CodecError(
                f"{self.name} cannot be written: {type(error).__name__}: {error}", "value"
            ) from error

    def load(self, stored: Any) -> Any:
        """Return the value that pydantic reads from JSON data.

        Raises CodecError, with the position of the first problem, if the data is invalid.
        """
        return self._made(self.adapter.validate_json, write_json(stored))

    def check(self, value: Any) -> Any:
        """Return the value that pydantic returns for a value of the type.

        Raises CodecError if the value is invalid.
        """
        return self._made(lambda given: self.adapter.validate_python(given, strict=True), value)

    def schema(self) -> Any:
        """Return the JSON schema of the type, which is empty if pydantic has none."""
        try:
            return self.adapter.json_schema()
        except Exception:  # the type has no JSON schema, or user code failed
            return {}

    def _made(self, validate: Callable[[Any], Any], value: Any) -> Any:
        try:
            return validate(value)
        except RecursionError:
            raise
        except self.invalid as error:
            first, *others = error.errors(
                include_url=False, include_context=False, include_input=False
            )
            more = f" (and {len(others)} more)" if others else ""

            declared = frozenset(properties(self.schema()))
            path = "".join(step(part, declared) for part in first["loc"])
            problem = (
                "its tag is none of those declared"
                if first["type"] == "union_tag_invalid"
                else first["msg"]
            )

            raise CodecError(f"{self.name} refused it: {problem}{more}", self.kind, path) from error
        except Exception as error:  # validators are user code
            raise CodecError(
                f"{self.name} refused it: {type(error).__name__}: {error}", self.kind
            ) from error


def step(part: int | str, declared: Collection[str]) -> str:
    """Return one item of the position of an error of pydantic, as a step of a path.

    A key that is not a declared field is replaced by "[key]", because it is data.
    """
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if part in declared else "[key]"


def properties(schema: Any) -> Iterator[str]:
    """Yield the names of the fields in a JSON schema, at every level."""
    parts: Iterable[Any] = ()
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
        parts = schema.values()
    elif isinstance(schema, list):
        parts = schema

    for part in parts:
        yield from properties(part)
