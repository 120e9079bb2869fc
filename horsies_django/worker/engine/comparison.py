"""The comparison of the tasks that this worker holds with its claims in the database.

It finds claims whose reply was lost, which are released, and tasks that were cancelled. After a
reconnect it also finds claims that the database has lost: a server that crashed, or a replica that
took over, may lack the last transactions. Another claim of such a task gets the generation of the
lost one. So before this worker claims anything again, it ends its processes and starts again under
a new id.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from horsies_django.core.records import Claim, Outcome
from horsies_django.worker.engine.capacity import Prefetched
from horsies_django.worker.engine.outage import ClaimsLost
from horsies_django.worker.engine.outbox import Outbox
from horsies_django.worker.logs.task_log import in_parentheses
from horsies_django.worker.pool.pool import Pool


@dataclass(eq=False)
class Comparison:
    """The comparison, every ten seconds, after a reconnect, and when a task here is cancelled.

    ``on_settled`` is called with the tasks of workflows that were settled; see
    ``Advancer.note_finished``.
    """

    outbox: Outbox
    pool: Pool
    prefetched: Prefetched
    on_settled: Callable[[Iterable[Sequence[Any]]], None]
    at: float = 0.0  # when to compare next, by the monotonic clock
    doubtful: bool = False  # whether the database may have lost claims since the last comparison

    def soon(self, _moment: float = 0.0) -> None:
        """Compare before the next pass."""
        self.at = 0.0

    def reconnected(self) -> None:
        """Compare before the next pass, and search for lost claims.

        The connection was lost, maybe because the server crashed.
        """
        self.at = 0.0
        self.doubtful = True

    def run(self, now: float) -> None:
        """Compare, release claims that this worker does not hold, and stop cancelled tasks.

        Raises psycopg.Error, and ClaimsLost if the database has lost claims of tasks that ran here.
        """
        if self.doubtful:
            self._refuse_lost()
            self.settle()

        held = self.outbox.compare(self.pool.held() | set(self.prefetched))
        if self.doubtful:
            claims = {(task.id, task.generation) for task in held}
            waiting = self.prefetched.values()
            self.prefetched.take(
                [claim.id for claim in waiting if (claim.id, claim.generation) not in claims]
            )
            self.doubtful = False

        for task in held:
            if task.cancelled:
                self.pool.timeouts.cancel(task.id, terminate=task.terminate)

        self.at = now + 10.0

    def settle(self) -> None:
        """Write or drop all outcomes and releases in the outbox, without claiming anything.

        Raises psycopg.Error.
        """
        self.outbox.retry_locked(math.inf)
        while self.outbox.outcomes or self.outbox.releases:
            self.on_settled(self.outbox.run_pass().in_runs)

    def _refuse_lost(self) -> None:
        """Raise ClaimsLost if the claim or start of a task that runs or has finished here is lost.

        The claims of a worker that was declared dead are missing, too. So a pass checks first
        whether this worker was declared dead.
        """
        store = self.outbox.store
        worker = self.outbox.worker
        running = {(task.id, task.generation) for task in store.held(worker) if task.running}

        waiting = [
            one for one in (*self.outbox.outcomes, *self.outbox.locked) if isinstance(one, Outcome)
        ]
        here: list[Outcome | Claim] = [
            *waiting,
            *(claim for member in self.pool.members for claim in member.claims()),
        ]

        missing = [one for one in here if (one.id, one.generation) not in running]
        states = store.unsettled(worker, missing) if missing else {}
        # "waiting": the database has lost the start of the task
        lost = [one for one in missing if states[one.id] in ("lost", "waiting")]

        if lost and not self.outbox.run_pass().dead:
            raise ClaimsLost(
                f"the database has lost {len(lost)} claim(s) of worker {worker}"
                f"{in_parentheses(lost)}"
            )
