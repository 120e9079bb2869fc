"""The control thread of a process: receives timeouts and cancels of running tasks from the worker.

It has its own channel and thread, because both lanes may be busy with user code.
"""

from __future__ import annotations

from collections.abc import Callable

from horsies_django.worker.child.interrupts import CALL_BACK, Run
from horsies_django.worker.ipc.channel import Channel, wait_receive

LONG_OVER = 1_000  # a run that has not begun after so many later ones never will


class Control:
    """``runs``: the running tasks by lane and number, set by the lanes. ``early``: messages that arrived before their run."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.runs: dict[tuple[str, int], Run] = {}
        self.early: dict[tuple[str, int], str] = {}
        self.call_back: Callable[[], None] = lambda: None

    def enter(self, lane: str, number: int, run: Run) -> None:
        """Register a run that begins, and deliver earlier messages about it."""
        self.runs[lane, number] = run
        if self.early:
            if reason := self.early.pop((lane, number), None):
                run.expect(reason)
            for other in [key for key in list(self.early) if key[0] == lane and key[1] + LONG_OVER < number]:
                self.early.pop(other, None)

    def serve(self) -> None:
        """Pass on messages until the worker is gone; the lanes notice that, too."""
        while True:
            try:
                messages = wait_receive(self.channel)
            except EOFError:
                return
            for reason, lane, number in messages:
                self.hear(reason, lane, number)

    def hear(self, reason: str, lane: str, number: int) -> None:
        if reason == CALL_BACK:
            self.call_back()
        elif run := self.runs.get((lane, number)):
            run.interrupt(reason)
        else:
            self.early[lane, number] = reason  # the run is over, has not begun, or begins just now
            if run := self.runs.get((lane, number)):
                run.interrupt(reason)
