"""Explains why a task is not running. Only reads, without locks."""

from __future__ import annotations

import datetime as dt
import uuid

from django.db import connections
from django.utils import timezone

from horsies_django.conf import Config, config
from horsies_django.core.explanations import Explanation, Reason, ReasonCode
from horsies_django.core.reasoning import Timing, reasoned
from horsies_django.store.explanations import ExplanationStore
from horsies_django.tasks.handle import TaskHandle

__all__ = ["Explanation", "Reason", "ReasonCode", "explain"]

MISSED_BEATS = 2  # missed heartbeats after which a worker is called silent; it counts as dead later


def explain(task_id: uuid.UUID | str) -> Explanation:
    """Explain why a task is not running, or what it is doing instead.

    Returns all reasons that apply, the most decisive first; ``str()`` gives them as text. Raises LookupError if there is no such
    task, ValueError for an id that is not a UUID.
    """
    id_ = TaskHandle(task_id).task_id
    conf = config()
    claims_hold_permits = not conf.prefetch_buffer
    store, limits = ExplanationStore(connections[conf.database]), timing(conf)
    facts = store.facts(id_, claimed=claims_hold_permits, threshold=limits.threshold)
    if facts is None:
        raise LookupError(
            f"there is no task {id_} in the database {conf.database!r}: never sent, rolled back, or deleted since"
        )
    return reasoned(facts, limits)


def timing(conf: Config) -> Timing:
    """Return the times in the settings."""
    return Timing(
        poll=dt.timedelta(milliseconds=conf.resilience.notify_poll_interval_ms),
        silence=dt.timedelta(milliseconds=conf.recovery.claimer_heartbeat_interval_ms * MISSED_BEATS),
        threshold=dt.timedelta(milliseconds=conf.recovery.running_stale_threshold_ms),
        grace=dt.timedelta(milliseconds=conf.unknown_task_grace_ms),
        zone=timezone.get_current_timezone(),
    )
