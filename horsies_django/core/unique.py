"""Unique tasks and the keys of sends.

Digests are compared to find out whether two sends are the same work.
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
    """The rule which tasks are duplicates: ``@task(unique=Unique("order_id", until="start"))``.

    Tasks are duplicates if they have equal values of the named arguments, or of all arguments if
    none is named. With ``until="end"``, a task is a duplicate while the first task has not
    finished. With ``until="start"``, it is one while no worker has ever claimed the first task.

    A duplicate is not sent. With ``on_duplicate="return"``, the handle is that of the first task.
    With "refuse", the send raises TaskSendError with the code DUPLICATE.
    """

    def __init__(
        self, *args: str, until: Until = "end", on_duplicate: OnDuplicate = "return"
    ) -> None:
        self.args = args
        self.until = until
        self.on_duplicate = on_duplicate

    @classmethod
    def of(cls, given: object) -> Unique | None:
        """Return the rule for the argument of ``@task(unique=...)``, or None if there is no rule.

        ``given`` is a rule, a bool, the name of an argument or a list of names. Raises TypeError if
        it is something else.
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
        """Yield a problem for each option that is invalid for a task with these parameters."""
        for name in self.args:
            if name not in names:
                yield (
                    f"unique refers to {name!r}, which is not a parameter of the task; its "
                    f"parameters: {', '.join(sorted(names)) or 'none'}"
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
        """Return the digest of a task, by which duplicates are found.

        For the comparison of arguments, see ``comparable_arguments``.
        """
        found = comparable_arguments(kwargs, defaults)
        chosen = {name: found[name] for name in self.args if name in found} if self.args else found
        return digest_of("unique", task_name, chosen)


def comparable_arguments(kwargs: str, defaults: str) -> dict[str, Any]:
    """Return the arguments of a send in the form in which they are compared.

    ``kwargs`` is the JSON text of the given arguments, and ``defaults`` that of all defaults. An
    argument that was left out counts as its default. Equal numbers such as 1 and 1.0 are equal.
    """
    found: dict[str, Any] = {**DECODER.decode(defaults), **DECODER.decode(kwargs)}
    return found


def integral(text: str) -> int | float:
    number = float(text)
    return int(Decimal(text)) if number.is_integer() else number


# json.loads and json.dumps would create a decoder and an encoder for each send, which takes as long
# as the decoding and the encoding.
DECODER = json.JSONDecoder(parse_float=integral)
ENCODER = json.JSONEncoder(sort_keys=True)


def key_digest(task_name: str, key: str) -> bytes:
    """Return a digest of the key of a send."""
    return digest_of("key", task_name, key)


def arguments_digest(kwargs: str, defaults: str) -> bytes:
    """Return a digest of arguments, which does not depend on their order.

    For the comparison of arguments, see ``comparable_arguments``.
    """
    return digest_of(comparable_arguments(kwargs, defaults))


def digest_of(*parts: Any) -> bytes:
    return hashlib.sha256(ENCODER.encode(parts).encode()).digest()
