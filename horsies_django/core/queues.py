"""The name that stands for all queues."""

from __future__ import annotations

CLUSTER = "*"  # the row of limits of the whole cluster
