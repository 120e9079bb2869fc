"""The result of a task in JSON, ``{"ok": ...}`` or ``{"err": {...}}``, and its shape as an argument, ``TaskResult[T]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from horsies_django.core.codec.errors import CodecError, misfit
from horsies_django.core.codec.shapes import ANY, Shape
from horsies_django.core.results import TaskError, TaskResult


def outcome_shape(item: Shape) -> Shape:
    """Return the shape of ``TaskResult[item]``: the result of an upstream node of a workflow, whether it failed or not."""
    name = f"TaskResult[{item.name}]"

    def dump(value: Any) -> Any:
        if not isinstance(value, TaskResult):
            raise misfit(name, value)
        if value.is_ok():
            return {"ok": item.dump(value.ok_value)}
        error = value.err_value
        exception = None if error.exception is None else dict(error.exception)
        stored = {"error_code": error.error_code, "message": error.message, "data": error.data, "exception": exception}
        return {"err": ANY.dump(stored)}

    def load(stored: Any) -> Any:
        return read_outcome(stored, item)

    return Shape(name, frozenset({dict}), lambda value: isinstance(value, TaskResult), dump, load)


def read_outcome(stored: Any, item: Shape | None) -> TaskResult[Any]:
    """Return a stored result, whose errors have one format for all functions. Raises CodecError; without ``item`` for a value."""
    if not isinstance(stored, Mapping) or ("ok" in stored) == ("err" in stored):
        raise CodecError('expected {"ok": ...} or {"err": ...}')
    if item is not None and "ok" in stored:
        return TaskResult(ok=item.load(stored["ok"]))
    error = stored.get("err")
    if not isinstance(error, Mapping) or not isinstance(error.get("error_code"), str):
        raise CodecError("the stored error has no error_code")
    exception = error.get("exception")
    if exception is not None and not isinstance(exception, Mapping):
        raise CodecError("the stored exception is not an object", path="exception")
    message = str(error.get("message") or "")
    return TaskResult(err=TaskError.built_in(error["error_code"], message, data=error.get("data"), exception=exception))
