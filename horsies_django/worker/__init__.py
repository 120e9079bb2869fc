"""The worker: an engine that claims and settles tasks, a pool of processes, and heartbeats."""

from __future__ import annotations

from horsies_django.core.errors import WorkerStartError
from horsies_django.worker.api import run, run_scheduler

__all__ = ["WorkerStartError", "run", "run_scheduler"]
