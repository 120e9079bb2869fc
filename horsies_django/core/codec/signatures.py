"""Checks of the signature of a function that becomes a task.

The errors contain the signature to write instead.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import sys
import typing
from collections.abc import Callable
from typing import Any, Self

from horsies_django.core.codec.advice import is_model
from horsies_django.core.codec.errors import CodecError
from horsies_django.core.errors import TaskDefinitionError

EMPTY = inspect.Parameter.empty
STARRED: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


class Unresolved(TaskDefinitionError):  # noqa: N818 - the function may be fine
    """An annotation uses a name that is not defined yet."""


def origin_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, whose annotations are not resolved."""
    if sys.version_info >= (3, 14):
        import annotationlib  # new in Python 3.14, which evaluates annotations lazily

        return inspect.signature(function, annotation_format=annotationlib.Format.STRING)
    return inspect.signature(function)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the resolved annotations of a function.

    Raises Unresolved if a name is not defined yet, and TaskDefinitionError if an annotation is
    invalid.
    """
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError) as error:
        raise unresolved(function, error) from error
    except Exception as error:  # an annotation may be any expression
        raise TaskDefinitionError(
            f"{origin_of(function)}: an annotation cannot be evaluated: {error}"
        ) from error


def unresolved(function: Callable[..., Any], error: Exception) -> Unresolved:
    """Return the error for an annotation with an undefined name."""
    return Unresolved(
        f"{origin_of(function)}: an annotation cannot be resolved: {error}. Define or import the "
        "name at the top level of "
        "its module, not under TYPE_CHECKING and not inside a function"
    )


def refuse_bad_parameters(function: Callable[..., Any], signature: inspect.Signature) -> None:
    """Raise TaskDefinitionError if a parameter cannot be sent by name and type."""
    for name, parameter in signature.parameters.items():
        if stars := STARRED.get(parameter.kind):
            instead = "list[str]" if stars == "*" else "dict[str, str]"
            raise TaskDefinitionError(
                f"{origin_of(function)} takes {stars}{name}, but the arguments of a task are sent "
                "by name: declare each "
                f"argument, as in\n    {definition(function, signature, {name: instead})}"
            )


def refuse_models(
    function: Callable[..., Any], signature: inspect.Signature, hints: dict[str, Any]
) -> None:
    """Raise TaskDefinitionError if a parameter takes a model instance."""
    for name in signature.parameters:
        if is_model(hints.get(name)):
            raise TaskDefinitionError(
                f"{origin_of(function)}: parameter '{name}' is a model ({hints[name].__name__}), "
                "whose row may change before "
                f"the task runs: annotate int and pass {name}.pk, as in\n    "
                f"{definition(function, signature, {name: 'int'})}"
            )


def refuse_unannotated(function: Callable[..., Any], signature: inspect.Signature) -> None:
    """Raise TaskDefinitionError if annotations are missing.

    The message contains the missing annotations of the other tasks of the module too, because they
    would be reported next.
    """
    missing = {
        name: _suggested_annotation(one.default)
        for name, one in signature.parameters.items()
        if one.annotation is EMPTY
    }
    if signature.return_annotation is EMPTY:
        missing["return"] = "None"

    if missing:
        others = "".join(f"\nSo does {other}" for other in _others_unannotated(function))
        raise TaskDefinitionError(
            f"{origin_of(function)} lacks annotations, without which values cannot be encoded and "
            "decoded: "
            f"{', '.join(missing)}. Write types, as in\n    "
            f"{definition(function, signature, missing)}{others}"
        )


def _suggested_annotation(default: Any) -> str:
    if default is EMPTY:
        return "int"
    return "int | None" if default is None else type(default).__name__


def _others_unannotated(function: Callable[..., Any]) -> list[str]:
    """Return the other functions of the module that lack annotations.

    Only functions that have one of the decorators of this function are returned.
    """
    try:
        tree = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    except (KeyError, OSError, TypeError, SyntaxError):  # a shell has no source
        return []

    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    own = next(
        (_decorators(node) for node in functions if node.name == function.__qualname__), set()
    )

    found = []
    for node in functions:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        missing = [one.arg for one in arguments if one.annotation is None] + ["return"] * (
            node.returns is None
        )
        if missing and node.name != function.__qualname__ and own & _decorators(node):
            found.append(f"{node.name} in line {node.lineno}: {', '.join(missing)}")

    return found


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the decorators of a function, without their options."""
    return {ast.dump(one.func if isinstance(one, ast.Call) else one) for one in node.decorator_list}


def definition(
    function: Callable[..., Any], signature: inspect.Signature, changed: dict[str, str]
) -> str:
    """Return the ``def`` line of a function with changed annotations.

    ``changed`` has annotations by parameter, and may have that of "return".
    """
    word = "async def" if inspect.iscoroutinefunction(function) else "def"
    return f"{word} {function.__name__}{written(signature, changed)}:"


def written(signature: inspect.Signature, changed: dict[str, str] | None = None) -> str:
    """Return a signature as source code, without quotes around postponed annotations."""
    changed = changed or {}
    parameters = []
    stars_changed = False

    for name, parameter in signature.parameters.items():
        default = parameter.default
        kind = parameter.kind
        stars_changed = stars_changed or (kind in STARRED and name in changed)
        if stars_changed:
            kind = inspect.Parameter.KEYWORD_ONLY

        if default is not EMPTY and len(repr(default)) > 40:
            default = Verbatim("...")
        annotation = annotated(changed.get(name, parameter.annotation))
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))

    parameters.sort(key=lambda parameter: parameter.kind)
    returns = annotated(changed.get("return", signature.return_annotation))
    return str(inspect.Signature(parameters, return_annotation=returns))


def annotated(annotation: Any) -> Any:
    """Return an annotation whose repr is its source code."""
    if isinstance(annotation, str):
        return Verbatim(annotation)
    if annotation is EMPTY or isinstance(annotation, type):
        return annotation
    return Verbatim(re.sub(r"\b(\w+\.)+(?=\w)", "", str(annotation)))


class Verbatim(str):
    """A text whose repr is itself."""

    __slots__ = ()
    __repr__ = str.__str__


class Compiled:
    """A part of a signature, with its shapes.

    The shapes are compiled at the decoration of the function. If a name in an annotation is defined
    later, they are compiled when they are used first.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.origin = origin_of(function)
        self.signature = signature_of(function)

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Self:
        """Return the codec of a function.

        Raises TaskDefinitionError, which contains the line to write, if the signature is invalid.
        """
        made = cls(function)
        with contextlib.suppress(Unresolved):
            made.resolve()
        return made

    def resolve(self) -> None:
        """Compile the shapes now.

        Raises Unresolved if a name is not defined yet, and TaskDefinitionError if an annotation is
        invalid.
        """
        try:
            self._compile(hints_of(self.function))
        except (NameError, AttributeError) as error:  # for example, in the fields of a dataclass
            raise unresolved(self.function, error) from error

    def _compile(self, hints: dict[str, Any]) -> None:
        raise NotImplementedError

    def _resolve_late(self) -> None:
        try:
            self.resolve()
        except TaskDefinitionError as error:
            raise CodecError(str(error), subject="signature") from error
