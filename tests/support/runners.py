"""The processes of a worker that run tasks.

It is a package without pytest, for programs that are no tests.
"""

from __future__ import annotations

import random
from contextlib import suppress

import psutil


def runners_of(worker: int) -> list[psutil.Process]:
    """Return the processes that run the tasks of a worker, by its pid.

    They are the processes below a fork server, or the spawned ones. The template and the fork
    server above them do not count, although they have no children at times: a worker ends when its
    template is killed, or several fork servers in a row.
    """
    with suppress(psutil.NoSuchProcess):
        direct = psutil.Process(worker).children()
        if servers := [server for template in direct for server in template.children()]:
            found = [runner for server in servers for runner in server.children()]
        else:
            found = [one for one in direct if "spawn_main" in " ".join(one.cmdline())]

        return [one for one in found if one.status() != psutil.STATUS_ZOMBIE]
    return []


def kill_a_runner(worker: int, dice: random.Random) -> bool:
    """Kill one of them; return whether there was one."""
    with suppress(psutil.NoSuchProcess, IndexError):
        dice.choice(runners_of(worker)).kill()
        return True
    return False
