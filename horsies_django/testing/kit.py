"""The value of the pytest fixture ``horsies``."""

from __future__ import annotations

from horsies_django.testing.at_once import immediate
from horsies_django.testing.draining import adrain, drain, fail_next, open_gate, signal, travel
from horsies_django.testing.sent import SentTasks, captured_tasks


class Kit:
    """The functions of ``horsies_django.testing``. ``sent``, and the assertions, are about what was sent since the test began."""

    adrain = staticmethod(adrain)
    captured_tasks = staticmethod(captured_tasks)
    drain = staticmethod(drain)
    fail_next = staticmethod(fail_next)
    immediate = staticmethod(immediate)
    open_gate = staticmethod(open_gate)
    signal = staticmethod(signal)
    travel = staticmethod(travel)

    def __init__(self, sent: SentTasks) -> None:
        self.sent = sent
        self.assert_sent = sent.assert_sent
        self.assert_nothing_sent = sent.assert_nothing_sent
