"""Tasks that tests send, each of which does one thing that a test checks."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction

from horsies_django import (
    Retry,
    RetryPolicy,
    Snooze,
    TaskError,
    TaskResult,
    TaskTimeout,
    current_task,
    task,
)
from horsies_django.worker.limits.memory import memory_mb


@dataclass
class Point:
    """A value that is stored as JSON and decoded as a Point again."""

    x: int
    y: int


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task
def noop() -> None:
    pass


@task
async def anoop() -> None:
    pass


@task
def mirror(point: Point) -> Point:
    return Point(point.y, point.x)


@task
def echo(text: str) -> str:
    return text


@task(queue="mail", priority=7)
def mail(to: str) -> TaskResult[str, TaskError]:
    if "@" not in to:
        return TaskResult(err=TaskError("NO_ADDRESS", f"{to} is no address", data={"to": to}))
    return TaskResult(ok=f"sent to {to}")


@task
def raises(message: str) -> None:
    raise LookupError(message)


@task
def exits(code: int) -> None:
    raise SystemExit(code)


@task
def returns_nothing() -> TaskResult[int]:
    return None  # type: ignore[return-value]


@task
def returns_wrong_type() -> int:
    return "seven"  # type: ignore[return-value]


@task
def returns_not_a_number() -> float:
    return float("nan")


@task
def returns_text(size: int) -> str:
    return "x" * size


@task
def pid() -> int:
    return os.getpid()


@task
def main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@task
def dies(how: str) -> None:
    """End the process: by exit code 3 ("exit") or 0 ("leave"), or by a signal ("kill", "segv")."""
    if how in ("exit", "leave"):
        os._exit(3 if how == "exit" else 0)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "segv": signal.SIGSEGV}[how])


@task
def hold(name: str) -> int:
    """Create a group with the name and the process id, and run until that group is deleted.

    Returns the process id.
    """
    Group.objects.create(name=f"{name}:{uuid.uuid4().hex}:{os.getpid()}")
    while Group.objects.filter(name__startswith=f"{name}:").exists():
        time.sleep(0.04)  # not shorter, because each query costs CPU time
    return os.getpid()


@task
def deaf(name: str) -> None:
    """Create a group as ``hold`` does, then block all signals and never end."""
    Group.objects.create(name=f"{name}:{uuid.uuid4().hex}:{os.getpid()}")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        time.sleep(60)


@task
async def adeaf(name: str) -> None:
    """Create a group as ``hold`` does, then ignore every cancellation and never end."""
    await Group.objects.acreate(name=f"{name}:{uuid.uuid4().hex}:{os.getpid()}")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


@task
async def hangs_in_a_thread(name: str) -> None:
    """Create a group as ``hold`` does, then wait for a thread that never ends."""
    await Group.objects.acreate(name=f"{name}:{uuid.uuid4().hex}:{os.getpid()}")
    await sync_to_async(threading.Event().wait)()


@task
def leaves_behind(fifo: str) -> None:
    """Start a program that reads from ``fifo``, and die before it ends."""
    subprocess.Popen(["cat", fifo], stdout=subprocess.DEVNULL)
    os.kill(os.getpid(), signal.SIGKILL)


@task
def scribble(path: str) -> None:
    """Create a group as ``hold`` does, then write to a file without end."""
    Group.objects.create(name=f"scribble:{uuid.uuid4().hex}:{os.getpid()}")
    with open(path, "a") as file:
        while True:
            print(time.monotonic(), file=file, flush=True)
            time.sleep(0.001)


@task
def linger(path: str) -> int:
    """Write a line at the beginning, and one at the end, when there is a file "<path>.go".

    It needs no database.
    """
    for line in ("began", "ended"):
        with open(path, "a") as file:
            print(line, os.getpid(), file=file, flush=True)
        while not os.path.exists(f"{path}.go"):
            time.sleep(0.01)

    return os.getpid()


@task
def linger_after_commit(path: str) -> int:
    """Commit a row, then write lines as ``linger`` does."""
    Group.objects.create(name=uuid.uuid4().hex)
    return linger(path)


@task
def of_me() -> list[str]:
    """Return the attributes of the current task."""
    running = current_task()
    assert running.sent_at is not None
    return [
        str(running.task_id),
        running.name,
        running.queue_name,
        str(running.attempt),
        running.sent_at.isoformat(),
    ]


@task
def notes_its_claim(path: str, seconds: float) -> None:
    """Write a line at the beginning and one at the end, with the claim and the process."""
    running = current_task()
    for word in ("began", "ended"):
        with open(path, "a") as file:
            file.write(
                f"{word} {running.task_id} {running.worker_id} {running._claim.generation} "
                f"{os.getpid()}\n"
            )
        time.sleep(seconds)


@task
async def ahold(name: str) -> int:
    """Create a group and run until it is deleted, as ``hold`` does, on the event loop."""
    await Group.objects.acreate(name=f"{name}:{uuid.uuid4().hex}:{os.getpid()}")
    while await Group.objects.filter(name__startswith=f"{name}:").aexists():
        await asyncio.sleep(0.04)
    return os.getpid()


@task
def note(name: str) -> None:
    Group.objects.create(name=name)


@task
async def araises() -> None:
    raise LookupError("async")


@task
def sends_more(count: int) -> None:
    if count:
        sends_more.send(count - 1)


@task
def comes_again(seconds: float) -> None:
    """Send this task again, to run after that time."""
    comes_again.schedule(seconds, seconds)


@task
def breaks_sql() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


@task
def prints(text: str) -> None:
    print(text)


@task
def backend_pid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


class MailDown(OSError):
    """The server does not answer."""


SOON = RetryPolicy.fixed(
    [0, 0], auto_retry_for=["MAIL_DOWN", "WORKER_CRASHED", "TASK_TIMEOUT"], jitter=False
)


@task(retry_policy=SOON, exception_mapper={MailDown: "MAIL_DOWN"})
def mails(fail_times: int) -> int:
    """Fail ``fail_times`` times, count the attempts in groups, and return their number."""
    Group.objects.create(name=f"try:{uuid.uuid4().hex}")
    tries = Group.objects.filter(name__startswith="try:").count()
    if tries <= fail_times:
        raise MailDown("no answer")
    return tries


@task(retry_policy=RetryPolicy.fixed([60], jitter=False))
def asks_again(delay_seconds: float | None, code: str | None) -> None:
    try:
        raise MailDown("busy")
    except MailDown as error:
        raise Retry(
            "come back later", delay_seconds=delay_seconds, code=code, data={"after": delay_seconds}
        ) from error


@task
def asks_again_without_a_policy() -> None:
    raise Retry


@task(retry_policy=SOON)
def dies_once(how: str) -> int:
    """End the process the first time, and return its id the second time."""
    group, first = Group.objects.get_or_create(name="died")
    if first:
        dies(how)
    return os.getpid()


@task(retry_policy=SOON)
def holds_again(name: str) -> int:
    """Run as ``hold`` does, with another attempt if the process or the worker dies."""
    return int(hold(name))


@task(timeout_ms=300)
def sleeps_too_long() -> None:
    """Sleep in the kernel for longer than the timeout."""
    time.sleep(3_600)


@task(timeout_ms=300)
def cleans_up(name: str) -> str:
    """Catch the timeout, clean up, and return nevertheless."""
    try:
        time.sleep(3_600)
    except TaskTimeout:
        Group.objects.create(name=f"cleaned:{name}")
    return name


@task(timeout_ms=300)
def ignores_its_timeout() -> None:
    while True:
        try:
            time.sleep(3_600)
        except TaskTimeout:
            continue


@task(timeout_ms=300)
async def asleep_too_long() -> None:
    await asyncio.sleep(3_600)


@task(timeout_ms=300)
def loops_too_long() -> None:
    while True:
        pass


@task(timeout_ms=300)
def commits_too_long(name: str) -> None:
    with transaction.atomic():
        Group.objects.create(name=name)


@task
def looks_at_its_session() -> tuple[int, bool, bool]:
    """Use the database, and return the process and the state of its connection."""
    Group.objects.count()
    return os.getpid(), connection.get_autocommit(), connection.in_atomic_block


async def fail_to_clean_up() -> None:
    try:
        await asyncio.sleep(3_600)
    finally:
        raise LookupError("nothing to clean up")


@task(timeout_ms=300)
async def fails_after_its_timeout() -> None:
    await fail_to_clean_up()


@task
async def fails_after_its_cancel(name: str) -> None:
    await Group.objects.acreate(name=f"{name}:{uuid.uuid4().hex}:{os.getpid()}")
    await fail_to_clean_up()


@task
def stops_when_asked(name: str) -> None:
    """Run until the task is cancelled."""
    Group.objects.create(name=f"{name}:{uuid.uuid4().hex}:{os.getpid()}")
    while True:
        current_task().raise_if_cancelled()
        time.sleep(0.01)


@task
async def astops_when_asked(name: str) -> None:
    await Group.objects.acreate(name=f"{name}:{uuid.uuid4().hex}:{os.getpid()}")
    await asyncio.sleep(3_600)


@task
def eats(megabytes: int) -> int:
    """Allocate memory and keep it; return the id of the process."""
    eaten.append(bytearray(os.urandom(1)) * (megabytes * 2**20))
    return os.getpid()


@task
def eats_and_tells(megabytes: int) -> tuple[int, float, float]:
    """Allocate memory and keep it; return the id of the process and its memory.

    The memory is the resident one in MB, before and after.
    """
    before = memory_mb(os.getpid())
    return eats(megabytes), before, memory_mb(os.getpid())


eaten: list[bytearray] = []

from tests.apps.project import flows, points, stepping, traps, unspeakable  # noqa: E402, F401 - tasks of other modules, found through this one


@task(queue="mail")
def says(text: str, level: str = "INFO") -> str:
    """Log a text as the code of a project does."""
    logging.getLogger("shop.orders").log(logging.getLevelNamesMapping()[level], "%s", text)
    return text


@task
async def asays(text: str) -> str:
    logging.getLogger("shop.orders").info("%s", text)
    return text


@task(retry_policy=RetryPolicy.fixed([0], auto_retry_for=[LookupError], jitter=False))
def snoozes(times: int, seconds: float = 60, fails: bool = False) -> int:
    """Snooze ``times`` times, with a row for each, and return the number of rows.

    With ``fails``, the first attempt fails after the last snooze.
    """
    done = Group.objects.filter(name__startswith="snooze ").count()

    if done < times:
        Group.objects.create(name=f"snooze {done}")
        raise Snooze(seconds)

    if fails and current_task().attempt == 1:
        raise LookupError("not yet")
    return done


@task
def blames(message: str) -> TaskResult[None]:
    return TaskResult(err=TaskError("BLAMED", message, data={"secret": message}))


@task(retry_policy=SOON)
def hold_undo(result: int | None) -> None:
    """Undo a node by running as ``hold`` does, again if the process or the worker dies."""
    hold("undo")
