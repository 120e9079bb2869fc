"""A worker that only runs its statements, with a listener and scan cursors like an engine's."""

from __future__ import annotations

import selectors
import time
from typing import Any

from horsies_django.conf import Resilience
from horsies_django.core.records import Wanted
from horsies_django.store.notify import Listener
from horsies_django.store.passes import Passed
from horsies_django.worker.engine.listener import NotificationListener
from horsies_django.worker.engine.scan_cursors import ScanCursors
from tests.conftest import Claimer, sql, wait_until

POLL_SECONDS = 3_600.0  # so that no poll finds what a notification should have reported


class Sighted(Claimer):
    """A worker whose passes begin at the cursors while its listener is healthy, as an engine's do.

    ``woken`` counts the notifications that would have woken it.
    """

    def __init__(self, conn: Any, **queues: int) -> None:
        super().__init__(conn, **queues)
        self.woken = 0
        self.heard: list[float] = []  # the moments up to which all notifications were received
        self.cursors = ScanCursors(self.served.queues, self.wake, POLL_SECONDS)
        self.selector = selectors.DefaultSelector()

        listener = Listener("default", "_new", application_name="horsies test")
        handlers = {**self.cursors.handlers(), "everything": self.heard.append}
        self.notifications = NotificationListener(
            listener, self.selector, Resilience(), handlers, self.cursors.start_over
        )

        self.notifications.listen()
        self.cursors.far = True

    def wake(self, _queues: list[str], _lane: str | None = None) -> None:
        self.woken += 1

    def run_pass(
        self,
        sync: int = 0,
        async_: int = 0,
        wanted: Wanted | None = None,
        *,
        later: float = 0.0,
        **owed: Any,
    ) -> Passed:
        """Run one pass, ``later`` seconds from now."""
        now = time.monotonic() + later
        if not self.notifications.healthy:
            return super().run_pass(sync, async_, wanted, **owed)

        passed = super().run_pass(sync, async_, wanted, cursors=self.cursors.text(now), **owed)
        passed.far = True  # otherwise it would soon do without cursors
        self.cursors.learn(passed, now, 0.0)
        return passed

    def hears(self) -> None:
        """Wait until a notification arrives, and receive all."""
        wait_until(lambda: self.selector.select(0), "something arrives")
        self.catch_up()

    def catch_up(self) -> None:
        """Receive all notifications sent so far: they arrive in the order of their commits, so one
        sent now comes last.
        """
        before = len(self.heard)
        sql("SELECT pg_notify(%s, '0 everything')", [f"{self.channel}_new"])
        wait_until(
            lambda: self.hears_more() > before or not self.notifications.healthy,
            "what was said so far has arrived",
        )

    def hears_more(self) -> int:
        """Receive what has arrived; return how often everything sent so far has been received."""
        if self.selector.select(0):
            self.notifications.receive()
        return len(self.heard)

    def settle_in(self) -> None:
        """Receive all notifications sent so far, and check that there is nothing to claim."""
        self.catch_up()
        assert self.run_pass(sync=100, async_=100).claims == []

    def close(self) -> None:
        self.notifications.close()
        self.selector.close()
