"""The return value of a task of ``django.tasks``: what ``normalize_json`` accepts, less what PostgreSQL cannot store."""

from __future__ import annotations

from typing import Any

from horsies_django.core.codec import CodecError
from horsies_django.core.codec.plain import normalized


def strict(value: Any) -> Any:
    """Return the return value of a task as JSON data. Raises TypeError for other types, ValueError for other values."""
    try:
        return normalized(value)
    except CodecError as error:
        error.subject = "return value"
        if error.kind == "type":
            raise TypeError(f"Unsupported type: {error}") from None
        raise ValueError(str(error)) from None
