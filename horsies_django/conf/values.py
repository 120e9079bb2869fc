"""The settings as frozen values, with their defaults and ranges.

The keys in ``settings.HORSIES`` are the upper-case names of the fields of ``Config``,
``Resilience``, ``Recovery`` and ``Retention``. The keys of a queue and of its partition rule are
the names of the fields of ``QueueConfig`` and ``PartitionConfig``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar

from horsies_django.core.errors import OperationalErrorCode
from horsies_django.core.retry import EMPTY_MAPPER, Mapper

DEFAULT_QUEUE = "default"
MODES = ("DEFAULT", "CUSTOM")
CUT_OFF = ("wait", "kill")
ON_FAILURE = ("stop", "continue", "cancel")

LARGEST_LIMIT = 1_000_000
HUNDRED_YEARS_MS = 100 * 365 * 24 * 60 * 60 * 1_000

T = TypeVar("T")


def whole(default: T, least: int, most: int | None) -> T:
    """Return the field of a whole number with its default, its smallest and its largest value.

    The largest value None means no limit.
    """
    made: T = field(default=default, metadata={"range": (least, most)})
    return made


def span(hours: int | None) -> timedelta | None:
    """Return a number of hours as a timedelta, or None, which means for ever, if it is None."""
    return None if hours is None else timedelta(hours=hours)


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """The rule by which the tasks of a queue are divided into partitions, and the limits of each.

    ``by_args`` has the names of arguments. It is empty if partitions depend on all arguments, and
    None if they do not depend on arguments. A limit of None means no limit. With ``ordered``, the
    tasks of a partition run one after another, in the order in which they were sent.
    ``on_failure`` is the effect of a failed task on the tasks behind it. With ``coalesce``, tasks
    that wait when an equal task starts are merged into it.
    """

    by_args: tuple[str, ...] | None = None
    by_task: bool = False
    max_concurrency: int | None = whole(None, 1, LARGEST_LIMIT)
    local_limit: int | None = whole(None, 1, LARGEST_LIMIT)
    ordered: bool = False
    on_failure: str = "stop"
    coalesce: bool = False

    @property
    def policy(self) -> str | None:
        """The policy as it is stored.

        It is ``on_failure`` if the partitions are ordered, "coalesce" if equal tasks are merged,
        and None otherwise.
        """
        if self.coalesce:
            return "coalesce"
        return self.on_failure if self.ordered else None


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """A declared queue.

    Workers claim from queues with priority 1 first, and from those with 100 last. A limit of None
    means no limit, and workers do not count the tasks for it. ``max_concurrency`` applies to all
    workers together. With 0, no task starts. ``local_limit`` applies to each worker.
    """

    name: str
    priority: int = whole(100, 1, 100)
    max_concurrency: int | None = whole(None, 0, LARGEST_LIMIT)
    local_limit: int | None = whole(None, 1, LARGEST_LIMIT)
    partition: PartitionConfig | None = None

    @property
    def policy(self) -> str | None:
        """The policy of the partitions as it is stored, or None if there is none."""
        return None if self.partition is None else self.partition.policy

    @property
    def ordered(self) -> bool:
        """Whether the tasks of each partition run in the order in which they were sent."""
        return self.policy in ON_FAILURE


@dataclass(frozen=True, slots=True)
class Resilience:
    """The settings for a worker that cannot reach the database."""

    db_retry_initial_ms: int = whole(500, 100, 60_000)
    db_retry_max_ms: int = whole(30_000, 500, 300_000)
    db_retry_max_attempts: int = whole(0, 0, 10_000)
    notify_poll_interval_ms: int = whole(5_000, 1_000, 300_000)
    max_unwritten_outcomes: int = whole(10_000, 100, 1_000_000)


@dataclass(frozen=True, slots=True)
class Recovery:
    """The intervals of heartbeats and snapshots, and the settings for the tasks of a lost worker.

    A task that has crashed ``max_crashes`` processes or workers is not run again. 0 means no limit.
    A child that is not ready after ``child_ready_timeout_ms`` is killed, and another one is
    started. ``on_cut_off`` is "wait" if the tasks of a worker that cannot reach the database
    continue, and "kill" if they are ended before other workers may run them.
    """

    claimer_heartbeat_interval_ms: int = whole(2_500, 1_000, 120_000)
    running_stale_threshold_ms: int = whole(10_000, 1_000, 7_200_000)
    check_interval_ms: int = whole(1_000, 1_000, 600_000)
    worker_state_snapshot_interval_ms: int = whole(30_000, 1_000, 300_000)
    max_crashes: int = whole(5, 0, 1_000)
    child_ready_timeout_ms: int = whole(60_000, 1_000, 7_200_000)
    on_cut_off: str = "wait"


@dataclass(frozen=True, slots=True)
class Retention:
    """The settings for how long finished rows are kept, and how workers delete older ones.

    Rows with the retention None are kept for ever. ``terminal_record_retention_hours`` applies to
    finished tasks and their attempts, and to the fire times of schedules.
    ``queue_retention_hours``, a read-only mapping, replaces it for the tasks of single queues.
    """

    terminal_record_retention_hours: int | None = whole(720, 1, 43_800)
    queue_retention_hours: Mapping[str, int | None] = field(
        default_factory=lambda: MappingProxyType({}), metadata={"range": (1, 43_800)}
    )
    worker_state_retention_hours: int | None = whole(168, 1, 8_760)
    worker_retention_hours: int | None = whole(168, 1, 43_800)
    audit_retention_hours: int | None = whole(8_760, 1, 87_600)
    retention_sweep_interval_s: int = whole(300, 30, 86_400)
    retention_delete_batch_size: int = whole(500, 50, 10_000)
    key_hours: int | None = whole(720, 1, 87_600)
    history_hours: int | None = whole(720, 1, 87_600)

    @property
    def terminal_age(self) -> timedelta | None:
        """The time for which finished tasks are kept, or None if they are kept for ever."""
        return span(self.terminal_record_retention_hours)

    @property
    def queue_ages(self) -> dict[str, timedelta | None]:
        """The times for which finished tasks of single queues are kept, by queue.

        None means for ever.
        """
        return {queue: span(hours) for queue, hours in self.queue_retention_hours.items()}


@dataclass(frozen=True, slots=True)
class Config:
    """The settings. Each key of ``settings.HORSIES`` is the upper-case name of a field.

    Mappings are read-only.

    - ``task_timeout_ms`` applies to tasks without a timeout of their own. None means no timeout.
    - ``kill_grace_ms`` is the time after the timeout of a task, or after its termination was
      requested, after which the process of the task is killed if the task is still running.
    - Children keep connections for ``child_conn_max_age`` seconds, or longer if the project has a
      longer CONN_MAX_AGE.
    - For ``unknown_task_grace_ms`` after a task became due, only workers that have the task run it.
    - The keys of ``exception_mapper`` are classes.
    - With ``prefetch_buffer`` 0 (hard mode), a worker claims only tasks that it starts at once.
    - ``durable_claims`` is whether the commit of a pass that only claims or starts tasks waits for
      the disk.
    - ``schedules`` are definitions by name, see ``core.schedules``.
    - ``middleware`` has the dotted paths of factories of middleware, and ``metadata`` those of
      functions that return metadata for each send.
    - ``monitoring_token`` allows requests to the URLs of ``horsies_django.urls`` without a session.
      If it is "", no token is accepted.
    """

    database: str = "default"
    listen_database: str | None = None
    queue_mode: str = "DEFAULT"
    queues: Mapping[str, QueueConfig] = field(
        default_factory=lambda: MappingProxyType({DEFAULT_QUEUE: QueueConfig(DEFAULT_QUEUE)})
    )
    cluster_wide_cap: int | None = whole(None, 1, LARGEST_LIMIT)
    prefetch_buffer: int = whole(0, 0, 100_000)
    claim_lease_ms: int | None = whole(None, 1_000, 3_600_000)
    durable_claims: bool = True
    forget_overrides_after_ms: int | None = whole(
        7 * 24 * 60 * 60 * 1_000, 60_000, HUNDRED_YEARS_MS
    )
    task_timeout_ms: int | None = whole(None, 100, 30 * 24 * 60 * 60 * 1_000)
    kill_grace_ms: int = whole(5_000, 0, 3_600_000)
    child_conn_max_age: int = whole(60, 0, 86_400)
    unknown_task_grace_ms: int = whole(300_000, 0, 7 * 24 * 60 * 60 * 1_000)
    report_running_after_ms: int | None = whole(60 * 60 * 1_000, 1_000, HUNDRED_YEARS_MS)
    exception_mapper: Mapper = field(default_factory=lambda: EMPTY_MAPPER)
    recovery: Recovery = field(default_factory=Recovery)
    resilience: Resilience = field(default_factory=Resilience)
    retention: Retention = field(default_factory=Retention)
    schedules: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    middleware: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    max_payload_bytes: int = whole(16 * 2**20, 1_024, 64 * 2**20)
    max_snoozes: int = whole(1_000, 1, 32_000)
    unique_lock_timeout_ms: int = whole(5_000, 1, 3_600_000)
    monitoring_token: str = field(default="", repr=False)  # a secret
    default_unhandled_error_code: str = OperationalErrorCode.UNHANDLED_ERROR.value


CONFIG_KEYS: tuple[tuple[Any, Callable[[str], str]], ...] = (
    (QueueConfig, str),
    (PartitionConfig, "partition.{}".format),
    (Config, str.upper),
    (Resilience, str.upper),
    (Recovery, str.upper),
    (Retention, str.upper),
)
# The smallest and the largest value of a setting, by its key
RANGES: Mapping[str, tuple[int, int | None]] = MappingProxyType(
    {
        key(one.name): one.metadata["range"]
        for owner, key in CONFIG_KEYS
        for one in fields(owner)
        if one.metadata
    }
)
