"""Annotations as texts, by which a process that has only the text can check data.

No code runs when a text is read. A text contains types of JSON, and the names of classes in modules
that this process has imported already.
"""

from __future__ import annotations

import ast
import json
import sys
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from horsies_django.core.codec.annotations import shape_of
from horsies_django.core.codec.errors import CodecError

LONGEST_TYPE_TEXT = 1_000
GENERIC: dict[str, Any] = {
    "list": list,
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
TYPES_BY_NAME = {
    "Any": Any,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    **GENERIC,
}


class Unknown(Exception):  # noqa: N818 - not an error, because unknown types are not checked
    """A type has no text, or this process does not have the type of a text."""


def annotation_text(annotation: Any) -> str | None:
    """Return an annotation as a text that ``fit_problem`` reads.

    Return None for Any, and for annotations without such a text, which are not checked.
    """
    try:
        text = None if annotation is Any else _written(annotation)
    except Unknown:
        return None
    return None if text is None or len(text) > LONGEST_TYPE_TEXT else text


def fit_problem(text: str, stored: str) -> str | None:
    """Return why stored JSON does not fit the annotation of a text, or None if it does.

    Return None also if this process does not have the types of the annotation.
    """
    try:
        shape = shape_of(annotation_of(text), "data")
        shape.decode(json.loads(stored), "data")
    except CodecError as error:
        return f"{error.path} does not fit: {error.problem}"
    except Exception:  # the classes are user code, which may be another version
        return None

    return None


def annotation_of(text: str) -> Any:
    """Return the annotation of a text. Raises Unknown if this process does not have its types."""
    try:
        return _read(ast.parse(text[: LONGEST_TYPE_TEXT + 1], mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise Unknown from error


def _written(annotation: Any) -> str:
    origin = get_origin(annotation)
    args = get_args(annotation)

    if annotation is None or annotation is NoneType:
        return "None"
    if origin is Annotated:
        return _written(args[0])
    if origin is Union or origin is UnionType:
        return " | ".join(map(_written, args))
    if origin is Literal and all(type(arg) in (bool, int, str, NoneType) for arg in args):
        return f"Literal[{', '.join(map(repr, args))}]"

    if origin in GENERIC.values():
        inside = ", ".join("..." if arg is Ellipsis else _written(arg) for arg in args)
        return f"{origin.__name__}[{inside}]"

    for name, plain in TYPES_BY_NAME.items():
        if annotation is plain:
            return name

    if isinstance(annotation, type) and origin is None:
        name = f"{annotation.__module__}.{annotation.__qualname__}"
        if annotation_of(name) is annotation:  # a class in a function has no such name
            return name

    raise Unknown


def _read(tree: ast.expr) -> Any:
    if isinstance(tree, ast.Constant) and tree.value is None:
        return NoneType
    if isinstance(tree, ast.Name) and tree.id in TYPES_BY_NAME:
        return TYPES_BY_NAME[tree.id]
    if isinstance(tree, ast.Attribute):
        return _class(ast.unparse(tree).split("."))
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        return Union[_read(tree.left), _read(tree.right)]  # noqa: UP007 - they need not be classes

    if isinstance(tree, ast.Subscript) and isinstance(tree.value, ast.Name):
        inside = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
        if tree.value.id == "Literal":
            return Literal[tuple(ast.literal_eval(each) for each in inside)]
        if (generic := GENERIC.get(tree.value.id)) is not None:
            return generic[tuple(map(_argument, inside))]

    raise Unknown


def _argument(tree: ast.expr) -> Any:
    return Ellipsis if isinstance(tree, ast.Constant) and tree.value is Ellipsis else _read(tree)


def _class(parts: list[str]) -> type:
    """Return the class of a dotted name in a module that has been imported.

    Attributes are read from ``__dict__``, so no user code is called. Raises Unknown if there is no
    such class.
    """
    for cut in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:cut]))
        for part in parts[cut:]:
            found = (
                getattr(found, "__dict__", {}).get(part)
                if isinstance(found, type | type(sys))
                else None
            )

        if isinstance(found, type):
            return found

    raise Unknown
