"""Sends that belong together: unique tasks, and keys of sends.

Digests of what makes two of them the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from decimal import Decimal
from typing import Any, Literal, get_args

Until = Literal["start", "end"]
OnDuplicate = Literal["return", "refuse"]


class Unique:
    """Which tasks of a function are duplicates, as in ``@task(unique=Unique("order_id",
    until="start"))``.

    They have equal values of these arguments; of all arguments, if none is named. ``until="end"``:
    while the first one has not finished; "start": while it has never been claimed by a worker. A
    duplicate is not sent: the handle is that of the first one ("return"), or the send raises
    TaskSendError with the code DUPLICATE ("refuse").
    """

    def __init__(
        self, *args: str, until: Until = "end", on_duplicate: OnDuplicate = "return"
    ) -> None:
        self.args = args
        self.until = until
        self.on_duplicate = on_duplicate

    @classmethod
    def of(cls, given: object) -> Unique | None:
        """Return what ``@task(unique=...)`` means: True, the name of an argument, or several.
        Raises TypeError.
        """
        if given is None or given is False:
            return None
        if isinstance(given, Unique):
            return given

        names = given
        if given is True:
            names = ()
        elif isinstance(given, str):
            names = (given,)
        if not isinstance(names, tuple | list):
            raise TypeError(
                "unique must be True, the name of an argument, a list of names, or Unique(...), "
                f"not {given!r:.80}"
            )

        return cls(*names)

    def problems(self, names: Collection[str]) -> Iterator[str]:
        """Yield what is wrong with it for a task with parameters of these names."""
        for name in self.args:
            if name not in names:
                yield (
                    f"unique names {name!r}, which is no parameter of it: it has "
                    f"{', '.join(sorted(names)) or 'none'}"
                )

        for option, value, allowed in (
            ("until", self.until, get_args(Until)),
            ("on_duplicate", self.on_duplicate, get_args(OnDuplicate)),
        ):
            if value not in allowed:
                yield (
                    f"{option} of Unique must be {' or '.join(map(repr, allowed))}, not "
                    f"{value!r:.80}"
                )

    def digest(self, task_name: str, kwargs: str, defaults: str) -> bytes:
        """Return a digest of the arguments that count, see ``counted``."""
        found = counted(kwargs, defaults)
        chosen = {name: found[name] for name in self.args if name in found} if self.args else found
        return digest_of("unique", task_name, chosen)


def counted(kwargs: str, defaults: str) -> dict[str, Any]:
    """Return arguments as they are compared, from the JSON texts of those that were given and of
    all defaults.

    One that was left out counts as its default. Equal numbers are equal: 1 and 1.0.
    """
    found: dict[str, Any] = {**DECODER.decode(defaults), **DECODER.decode(kwargs)}
    return found


def integral(text: str) -> int | float:
    number = float(text)
    return int(Decimal(text)) if number.is_integer() else number


# json.loads and json.dumps would make them for each send, which takes as long as their work.
DECODER = json.JSONDecoder(parse_float=integral)
ENCODER = json.JSONEncoder(sort_keys=True)


def key_digest(task_name: str, key: str) -> bytes:
    """Return a digest of the key of a send."""
    return digest_of("key", task_name, key)


def arguments_digest(kwargs: str, defaults: str) -> bytes:
    """Return a digest of arguments, whatever their order, see ``counted``."""
    return digest_of(counted(kwargs, defaults))


def digest_of(*parts: Any) -> bytes:
    return hashlib.sha256(ENCODER.encode(parts).encode()).digest()
