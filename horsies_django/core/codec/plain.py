"""The codec of plain functions, those of ``django.tasks``: positional and untyped arguments, and values that are JSON.

The arguments of a call are stored as they were given, ``{"args": [...], "kwargs": {...}, "names": [...]}``; ``names`` are the
parameters that the positional arguments are for, as far as they have one. By keyword and by ``names``, partition rules and the
admin find an argument. What only resembles JSON becomes JSON, as Django's ``normalize_json`` does it: tuples and other sequences
become lists, mappings dicts, bytes text, members of str and int enums their values. Everything else is refused when it is sent.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horsies_django.core.codec.arguments import Misbound
from horsies_django.core.codec.envelopes import ResultCodec
from horsies_django.core.codec.jsontext import read_json, write_json
from horsies_django.core.codec.shapes import (
    ANY,
    MAX_DEPTH,
    PLAIN_TYPES,
    CodecError,
    Shape,
    check_float,
    check_int,
    check_key,
    check_text,
    key_step,
    misfit,
    too_deep,
)
from horsies_django.core.codec.signatures import EMPTY, Compiled, written

PLAIN = "plain"  # the value of the column ``codec``


def normalized(value: Any, depth: int = 0) -> Any:
    """Return ``value`` as JSON data that PostgreSQL can hold. Raises CodecError."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, enum.Enum) and not isinstance(value, str | int | float):
        raise CodecError(f"{kind.__name__} is an Enum whose members are neither str nor int: pass its value")
    if isinstance(value, str):
        check_text(value)
        return value if kind is str else str.__str__(value)
    if isinstance(value, int):
        check_int(value)
        return value if kind is int else int.__int__(value)
    if isinstance(value, float):
        check_float(value)
        return value if kind is float else float.__float__(value)
    if isinstance(value, bytes):
        return decoded(value)
    if not isinstance(value, Mapping | Sequence):
        if kind.__name__ == "__proxy__":
            raise CodecError("it is a lazy text, such as a translation: pass str(...) of it")
        raise misfit(f"plain JSON ({PLAIN_TYPES})", value)
    if depth >= MAX_DEPTH:
        raise too_deep()
    return _mapping(value, depth + 1) if isinstance(value, Mapping) else _sequence(value, depth + 1)


