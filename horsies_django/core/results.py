"""TaskResult, the result of a task, which is either an ok value or a TaskError."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, cast

from horsies_django.core.errors import ErrorCode, HorsiesError, code_problem

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar  # psycopg requires this package below Python 3.13

_ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class TaskError:
    """The error of a task that failed.

    ``error_code`` is the kind of error, such as "MAILBOX_FULL" or "WORKER_CRASHED". ``message`` is
    a text, and ``data`` any JSON value of the task. ``exception`` describes the exception by its
    type, module, message, repr and traceback. Its keys "site" and "line" are the place at which the
    project's code raised it. Raises ValueError if the code is built-in, and so reserved, or if it
    is not valid, for example because it is not in upper case.
    """

    error_code: str
    message: str = ""
    data: Any = None
    exception: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if problem := code_problem(self.error_code):
            raise ValueError(problem)

    @classmethod
    def built_in(
        cls,
        code: ErrorCode | str,
        message: str = "",
        *,
        data: Any = None,
        exception: Mapping[str, str] | None = None,
    ) -> TaskError:
        """Return an error with a built-in code. Only horsies_django calls this method."""
        error = object.__new__(cls)
        values = {"error_code": str(code), "message": message, "data": data, "exception": exception}
        for name, value in values.items():
            object.__setattr__(error, name, value)
        return error


T = TypeVar("T")
E = TypeVar("E", default=TaskError)


class TaskFailed(HorsiesError):  # noqa: N818 - the task failed; the caller did nothing wrong
    """The exception that ``TaskResult.unwrap()`` raises.

    ``error`` is the TaskError.
    """

    def __init__(self, error: TaskError) -> None:
        super().__init__(
            f"{error.error_code}: {error.message}" if error.message else error.error_code
        )
        self.error = error


class TaskResult(Generic[T, E]):
    """The result of a task, which is either a value or an error.

    Raises ValueError unless exactly one of ``ok=`` and ``err=`` is given.
    """

    __slots__ = ("_err", "_ok")

    def __init__(self, *, ok: T = _ABSENT, err: E = _ABSENT) -> None:
        if (ok is _ABSENT) == (err is _ABSENT):
            raise ValueError("a TaskResult takes exactly one of ok= and err=")
        if err is not _ABSENT and not isinstance(err, TaskError):
            raise ValueError(f"err= takes a TaskError, not {type(err).__name__}")

        self._ok = ok
        self._err = err

    def is_ok(self) -> bool:
        """Return whether the task succeeded."""
        return self._err is _ABSENT

    def is_err(self) -> bool:
        """Return whether the task failed, or its result is not available."""
        return self._err is not _ABSENT

    @property
    def ok(self) -> T | None:
        """The value, or None if this is an error."""
        return None if self._ok is _ABSENT else self._ok

    @property
    def err(self) -> E | None:
        """The error, or None if this is a success."""
        return None if self._err is _ABSENT else self._err

    @property
    def ok_value(self) -> T:
        """The value. Raises ValueError if this is an error."""
        if self._ok is _ABSENT:
            raise ValueError(f"this TaskResult is an error: {self._err!r}")
        return self._ok

    @property
    def err_value(self) -> E:
        """The error. Raises ValueError if this is a success."""
        if self._err is _ABSENT:
            raise ValueError("this TaskResult is a success and has no error")
        return self._err

    def unwrap(self) -> T:
        """Return the value. Raises TaskFailed, which has the TaskError, if this is an error."""
        if self._ok is _ABSENT:
            raise TaskFailed(cast("TaskError", self._err))
        return self._ok

    def unwrap_err(self) -> E:
        """Return the error. Raises ValueError if this is a success."""
        return self.err_value

    def __bool__(self) -> bool:
        raise TypeError(
            "a TaskResult has no truth value (an error would be true): call is_ok() or is_err()"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskResult):
            return NotImplemented
        return bool(self._ok == other._ok and self._err == other._err)

    __hash__ = None  # type: ignore[assignment]

    # The default pickle would contain a copy of _ABSENT, which is compared by identity.
    def __reduce__(self) -> tuple[Any, ...]:
        made = (
            partial(TaskResult, ok=self._ok)
            if self._err is _ABSENT
            else partial(TaskResult, err=self._err)
        )
        return made, ()

    def __repr__(self) -> str:
        return (
            f"TaskResult(ok={self._ok!r})"
            if self._err is _ABSENT
            else f"TaskResult(err={self._err!r})"
        )
