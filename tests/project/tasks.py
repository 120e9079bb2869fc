"""Tasks that tests send: each does one thing that a test looks at."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import uuid
from dataclasses import dataclass

from django.contrib.auth.models import Group
from django.db import connection

from horsies_django import TaskError, TaskResult, task


@dataclass
class Point:
    """A value that travels as JSON and comes back as itself."""

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
    """Take the process along: "exit" at once, "kill" and "segv" by signal."""
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "segv": signal.SIGSEGV}[how])


@task
def hold(name: str) -> int:
    """Note that it runs, in a group's name, then run until that group is deleted. Returns the process id."""
    Group.objects.create(name=f"{name}:{uuid.uuid4().hex}:{os.getpid()}")
    while Group.objects.filter(name__startswith=f"{name}:").exists():
        time.sleep(0.01)
    return os.getpid()


@task
def scribble(path: str) -> None:
    """Write to a file without end, after noting that it runs as ``hold`` does."""
    Group.objects.create(name=f"scribble:{uuid.uuid4().hex}:{os.getpid()}")
    with open(path, "a") as file:
        while True:
            print(time.monotonic(), file=file, flush=True)
            time.sleep(0.001)


@task
def linger(path: str) -> int:
    """Write a line when it begins and one when it ends, which is when a file "<path>.go" appears. Needs no database."""
    for line in ("began", "ended"):
        with open(path, "a") as file:
            print(line, os.getpid(), file=file, flush=True)
        while not os.path.exists(f"{path}.go"):
            time.sleep(0.01)
    return os.getpid()


@task
async def ahold(name: str) -> int:
    """Do the same on the event loop."""
    await Group.objects.acreate(name=f"{name}:{uuid.uuid4().hex}:{os.getpid()}")
    while await Group.objects.filter(name__startswith=f"{name}:").aexists():
        await asyncio.sleep(0.01)
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
