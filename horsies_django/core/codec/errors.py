"""Errors of values that cannot be encoded or decoded.

Messages contain types and positions but no values, because they are logged.
"""

from __future__ import annotations

from typing import Any

from horsies_django.core.errors import HorsiesError
from horsies_django.core.texts import LAZY_TEXT, is_lazy

LONGEST_SHOWN_PATH = 200  # the most characters of a path in a message


class CodecError(HorsiesError):
    """A value cannot be encoded, or stored JSON cannot be decoded.

    ``path`` is the position of the value, such as "order.lines[3].price". ``kind`` is "type" if the
    value does not have the declared type, and "value" if it has the type but cannot be encoded.
    """

    def __init__(
        self, problem: str, kind: str = "type", path: str = "", subject: str = "argument"
    ) -> None:
        super().__init__(problem, kind, path, subject)
        self.problem = problem
        self.kind = kind
        self.path = path
        self.subject = subject

    def within(self, step: str) -> CodecError:
        """Prepend ``step`` to the path, and return the same error."""
        self.path = step + self.path
        return self

    def __str__(self) -> str:
        if not self.path:
            return f"{self.subject}: {self.problem}"
        path = (
            self.path
            if len(self.path) <= LONGEST_SHOWN_PATH
            else f"{self.path[:LONGEST_SHOWN_PATH]}..."
        )
        return f"{self.subject} '{path}': {self.problem}"


class ModelRefused(CodecError):
    """A value is a model instance.

    Its row may change before the task runs, so its key must be sent instead.
    """

    def __str__(self) -> str:
        if self.subject != "argument":
            return (
                f"{self.subject} {self.path and repr(self.path) + ' '}is a model instance "
                f"({self.problem}): return its pk"
            )
        return f"argument '{self.path}' is a model instance ({self.problem}): pass {self.path}.pk"


class Misbound(CodecError):
    """Arguments do not fit the signature of the function.

    ``path`` may be the name of the parameter.
    """

    def __str__(self) -> str:
        return self.problem


def misfit(expected: str, value: Any) -> CodecError:
    """Return the error for a value that does not have the declared type."""
    cls = type(value)
    if hasattr(value, "_meta") and hasattr(value, "pk"):
        return ModelRefused(cls.__name__)

    got = "None" if value is None else cls.__name__
    if is_lazy(value):
        got = LAZY_TEXT
    if got == expected:
        got = f"another class of that name, {cls.__module__}.{cls.__qualname__}"

    return CodecError(f"expected {expected}, got {got}")
