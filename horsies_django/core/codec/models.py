"""The shape of pydantic's models: the JSON that pydantic itself writes and validates.

Pydantic is never imported here. A project whose annotations are its models has imported it; for others it costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from horsies_django.core.codec.jsontext import write_json
from horsies_django.core.codec.shapes import ANY, CodecError, Shape, misfit


def is_pydantic(annotation: Any) -> bool:
    found: Any = sys.modules.get("pydantic")
    return hasattr(found, "TypeAdapter") and isinstance(annotation, type) and issubclass(annotation, found.BaseModel)


def has_discriminator(metadata: Iterable[Any]) -> bool:
    """Return whether the metadata of Annotated[...] tells pydantic how to distinguish the members of a union."""
    return any(
        type(item).__module__.startswith("pydantic.") and getattr(item, "discriminator", None) is not None
        for item in metadata
    )


def model_shape(annotation: Any, name: str) -> Shape:
    """Return the shape of a model, or of a union with a discriminator.

    Raises NameError for an undefined name in a field, and whatever pydantic raises for models that it cannot use.
    """
    classes = tuple(classes_in(annotation))
    cls: Any
    for cls in classes:
        if is_pydantic(cls) and not cls.__pydantic_complete__:
            cls.model_rebuild()
    model = Model(sys.modules["pydantic"].TypeAdapter(annotation), classes, name)
    objects = frozenset(NoneType if cls is NoneType else dict for cls in classes)
    kinds = objects if all(map(is_object, classes)) else ANY.kinds
    return Shape(name, kinds, lambda value: isinstance(value, classes), model.dump, model.load)


def classes_in(annotation: Any) -> Iterator[type]:
    """Yield the classes of a union, with and without Annotated[...]."""
    args = get_args(annotation)
    if isinstance(annotation, type) and not args:
        yield annotation
    for each in args[:1] if get_origin(annotation) is Annotated else args:
        yield from classes_in(each)


def is_object(cls: Any) -> bool:
    """Return whether the JSON of a class is an object in any case: a root model and a serializer can write anything."""
    root = getattr(cls, "__pydantic_root_model__", False)
    decorators = getattr(cls, "__pydantic_decorators__", None)
    return not root and not getattr(decorators, "model_serializers", None)


class Model:
    """A model, or a union of models with a discriminator."""

    def __init__(self, adapter: Any, classes: tuple[type, ...], name: str) -> None:
        self.adapter = adapter
        self.classes = classes
        self.name = name
        self.invalid: type[Any] = sys.modules["pydantic"].ValidationError

    def dump(self, value: Any) -> Any:
        """Return a model as pydantic writes it, by its aliases. Raises CodecError.

        What was written is validated: pydantic does not check what is assigned to a field, and need not accept what it writes.
        """
        if not isinstance(value, self.classes):
            raise misfit(self.name, value)
        if type(value) not in self.classes and (added := ", ".join(map(repr, self._added(value)))):
            raise CodecError(f"expected {self.name}, got {type(value).__name__}, whose {added} would be lost")
        try:
            stored = self.adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)
        except RecursionError:
            raise
        except Exception as error:  # serializers are user code
            raise CodecError(f"{self.name} cannot be written: {type(error).__name__}: {error}", "value") from error
        self.load(ANY.dump(stored))
        return stored

    def load(self, stored: Any) -> Any:
        """Return the model that pydantic makes of JSON data. Raises CodecError with the position of the first problem."""
        try:
            return self.adapter.validate_json(write_json(stored))
        except RecursionError:
            raise
        except self.invalid as error:
            first, *others = error.errors(include_url=False, include_context=False, include_input=False)
            more = f" (and {len(others)} more)" if others else ""
            declared = frozenset(self._declared())
            path = "".join(step(part, declared) for part in first["loc"])
            problem = "its tag is none of those declared" if first["type"] == "union_tag_invalid" else first["msg"]
            raise CodecError(f"{self.name} refused it: {problem}{more}", "value", path) from error
        except Exception as error:  # validators are user code
            raise CodecError(f"{self.name} refused it: {type(error).__name__}: {error}", "value") from error

    def _declared(self) -> list[str]:
        """Return the names of all fields, also of models inside; none if pydantic cannot tell them."""
        try:
            return list(properties(self.adapter.json_schema()))
        except Exception:  # of a type without a JSON schema, or user code
            return []

    def _added(self, value: Any) -> list[str]:
        """Return the fields that a subclass has in addition."""
        known: set[str] = set()
        for cls in self.classes:
            if isinstance(value, cls):
                known |= set(getattr(cls, "model_fields", ()))
        return sorted(set(getattr(type(value), "model_fields", ())) - known)


def step(part: int | str, declared: Collection[str]) -> str:
    """Return one item of pydantic's position of an error as a step of a path; a key that is no declared field is data."""
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if part in declared else "[key]"


def properties(schema: Any) -> Iterator[str]:
    """Yield the names of the fields in a JSON schema, at every level."""
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from properties(part)
