"""The name of the row for the whole cluster."""

from __future__ import annotations

CLUSTER = "*"
