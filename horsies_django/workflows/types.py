"""Checks that the result of one function fits the parameter of another, by their annotations."""

from __future__ import annotations

import functools
import types
import typing
from typing import Annotated, Any, Union, get_args, get_origin

from horsies_django.core.codec.advice import name_of
from horsies_django.core.codec.signatures import hints_of
from horsies_django.core.errors import TaskDefinitionError
from horsies_django.core.results import TaskResult
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.workflows.results import Results


def hints(task: TaskDefinition) -> dict[str, Any]:
    """Return the annotations of a task; empty if they cannot be resolved yet, or its values are plain JSON."""
    if task.codec is not None:
        return {}
    try:
        return resolved(task)
    except TaskDefinitionError:
        return {}


@functools.cache
def resolved(task: TaskDefinition) -> dict[str, Any]:
    """Return the annotations of a task. Raises TaskDefinitionError."""
    return {name: plain(hint) for name, hint in hints_of(task.function).items()}


def plain(annotation: Any) -> Any:
    """Return an annotation without Annotated, NewType and named aliases."""
    if get_origin(annotation) is Annotated:
        return plain(get_args(annotation)[0])
    if hasattr(annotation, "__supertype__"):
        return plain(annotation.__supertype__)
    if type(annotation).__name__ == "TypeAliasType":
        return plain(annotation.__value__)
    return annotation


def produced(task: TaskDefinition) -> Any:
    """Return the type of the values that a task returns."""
    found = hints(task).get("return", Any)
    if get_origin(found) is TaskResult:
        return plain(get_args(found)[0])
    return type(None) if found is None else found


def way(parameter: Any, *, many: bool) -> tuple[str, Any]:
    """Return how results become an argument ("value", "result", "results", "list"), and the type that each must have."""
    origin, args = get_origin(parameter), get_args(parameter)
    if origin is Results:
        return "results", plain(args[0])
    if origin is TaskResult and not many:
        return "result", plain(args[0])
    if many:
        return "list", element(parameter)
    return "value", parameter


def element(annotation: Any) -> Any:
    """Return the type of the elements of a list or a tuple, None if it is neither."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return Any
    if annotation is list or (origin is list and not args):
        return Any
    if origin is list or (origin is tuple and len(args) == 2 and args[1] is Ellipsis):
        return plain(args[0])
    return None


def list_of(annotation: Any) -> Any:
    """Return the type of a list of such values."""
    return types.GenericAlias(list, (annotation,))


def fits(result: Any, parameter: Any) -> bool:
    """Return whether every value of the type ``result`` can be an argument of the type ``parameter``."""
    if result is parameter or Any in (result, parameter) or result == parameter:
        return True
    if is_union(result):
        return all(fits(plain(each), parameter) for each in get_args(result))
    if is_union(parameter):
        return any(fits(result, plain(each)) for each in get_args(parameter))
    if (result, parameter) in ((int, float), (bool, int)):
        return True
    if (one := element(result)) is not None and (other := element(parameter)) is not None:
        return fits(one, other)
    if get_origin(result) is dict and parameter is dict or result is dict and get_origin(parameter) is dict:
        return True
    if get_origin(result) is dict and get_origin(parameter) is dict:
        return fits(plain(get_args(result)[1]), plain(get_args(parameter)[1]))
    return False


def optional(annotation: Any) -> Any:
    """Return the type of such values and None."""
    return Union[annotation, None]  # noqa: UP007 - it need not be a class


def is_union(annotation: Any) -> bool:
    """Return whether an annotation is ``A | B``."""
    return get_origin(annotation) in (Union, types.UnionType, typing.Union)


def shown(annotation: Any) -> str:
    """Return an annotation as source code."""
    return name_of(annotation)
