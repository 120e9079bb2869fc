"""The compiler of annotations into shapes.

The error for an unsupported annotation contains the annotation to write instead.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Iterable, Set
from pathlib import PurePath
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from horsies_django.core.codec.advice import advice, annotation_name, is_model
from horsies_django.core.codec.errors import CodecError
from horsies_django.core.codec.jsondata import MAX_DEPTH, too_deep
from horsies_django.core.codec.models import (
    checked_shape,
    has_constraints,
    has_discriminator,
    is_pydantic,
    is_pydantic_type,
    model_shape,
    pydantic_text_shape,
)
from horsies_django.core.codec.objects import (
    Fields,
    TypedFields,
    dict_shape,
    list_shape,
    row_shape,
    tuple_shape,
)
from horsies_django.core.codec.scalars import (
    SCALAR_SHAPES,
    enum_shape,
    literal_shape,
    path_shape,
    scalar_key,
)
from horsies_django.core.codec.shapes import ANY, Record, Shape
from horsies_django.core.codec.unions import clash, union_shape
from horsies_django.core.errors import TaskDefinitionError

CONTAINERS = (list, dict, tuple, set, frozenset)
WRAP = "declare one of them, or put each into a dataclass of its own"
DISCRIMINATE = (
    "declare one of them, or give pydantic a discriminator: Annotated[{pair}, "
    "Field(discriminator='kind')]"
)


class UnsupportedType(TaskDefinitionError):  # noqa: N818 - named for what the reader must change
    """An annotation is a type that cannot be encoded as JSON.

    The message contains the annotation to write instead.
    """


def shape_of(annotation: Any, where: str) -> Shape:
    """Return the shape of an annotation.

    ``where`` is the place of the annotation in messages. Raises UnsupportedType if the type cannot
    be encoded, and NameError if it contains an undefined name.
    """
    compiler = Compiler()
    try:
        shape = compiler.shape(annotation, where)
        compiler.check_unions()
    except RecursionError:
        raise refused(
            where,
            "this type",
            "is nested too deeply, or defined by itself",
            "write Any, or a dataclass",
        ) from None

    return limit_depth(shape) if compiler.recursive else shape


def refused(where: str, name: str, reason: str, instead: str) -> UnsupportedType:
    return UnsupportedType(f"{where}: {name} {reason}: {instead}")


def limit_depth(shape: Shape) -> Shape:
    """Return the shape of a recursive type with a limit to the depth of its values."""

    def dump(value: Any) -> Any:
        stored = shape.dump(value)
        level = [stored]
        for _ in range(MAX_DEPTH + 1):
            if not (level := [item for each in level for item in nested(each)]):
                return stored

        raise too_deep()

    return dataclasses.replace(shape, dump=dump)


def nested(stored: Any) -> list[Any]:
    """Return the lists and objects directly inside plain JSON data."""
    inside: Iterable[Any] = ()
    if isinstance(stored, dict):
        inside = stored.values()
    elif isinstance(stored, list):
        inside = stored

    return [item for item in inside if isinstance(item, dict | list)]


class Compiler:
    """One compilation of an annotation.

    It keeps the dataclasses that were found, for recursive types, and the unions, which are checked
    at the end.
    """

    def __init__(self) -> None:
        self.recursive = False
        self._records: dict[Any, Shape] = {}
        self._open: set[Any] = set()
        self._unions: list[tuple[list[Shape], str, str]] = []

    def shape(self, annotation: Any, where: str) -> Shape:
        """Return the shape of one annotation.

        Raises UnsupportedType if the type cannot be encoded.
        """
        try:
            if (scalar := SCALAR_SHAPES.get(annotation)) is not None:
                return scalar
        except TypeError:  # annotations such as Annotated[int, []] have no hash
            pass

        origin = get_origin(annotation)
        args = get_args(annotation)

        if origin is Annotated and has_discriminator(args[1:]):
            return self._by_pydantic(model_shape, annotation, where)
        if origin is Annotated and has_constraints(args[1:]):
            inner = self.shape(args[0], where)
            return self._by_pydantic(lambda each, _: checked_shape(each, inner), annotation, where)

        # ReadOnly is new in Python 3.13. For older versions it is in typing_extensions.
        if (
            origin in (Annotated, Final, Required, NotRequired)
            or getattr(origin, "_name", "") == "ReadOnly"
        ):
            return self.shape(args[0], where)

        if origin is Union or origin is UnionType:
            members = [self.shape(arg, where) for arg in args]
            self._unions.append(
                (members, where, DISCRIMINATE if any(map(is_pydantic, args)) else WRAP)
            )
            return union_shape(members)

        if origin is Literal:
            return self._literal(args, where)
        if hasattr(annotation, "__supertype__"):  # NewType
            return self.shape(annotation.__supertype__, where)
        if type(annotation).__name__ == "TypeAliasType":  # the statement type X = ..., Python 3.12
            return self.shape(annotation.__value__, where)

        if hasattr(origin, "horsies_shape"):  # Results of workflows, which is not imported here
            shape: Shape = origin.horsies_shape(self.shape(args[0], where))
            return shape

        if (origin or annotation) in CONTAINERS:
            return self._container(annotation, origin or annotation, args, where)
        if is_pydantic(annotation):
            return self._by_pydantic(model_shape, annotation, where)

        cls = origin or annotation
        if isinstance(cls, type) and not is_model(cls):
            if issubclass(cls, enum.Enum):
                return self._enum(cls, where)
            if issubclass(cls, PurePath):
                return path_shape(cls)
            if issubclass(cls, tuple) and hasattr(cls, "_fields"):
                hints = field_hints(annotation, cls)
                return tuple_shape(
                    [self.shape(hints.get(each, Any), where) for each in cls._fields], cls
                )
            if dataclasses.is_dataclass(cls) or is_typeddict(cls):
                return self._record(annotation, cls, where)
            if is_pydantic_type(cls):
                return self._by_pydantic(pydantic_text_shape, annotation, where)

        raise refused(where, annotation_name(annotation), *advice(annotation, origin, args))

    def check_unions(self) -> None:
        """Raise UnsupportedType if members of a union cannot be distinguished in JSON."""
        for members, where, instead in self._unions:
            for place, one in enumerate(members):
                for other in members[place + 1 :]:
                    if reason := clash(one, other):
                        pair = f"{one.name} | {other.name}"
                        reason = f"cannot be distinguished when they are decoded ({reason})"
                        raise refused(where, pair, reason, instead.replace("{pair}", pair))

    def _by_pydantic(self, make: Callable[[Any, str], Shape], annotation: Any, where: str) -> Shape:
        name = annotation_name(
            get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
        )
        try:
            return make(annotation, name)
        except NameError:
            raise
        except Exception as error:  # pydantic's exceptions have no common base class
            raise refused(where, name, "is refused by pydantic", str(error)) from error

    def _literal(self, args: tuple[Any, ...], where: str) -> Shape:
        options = [
            (arg, plain_scalar(arg.value if isinstance(arg, enum.Enum) else arg, where))
            for arg in args
        ]
        if len({scalar_key(stored) for _, stored in options}) < len(options):
            raise refused(
                where,
                f"Literal{list(args)}",
                "has values that are the same in JSON",
                "keep one of them",
            )
        return literal_shape(options)

    def _container(
        self, annotation: Any, cls: type[Any], args: tuple[Any, ...], where: str
    ) -> Shape:
        if cls is tuple and not args:
            raise refused(
                where,
                "tuple",
                "does not define the types of its elements",
                "write tuple[int, str], or tuple[Any, ...]",
            )

        if cls is dict:
            if args and args[0] is not str:
                instead = f"write dict[str, {annotation_name(args[1])}], or a list of pairs"
                raise refused(
                    where,
                    annotation_name(annotation),
                    "has keys that are not str, but the keys of a JSON object are str",
                    instead,
                )

            return dict_shape(self.shape(args[1], where) if args else ANY)

        if cls is tuple and args[1:] != (Ellipsis,):
            return tuple_shape([self.shape(arg, where) for arg in args])
        item = self.shape(args[0], where) if args else ANY
        return list_shape(item) if cls is list else row_shape(cls, item)

    def _enum(self, cls: type[enum.Enum], where: str) -> Shape:
        if not len(cls) and not issubclass(cls, enum.Flag):
            raise refused(where, cls.__name__, "has no members", "write an Enum with members")

        shape = enum_shape(
            cls, lambda value: plain_scalar(value, f"{where}: a member of {cls.__name__}")
        )
        if shape.values and len({scalar_key(stored) for stored in shape.values}) < len(
            shape.values
        ):
            raise refused(
                where,
                cls.__name__,
                "has members that are the same in JSON",
                "give each its own value",
            )

        return shape

    def _record(self, annotation: Any, cls: type[Any], where: str) -> Shape:
        if annotation in self._records:
            existing = self._records[annotation]
            if annotation not in self._open:
                return existing
            # The known shape is not complete yet, so its functions are looked up later.
            self.recursive = True
            return dataclasses.replace(
                existing,
                dump=lambda value: existing.dump(value),
                load=lambda stored: existing.load(stored),
            )

        hints = field_hints(annotation, cls)
        name = annotation_name(annotation)
        missing = dataclasses.MISSING

        if is_typeddict(cls):
            required = {
                each for each in hints if is_required(hints[each], each in cls.__required_keys__)
            }
            fields: Fields = TypedFields(
                cls, name, Record(frozenset(hints), frozenset(required), {})
            )
        else:
            taken = {field.name: field for field in dataclasses.fields(cls) if field.init}
            refuse_odd_constructor(cls, taken.keys(), where)
            hints = {each: hints[each] for each in taken}
            required = {
                each for each, one in taken.items() if one.default is one.default_factory is missing
            }
            fields = Fields(cls, name, Record(frozenset(taken), frozenset(required), {}))

        self._records[annotation] = shape = fields.shape()
        self._open.add(annotation)
        fields.complete(
            {
                each: self.shape(hint, f"{where}, field '{each}' of {name}")
                for each, hint in hints.items()
            }
        )
        self._open.remove(annotation)

        return shape


def field_hints(annotation: Any, cls: type[Any]) -> dict[str, Any]:
    """Return the annotations of the fields of a class.

    The type parameters of a generic class are replaced by types. Raises NameError if an annotation
    contains an undefined name.
    """
    types = dict(zip(getattr(cls, "__parameters__", ()), get_args(annotation), strict=False))

    def substituted(hint: Any) -> Any:
        if isinstance(hint, TypeVar):
            return types.get(hint, hint)
        parameters = getattr(hint, "__parameters__", ()) if types else ()
        return hint[tuple(types.get(each, each) for each in parameters)] if parameters else hint

    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError as error:
        if error.name != cls.__name__:
            raise
        # The class refers to itself.
        hints = get_type_hints(cls, localns={cls.__name__: cls}, include_extras=True)

    return {name: substituted(hint) for name, hint in hints.items()}


def is_required(hint: Any, otherwise: bool) -> bool:
    """Return whether a field of a TypedDict is required.

    ``otherwise`` is returned if the annotation is neither Required nor NotRequired. The annotation
    is checked, because ``__required_keys__`` is wrong for postponed annotations.
    """
    return get_origin(hint) is Required or (get_origin(hint) is not NotRequired and otherwise)


def is_typeddict(cls: type[Any]) -> bool:
    """Return whether a class is a TypedDict of typing or of typing_extensions."""
    return issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def plain_scalar(value: Any, where: str) -> Any:
    """Return the plain value of a member of an Enum or of a Literal.

    Raises UnsupportedType if the value cannot be encoded.
    """
    for cls in (bool, int, float, str):
        if isinstance(value, cls):
            try:
                ANY.dump(value)
            except CodecError as error:
                raise refused(
                    where,
                    "a value",
                    f"cannot be encoded as JSON ({error.problem})",
                    "use another value",
                ) from None

            if cls is bool:
                return value
            return str.__str__(value) if cls is str else cls(value)

    if value is None:
        return None

    raise refused(
        where,
        "a value",
        f"is {type(value).__name__}, which JSON cannot hold",
        "use bool, int, float or str",
    )


def refuse_odd_constructor(cls: type, fields: Set[str], where: str) -> None:
    """Raise UnsupportedType if a dataclass cannot be created from its fields by name."""
    parameters = inspect.signature(cls).parameters.values()
    needed = {
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    odd = (needed - fields) | (fields - {p.name for p in parameters})

    if odd and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        reason = (
            f"cannot be built from its fields alone, because of {', '.join(map(repr, sorted(odd)))}"
        )
        raise refused(
            where,
            cls.__name__,
            reason,
            "write a dataclass without InitVar and without its own __init__",
        )
