"""The codec of plain functions, which are those of ``django.tasks``.

Their arguments may be positional and have no types, and all values are JSON. The arguments of a
call are stored as they were given, ``{"args": [...], "kwargs": {...}, "names": [...]}``. ``names``
has the parameters of the positional arguments, as far as they have one. By the keywords and by
``names``, partition rules and the admin find an argument. Values that only resemble JSON become
JSON. Other values are refused when they are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horsies_django.core.codec.arguments import CallCodec
from horsies_django.core.codec.envelopes import ResultCodec
from horsies_django.core.codec.errors import CodecError, Misbound
from horsies_django.core.codec.jsondata import check_key, plain_json, read_json, write_json
from horsies_django.core.codec.shapes import ANY, Shape, at
from horsies_django.core.codec.signatures import Compiled

PLAIN_CODEC = "plain"  # the value of the column ``codec``


def normalized(value: Any) -> Any:
    """Return a value that resembles JSON data as JSON data. Raises CodecError if it does not."""
    return plain_json(value, lenient=True)


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    for name in given:
        check_key(name)
    return {name: at(name, normalized, value) for name, value in given.items()}


def named_arguments(stored: Any) -> Any:
    """Return stored arguments by name, with a list of those without a name under "*".

    Other JSON is returned unchanged. The SQL function ``horsies_named_arguments`` returns the same,
    and a test compares the two.
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

    With ``takes_context``, the code that runs the function passes the first argument. It belongs
    neither to the signature nor to the stored arguments.
    """

    def __init__(self, function: Callable[..., Any], takes_context: bool = False) -> None:
        super().__init__(function, int(takes_context))
        self._rest = next(
            (p.name for p in self.signature.parameters.values() if p.kind is p.VAR_POSITIONAL), ""
        )

    def resolve(self) -> None:
        """Do nothing, because annotations have no effect."""

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the arguments of a call as JSON text.

        Raises CodecError if they do not fit the signature or are not JSON.
        """
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
        """Return arguments from the text of ``encode``, for ``function(*args, **kwargs)``.

        If all arguments are stored by name, they may be those of positional-only parameters. Raises
        CodecError if the arguments have another format or do not fit the signature.
        """
        stored = read_json(text, "arguments")
        args, kwargs = (
            (stored.get("args"), stored.get("kwargs")) if type(stored) is dict else (None, None)
        )
        if type(args) is not list or type(kwargs) is not dict:
            raise CodecError(
                'expected {"args": [...], "kwargs": {...}}, the format of tasks of '
                "django.tasks; the sender may have been a task with typed arguments that had this "
                "name before",
                subject="arguments",
            )

        return self.called(args, kwargs)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call by name, for a node of a workflow.

        Raises CodecError if they do not fit the signature or have no names.
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
        """Return some of the arguments by name, as JSON text.

        Raises CodecError if they are not JSON.
        """
        return write_json(_named(given))

    def decode_values(self, text: str | bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments from the text of ``encode_values``, for ``function(*args, **kwargs)``.

        Raises CodecError if they do not fit the signature.
        """
        stored = read_json(text, "arguments")
        if type(stored) is not dict:
            raise CodecError(
                f"expected an object, got {type(stored).__name__}", subject="arguments"
            )
        return self.called([], stored)

    def decode_one(self, name: str, stored: Any) -> Any:
        """Return one argument from its stored form, which is the argument itself."""
        return stored

    def _place(self, index: int) -> str:
        """Return the name of a positional argument in messages."""
        many = len(self.positional)
        return self.positional[index] if index < many else f"*{self._rest}[{index - many}]"


PLAIN_JSON = Shape("plain JSON", ANY.kinds, ANY.accepts, normalized, ANY.load, plain=True)


class PlainResult(ResultCodec):
    """The result of one plain function, which is any JSON value, in the envelope."""

    def __init__(self, function: Callable[..., Any]) -> None:
        Compiled.__init__(self, function)
        self.wraps_result = False
        self._shape = PLAIN_JSON

    def resolve(self) -> None:
        """Do nothing, because annotations have no effect."""
