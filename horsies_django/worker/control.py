"""The control thread of a process: hears from the worker that a running task timed out or was cancelled, and tells its run.

A channel and a thread of its own, because both lanes may be busy with user code for as long as it likes.
"""

from __future__ import annotations

from horsies_django.worker.channel import Channel, wait_receive
from horsies_django.worker.runs import Run


class Control:
    """``runs`` holds what the process is at, by lane and number; the lanes keep it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.runs: dict[tuple[str, int], Run] = {}

    def serve(self) -> None:
        """Pass on what the worker says until it is gone; the lanes see to what follows from that."""
        while True:
            try:
                messages = wait_receive(self.channel)
            except EOFError:
                return
            for reason, lane, number in messages:
                if run := self.runs.get((lane, number)):
                    run.interrupt(reason)
