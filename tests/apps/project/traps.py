"""Tasks that leave their process in a bad state, and tasks that return the state they find."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import ctypes
import decimal
import faulthandler
import logging
import math
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.db.backends.signals import connection_created
from django.utils import timezone, translation

from horsies_django import task
from horsies_django.core.records import Reply
from horsies_django.store.notify import direct_connection
from horsies_django.worker.child import fork_guard

HERE: contextvars.ContextVar[str] = contextvars.ContextVar("here", default="nothing")
LOCK = 4711
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM, signal.SIGPIPE)


def ask(sql: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return str(cursor.fetchone()[0])


def say(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def broken_transaction() -> None:
    transaction.set_autocommit(False)
    try:
        ask("SELECT 1 / 0")
    except Exception as error:
        logging.getLogger("tests").info("as it should be: %s", error)


def never_left() -> None:
    transaction.atomic().__enter__()
    Group.objects.create(name="never committed")


def closed_inside() -> None:
    transaction.atomic().__enter__()
    connection.close()


def needs_rollback() -> None:
    transaction.atomic().__enter__()
    transaction.set_rollback(True)


def begun_by_hand() -> None:
    say("BEGIN")
    say("INSERT INTO auth_group (name) VALUES ('never committed')")


def terminated() -> None:
    say("SELECT 1")
    pid = connection.connection.info.backend_pid
    with direct_connection("default", application_name="terminates", prepare=False) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [pid])


def replaces_handlers() -> None:
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGPIPE else signal.SIG_IGN)


def sets_alarms() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    faulthandler.dump_traceback_later(0.05, exit=True)


def eats_memory() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, before[1]))
    try:
        bytearray(8 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def recurses() -> None:
    recurses()


def raises(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


WRECKS: dict[str, Callable[[], Any]] = {
    # transactions and sessions
    "autocommit": broken_transaction,
    "atomic": never_left,
    "atomic, closed": closed_inside,
    "needs_rollback": needs_rollback,
    "begin": begun_by_hand,
    "terminated": terminated,
    "search_path": lambda: say("SET search_path = pg_catalog"),
    "role": lambda: say("SET ROLE pg_monitor"),
    "timeout": lambda: say("SET statement_timeout = 1"),
    "tenant": lambda: say("SELECT set_config('shop.tenant', 'acme', false)"),
    "lock": lambda: say(f"SELECT pg_advisory_lock({LOCK})"),
    "listen": lambda: say("LISTEN shop"),
    "temp": lambda: say("CREATE TEMP TABLE auth_group AS SELECT 1 AS nothing"),
    # state of the context
    "language": lambda: translation.activate("de"),
    "time zone": lambda: timezone.activate("Asia/Tokyo"),
    "context": lambda: HERE.set("somewhere"),
    "decimal": lambda: setattr(decimal.getcontext(), "prec", 3),
    # state of the process
    "directory": lambda: os.chdir("/"),
    "stdout": lambda: setattr(sys, "stdout", None),
    "closed stdout": lambda: sys.stdout.close(),
    "handlers": replaces_handlers,
    "blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1}),
    "alarms": sets_alarms,
    # ends of a task
    "SystemExit": lambda: sys.exit(3),
    "KeyboardInterrupt": raises(KeyboardInterrupt()),
    "GeneratorExit": raises(GeneratorExit()),
    "BaseException": raises(BaseException("base")),
    "recursion": recurses,
    "memory": eats_memory,
    # ends of a process
    "_exit": lambda: os._exit(0),
    "all files": lambda: os.closerange(0, 4096),
    "C stack": lambda: ctypes.string_at(0),
    "thread": lambda: threading.Thread(
        target=threading.Event().wait, name="left behind", daemon=False
    ).start(),
}

SIGHTS: dict[str, Callable[[], Any]] = {
    "groups": lambda: sorted(Group.objects.values_list("name", flat=True)),
    "insert": lambda: Group.objects.create(name="next").name,
    "search_path": lambda: ask("SHOW search_path"),
    "role": lambda: ask("SELECT session_user = current_user"),
    "timeout": lambda: ask("SHOW statement_timeout"),
    "time zone of the session": lambda: ask("SHOW timezone"),
    "tenant": lambda: ask("SELECT coalesce(current_setting('shop.tenant', true), '')"),
    "lock": lambda: ask(
        f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {LOCK}"
    ),
    "listen": lambda: ask("SELECT count(*) FROM pg_listening_channels()"),
    "language": translation.get_language,
    "time zone": timezone.get_current_timezone_name,
    "context": HERE.get,
    "decimal": lambda: decimal.getcontext().prec,
    "directory": os.getcwd,
    "handlers": lambda: [repr(signal.getsignal(number)).split(" at ")[0] for number in HANDLED],
    "blocked": lambda: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "alarms": lambda: (signal.getitimer(signal.ITIMER_REAL), threading.Event().wait(0.2)),
    "nothing": lambda: None,
}


@task
def wreck(kind: str) -> None:
    WRECKS[kind]()


@task
def look(kind: str) -> str:
    """Return the id of this process and a part of its state."""
    return f"{os.getpid()} {SIGHTS[kind]()}"


@task
def sets_up_sessions() -> None:
    """Connect a receiver that prepares each new connection, as a project with tenants does."""
    connection_created.connect(
        lambda connection, **kwargs: connection.cursor().execute(
            "SET search_path = public, pg_temp"
        ),
        weak=False,
        dispatch_uid="tests",
    )
    connection.close()


@task
def forks(path: str, how: str) -> int:
    """Fork, and write the pids of the original and of the copy to a file.

    With "raises" the copy raises an error. With "waits" the original waits for its copy. Returns
    the pid of the original.
    """
    copy = os.fork()
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")

    if copy == 0 and how == "raises":
        raise LookupError("in the copy")
    if copy and how == "waits":
        os.waitpid(copy, 0)

    return os.getpid()


@task
def ends_its_copies(number: int) -> list[int]:
    """Fork, and end each copy by SIGTERM at once; return the signals that ended the copies.

    The signal is SIGALRM if the SIGTERM was lost.
    """
    seen = []
    for _ in range(number):
        copy = os.fork()
        if copy == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(2)
            signal.pause()

        os.kill(copy, signal.SIGTERM)
        seen.append(os.WTERMSIG(os.waitpid(copy, 0)[1]))

    return seen


@task
async def aforks(path: str) -> int:
    """Fork on the event loop, beside other tasks that are ready to go on.

    The original and the copy write their pids to a file.
    """
    os.fork()
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    await asyncio.sleep(0)
    return os.getpid()


@task
async def arounds(path: str, rounds: int) -> int:
    """Give way to the event loop ``rounds`` times, and write the pid to a file each time."""
    seen = 0
    for _ in range(rounds):
        await asyncio.sleep(0)
        seen += 1
        with open(path, "a") as file:
            file.write(f"{os.getpid()}\n")

    return seen


@task
async def abreaks(how: str) -> None:
    """Break the event loop from a coroutine beside the task's own."""

    async def beside() -> None:
        if how == "stop":
            asyncio.get_running_loop().stop()
        else:
            raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[how]

    await asyncio.create_task(beside())


