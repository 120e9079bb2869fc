"""The statements that delete old rows by retention, and remove personal data."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import NamedTuple

from horsies_django.core.options import SHORTEST_KEEP, keep_step, step_before
from horsies_django.store.audit import log_lost_record
from horsies_django.store.base import Store

# SQLSTATE of the notice that rows are kept, because rows of the project refer to them
KEPT = "HK001"


class Kept(NamedTuple):
    """A set of queues whose finished tasks are kept for ``age``.

    The set is ``queues``, or, with ``others``, all queues except these.
    """

    queues: tuple[str, ...]
    others: bool
    age: timedelta

    @property
    def key(self) -> str:
        """The key of this set of queues in horsies_prunings.

        It has the first names, for people who read it, and a digest of all.
        """
        text = "\0".join(self.queues)
        digest = hashlib.sha256(text.encode()).hexdigest()[:24]
        name = "others" if self.others else "only"
        return f"{name}: {text.replace(chr(0), ',')[:60]} {digest}"


class OwnRetention(NamedTuple):
    """Completed tasks whose ``keep_result`` is rounded up to the step ``keep``.

    ``keep`` is in milliseconds, or False.
    """

    keep: int | bool

    @property
    def age(self) -> timedelta:
        """The time for which the tasks are kept.

        It is never too short for a process that waits for a task to read that it completed.
        """
        return timedelta(milliseconds=self.keep) if self.keep else SHORTEST_KEEP

    @property
    def key(self) -> str:
        return f"keep: {json.dumps(self.keep)}"

    @property
    def values(self) -> str:
        """The ``keep_result`` of these tasks as JSON.

        It is False, or a range of milliseconds that does not include its first number.
        """
        return json.dumps([step_before(self.keep), self.keep] if self.keep else False)


class Pruned(NamedTuple):
    """The rows that a batch deleted, and whether there may be more."""

    tasks: int
    attempts: int
    more: bool


class RetentionStore(Store):
    """The statements that delete rows."""

    def prune_tasks(self, kept: Kept | OwnRetention, many: int) -> Pruned:
        """Delete up to ``many`` old finished tasks with their attempts.

        While another process deletes the same tasks, this one deletes none.
        """
        params = {
            "key": kept.key,
            "age": kept.age,
            "many": many,
            "queues": [],
            "others": True,
            "keep": None,
        }

        if isinstance(kept, OwnRetention):
            params["keep"] = kept.values
        else:
            params.update(queues=list(kept.queues), others=kept.others)

        return Pruned(*self.run("horsies_prune", **params)[0])

    def note_retentions(self, own: Iterable[OwnRetention]) -> None:
        """Record retentions that tasks have set by ``keep_result``."""
        self.execute("tasks/note_retentions", keys=sorted(one.key for one in own))

    def own_retentions(self) -> set[OwnRetention]:
        """Return the retentions that tasks have set by ``keep_result``, as recorded by workers."""
        return {
            OwnRetention(keep_step(json.loads(text)))
            for (text,) in self.run("tasks/own_retentions")
        }

    def prune_runs(self, age: timedelta, many: int) -> tuple[int, int, int, bool]:
        """Delete old runs, up to ``many`` rows.

        Return how many runs, tasks and attempts were deleted, and whether there may be more.
        """
        runs, tasks, attempts, more = self.run("horsies_prune_runs", age=age, many=many)[0]
        return runs, tasks, attempts, more

    def prune_ticks(self, age: timedelta, many: int) -> int:
        """Delete up to ``many`` old fire times of schedules, and return how many were deleted."""
        return self.execute("schedules/prune_ticks", age=age, many=many)

    def prune_keys(self, age: timedelta, many: int) -> int:
        """Delete up to ``many`` old keys of sends, and return how many were deleted."""
        return self.execute("tasks/prune_keys", age=age, many=many)

    def prune_states(self, age: timedelta, many: int) -> int:
        """Delete up to ``many`` old snapshots of workers, and return how many were deleted."""
        return self.execute("workers/prune_snapshots", age=age, many=many)

    def prune_workers(self, age: timedelta, many: int) -> int:
        """Delete up to ``many`` workers that ended long ago, and return how many were deleted."""
        return self.execute("workers/prune", age=age, many=many)

    def prune_audit(self, age: timedelta, many: int) -> int:
        """Delete up to ``many`` old audit entries, and return how many were deleted."""
        return self.execute("audit/prune", age=age, many=many)

    def redact(self, task_id: uuid.UUID, *, actor: str, reason: str) -> tuple[str | None, bool]:
        """Remove the data of a finished task.

        Return its status, or None if there is no such task, and whether data was removed.
        """
        ((status, redacted, lost),) = self.run(
            "horsies_redact", id=task_id, actor=actor, reason=reason
        )
        log_lost_record(lost, "task.redact", actor, task_id, reason)
        return status, redacted


def keys_of(default: timedelta | None, by_queue: dict[str, timedelta | None]) -> list[str]:
    """Return the keys in horsies_prunings of the tasks and runs that the settings delete."""
    runs = [] if default is None else ["runs"]
    return [kept.key for kept in kept_by(default, by_queue)] + runs


def kept_by(default: timedelta | None, by_queue: dict[str, timedelta | None]) -> list[Kept]:
    """Return the sets of queues whose tasks are deleted, one for each retention time."""
    special = {queue: age for queue, age in by_queue.items() if age != default}
    ages: Collection[timedelta] = {age for age in special.values() if age is not None}
    found = [
        Kept(tuple(sorted(q for q in special if special[q] == age)), others=False, age=age)
        for age in sorted(ages)
    ]

    if default is not None:
        found.append(Kept(tuple(sorted(special)), others=True, age=default))
    return found
