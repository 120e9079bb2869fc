"""The storm in which the primary is killed and its synchronous standby promoted.

Tasks and workflows run meanwhile. No process is restarted or notified: senders, workers and waiters
have the addresses of both servers and find the one that accepts writes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from horsies_django.models import WorkflowNode, WorkflowRun
from tests.stress.chaos.evidence import Left
from tests.stress.chaos.faults import DOWN_SECONDS, Faults
from tests.stress.chaos.members import Member
from tests.stress.chaos.patients import Answer, Patient
from tests.stress.chaos.sending import Sender
from tests.stress.chaos.storm import Shape, Storm
from tests.support.deadlines import wait_until
from tests.support.server import Server
from tests.support.standby import Pair

PATIENTS = 4
ENDS = ("postmaster", "immediate")  # how primaries end, in turns
WAITS_FOR_STANDBY = (
    "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client "
    "backend'"
)
# For so long before its end the primary confirms no commit: the standby does not receive it.
LAG_SECONDS = 0.5
MARGIN_SECONDS = 1.0  # around a failover, in which a caller's own statements may fail


class Promotion(NamedTuple):
    """A failover: the times of the primary's kill and of the standby's promotion."""

    killed_at: float
    promoted_at: float


class Failovers(Faults):
    """The faults of this storm, applied to the pair of servers."""

    def __init__(self, pair: Pair, most: int, seed: int) -> None:
        super().__init__(pair, seed)
        self.pair = pair
        self.most = most
        self.promotions: list[Promotion] = []

    def strike(self, name: str, member: Member) -> bool:
        """Fail over, and make the killed server the new standby, except after the last failover."""
        with self.pair.lagging():
            self.moment.wait(LAG_SECONDS)
            killed_at = time.time()
            self.pair.stop(name.rpartition(" ")[2])

        self.moment.wait(self.random.choice(DOWN_SECONDS))
        self.pair.promote()
        self.promotions.append(Promotion(killed_at, time.time()))

        if len(self.promotions) < self.most:
            self.pair.attach()
        return True


def confirmed_by_the_old_primary(old: Server, database: str) -> list[str]:
    """Start the killed server as a lone primary, send to it, and return any confirmation."""
    confirmed: list[str] = []

    def send() -> None:
        with suppress(psycopg.OperationalError):
            confirmed.append(f"the old primary confirmed task {old.send('noop')}")

    old.database = database
    old.start()
    sender = threading.Thread(target=send, daemon=True)
    sender.start()

    wait_until(
        lambda: confirmed or old.superuser(WAITS_FOR_STANDBY),
        "the sender waits for a standby, or was told",
    )

    old.stop("immediate")
    sender.join(30)
    return confirmed


class Unhurried(Sender):
    """A sender that does not retry without a primary, and never waits: the patients wait."""

    pause = 0.5
    waits = 0.0


class FailoverStorm(Storm):
    """A storm whose only faults are failovers."""

    faults: Failovers

    def __init__(self, shape: Shape, pair: Pair, directory: Path) -> None:
        super().__init__(
            shape, Failovers(pair, shape.faults, shape.seed), Unhurried(shape.seed), directory
        )
        self.patients = [Patient(number, self.over) for number in range(PATIENTS)]
        self.threads += self.patients

    def weather(self) -> Iterator[str]:
        """Yield the failovers."""
        for patient in self.patients:
            patient.start()
        for number in range(self.shape.faults):
            yield f"promote after {ENDS[number % len(ENDS)]}"

    def lull(self, share: float) -> None:
        """Keep half of the tasks back until the failover, so that the sender is busy then."""
        kept = round(share / 2)
        self.sender.allowed -= kept
        super().lull(share)
        self.sender.allowed += kept

    def clear(self) -> None:
        """Wait for the last answers of the patients, then for the tasks."""
        self.over.set()
        for patient in self.patients:
            patient.join(300)
        self.tend()
        super().clear()

    @property
    def answers(self) -> list[Answer]:
        return [answer for patient in self.patients for answer in patient.answers]

    def violations(self, left: Left) -> list[str]:
        """Return wrong answers to callers, and errors of the workflows.

        The counts of the history are not checked: the new primary may lack some of them.
        """
        runs = {str(run.pk): run for run in WorkflowRun.objects.all()}
        sent = sum(patient.sent for patient in self.patients)
        found = [f"{sent} workflows were sent, there are {len(runs)}"] if sent != len(runs) else []

        found += [
            f"workflow {id_} is {run.status}"
            for id_, run in runs.items()
            if run.status != "COMPLETED"
        ]

        open_nodes = WorkflowNode.objects.exclude(status="COMPLETED")
        found += [
            f"node {node.number} of workflow {node.workflow_id} is {node.status}"
            for node in open_nodes
        ]

        found += [text for answer in self.answers if (text := self.wrong(answer))]
        found += [f"worker {id_} was declared dead, and was alive" for id_ in self.killed]

        return found + confirmed_by_the_old_primary(
            self.faults.pair.other, self.faults.pair.database
        )

    def wrong(self, answer: Answer) -> str | None:
        """Return the error in an answer.

        A caller's own first statement may reach a server that is gone.
        """
        if answer.given == answer.expected:
            return None
        if isinstance(answer.given, Exception) and any(
            one.killed_at - MARGIN_SECONDS < answer.began < one.promoted_at + MARGIN_SECONDS
            for one in self.faults.promotions
        ):
            return None
        return f"from {answer.began:.3f} to {answer.ended:.3f} {answer.complaint}"

    def report(self, left: Left) -> dict[str, Any]:
        """Return the durations of the failovers, in seconds.

        They are the time without a primary, and then the time until the first and the last worker
        went on.
        """
        found = []
        for one in self.faults.promotions:
            starts: dict[str, float] = {}
            for tried in left.tried:
                if tried.started_at > one.promoted_at:
                    starts[tried.worker] = min(
                        tried.started_at, starts.get(tried.worker, tried.started_at)
                    )

            waited = [
                each
                for each in self.answers
                if each.began < one.killed_at and each.ended > one.promoted_at
            ]

            found.append(
                {
                    "without a primary": round(one.promoted_at - one.killed_at, 2),
                    "first start": round(min(starts.values()) - one.promoted_at, 2),
                    "every worker": round(max(starts.values()) - one.promoted_at, 2),
                    "workers": len(starts),
                    "waited across": len(waited),
                    "answered": sum(each.given == each.expected for each in waited),
                }
            )

        return {"failovers": found, "workflows": sum(patient.sent for patient in self.patients)}
