"""Signals that end the demo and unwind its run.

Ctrl-C and SIGTERM raise an exception, so that everything that was started is stopped. The exception
is raised in the code that runs at that moment. In a few places Python drops exceptions, such as in
a destructor or in a callback from C. So code that waits also calls ``ending.unwind``, which raises
the exception again.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Ending:
    """The signal that ended the run, if any."""

    def __init__(self) -> None:
        self.number: int | None = None

    def receive(self, number: int, _frame: FrameType | None = None) -> None:
        """Store the number of a signal and raise its exception."""
        self.number = number
        self.unwind()

    def unwind(self) -> None:
        """Raise KeyboardInterrupt after Ctrl-C, and SystemExit after SIGTERM.

        Each call raises it again. Nothing is raised if no signal came.
        """
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.number is not None:
            sys.exit(128 + self.number)


ending = Ending()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Handle both signals by ``ending`` inside the block, which runs on the main thread."""
    ending.number = None
    before = {
        number: signal.signal(number, ending.receive) for number in (signal.SIGINT, signal.SIGTERM)
    }

    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
