"""How commands end when something is refused: with one line that says why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DatabaseError


@contextmanager
def refusing(
    command: str, *kinds: type[Exception], advice: str = "Check that it is running and that 'migrate' has been run"
) -> Iterator[None]:
    """Raise CommandError for an error of these kinds, for wrong settings, and, with advice, for what the database refused."""
    refused: tuple[type[Exception], ...] = (*kinds, ImproperlyConfigured)
    try:
        yield
    except refused as error:
        raise CommandError(f"{command}: {error}") from error
    except DatabaseError as error:
        raise CommandError(f"{command}: the database refused: {str(error).strip()}. {advice}") from error