@task
def computes(how: str) -> list[int]:
    """Compute in other processes.

    They are those of a pool, started in the way that ``how`` names, or of an executor.
    """
    if how != "executor":
        with multiprocessing.get_context(how).Pool(2) as pool:
            return pool.map(math.factorial, [3, 4])
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        return list(executor.map(math.factorial, [3, 4]))


# Signals 32 and 33 are used by glibc. Their bits are inherited from the process that started the
# tests.
OF_THE_C_LIBRARY = 0b11 << 31


@task
def runs_a_program() -> list[str]:
    """Run a program and return its masks of blocked, ignored and caught signals."""
    lines = subprocess.run(
        ["cat", "/proc/self/status"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    masks = [
        int(line.split()[1], 16)
        for line in lines
        if line.startswith(("SigBlk", "SigIgn", "SigCgt"))
    ]
    return [f"{mask & ~OF_THE_C_LIBRARY:x}" for mask in masks]


@task
async def awreck(kind: str) -> None:
    """Do harm, or read a state, on the thread that coroutines use for the database."""
    await sync_to_async({**SIGHTS, **WRECKS}[kind])()


@task
def writes_to_its_worker(text: str) -> None:
    """Send bytes through the channels of this process, and never end."""
    for channel in fork_guard.ForkGuard.channels:
        channel.end.sendall(text.encode())
    threading.Event().wait()


@task
def claims_to_have_run_another(number: int) -> None:
    """Reply for a task that this process does not run, and never end."""
    reply = tuple(Reply("COMPLETED", '{"ok": 1}'))
    for channel in fork_guard.ForkGuard.channels:
        channel.send(("ran", (number, reply, 0.1)))
    threading.Event().wait()
