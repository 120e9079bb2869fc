"""The processes of a worker that run tasks.

Programs of the storms import this module; it does not need pytest.
"""

from __future__ import annotations

import random
from contextlib import suppress

import psutil


def runners_of(worker: int) -> list[psutil.Process]:
    """Return the processes that run the tasks of a worker, by its pid.

    They are the processes below a fork server, or the ones that were spawned. The worker starts a
    template, the template forks a fork server, and that forks the processes of tasks. The template
    and the fork server are never returned, because a worker ends if its template is killed, or
    several fork servers in a row.
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
    """Kill one process that runs tasks of a worker; return whether there was one."""
    with suppress(psutil.NoSuchProcess, IndexError):
        dice.choice(runners_of(worker)).kill()
        return True
    return False
