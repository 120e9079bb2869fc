"""The tasks of the storm: they note that they run, then do as their ``fate`` says."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group

from horsies_django import Retry, RetryPolicy, Workflow, current_task, task
from tests.stress.chaos.notes import ASKED, noted

LONG_SECONDS = 4.0
# the end of a stopped worker's task; the next attempt elsewhere then overlaps with its return
QUITE_SECONDS = 0.8
ASKS = 2  # attempts that request another one
FLAKY = "FLAKY"
AGAIN = RetryPolicy.fixed([0.05] * 20, auto_retry_for=["WORKER_CRASHED"])


class Flaky(Exception):
    """A failure that is worth another attempt; the mapper gives it a code."""


@dataclass
class Call:
    """The argument of a task: its behaviour, and its duration in milliseconds."""

    fate: str
    ms: float


@task(name="work", exception_mapper={Flaky: FLAKY})
def work(number: int, tenant: str, call: Call) -> int:
    with noted():
        if call.fate == "query":
            Group.objects.count()
        elif call.fate == "slow" and current_task().attempt == 1:
            pause(LONG_SECONDS)
        elif call.fate == "long":
            pause(QUITE_SECONDS)
        elif call.fate == "listen":
            pause(LONG_SECONDS, listening=True)
        elif call.fate == "deaf":
            threading.Event().wait(LONG_SECONDS)

        time.sleep(call.ms / 1000)
        complain(call.fate)
        return number


@task(name="awork", exception_mapper={Flaky: FLAKY})
async def awork(number: int, tenant: str, call: Call) -> int:
    with noted():
        if call.fate == "query":
            await sync_to_async(Group.objects.count)()
        elif call.fate in ("listen", "deaf") or (
            call.fate == "slow" and current_task().attempt == 1
        ):
            await asyncio.sleep(LONG_SECONDS)
        elif call.fate == "long":
            await asyncio.sleep(QUITE_SECONDS)

        await asyncio.sleep(call.ms / 1000)
        complain(call.fate)
        return number


@task(name="parts", retry_policy=AGAIN)
def parts(most: int) -> list[int]:
    with noted():
        return list(range(most))


@task(name="doubled", retry_policy=AGAIN)
def doubled(part: int) -> int:
    with noted():
        time.sleep(0.005)
        return 2 * part


@task(name="total", retry_policy=AGAIN)
def total(values: list[int]) -> int:
    with noted():
        return sum(values)


def flow_of(most: int) -> Workflow[int]:
    """Return a workflow whose value is the sum of the even numbers below twice ``most``.

    It overtakes the backlog.
    """
    flow = Workflow[int]("sum")
    part = flow.add(parts.with_options(priority=1), most)
    values = flow.map(doubled.with_options(queue="tight", priority=1), part=part)
    flow.returns(flow.add(total.with_options(priority=1), values))
    return flow


@task(name="tick")
def tick() -> None:
    """Run for a fire time of a schedule."""
    with noted():
        return


@task(name="forever")
async def forever() -> None:
    """Run until the process is killed, as the measurements do."""
    with noted():
        await asyncio.sleep(3_600)


@task(name="forever_sync")
def forever_sync() -> None:
    with noted():
        pause(3_600)


def pause(seconds: float, *, listening: bool = False) -> None:
    """Wait in small steps.

    The exception of a timeout, or of a cancel if the task reacts to one, is raised between two.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if listening:
            current_task().raise_if_cancelled()
        time.sleep(0.02)


def complain(fate: str) -> None:
    """Fail in the way that the fate names."""
    attempt = current_task().attempt

    if fate == "fail":
        raise LookupError("it shall fail")
    if fate == "again" and attempt <= ASKS:
        raise Retry(delay_seconds=0.05, code=ASKED)
    if fate == "flaky" and attempt == 1:
        raise Flaky("the first attempt shall fail")
