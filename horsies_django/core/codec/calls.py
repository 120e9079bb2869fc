"""The codec of the calls of durable steps, whose function may be any function.

Unlike a task, such a function needs no annotations. Its arguments are encoded by the types of their
values, but only for a digest, by which calls are compared. Its result is encoded by the return
annotation if there is one. Otherwise it has to be plain JSON data.
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

OWN = "atomic"  # the keyword of step(), which is not passed to the function
INSTEAD = (
    "pass a key or plain values, or wrap the call in a function of your own that has the value as "
    "a variable"
)

R = TypeVar("R")


def cached_by_function(
    compute: Callable[[Callable[..., Any]], R],
) -> Callable[[Callable[..., Any]], R]:
    """Return a form of ``compute`` that caches its value for each function.

    The value is cached as long as the function exists.
    """
    cache: WeakKeyDictionary[Callable[..., Any], R] = WeakKeyDictionary()

    def cached(function: Callable[..., Any]) -> R:
        try:
            return cache[function]
        except KeyError:
            found = cache[function] = compute(function)
            return found
        except TypeError:  # the function has no hash or no weak references
            return compute(function)

    return cached


@cached_by_function
def signature_or_none(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function, or None if it has none, as some builtins."""
    try:
        return signature_of(function)
    except ValueError:
        return None


def call_digest(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """Return a digest of the arguments of a call, including those of ``functools.partial``.

    The digest does not depend on whether an argument is passed by name or by position. Raises
    CodecError if an argument cannot be encoded, and TypeError if the arguments do not fit the
    function.
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
    """Return an argument as JSON data that is equal for equal values.

    Raises CodecError if the argument cannot be encoded.
    """
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
    """Return the shape of the result of a function.

    Without a return annotation, the shape is that of any plain JSON data. Only the return
    annotation is resolved, because the names in others may be defined only for type checkers.
    Raises TaskDefinitionError if the annotation is invalid.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return shape_by_annotation(function)


@cached_by_function
def shape_by_annotation(function: Callable[..., Any]) -> Shape:
    """Return the shape of the result of a function that is not a ``functools.partial``.

    Raises TaskDefinitionError if the return annotation is invalid.
    """
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
