"""The control thread of a process: hears from the worker that a running task timed out or was cancelled, and tells its run.

A channel and a thread of its own, because both lanes may be busy with user code for as long as it likes.
"""

from __future__ import annotations

from collections.abc import Callable

from horsies_django.worker.child.interrupts import CALL_BACK, Run
from horsies_django.worker.ipc.channel import Channel, wait_receive

LONG_OVER = 1_000  # so many numbers later a run that did not begin will not


class Control:
    """``runs`` holds what the process is at, by lane and number; the lanes keep it. ``early`` is what came before its run."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.runs: dict[tuple[str, int], Run] = {}
        self.early: dict[tuple[str, int], str] = {}
        self.call_back: Callable[[], None] = lambda: None

    def enter(self, lane: str, number: int, run: Run) -> None:
        """A run begins; it hears what was said about it before."""
        self.runs[lane, number] = run
        if self.early:
            if reason := self.early.pop((lane, number), None):
                run.expect(reason)
            for other in [key for key in list(self.early) if key[0] == lane and key[1] + LONG_OVER < number]:
                self.early.pop(other, None)

    def serve(self) -> None:
        """Pass on what the worker says until it is gone; the lanes see to what follows from that."""
        while True:
            try:
                messages = wait_receive(self.channel)
            except EOFError:
                return
            for reason, lane, number in messages:
                self.hear(reason, lane, number)

    def hear(self, reason: str, lane: str, number: int) -> None:
        """Pass on one thing."""
        if reason == CALL_BACK:
            self.call_back()
        elif run := self.runs.get((lane, number)):
            run.interrupt(reason)
        else:
            self.early[lane, number] = reason  # it is over, stands in line, or begins at this very moment
            if run := self.runs.get((lane, number)):
                run.interrupt(reason)
