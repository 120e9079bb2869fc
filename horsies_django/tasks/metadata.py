"""The metadata of a send: what the functions in ``HORSIES["METADATA"]`` return, and above it what the sender gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.module_loading import import_string

from horsies_django.conf import config
from horsies_django.core.codec import CodecError
from horsies_django.core.errors import TaskSendError, TaskSendErrorCode
from horsies_django.core.metadata import encode_metadata


def metadata_of(task_name: str, given: Mapping[str, Any] | None) -> str | None:
    """Return the metadata of a send as JSON text, None if there is none. Raises TaskSendError."""
    paths = config().metadata
    if given is None and not paths:
        return None
    try:
        found: dict[str, Any] = {}
        for path in paths:
            found.update(ask(path))
        if given is not None:
            if not isinstance(given, Mapping):
                raise CodecError(f"it must be a dict, not {type(given).__name__}", subject="metadata")
            found.update(given)
        return encode_metadata(found) if found else None
    except CodecError as error:
        raise TaskSendError(TaskSendErrorCode.VALIDATION_FAILED, f"{task_name}: {error}") from error


def ask(path: str) -> Mapping[str, Any]:
    """Return the metadata of one function of the settings. Raises CodecError."""
    subject = f"HORSIES['METADATA'] {path!r}"
    try:
        found = import_string(path)()
    except Exception as error:
        raise CodecError(f"it raised {type(error).__name__}: {error}", subject=subject) from error
    if found is None or isinstance(found, Mapping):
        return found or {}
    raise CodecError(f"it returned {type(found).__name__} instead of a dict", subject=subject)
