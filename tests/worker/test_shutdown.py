"""Signals come when they come: however many there are, and wherever the worker is just then, none of them raises there."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any

import pytest

from horsies_django.core.errors import StopRequested
from horsies_django.worker.process import shutdown
from horsies_django.worker.process.shutdown import Shutdown, heard

FILE = shutdown.__file__

MANY = 5_000  # more than a socket holds that nobody reads


@pytest.fixture
def handlers() -> Iterator[dict[int, Any]]:
    """Give what the process did with its signals before, which it does again afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_volley_of_signals_that_nobody_reads_raises_nothing(handlers: dict[int, Any]) -> None:
    """The engine that reads them may be busy; an error left the books open, or the process ended with -2."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
    with Shutdown() as stopping:
        for _ in range(MANY):
            signal.raise_signal(signal.SIGHUP)
    assert stopping.seen
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def signalled_again(instruction: int) -> tuple[Shutdown, bool]:
    """Send a signal, and a second one while the handler of the first is at an ``instruction``, unless it ends before."""
    left, sent = [instruction], []

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., object] | None:
        if frame.f_code.co_filename != FILE or sent:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left[0] -= 1
            if left[0] < 0:
                sent.append(True)
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    with Shutdown() as stopping:
        stopping.timeout = 300.0
        sys.settrace(trace)
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            sys.settrace(before)
    return stopping, bool(sent)


def test_a_second_signal_is_heard_wherever_it_interrupts_the_handler_of_the_first() -> None:
    """Naive: the outer handler writes what it had computed before, and the worker waits for its tasks for ten minutes."""
    for instruction in count():
        stopping, sent = signalled_again(instruction)
        if not sent:
            break
        deadline = stopping.deadline()
        assert stopping.urgency == 2, instruction
        assert deadline is not None
        assert deadline <= time.monotonic(), instruction
    assert instruction > 30


@pytest.mark.parametrize(
    ("numbers", "urgency"),
    [
        ("TERM", 1), ("HUP", 1), ("HUP HUP", 1), ("TERM HUP", 1),
        ("QUIT", 2), ("TERM TERM", 2), ("HUP TERM", 2), ("TERM HUP TERM", 2),
    ],
)  # fmt: skip
def test_a_second_signal_is_urgent_a_second_hangup_is_not(numbers: str, urgency: int) -> None:
    found = 0
    for name in numbers.split():
        found = heard(found, signal.Signals[f"SIG{name}"])
    assert found == urgency


@pytest.mark.parametrize("ends_process", [False, True])
def test_once_it_shall_end_now_further_signals_are_ignored(handlers: dict[int, Any], ends_process: bool) -> None:
    """Naive: a volley of signals keeps the main thread in their handler, which remembers each of them."""
    with Shutdown(ends_process=ends_process) as stopping:
        for _ in range(MANY):
            signal.raise_signal(signal.SIGINT)
        assert len(stopping.signals) == 2
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    for number in (signal.SIGINT, signal.SIGTERM):
        assert signal.getsignal(number) == (signal.SIG_IGN if ends_process else handlers[number])


def test_a_signal_interrupts_a_start() -> None:
    with Shutdown() as stopping, pytest.raises(StopRequested), stopping.interruptible():
        signal.raise_signal(signal.SIGINT)
