"""The faults: kills and stops of workers, cut connections, and restarts of the server."""

from __future__ import annotations

import random
import signal
import threading
from contextlib import suppress

import psutil

from tests.stress.chaos.members import Member
from tests.support.server import Server

CUTS = {
    "engine": "horsies engine",
    "maintenance": "horsies maintenance",
    "listener": "horsies listener",
    "tasks": "chaos task",
    "all": "",
}
KILLS = ("kill child", "kill parent", "kill group")
STOPS = ("stop parent", "stop group", "stop child")
RESTARTS = ("restart fast", "restart immediate", "restart postmaster")
# The faults of a round; each happens before the next round begins.
ROUND = (*KILLS, "kill child", *STOPS, *(f"cut {name}" for name in CUTS), RESTARTS[0])
LONG_ROUND = 3 * ROUND[:-1] + RESTARTS
DOWN_SECONDS = (0.0, 0.5, 2.0)
CUT = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()
AND application_name IN ('horsies engine', 'horsies maintenance', 'horsies listener', 'chaos task')
AND ('{0}' = '' OR application_name = '{0}')
"""


class Faults:
    """Applies a fault, by its name, to a worker or to the server."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.moment = threading.Event()

    def strike(self, name: str, member: Member) -> bool:
        """Apply the fault; return whether there was a target."""
        verb, _, whom = name.partition(" ")
        if verb == "cut":
            return bool(self.server.superuser(CUT.format(CUTS[whom]))[0][0])
        if verb == "restart":
            return self.restart(whom)
        if whom == "child":
            return self.strike_child(verb, member)

        (member.kill if verb == "kill" else member.stop)(group=whom == "group")
        return True

    def strike_child(self, verb: str, member: Member) -> bool:
        """Kill one of a worker's children, or stop it.

        A stopped child has to be killed by its parent, or else by its own timer.
        """
        with suppress(psutil.NoSuchProcess, IndexError):
            child = self.random.choice(member.runners())
            child.send_signal(signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
            return True
        return False

    def restart(self, how: str) -> bool:
        """Stop the server, keep it down for a moment, and start it."""
        self.server.stop(how)
        self.moment.wait(self.random.choice(DOWN_SECONDS))
        self.server.start()
        return True
