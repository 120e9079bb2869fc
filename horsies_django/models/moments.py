"""Moments as the ORM gives them."""

from __future__ import annotations

import datetime as dt

from django.utils import timezone


def aware(value: dt.datetime) -> dt.datetime:
    """Return a moment with its time zone, which the ORM leaves out when USE_TZ is off."""
    return timezone.make_aware(value) if timezone.is_naive(value) else value
