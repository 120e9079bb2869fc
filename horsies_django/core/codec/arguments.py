"""The codec of the arguments of a call.

Arguments are bound to the signature of the function, encoded by name, and decoded for the call.
Defaults of omitted parameters are not stored, so that workers with older code can run the task.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_origin

from horsies_django.core.codec.annotations import shape_of
from horsies_django.core.codec.envelopes import outcome_shape
from horsies_django.core.codec.errors import CodecError, Misbound
from horsies_django.core.codec.jsondata import read_json, too_deep, write_json
from horsies_django.core.codec.shapes import Shape
from horsies_django.core.codec.signatures import (
    EMPTY,
    STARRED,
    Compiled,
    refuse_bad_parameters,
    refuse_models,
    refuse_unannotated,
    written,
)
from horsies_django.core.results import TaskResult


class CallCodec(Compiled):
    """The arguments of one function.

    The first ``given`` parameters are not part of the signature, because the code that runs the
    function passes them. ``names`` has the parameters that take one argument each, and ``optional``
    those with a default. ``takes_any`` is True if the function takes keywords of any other name.
    """

    def __init__(self, function: Callable[..., Any], given: int = 0) -> None:
        super().__init__(function)
        self.signature = self.signature.replace(
            parameters=list(self.signature.parameters.values())[given:]
        )

        parameters = list(self.signature.parameters.values())
        self.positional_only = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
        self.positional = [
            p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        self.names = frozenset(p.name for p in parameters if p.kind not in STARRED)
        self.optional = frozenset(p.name for p in parameters if p.default is not EMPTY)
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)

    @functools.cached_property
    def defaults(self) -> str:
        """The defaults of parameters as JSON text, which is empty unless parameters have types."""
        return "{}"

    def refuse_misfit(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], stored: bool = False
    ) -> None:
        """Raise CodecError if a call does not fit the signature.

        The message is that of Python's TypeError. With ``stored``, it does not contain the name of
        an unknown argument, because the name is stored data.
        """
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            problem = str(error)
            if not self.takes_any and (
                unknown := [name for name in kwargs if name not in self.names]
            ):
                problem = f"got an unexpected keyword argument {unknown[0]!r}"
                problem = "got an argument that it does not take" if stored else problem

            raise Misbound(self.fit(problem)) from None

    def fit(self, problem: str) -> str:
        name = self.function.__name__
        return f"{name}() {problem}; its signature is {name}{written(self.signature)}"

    def called(
        self, args: list[Any], kwargs: dict[str, Any], stored: bool = True
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call in the form for ``function(*args, **kwargs)``.

        Without ``args``, the arguments are by name, and those of positional-only parameters become
        positional. If one of these was omitted before one that was given, it gets its default.
        Raises CodecError if the arguments do not fit the signature.
        """
        if self.positional_only and not args and not self.takes_any:
            last = max(
                (place for place, p in enumerate(self.positional_only) if p.name in kwargs),
                default=-1,
            )
            args = []
            kwargs = dict(kwargs)

            for parameter in self.positional_only[: last + 1]:
                if parameter.name not in kwargs and parameter.default is EMPTY:
                    break
                args.append(kwargs.pop(parameter.name, parameter.default))

        self.refuse_misfit(args, kwargs, stored)
        return args, kwargs


class ArgumentsCodec(CallCodec):
    """The arguments of one function, which are encoded by its annotations."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        refuse_bad_parameters(function, self.signature)
        refuse_unannotated(function, self.signature)

        self._required = self.names - self.optional
        self._by_keyword = self.names - {p.name for p in self.positional_only}
        self._compiled = False
        self._dumps: dict[str, Callable[[Any], Any]] = {}
        self._loads: dict[str, Callable[[Any], Any]] = {}

    def _compile(self, hints: dict[str, Any]) -> None:
        refuse_models(self.function, self.signature, hints)

        for name in self.signature.parameters:
            shape = parameter_shape(hints[name], f"{self.origin}: parameter '{name}'")
            self._dumps[name] = shape.dump
            self._loads[name] = shape.load

        self._compiled = True

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the arguments of a call by name, as JSON text.

        Raises CodecError if they do not fit the signature or the annotations.
        """
        return self.encode_values(self.bind(args, kwargs))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of a call by name.

        Raises CodecError if they do not fit the signature.
        """
        given = kwargs
        if args:
            given = dict(zip(self.positional, args, strict=False))
            if len(args) > len(self.positional) or not given.keys().isdisjoint(kwargs):
                self.refuse_misfit(args, kwargs)
            given.update(kwargs)

        if not (kwargs.keys() <= self._by_keyword and self._required <= given.keys()):
            self.refuse_misfit(args, kwargs)

        return given

    @functools.cached_property
    def defaults(self) -> str:
        """The defaults of parameters as JSON text, in the form in which arguments are stored.

        Defaults that cannot be encoded are left out.
        """
        found = {name: self.signature.parameters[name].default for name in self.optional}
        for name in self.optional:
            try:
                self.encode_values({name: found[name]})
            except CodecError:
                del found[name]

        return self.encode_values(found)

    def encode_values(self, given: Mapping[str, Any]) -> str:
        """Return some of the arguments as JSON text.

        Raises CodecError if they do not fit the annotations.
        """
        return write_json(self._converted(self._dumps, given))

    def _converted(
        self, converts: dict[str, Callable[[Any], Any]], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        if not self._compiled:
            self._resolve_late()

        made = {}
        name = ""
        try:
            for name, value in given.items():
                made[name] = converts[name](value)
        except CodecError as error:
            error.within(name)
            raise
        except RecursionError:
            raise too_deep().within(name) from None

        return made

    def decode(self, text: str | bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments from the text of ``encode``, for ``function(*args, **kwargs)``.

        Raises CodecError if they do not fit the signature or the annotations.
        """
        stored = read_json(text, "arguments")
        if type(stored) is not dict:
            raise CodecError(
                f"expected an object, got {type(stored).__name__}", subject="arguments"
            )

        if not (self._required <= stored.keys() <= self.names):
            self.called([], stored)

        kwargs = self._converted(self._loads, stored)
        return self.called([], kwargs) if self.positional_only else ([], kwargs)

    decode_values = decode  # for the text of ``encode_values``

    def decode_one(self, name: str, stored: Any) -> Any:
        """Return one argument from its stored form.

        Raises CodecError if it does not fit the annotation.
        """
        return self._converted(self._loads, {name: stored})[name]


def parameter_shape(annotation: Any, where: str) -> Shape:
    """Return the shape of a parameter.

    Unlike other annotations, that of a parameter may be TaskResult. Raises UnsupportedType if the
    type cannot be encoded.
    """
    if get_origin(annotation) is TaskResult and (args := get_args(annotation)):
        return outcome_shape(shape_of(args[0], where))
    return shape_of(annotation, where)
