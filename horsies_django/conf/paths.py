"""Imports what dotted paths in the settings name."""

from __future__ import annotations

from collections.abc import Iterable

from django.utils.module_loading import import_string


def path_problems(paths: Iterable[str]) -> list[str]:
    """Import what the paths name, and return what is wrong with each that names nothing that can be called."""
    problems = []
    for path in paths:
        try:
            found = import_string(path)
        except Exception as error:
            problems.append(f"{path!r} cannot be imported: {type(error).__name__}: {error}")
        else:
            if not callable(found):
                problems.append(f"{path!r} is not a function or a class, but of type {type(found).__name__}")
    return problems
