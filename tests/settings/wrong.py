"""Settings with two mistakes."""

from __future__ import annotations

from tests.settings import *  # noqa: F403

HORSIES = {"QUEUS": {"mail": {}}, "MAX_PAYLOAD_BYTES": "many"}
