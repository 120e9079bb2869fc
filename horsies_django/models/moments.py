"""Makes datetimes from the ORM aware."""

from __future__ import annotations

import datetime as dt

from django.utils import timezone


def aware(value: dt.datetime) -> dt.datetime:
    """Return an aware datetime; with USE_TZ off, the ORM returns naive ones."""
    return timezone.make_aware(value) if timezone.is_naive(value) else value
