"""Strict conversion between JSON text and plain data, with CodecError as exception."""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder as json_encoder
from typing import Any, NoReturn

from horsies_django.core.codec.shapes import CodecError, too_deep

# The shapes refuse cycles, so the encoder need not check for them.
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False)


def _make_write() -> Callable[[Any], str]:
    """Return a function that writes JSON, with one C encoder for all calls.

    JSONEncoder.encode creates an encoder for each call, which takes longer than encoding a small value.
    """
    make = getattr(json_encoder, "c_make_encoder", None)
    if make is None:
        return _encoder.encode
    parts = make(None, _encoder.default, json_encoder.encode_basestring, None, ":", ",", False, False, False)
    return lambda stored: "".join(parts(stored, 0))


_write = _make_write()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


_read = json.JSONDecoder(parse_constant=_refuse_constant).decode


def write_json(stored: Any) -> str:
    """Return checked data as compact JSON text. Raises CodecError."""
    try:
        return _write(stored)
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:  # sys.set_int_max_str_digits() is below the limit of shapes
        raise CodecError(str(error), "value") from error


def read_json(text: str | bytes, subject: str) -> Any:
    """Return the data of a JSON text. Raises CodecError."""
    try:
        return _read(text if isinstance(text, str) else bytes(text).decode())
    except RecursionError:
        raise CodecError(too_deep().problem, "value", subject=subject) from None
    except ValueError as error:
        raise CodecError(f"the stored text is not JSON: {error}", subject=subject) from error