def decoded(value: bytes) -> str:
    """Return bytes as text. Raises CodecError if they are not UTF-8."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise CodecError("these bytes are not text in UTF-8: pass a str, for example in base64", "value") from None
    check_text(text)
    return text


def _mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    stored: dict[str, Any] = {}
    for given, item in value.items():
        key = decoded(given) if isinstance(given, bytes) else given
        check_key(key)
        key = str.__str__(key)
        if key in stored:
            raise CodecError("two keys are the same in JSON", "value")
        try:
            stored[key] = normalized(item, depth)
        except CodecError as error:
            error.within(key_step(len(stored)))
            raise
    return stored


def _sequence(value: Sequence[Any], depth: int) -> list[Any]:
    stored = []
    for index, item in enumerate(value):
        try:
            stored.append(normalized(item, depth))
        except CodecError as error:
            error.within(f"[{index}]")
            raise
    return stored


def _argument(name: str, value: Any) -> Any:
    try:
        return normalized(value)
    except CodecError as error:
        error.within(name)
        raise


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    for name in given:
        check_key(name)
    return {name: _argument(name, value) for name, value in given.items()}


def named_arguments(stored: Any) -> Any:
    """Return stored arguments by name, those without one as a list under "*"; other JSON as it is.

    The SQL function horsies_named_arguments does the same, and a test compares the two.
    """
    if (
        not isinstance(stored, dict)
        or not isinstance(stored.get("args"), list)
        or not isinstance(stored.get("kwargs"), dict)
    ):
        return stored
    args, names = stored["args"], stored.get("names")
    names = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    found = {**stored["kwargs"], **dict(zip(names, args, strict=False))}
    return {**found, "*": args[len(names) :]} if len(args) > len(names) else found


class PlainArguments(Compiled):
    """The arguments of one plain function.

    With ``takes_context``, its first parameter is given by whoever runs it: it is no part of the signature nor of what is stored.
    """

    def __init__(self, function: Callable[..., Any], takes_context: bool = False) -> None:
        super().__init__(function)
        if takes_context:
            self.signature = self.signature.replace(parameters=list(self.signature.parameters.values())[1:])
        parameters = list(self.signature.parameters.values())
        self._positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._positional_only = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
        self._rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)

    @property
    def names(self) -> frozenset[str]:
        """The names of the parameters that take one argument each; ``takes_any``: it takes keywords of any other name."""
        return frozenset(p.name for p in self.signature.parameters.values() if p.kind not in VARIABLE)

    @property
    def optional(self) -> frozenset[str]:
        """The names of the parameters with a default."""
        return frozenset(p.name for p in self.signature.parameters.values() if p.default is not EMPTY)

    def resolve(self) -> None:
        """Do nothing: no annotation counts."""

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return a call as JSON text, checked against the signature. Raises CodecError."""
        self._refuse_misfit(args, kwargs)
        names = self._positional[: len(args)]
        stored: dict[str, Any] = {
            "args": [_argument(self._place(index), value) for index, value in enumerate(args)],
            "kwargs": _named(kwargs),
        }
        if names:
            stored["names"] = names
        return write_json(stored)

    def decode(self, text: str | bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments that ``encode`` wrote, ready for ``function(*args, **kwargs)``. Raises CodecError.

        Arguments that were put together by name may be those of positional-only parameters.
        """
        stored = read_json(text, "arguments")
        args, kwargs = (stored.get("args"), stored.get("kwargs")) if type(stored) is dict else (None, None)
        if type(args) is not list or type(kwargs) is not dict:
            raise CodecError(
                'expected {"args": [...], "kwargs": {...}}, as tasks of django.tasks are sent; was it sent by a task with typed '
                "arguments, which had this name before?",
                subject="arguments",
            )
        return self._called(args, kwargs)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a call's arguments by name, for a node of a workflow. Raises CodecError if they do not fit the signature."""
        if self._positional_only and self.takes_any:
            raise Misbound(self._fit("has positional-only parameters beside **, so it cannot be called by name"))
        if len(args) > len(self._positional) and self._rest:
            raise Misbound(
                self._fit(f"gets arguments for *{self._rest}, which have no name: pass one list"), path=self._rest
            )
        given = dict(zip(self._positional, args, strict=False))
        if len(args) > len(self._positional) or not given.keys().isdisjoint(kwargs):
            self._refuse_misfit(args, kwargs)
        given.update(kwargs)
        self._called([], given, stored=False)
        return given

    def encode_values(self, given: Mapping[str, Any]) -> str:
        """Return some arguments by name, as JSON text. Raises CodecError."""
        return write_json(_named(given))

    def decode_values(self, text: str | bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return a call whose arguments ``encode_values`` wrote. Raises CodecError if they do not fit the signature."""
        stored = read_json(text, "arguments")
        if type(stored) is not dict:
            raise CodecError(f"expected an object, got {type(stored).__name__}", subject="arguments")
        return self._called([], stored)

    def decode_one(self, name: str, stored: Any) -> Any:
        """Return one argument of those that ``encode_values`` wrote."""
        return stored

    def _called(self, args: list[Any], kwargs: dict[str, Any], stored: bool = True) -> tuple[list[Any], dict[str, Any]]:
        if self._positional_only and not args and not self.takes_any:
            last = max((place for place, p in enumerate(self._positional_only) if p.name in kwargs), default=-1)
            args, kwargs = [], dict(kwargs)
            for parameter in self._positional_only[: last + 1]:
                if parameter.name not in kwargs and parameter.default is EMPTY:
                    break
                args.append(kwargs.pop(parameter.name, parameter.default))
        self._refuse_misfit(args, kwargs, stored)
        return args, kwargs

    def _refuse_misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any], stored: bool = False) -> None:
        """Raise CodecError, worded like Python's TypeError, for a call that does not fit the signature."""
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise Misbound(self._fit(unnamed(error) if stored else str(error))) from None

    def _fit(self, problem: str) -> str:
        name = self.function.__name__
        return f"{name}() {problem}; its signature is {name}{written(self.signature)}"

    def _place(self, index: int) -> str:
        """Return the position of a positional argument for messages."""
        many = len(self._positional)
        return self._positional[index] if index < many else f"*{self._rest}[{index - many}]"


def unnamed(error: TypeError) -> str:
    """Return what Python says about a call that was stored, without a name that the function does not have."""
    unknown = str(error).startswith("got an unexpected keyword argument")
    return "was sent an argument that it does not take" if unknown else str(error)


VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
PLAIN_JSON = Shape("plain JSON", ANY.kinds, ANY.accepts, normalized, ANY.load, plain=True)


class PlainResult(ResultCodec):
    """The result of one plain function: any JSON value in the envelope."""

    def __init__(self, function: Callable[..., Any]) -> None:
        Compiled.__init__(self, function)
        self.wraps_result = False
        self._shape = PLAIN_JSON

    def resolve(self) -> None:
        """Do nothing: no annotation counts."""
