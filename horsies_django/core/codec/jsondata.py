"""Checks of plain JSON data, which PostgreSQL must be able to store, and functions for its text."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from json import encoder as json_encoder
from typing import Any, NoReturn

from horsies_django.core.codec.errors import CodecError, misfit

MAX_DEPTH = 200  # so small that the text can be decoded with less stack than it was encoded
MAX_DIGITS = 4300  # Python refuses to parse longer ints
BIG = 10**MAX_DIGITS
PLAIN_TYPES = "None, bool, int, float, str, list or dict"


def too_deep() -> CodecError:
    """Return the error for a value that is nested too deeply."""
    return CodecError(
        f"it is nested more than {MAX_DEPTH} levels deep, or contains itself", "value"
    )


def check_text(text: str) -> None:
    """Raise CodecError if PostgreSQL cannot store a text."""
    if "\x00" in text:
        raise CodecError("the text has a NUL byte (\\x00), which PostgreSQL cannot hold", "value")

    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise CodecError(
                f"the text has a lone surrogate (character {error.start}), so it is not valid "
                "Unicode",
                "value",
            ) from None


def check_int(number: int) -> None:
    """Raise CodecError if an int is too large to be parsed."""
    if not -BIG < number < BIG:
        raise CodecError(
            f"an int of more than {MAX_DIGITS} digits cannot be encoded as JSON: send it as a str",
            "value",
        )


def check_float(number: float) -> None:
    """Raise CodecError if JSON cannot represent a float."""
    if math.isfinite(number):
        return
    if math.isnan(number):
        raise CodecError("NaN is not valid JSON", "value")

    sign = "" if number > 0 else "-"
    raise CodecError(f"{sign}Infinity is not valid JSON", "value")


def check_key(key: Any) -> None:
    """Raise CodecError if a key of a JSON object is invalid."""
    if not isinstance(key, str):
        raise CodecError(
            f"a key is of type {type(key).__name__}; the keys of a JSON object are str"
        )
    try:
        check_text(key)
    except CodecError as error:
        raise CodecError(f"a key: {error.problem}", "value") from None


def each_item(values: Iterable[Any], convert: Callable[[Any], Any]) -> list[Any]:
    """Return a list of the values that ``convert`` returns for each value.

    Raises CodecError, with the position of the value, if one cannot be converted.
    """
    made: list[Any] = []
    try:
        for value in values:
            made.append(convert(value))
    except CodecError as error:
        error.within(f"[{len(made)}]")
        raise

    return made


def each_entry(values: Mapping[Any, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a dict of the values that ``convert`` returns for each value.

    Raises CodecError if a value cannot be converted or a key is invalid. The position in the error
    has the number of the key, but not the key itself, because keys are data.
    """
    made: dict[str, Any] = {}
    for key, value in values.items():
        check_key(key)
        try:
            made[key] = convert(value)
        except CodecError as error:
            error.within(f"[key {len(made) + 1}]")
            raise

    return made


def plain_json(value: Any, lenient: bool = False, depth: int = 0) -> Any:
    """Return ``value`` as JSON data of exact types at every level.

    With ``lenient``, values that only resemble JSON become JSON, as by Django's ``normalize_json``.
    Tuples and other sequences become lists, mappings become dicts, bytes become text, and members
    of str and int enums become their values. Raises CodecError if the value is no JSON data.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        check_text(value)
        return str.__str__(value)
    if isinstance(value, int):
        check_int(value)
        return int.__int__(value)
    if isinstance(value, float):
        check_float(value)
        return float.__float__(value)

    if lenient and isinstance(value, bytes):
        return decoded(value)

    containers: Any = (Mapping, Sequence) if lenient else (dict, list)
    if not isinstance(value, containers):
        if isinstance(value, tuple):
            raise CodecError(
                "a tuple would come back as a list: pass a list, or declare tuple[...]"
            )
        if lenient and isinstance(value, enum.Enum):
            raise CodecError(
                f"{type(value).__name__} is an Enum whose members are neither str nor int: pass "
                "its value"
            )
        raise misfit(f"plain JSON ({PLAIN_TYPES})", value)

    if depth >= MAX_DEPTH:
        raise too_deep()
    if not isinstance(value, Mapping):
        return each_item(value, lambda item: plain_json(item, lenient, depth + 1))

    if lenient:
        texts = {
            decoded(key) if isinstance(key, bytes) else key: item for key, item in value.items()
        }
        if len(texts) < len(value):
            raise CodecError("two keys are the same in JSON", "value")
        value = texts

    return each_entry(value, lambda item: plain_json(item, lenient, depth + 1))


def decoded(value: bytes) -> str:
    """Return bytes as text. Raises CodecError if they are not UTF-8."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise CodecError(
            "these bytes are not text in UTF-8: pass a str, for example in base64", "value"
        ) from None

    check_text(text)
    return text


# Checked data contains no cycles, so the encoder need not check for them.
_encoder = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
)


def _make_write() -> Callable[[Any], str]:
    """Return a function that writes JSON with one C encoder for all calls.

    ``JSONEncoder.encode`` creates an encoder for each call, which takes longer than the encoding of
    a small value.
    """
    make = getattr(json_encoder, "c_make_encoder", None)
    if make is None:
        return _encoder.encode
    parts = make(
        None, _encoder.default, json_encoder.encode_basestring, None, ":", ",", False, False, False
    )
    return lambda stored: "".join(parts(stored, 0))


_write = _make_write()
# The function that writes a text as JSON. It takes a fifth of the time of ``write_json``.
write_text = json_encoder.encode_basestring


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


_read = json.JSONDecoder(parse_constant=_refuse_constant).decode


def write_json(stored: Any) -> str:
    """Return checked data as compact JSON text.

    Raises CodecError if the data is nested too deeply or contains an int that is too large.
    """
    try:
        return _write(stored)
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:  # sys.set_int_max_str_digits() is below MAX_DIGITS
        raise CodecError(str(error), "value") from error


def read_json(text: str | bytes, subject: str) -> Any:
    """Return the data of a JSON text.

    ``subject`` is the name of the data in messages. Raises CodecError if the text is not JSON.
    """
    try:
        return _read(text if isinstance(text, str) else bytes(text).decode())
    except RecursionError:
        raise CodecError(too_deep().problem, "value", subject=subject) from None
    except ValueError as error:
        raise CodecError(f"the stored text is not JSON: {error}", subject=subject) from error
