"""The arguments of a call: bound to the signature of the function, encoded by name, and decoded for the call.

Defaults of omitted parameters are not stored, so that workers with older code can run the task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin

from horsies_django.core.codec.annotations import shape_of
from horsies_django.core.codec.jsontext import read_json, write_json
from horsies_django.core.codec.outcomes import result_shape
from horsies_django.core.codec.shapes import CodecError, Shape, too_deep
from horsies_django.core.codec.signatures import (
    EMPTY,
    Compiled,
    refuse_bad_parameters,
    refuse_models,
    refuse_unannotated,
    written,
)
from horsies_django.core.results import TaskResult


class ArgumentsCodec(Compiled):
    """The arguments of one function."""

    takes_any = False  # no keywords of other names

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        refuse_bad_parameters(function, self.signature)
        refuse_unannotated(function, self.signature)
        parameters = list(self.signature.parameters.values())
        self._names = frozenset(p.name for p in parameters)
        self._required = frozenset(p.name for p in parameters if p.default is EMPTY)
        self._positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        self._positional_only = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
        self._by_keyword = frozenset(p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY)
        self._dumps: dict[str, Callable[[Any], Any]] | None = None
        self._loads: dict[str, Callable[[Any], Any]] | None = None

    @property
    def names(self) -> frozenset[str]:
        return self._names

    @property
    def optional(self) -> frozenset[str]:
        """The names of the parameters with a default."""
        return self._names - self._required

    @classmethod
    def of(cls, function: Callable[..., Any]) -> ArgumentsCodec:
        """Read the signature of ``function``. Raises TaskDefinitionError with the line to write."""
        codec = cls(function)
        codec._resolve_early()
        return codec

    def _compile(self, hints: dict[str, Any]) -> None:
        refuse_models(self.function, self.signature, hints)
        shapes = {
            name: parameter_shape(hints[name], f"{self.origin}: parameter '{name}'")
            for name in self.signature.parameters
        }
        self._loads = {name: shape.load for name, shape in shapes.items()}
        self._dumps = {name: shape.dump for name, shape in shapes.items()}

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return a call's arguments by name, as JSON text, checked against signature and types. Raises CodecError."""
        if self._dumps is None:
            self._resolve_late()
            return self.encode(args, kwargs)
        return self.encode_values(self.bind(args, kwargs))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a call's arguments by name. Raises CodecError if they do not fit the signature."""
        given = kwargs
        if args:
            given = dict(zip(self._positional, args, strict=False))
            if len(args) > len(self._positional) or not given.keys().isdisjoint(kwargs):
                raise self._misbound(args, kwargs)
            given.update(kwargs)
        if not (kwargs.keys() <= self._by_keyword and self._required <= given.keys()):
            raise self._misbound(args, kwargs)
        return given

    def encode_values(self, given: Mapping[str, Any]) -> str:
        """Return some arguments as JSON text, checked against their types. Raises CodecError."""
        if self._dumps is None:
            self._resolve_late()
            return self.encode_values(given)
        dumps, stored, name = self._dumps, {}, ""
        try:
            for name, value in given.items():
                stored[name] = dumps[name](value)
        except CodecError as error:
            error.within(name)
            raise
        except RecursionError:
            raise too_deep().within(name) from None
        return write_json(stored)

    def _misbound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CodecError:
        """Return the error for a call that does not fit the signature, worded like Python's TypeError."""
        taken = frozenset(self._positional[: len(args)])
        name, problem = "", f"takes {len(self._positional)} positional arguments, but {len(args)} were given"
        if len(args) <= len(self._positional):
            if twice := [each for each in kwargs if each in taken and each in self._by_keyword]:
                name, problem = twice[0], f"got multiple values for argument '{twice[0]}'"
            elif unknown := [each for each in kwargs if each not in self._names]:
                name, problem = unknown[0], f"got an unexpected keyword argument '{unknown[0]}'"
            elif wrong := [each for each in kwargs if each not in self._by_keyword]:
                name, problem = wrong[0], f"got the positional-only argument '{wrong[0]}' as a keyword"
            else:
                missing = [each for each in self.signature.parameters if each in self._required - taken - kwargs.keys()]
                name, problem = missing[0], f"is missing the required {listed(missing)}"
        return Misbound(self._fit(problem), path=name)

    def _fit(self, problem: str) -> str:
        return (
            f"{self.function.__name__}() {problem}; its signature is {self.function.__name__}{written(self.signature)}"
        )

    def decode(self, text: str | bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments that ``encode`` wrote, ready for ``function(*args, **kwargs)``. Raises CodecError."""
        if self._loads is None:
            self._resolve_late()
            return self.decode(text)
        stored = read_json(text, "arguments")
        if type(stored) is not dict:
            raise CodecError(f"expected an object, got {type(stored).__name__}", subject="arguments")
        if not (self._required <= stored.keys() <= self._names):
            raise self._mismatch(stored)
        loads, kwargs, name = self._loads, {}, ""
        try:
            for name, value in stored.items():
                kwargs[name] = loads[name](value)
        except CodecError as error:
            error.within(name)
            raise
        except RecursionError:
            raise too_deep().within(name) from None
        return self._take_positional(kwargs) if self._positional_only else [], kwargs

    def decode_values(self, text: str | bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return a call whose arguments ``encode_values`` wrote. Raises CodecError if they do not fit the signature."""
        return self.decode(text)

    def decode_one(self, name: str, stored: Any) -> Any:
        """Return one argument of those that ``encode`` wrote. Raises CodecError."""
        if self._loads is None:
            self._resolve_late()
            return self.decode_one(name, stored)
        try:
            return self._loads[name](stored)
        except CodecError as error:
            error.within(name)
            raise
        except RecursionError:
            raise too_deep().within(name) from None

    def _mismatch(self, stored: dict[str, Any]) -> CodecError:
        """Return the error for stored arguments of another signature: the versions of sender and worker differ."""
        if unknown := len(stored.keys() - self._names):  # whose names are data
            return Misbound(self._fit(f"was sent {unknown} argument{'s' * (unknown > 1)} that it does not take"))
        missing = [name for name in self.signature.parameters if name in self._required - stored.keys()]
        return Misbound(self._fit(f"was sent without the required {listed(missing)}"), path=missing[0])

    def _take_positional(self, kwargs: dict[str, Any]) -> list[Any]:
        """Move positional-only arguments out of ``kwargs``; one omitted before one given gets its default."""
        last = max((place for place, p in enumerate(self._positional_only) if p.name in kwargs), default=-1)
        return [kwargs.pop(p.name, p.default) for p in self._positional_only[: last + 1]]


def parameter_shape(annotation: Any, where: str) -> Shape:
    """Return the shape of a parameter, which alone may take the result of a task. Raises UnsupportedType."""
    if get_origin(annotation) is TaskResult and (args := get_args(annotation)):
        return result_shape(shape_of(args[0], where))
    return shape_of(annotation, where)


class Misbound(CodecError):
    """The arguments do not fit the signature; ``path`` is the first of them."""

    def __str__(self) -> str:
        return self.problem


def listed(names: list[str]) -> str:
    """Return names as text: argument 'a', arguments 'a', 'b'."""
    return f"argument{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"
