"""The parts of the error about an annotation that cannot be encoded.

They are its name, the reason why it is refused, and the annotation to write instead.
"""

from __future__ import annotations

import os
import typing
from collections import abc
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from horsies_django.core.results import TaskResult


def is_model(annotation: Any) -> bool:
    """Return whether a class has the attributes of a Django model.

    The attributes are checked, because this package does not import Django.
    """
    named = isinstance(annotation, type) and hasattr(annotation, "_meta")
    return named and (hasattr(annotation, "objects") or hasattr(annotation, "_default_manager"))


def annotation_name(annotation: Any) -> str:
    """Return an annotation as source code, without the names of modules."""
    args = get_args(annotation)
    if args and get_origin(annotation) not in (Literal, Union, UnionType, Annotated, abc.Callable):
        inner = ", ".join("..." if arg is Ellipsis else annotation_name(arg) for arg in args)
        return f"{annotation_name(get_origin(annotation))}[{inner}]"

    if args and get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(annotation_name, args))
    if annotation is type(None):
        return "None"
    return getattr(annotation, "__name__", None) or str(annotation).replace("typing.", "")


def advice(annotation: Any, origin: Any, args: tuple[Any, ...]) -> tuple[str, str]:
    """Return the reason why an annotation is refused, and advice on the annotation to write."""
    cls = origin or annotation
    inner = ", ".join(annotation_name(arg) for arg in args if arg is not Ellipsis)

    for test, reason, instead in ADVICE:
        if test(cls):
            return reason, instead.replace("{inner}", inner or "str")

    return (
        "cannot be encoded as JSON",
        "write a dataclass, or send a key with which the task can find it",
    )


def _any_of(*classes: Any) -> Callable[[Any], bool]:
    return lambda cls: cls in classes


def _below(*classes: type) -> Callable[[Any], bool]:
    return lambda cls: isinstance(cls, type) and issubclass(cls, classes)


# The first entry whose condition holds is used.
ADVICE: list[tuple[Callable[[Any], bool], str, str]] = [
    (
        is_model,
        "is a model, whose row may change before the task runs",
        "annotate int and send its pk",
    ),
    (
        _any_of(TaskResult),
        "is the result of a task",
        "use it only as the return annotation of a task, or as the whole annotation of a "
        "parameter, as in TaskResult[int]",
    ),
    (_any_of(object), "does not describe the value", "write Any for any plain JSON value"),
    (
        _any_of(tuple),
        "does not define the types of its elements",
        "write tuple[int, str], or tuple[Any, ...]",
    ),
    (
        lambda cls: isinstance(cls, TypeVar),
        "is a type variable",
        "write the type itself",
    ),
    (
        lambda cls: hasattr(cls, "parse_obj"),
        "is not a model of pydantic 2",
        "use pydantic 2.8 or newer, or write a dataclass",
    ),
    (_below(os.PathLike), "is a path", "write pathlib.Path"),
    (_below(bytearray, memoryview), "is mutable", "write bytes"),
    (_any_of(abc.Set, abc.MutableSet), "is an abstract type", "write set[{inner}]"),
    (
        _any_of(abc.Callable),
        "is code, which cannot be sent",
        "write str and pass the name of the function",
    ),
    (_any_of(type), "is a class, which cannot be sent", "write str and pass its name"),
    (_any_of(abc.Mapping, abc.MutableMapping), "is an abstract type", "write dict[{inner}]"),
    (
        _any_of(
            abc.Sequence,
            abc.MutableSequence,
            abc.Iterable,
            abc.Iterator,
            abc.Collection,
            abc.Generator,
        ),
        "is an abstract type",
        "write list[{inner}] and pass list(...)",
    ),
    (_any_of(typing.NoReturn, typing.Never), "has no values", "write None"),
]
