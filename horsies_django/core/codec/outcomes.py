"""The shape of ``TaskResult[T]`` as an argument: the result of an upstream node of a workflow, whether it failed or not."""

from __future__ import annotations

from typing import Any

from horsies_django.core.codec.shapes import ANY, CodecError, Shape, misfit
from horsies_django.core.results import TaskError, TaskResult


def result_shape(item: Shape) -> Shape:
    """Return the shape of ``TaskResult[item]``: ``{"ok": ...}`` or ``{"err": {...}}``, as results are stored."""
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
        if not isinstance(stored, dict) or ("ok" in stored) == ("err" in stored):
            raise CodecError('expected {"ok": ...} or {"err": ...}')
        if "ok" in stored:
            return TaskResult(ok=item.load(stored["ok"]))
        error = stored["err"]
        if not isinstance(error, dict) or not isinstance(error.get("error_code"), str):
            raise CodecError("the error has no error_code")
        message = str(error.get("message") or "")
        return TaskResult(
            err=TaskError.built_in(
                error["error_code"], message, data=error.get("data"), exception=error.get("exception")
            )
        )

    return Shape(name, frozenset({dict}), lambda value: isinstance(value, TaskResult), dump, load)
