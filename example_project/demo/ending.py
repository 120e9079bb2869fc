"""Ctrl-C and SIGTERM: either unwinds the run, so that all that was started is stopped.

A signal becomes an exception in whatever code runs just then, and in a few places Python drops
exceptions: in a destructor, in a callback from C. So whoever waits asks here whether a signal came,
too.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Ending:
    """Remembers the signal that ended the run."""

    def __init__(self) -> None:
        self.number: int | None = None

    def receive(self, number: int, _frame: FrameType | None = None) -> None:
        """Handle a signal."""
        self.number = number
        self.unwind()

    def unwind(self) -> None:
        """Raise KeyboardInterrupt after Ctrl-C and SystemExit after SIGTERM, however often; nothing
        when none came.
        """
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.number is not None:
            sys.exit(128 + self.number)


ending = Ending()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have both signals unwind what runs meanwhile; on the main thread."""
    ending.number = None
    before = {
        number: signal.signal(number, ending.receive) for number in (signal.SIGINT, signal.SIGTERM)
    }

    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
