"""The codec of plain functions, those of ``django.tasks``: positional and untyped arguments, and
values that are JSON.

The arguments of a call are stored as they were given, ``{"args": [...], "kwargs": {...}, "names":
[...]}``; ``names`` are the parameters that the positional arguments are for, as far as they have
one. By keyword and by ``names``, partition rules and the admin find an argument. What only
resembles JSON becomes JSON; everything else is refused when it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horsies_django.core.codec.arguments import CallCodec
from horsies_django.core.codec.envelopes import ResultCodec
from horsies_django.core.codec.errors import CodecError, Misbound
from horsies_django.core.codec.jsondata import check_key, plain, read_json, write_json
from horsies_django.core.codec.shapes import ANY, Shape, at
from horsies_django.core.codec.signatures import Compiled

PLAIN = "plain"  # the value of the column ``codec``


def normalized(value: Any) -> Any:
    """Return what resembles JSON data as JSON data. Raises CodecError."""
    return plain(value, lenient=True)


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    for name in given:
        check_key(name)
    return {name: at(name, normalized, value) for name, value in given.items()}


def named_arguments(stored: Any) -> Any:
    """Return stored arguments by name, those without one as a list under "*"; other JSON as it is.

    The SQL function horsies_named_arguments does the same, and a test compares the two.
    """
    args, kwargs = (
        (stored.get("args"), stored.get("kwargs")) if isinstance(stored, dict) else (None, None)
    )
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return stored

    names = stored.get("names")
    names = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    found = {**kwargs, **dict(zip(names, args, strict=False))}
    return {**found, "*": args[len(names) :]} if len(args) > len(names) else found


class PlainArguments(CallCodec):
    """The arguments of one plain function.

    With ``takes_context``, its first parameter is given by whoever runs it: it is no part of the
    signature nor of what is stored.
    """

    def __init__(self, function: Callable[..., Any], takes_context: bool = False) -> None:
        super().__init__(function, int(takes_context))
        self._rest = next(
            (p.name for p in self.signature.parameters.values() if p.kind is p.VAR_POSITIONAL), ""
        )

    def resolve(self) -> None:
        """Do nothing: no annotation counts."""

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return a call as JSON text, checked against the signature. Raises CodecError."""
        self.refuse_misfit(args, kwargs)
        names = self.positional[: len(args)]

        stored: dict[str, Any] = {
            "args": [at(self._place(index), normalized, value) for index, value in enumerate(args)],
            "kwargs": _named(kwargs),
        }
        if names:
            stored["names"] = names

        return write_json(stored)

    def decode(self, text: str | bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments that ``encode`` wrote, ready for ``function(*args, **kwargs)``.
        Raises CodecError.

        Arguments that were put together by name may be those of positional-only parameters.
        """
        stored = read_json(text, "arguments")
        args, kwargs = (
            (stored.get("args"), stored.get("kwargs")) if type(stored) is dict else (None, None)
        )
        if type(args) is not list or type(kwargs) is not dict:
            raise CodecError(
                'expected {"args": [...], "kwargs": {...}}, as tasks of django.tasks are sent; was '
                "it sent by a task with typed "
                "arguments, which had this name before?",
                subject="arguments",
            )

        return self.called(args, kwargs)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a call's arguments by name, for a node of a workflow.

        Raises CodecError if they do not fit the signature.
        """
        if self.positional_only and self.takes_any:
            raise Misbound(
                self.fit("has positional-only parameters beside **, so it cannot be called by name")
            )

        if len(args) > len(self.positional) and self._rest:
            raise Misbound(
                self.fit(f"gets arguments for *{self._rest}, which have no name: pass one list"),
                path=self._rest,
            )

        given = dict(zip(self.positional, args, strict=False))
        if len(args) > len(self.positional) or not given.keys().isdisjoint(kwargs):
            self.refuse_misfit(args, kwargs)
        given.update(kwargs)

        self.called([], given, stored=False)
        return given

    def encode_values(self, given: Mapping[str, Any]) -> str:
        """Return some arguments by name, as JSON text. Raises CodecError."""
        return write_json(_named(given))

    def decode_values(self, text: str | bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return a call whose arguments ``encode_values`` wrote.

        Raises CodecError if they do not fit the signature.
        """
        stored = read_json(text, "arguments")
        if type(stored) is not dict:
            raise CodecError(
                f"expected an object, got {type(stored).__name__}", subject="arguments"
            )
        return self.called([], stored)

    def decode_one(self, name: str, stored: Any) -> Any:
        """Return one argument of those that ``encode_values`` wrote."""
        return stored

    def _place(self, index: int) -> str:
        """Return the position of a positional argument for messages."""
        many = len(self.positional)
        return self.positional[index] if index < many else f"*{self._rest}[{index - many}]"


PLAIN_JSON = Shape("plain JSON", ANY.kinds, ANY.accepts, normalized, ANY.load, plain=True)


class PlainResult(ResultCodec):
    """The result of one plain function: any JSON value in the envelope."""

    def __init__(self, function: Callable[..., Any]) -> None:
        Compiled.__init__(self, function)
        self.wraps_result = False
        self._shape = PLAIN_JSON

    def resolve(self) -> None:
        """Do nothing: no annotation counts."""
