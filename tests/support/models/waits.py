"""A pure model of waiting nodes: which node gets which signal, and the effects of timeouts.

It involves no database.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FINAL = ("COMPLETED", "FAILED", "SKIPPED", "CANCELLED")
TIMED_OUT = {"fail": "FAILED", "skip": "SKIPPED", "complete": "COMPLETED"}


@dataclass
class Waiter:
    """A node: it waits for all of ``upstream``, then for its time, a signal or a decision.

    Times are seconds. One of the kind "continue" ends its run, which goes on as a run of the nodes
    ``following``.
    """

    number: int
    kind: str
    signal: str | None = None
    key: str | None = None
    timeout: int | None = None
    on_timeout: str = "fail"
    upstream: tuple[int, ...] = ()
    allow_failed: bool = False
    status: str = "PENDING"
    due: int | None = None
    value: Any = None
    following: list[Waiter] = field(default_factory=list)


@dataclass
class Sent:
    """A signal."""

    name: str
    key: str | None
    value: Any
    at: int
    seen: bool = False
    used: bool = False


@dataclass
class Line:
    """A run: its nodes, and the signals to it in the order in which they were sent.

    ``next`` is the run that continues it.
    """

    nodes: list[Waiter] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    next: Line | None = None

    def all(self) -> list[Line]:
        """Return this run and the runs that continued it."""
        return [self, *(self.next.all() if self.next else [])]

    def last(self) -> Line:
        """Return the run that gets signals and decisions, whichever earlier run they name."""
        return self.all()[-1]

    def ended(self) -> bool:
        """Return whether the run has ended."""
        return all(node.status in FINAL for node in self.nodes)

    def failed(self) -> bool:
        """Return whether the run, which has ended, has failed.

        It has if a failed node has no tolerant node that ran after it.
        """
        saved = {
            number
            for node in self.nodes
            if node.allow_failed and node.status != "SKIPPED"
            for number in node.upstream
        }
        return any(node.status == "FAILED" and node.number not in saved for node in self.nodes)

    def takes(self, name: str) -> bool:
        """Return whether a signal of this name is accepted."""
        return any(node.signal == name and node.status not in FINAL for node in self.nodes)

    def decide(self, gate: str, approved: bool, value: Any, now: int) -> bool:
        """Decide about a gate; return whether the decision counts.

        The gate must wait, and its time must not be over. A decision that comes too early is not
        kept.
        """
        for node in self.nodes:
            if (
                node.kind == "gate"
                and node.signal == gate
                and node.status == "WAITING"
                and (node.due is None or node.due > now)
            ):
                node.status, node.value = ("COMPLETED", value) if approved else ("FAILED", None)
                self.move(now)
                return True
        return False

    def advance(self, now: int) -> None:
        """Advance all nodes until only an event can change them."""
        while True:
            self.take(now)
            self.move(now)
            if self.next is not None:
                return self.next.advance(now)

            due = any(
                node.status == "WAITING" and node.due is not None and node.due <= now
                for node in self.nodes
            )
            if not due:
                return None

    def move(self, now: int) -> None:
        """Start all nodes that can begin after others have ended."""
        while self.tell() | self.begin(now):
            pass

    def take(self, now: int) -> None:
        """Give new signals to nodes, in order; then end the waits whose time is over."""
        for signal in self.sent:
            if not signal.seen:
                signal.seen = True
                fits = [
                    node
                    for node in self.nodes
                    if node.status == "WAITING"
                    and suits(node, signal)
                    and (node.due is None or node.due > signal.at)
                ]
                if fits:
                    use(fits[0], signal)

        for node in self.nodes:
            if node.status == "WAITING" and node.due is not None and node.due <= now:
                node.status = TIMED_OUT[node.on_timeout]

    def tell(self) -> bool:
        """Decide about nodes whose upstream nodes have ended; return whether there were any."""
        moved = False
        for node in self.nodes:
            if node.status == "PENDING":
                ends = [self.nodes[number].status for number in node.upstream]
                bad = any(end in ("FAILED", "SKIPPED") for end in ends)
                if bad and not node.allow_failed:
                    node.status = "SKIPPED"
                    moved = True
                elif all(end in FINAL for end in ends):
                    node.status = "READY"
                    moved = True

        return moved

    def begin(self, now: int) -> bool:
        """Start the waits of ready nodes, or give them their oldest kept signal.

        Then continue the run.

        Return whether there were any.
        """
        ready = [node for node in self.nodes if node.status == "READY"]
        for node in ready:
            if node.kind == "continue":
                continue

            node.status = "WAITING"
            node.due = None if node.timeout is None else now + node.timeout
            kept = [signal for signal in self.sent if not signal.used and suits(node, signal)]
            if kept:
                use(node, kept[0])

        for node in ready:
            if node.kind == "continue" and self.next is None:
                self.go_on(node, now)

        return bool(ready)

    def go_on(self, node: Waiter, now: int) -> None:
        """End the run; the next run gets its unused signals."""
        node.status = "COMPLETED"
        for other in self.nodes:
            if other.status not in FINAL:
                other.status = "CANCELLED"

        self.next = Line(node.following, [signal for signal in self.sent if not signal.used])
        self.sent = [signal for signal in self.sent if signal.used]
        self.next.move(now)


def suits(node: Waiter, signal: Sent) -> bool:
    """Return whether a node waits for this signal."""
    return node.kind == "signal" and node.signal == signal.name and node.key in (None, signal.key)


def use(node: Waiter, signal: Sent) -> None:
    """Give a signal to a node."""
    signal.seen = signal.used = True
    node.status = "COMPLETED"
    node.value = signal.value
