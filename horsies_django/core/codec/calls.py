"""Calls of any function, as durable steps make them: a digest of the arguments, and the shape of
the result.

Unlike a task, such a function needs no annotations. Its arguments are encoded by the types of their
values, only to be compared. Its result is encoded by the return annotation if there is one, else it
has to be plain JSON data.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from horsies_django.core.codec.annotations import UnsupportedType, shape_of
from horsies_django.core.codec.arguments import parameter_shape
from horsies_django.core.codec.errors import CodecError, misfit
from horsies_django.core.codec.jsondata import each_entry, each_item, write_json
from horsies_django.core.codec.shapes import ANY, Shape, at
from horsies_django.core.codec.signatures import EMPTY, origin_of, signature_of, unresolved
from horsies_django.core.errors import TaskDefinitionError

OWN = "atomic"  # the keyword that a step keeps for itself
INSTEAD = (
    "pass a key or plain values; what cannot be passed can be a variable of a function of your own "
    "that makes the call"
)

R = TypeVar("R")


def remembered(compute: Callable[[Callable[..., Any]], R]) -> Callable[[Callable[..., Any]], R]:
    """Return ``compute``, which keeps what it found for a function while that exists."""
    known: WeakKeyDictionary[Callable[..., Any], R] = WeakKeyDictionary()

    def look_up(function: Callable[..., Any]) -> R:
        try:
            return known[function]
        except KeyError:
            found = known[function] = compute(function)
            return found
        except TypeError:  # it has no hash, or cannot be referred to weakly
            return compute(function)

    return look_up


@remembered
def signature_or_none(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function, None if it does not tell it, as some builtins."""
    try:
        return signature_of(function)
    except ValueError:
        return None


def digest_of(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """Return a digest of the arguments of a call, with those that ``functools.partial`` holds.

    An argument counts under its name, however it is passed. Raises CodecError for one that cannot
    be encoded, and TypeError if the arguments do not fit the function.
    """
    while isinstance(function, functools.partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func

    signature = signature_or_none(function)
    if (
        signature
        and OWN in signature.parameters
        and OWN not in signature.bind_partial(*args, **kwargs).arguments
    ):
        raise TypeError(
            f"{function.__name__}() has a parameter {OWN!r} of its own, and step() takes a keyword "
            "of that name: write "
            f"functools.partial({function.__name__}, {OWN}=...)"
        )

    bound = (
        {"args": args, **kwargs} if signature is None else signature.bind(*args, **kwargs).arguments
    )
    stored = {name: at(name, canonical, value) for name, value in bound.items()}
    return hashlib.sha256(write_json(sorted(stored.items())).encode()).hexdigest()[:32]


def canonical(value: Any) -> Any:
    """Return an argument as JSON data that is equal for equal values. Raises CodecError."""
    if isinstance(value, list | tuple):
        return each_item(value, canonical)
    if isinstance(value, dict):
        return dict(sorted(each_entry(value, canonical).items()))
    if value is None or isinstance(value, bool | int | float | str):
        return ANY.dump(value)

    if hasattr(value, "_meta") and hasattr(value, "pk"):
        raise misfit("", value)

    try:
        return canonical(shape_of(type(value), "an argument").dump(value))
    except (UnsupportedType, NameError) as error:
        raise CodecError(f"{type(value).__name__} cannot be encoded as JSON: {INSTEAD}") from error


def result_shape(function: Callable[..., Any]) -> Shape:
    """Return the shape of what a function returns: by its annotation, else any plain JSON data.
    Raises TaskDefinitionError.

    Only the return annotation is resolved, because those of parameters may exist for type checkers
    alone.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return shape_by_annotation(function)


@remembered
def shape_by_annotation(function: Callable[..., Any]) -> Shape:
    """Do so for a function that is not a partial."""
    signature = signature_or_none(function)
    annotation = EMPTY if signature is None else signature.return_annotation
    if annotation is EMPTY:
        return ANY
    function = inspect.unwrap(getattr(function, "__func__", function))

    def alone() -> None: ...

    alone.__annotations__ = {"return": annotation}
    try:
        hints = typing.get_type_hints(
            alone, getattr(function, "__globals__", {}), include_extras=True
        )
        return parameter_shape(hints["return"], f"{origin_of(function)}: the return annotation")
    except (NameError, AttributeError) as error:
        raise unresolved(function, error) from error
    except TaskDefinitionError:
        raise
    except Exception as error:  # an annotation may be any expression
        raise TaskDefinitionError(
            f"{origin_of(function)}: the return annotation cannot be evaluated: {error}"
        ) from error
