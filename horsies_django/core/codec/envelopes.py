"""The codec of results, which writes them in a JSON envelope.

The envelope is ``{"ok": ...}`` with the value, encoded by the declared type, or ``{"err": {...}}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args, get_origin

from horsies_django.core.codec.annotations import UnsupportedType, shape_of
from horsies_django.core.codec.errors import CodecError, misfit
from horsies_django.core.codec.jsondata import MAX_DEPTH, read_json, too_deep, write_json
from horsies_django.core.codec.shapes import ANY, Shape, at
from horsies_django.core.codec.signatures import Compiled, refuse_unannotated
from horsies_django.core.results import TaskError, TaskResult
from horsies_django.core.texts import as_text, is_lazy

REPR_CHARACTERS = 10_000

R = TypeVar("R")


class ResultCodec(Compiled):
    """The result of one function in its envelope.

    ``wraps_result`` is True if the return annotation of the function is a TaskResult.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        refuse_unannotated(function, self.signature)
        self.wraps_result = (
            re.match(r"(\w+\.)*TaskResult\b", str(self.signature.return_annotation)) is not None
        )
        self._shape: Shape | None = None

    def _compile(self, hints: dict[str, Any]) -> None:
        annotation = hints["return"]
        wraps = annotation is TaskResult or get_origin(annotation) is TaskResult

        if wraps:
            args = get_args(annotation)
            if not args:
                raise UnsupportedType(
                    f"{self.origin}: TaskResult has no type argument: write '-> TaskResult[int]', "
                    "for example"
                )

            if len(args) > 1 and args[1] is not TaskError and args[1] is not Any:
                raise UnsupportedType(
                    f"{self.origin}: the error type of a TaskResult must be TaskError: write '-> "
                    "TaskResult[T]'"
                )

            annotation = args[0]

        self._shape = shape_of(annotation, f"{self.origin}: the return annotation")
        self.wraps_result = wraps

    def encode_ok(self, value: Any) -> str:
        """Return the envelope of a value. Raises CodecError if the value cannot be encoded."""
        return of_result(lambda given: f'{{"ok":{write_json(self._made().dump(given))}}}', value)

    def decode(self, envelope: Mapping[str, Any] | str) -> TaskResult[Any]:
        """Return the result in an envelope.

        Raises CodecError if it does not fit the current annotation.
        """
        return of_result(
            lambda stored: read_outcome(stored, self._made() if "ok" in stored else None),
            open_envelope(envelope),
        )

    @staticmethod
    def decode_error(envelope: Mapping[str, Any] | str) -> TaskResult[Any]:
        """Return the error in an envelope, whose format does not depend on the function.

        Raises CodecError if the envelope is invalid.
        """
        return of_result(lambda stored: read_outcome(stored, None), open_envelope(envelope))

    def _made(self) -> Shape:
        if self._shape is None:
            self._resolve_late()
        assert self._shape is not None
        return self._shape


def of_result(convert: Callable[[Any], R], value: Any) -> R:
    """Return ``convert(value)``. A CodecError of it is raised as one about a result."""
    try:
        found: R = at("", convert, value)
    except CodecError as error:
        if error.subject == "argument":
            error.subject = "result"
            error.path = error.path.removeprefix(".")
        raise

    return found


def open_envelope(envelope: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """Return an envelope as a mapping.

    Raises CodecError unless the mapping has exactly one of ok and err.
    """
    found = read_json(envelope, "result") if isinstance(envelope, str) else envelope
    if not isinstance(found, Mapping) or ("ok" in found) == ("err" in found):
        raise CodecError(
            'the stored result is neither {"ok": ...} nor {"err": ...}', subject="result"
        )
    return found


def encode_error(error: TaskError) -> str:
    """Return the envelope of an error.

    No exception is raised, because values that cannot be stored are replaced by their repr.
    """
    message = printable(error.message)
    data = None
    try:
        data = write_json(ANY.dump(with_texts(error.data)))
    except BaseException as refusal:  # the methods of data are user code
        data = write_json(safe_repr(error.data))
        reason = str(refusal) if isinstance(refusal, CodecError) else type(refusal).__name__
        message += (
            f"\n(data is stored as its repr, because it is not plain JSON: {printable(reason)})"
        )

    exception: Any = error.exception  # its type is not checked at run time
    if isinstance(exception, Mapping):
        exception = {printable(key): printable(value) for key, value in exception.items()}
    elif exception is not None:
        exception = {"repr": safe_repr(exception)}

    rest = {
        "error_code": printable(error.error_code),
        "message": message.lstrip("\n"),
        "exception": exception,
    }
    return f'{{"err":{write_json(rest)[:-1]},"data":{data}}}}}'


def with_texts(data: Any, depth: int = 0) -> Any:
    """Return the data of an error, with its lazy texts as str in the active language.

    Raises CodecError if the data is nested too deeply.
    """
    if depth > MAX_DEPTH:
        raise too_deep()

    if type(data) is dict:
        return {as_text(key): with_texts(value, depth + 1) for key, value in data.items()}
    if type(data) is list:
        return [with_texts(value, depth + 1) for value in data]
    return as_text(data)


def printable(value: Any) -> str:
    """Return a text with NUL bytes and lone surrogates escaped, or the repr of any other value."""
    if isinstance(value, str):
        text = str.__str__(value)
    elif is_lazy(value):
        text = lazy_text(value)
    else:
        text = safe_repr(value)

    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def lazy_text(value: Any) -> str:
    """Return a lazy text as a str, or its repr if its function fails."""
    try:
        return str.__str__(str(value))
    except BaseException:
        return safe_repr(value)


def safe_repr(value: Any) -> str:
    """Return a repr of bounded length, or a text with the type if ``__repr__`` fails."""
    try:
        text = str.__str__(repr(value))
    except BaseException as error:
        text = f"<{type(value).__name__} whose repr fails: {type(error).__name__}>"
    return printable(text if len(text) <= REPR_CHARACTERS else f"{text[:REPR_CHARACTERS]}...")


def outcome_shape(item: Shape) -> Shape:
    """Return the shape of ``TaskResult[item]``.

    Its values are the results of upstream nodes of a workflow, which may be errors.
    """
    name = f"TaskResult[{item.name}]"

    def dump(value: Any) -> Any:
        if not isinstance(value, TaskResult):
            raise misfit(name, value)
        if value.is_ok():
            return {"ok": item.dump(value.ok_value)}

        error = value.err_value
        exception = None if error.exception is None else dict(error.exception)
        stored = {
            "error_code": error.error_code,
            "message": error.message,
            "data": error.data,
            "exception": exception,
        }

        return {"err": ANY.dump(stored)}

    def load(stored: Any) -> Any:
        return read_outcome(stored, item)

    return Shape(name, frozenset({dict}), lambda value: isinstance(value, TaskResult), dump, load)


def read_outcome(stored: Any, item: Shape | None) -> TaskResult[Any]:
    """Return a stored result.

    Errors have the same format for all functions. Raises CodecError if the result is invalid, and
    if it is a value and ``item`` is None.
    """
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
    return TaskResult(
        err=TaskError.built_in(
            error["error_code"], message, data=error.get("data"), exception=exception
        )
    )
