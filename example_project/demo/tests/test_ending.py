"""Tests of signals that end the demo, even if Python drops the exception that they raise."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from django.test import SimpleTestCase

from example_project.demo.ending import ended_by_signals
from example_project.demo.processes import Services

ERRORS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit}


class Lossy:
    """An object whose destructor receives a signal; Python drops the exception."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)


def dropped_by(number: int) -> Any:
    """Send a signal in a destructor, and return Python's report of the lost exception."""
    dropped: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, dropped.append
    try:
        Lossy(number)
    finally:
        sys.unraisablehook = before

    return dropped[0]


class Running(Services):
    """Services without processes, so that none can have ended."""

    def __init__(self) -> None:
        self.site = self.worker = self  # type: ignore[assignment]

    def refuse_ended(self) -> None:
        """Raise nothing."""


class EndingTests(SimpleTestCase):
    """Tests of both signals."""

    def test_a_wait_ends_though_the_exception_was_lost(self) -> None:
        for number, error in ERRORS.items():
            with self.subTest(number=number), ended_by_signals():
                assert dropped_by(number).exc_type is error
                with self.assertRaisesMessage(error, ""):
                    Running().until(lambda: None, "what never comes", float("inf"))

    def test_what_runs_ends_and_the_handlers_of_before_are_back(self) -> None:
        for number, error in ERRORS.items():
            before = signal.getsignal(number)

            with (
                self.subTest(number=number),
                self.assertRaisesMessage(error, ""),
                ended_by_signals(),
            ):
                os.kill(os.getpid(), number)

            assert signal.getsignal(number) == before
