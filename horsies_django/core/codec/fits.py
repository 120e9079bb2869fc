"""Whether the result of a node can be an argument of another node, by their annotations.

Arguments are JSON, so a tuple fits a list, and the keys of all dicts are texts.
"""

from __future__ import annotations

import types
from typing import Annotated, Any, Union, get_args, get_origin


def bare_annotation(annotation: Any) -> Any:
    """Return an annotation without Annotated, NewType and named aliases."""
    if get_origin(annotation) is Annotated:
        return bare_annotation(get_args(annotation)[0])
    if hasattr(annotation, "__supertype__"):
        return bare_annotation(annotation.__supertype__)
    if type(annotation).__name__ == "TypeAliasType":
        return bare_annotation(annotation.__value__)
    return annotation


def element(annotation: Any) -> Any:
    """Return the type of the elements of a list, or of a tuple of any length.

    Return Any for a list without a type, and for Any. Return None for other annotations.
    """
    origin = get_origin(annotation)
    args = get_args(annotation)

    if annotation in (Any, list) or (origin is list and not args):
        return Any
    if origin is list or (origin is tuple and len(args) == 2 and args[1] is Ellipsis):
        return bare_annotation(args[0])
    return None


def optional(annotation: Any) -> Any:
    """Return the union of an annotation and None."""
    return Union[annotation, None]  # noqa: UP007 - the annotation need not be a class


def fits(result: Any, parameter: Any) -> bool:
    """Return whether values of the type ``result`` fit a parameter of the type ``parameter``.

    Both are bare, see ``bare_annotation``. Return True if one of them is Any, because its values
    may fit.
    """
    if (
        Any in (result, parameter)
        or result == parameter
        or (result, parameter) in ((int, float), (bool, int))
    ):
        return True

    if is_union(result):
        return all(fits(bare_annotation(each), parameter) for each in get_args(result))
    if is_union(parameter):
        return any(fits(result, bare_annotation(each)) for each in get_args(parameter))
    if (one := element(result)) is not None and (other := element(parameter)) is not None:
        return fits(one, other)

    if any((get_origin(each) or each) is not dict for each in (result, parameter)):
        return False
    return fits(dict_value(result), dict_value(parameter))


def dict_value(annotation: Any) -> Any:
    """Return the type of the values of a dict, or Any for a dict without types."""
    args = get_args(annotation)
    return bare_annotation(args[1]) if args else Any


def is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)
