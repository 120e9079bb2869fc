"""Signals come when they come: however many there are, and wherever the worker is just then, none of them raises there."""

from __future__ import annotations

import signal
import threading

import pytest

from horsies_django.worker.process.shutdown import Shutdown

MANY = 5_000  # more than a socket holds that nobody reads


def test_a_volley_of_signals_that_nobody_has_time_to_read_raises_nothing_and_the_end_is_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that reads them has to wait for the interpreter; an error left the books open, or the process ended with -2."""
    heard, slow = Shutdown._wait_for_the_end, threading.Event()
    monkeypatch.setattr(Shutdown, "_wait_for_the_end", lambda self: slow.wait(30) and heard(self))
    before = signal.getsignal(signal.SIGINT)
    with Shutdown() as stopping:
        try:
            for _ in range(MANY):
                signal.raise_signal(signal.SIGINT)
        finally:
            slow.set()
    assert stopping.seen
    assert signal.getsignal(signal.SIGINT) is before


def test_a_process_that_ends_with_its_worker_hears_of_no_signal_any_more() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        with Shutdown(ends_process=True):
            signal.raise_signal(signal.SIGINT)
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_IGN] * 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
