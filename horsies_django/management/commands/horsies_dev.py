"""``manage.py horsies_dev``: run the development server and a worker in one terminal.

Each line of their output has a prefix. Signals of the terminal are passed on to both, and both end
when one of them ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import IO, Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.autoreload import get_child_arguments
from django.utils.termcolors import colorize

from horsies_django.worker.child.bootstrap import die_with_parent
from horsies_django.worker.logs.console import choose_colors, palette_for

HANDLED_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
    if hasattr(signal, name)
]
COLORS = {"site": "cyan", "worker": "magenta", "dev": "yellow"}
PREFIX_WIDTH = max(map(len, COLORS))
NO_WINDOWS = "the worker does not run on Windows: use WSL or a container, or 'runserver' alone"


class Program:
    """A program to run.

    ``stop`` is the signal that it gets in place of any other signal. If it is None, the program
    gets each signal unchanged.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, name: str, command: Sequence[str], stop: int | None = None) -> None:
        self.name = name
        self.command = command
        self.stop = stop

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the program in a session of its own, so that the terminal sends it no signals."""
        self.process = subprocess.Popen(
            self.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # This process has no other threads yet.
            preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),
        )

    def signal(self, number: int) -> None:
        """Send a signal to the program, unless it has ended."""
        self.process.send_signal(number if self.stop is None else self.stop)


class Together:
    """A group of programs that run until one of them ends or a signal comes. Then all are ended.

    ``print_line(name, line)`` prints a line of a program.
    """

    def __init__(self, programs: Sequence[Program], print_line: Callable[[str, str], None]) -> None:
        self.programs = programs
        self.print_line = print_line
        # signals that came, and programs that have ended
        self.events: SimpleQueue[int | Program] = SimpleQueue()
        self.running: list[Program] = []
        self.stopping = False
        self.code = 0

    def run(self, environment: Mapping[str, str]) -> int:
        """Run the programs, and return an exit code.

        It is 1 if a program ended by itself, else the highest exit code of the programs.
        """
        handlers = {number: signal.signal(number, self.note) for number in HANDLED_SIGNALS}
        try:
            for program in self.programs:  # before the first thread starts
                program.start(environment)
                self.running.append(program)

            readers = [start_thread(self.read, one) for one in self.running]
            for one in self.running:
                start_thread(self.wait, one)

            while self.running:
                self.handle(self.events.get())
            for reader in readers:
                reader.join(2.0)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for one in self.running:
                one.process.kill()

        return self.code

    def handle(self, event: int | Program) -> None:
        """Pass a signal on to all programs, or end the others after one program has ended."""
        if isinstance(event, int):
            self.stopping = True
            for one in self.running:
                one.signal(event)
            return

        self.running.remove(event)
        code = event.process.returncode
        name = event.name

        if self.stopping:
            self.code = max(self.code, code)
            return

        self.stopping = True
        self.code = 1

        others = " and ".join(one.name for one in self.running)
        ending = (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"ended with exit code {code}"
        )

        self.print_line(
            "dev", f"the {name} {ending}; ending the {others}" if others else f"the {name} {ending}"
        )
        for one in self.running:
            one.signal(signal.SIGTERM)

    def note(self, number: int, frame: object) -> None:
        self.events.put(number)

    def wait(self, one: Program) -> None:
        """Wait until a program ends, and report it. This runs in a thread of its own."""
        one.process.wait()
        if one.stop is not None:  # its child processes may still be running
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(one.process.pid, signal.SIGKILL)
        self.events.put(one)

    def read(self, one: Program) -> None:
        """Print the lines of a program. This runs in a thread of its own."""
        output: IO[bytes] | None = one.process.stdout
        for line in output or ():
            self.print_line(one.name, line.decode(errors="replace").rstrip("\r\n"))


def start_thread(target: Callable[[Program], None], one: Program) -> threading.Thread:
    thread = threading.Thread(target=target, args=(one,), daemon=True)
    thread.start()
    return thread


class Command(BaseCommand):
    """The command that runs ``runserver`` and ``horsies_worker --reload`` as two processes."""

    _called_from_command_line: bool  # set by Django

    help = (
        "Run the development server and a worker, both of which restart when code changes. Ctrl-C "
        "ends both. Options are those "
        "of horsies_worker."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        if sys.platform == "win32":
            parser.error(NO_WINDOWS)

        from horsies_django.management.commands import horsies_worker

        parser.add_argument(
            "addrport",
            nargs="?",
            help="address and port of the site, as for runserver (127.0.0.1:8000)",
        )
        horsies_worker.Command().add_arguments(parser)

    def handle(self, **options: Any) -> None:
        if not self._called_from_command_line:
            raise CommandError(
                "horsies_dev: the command runs its command line again, so call_command() cannot "
                "run it. Start it from the command line"
            )

        if options["until_empty"]:
            raise CommandError(
                "horsies_dev: the worker restarts when code changes, so --until-empty cannot be "
                "used. Remove it"
            )

        choose_colors(no_color=options["no_color"], force_color=options["force_color"])
        colored = palette_for(sys.stdout) is not None
        color = "--force-color" if colored else "--no-color"

        common = [
            color,
            *(f"--pythonpath={path}" for path in filter(None, [options["pythonpath"]])),
        ]

        manage = get_child_arguments()[: -len(sys.argv[1:])]
        address = [options["addrport"]] if options["addrport"] else []
        given = sys.argv[2:]  # the address, and the options of the worker
        for each in address:
            given.remove(each)
        reload = [] if options["reload"] else ["--reload"]

        programs = [
            Program("site", [*manage, "runserver", *address, *common], stop=signal.SIGTERM),
            Program("worker", [*manage, "horsies_worker", *reload, *given, *common]),
        ]

        self.colored = colored
        self.printing = threading.Lock()
        if code := Together(programs, self.print_line).run({**os.environ, "PYTHONUNBUFFERED": "1"}):
            sys.exit(code)

    def print_line(self, name: str, line: str) -> None:
        prefix = f"{name:<{PREFIX_WIDTH}} |"
        if self.colored:
            prefix = colorize(prefix, fg=COLORS[name])

        with self.printing:
            self.stdout.write(f"{prefix} {line}")
            self.stdout.flush()
