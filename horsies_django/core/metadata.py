"""The metadata of a task, which is a small JSON object beside its arguments.

It is stored under the key "metadata" in the options of the row of the task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from horsies_django.core.codec import CodecError, shape_of
from horsies_django.core.codec.jsondata import write_json

MOST_BYTES = 4_096
MOST_METADATA_BRACKETS = 400  # options with more than core.options.MOST_BRACKETS are not read
NO_METADATA: Mapping[str, Any] = MappingProxyType({})

_shape = shape_of(dict, "metadata")


def encode_metadata(given: Mapping[str, Any]) -> str:
    """Return metadata as JSON text.

    Raises CodecError if it cannot be encoded, is too large or has too many brackets.
    """
    text = write_json(_shape.encode(dict(given), "metadata"))
    if (size := len(text.encode())) > MOST_BYTES:
        raise CodecError(
            f"it has {size:,} bytes of JSON, and at most {MOST_BYTES:,} are allowed: pass "
            "larger data as an argument, "
            "or store it and pass its key",
            "value",
            subject="metadata",
        )

    if text.count("[") + text.count("{") > MOST_METADATA_BRACKETS:
        raise CodecError(
            f"its JSON has more than {MOST_METADATA_BRACKETS} opening brackets and braces",
            "value",
            subject="metadata",
        )

    return text


def with_metadata(options: str | None, metadata: str | None) -> str | None:
    if metadata is None:
        return options
    return ("{" if options is None else f"{options[:-1]},") + f'"metadata":{metadata}}}'


def without_metadata(options: str | None) -> str | None:
    if options is None or not has_metadata(options):
        return options
    rest = {name: value for name, value in json.loads(options).items() if name != "metadata"}
    return json.dumps(rest) if rest else None


def has_metadata(options: str | None) -> bool:
    """Return whether the JSON text of options may contain metadata, without decoding it."""
    return options is not None and '"metadata"' in options


def read_metadata(options: str | None) -> Mapping[str, Any]:
    """Return the metadata in the JSON text of options, as a read-only mapping.

    The mapping is empty if there is no metadata. No exception is raised for an invalid text.
    """
    if options is None or not has_metadata(options):
        return NO_METADATA

    try:
        found = json.loads(options)["metadata"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return NO_METADATA
    return MappingProxyType(found) if isinstance(found, dict) else NO_METADATA
