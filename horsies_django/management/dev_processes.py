"""The processes of ``horsies_dev``: their output with a prefix per line, their signals, and their end together."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import IO, NamedTuple

from horsies_django.worker.child.bootstrap import die_with_parent

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]


class Program(NamedTuple):
    """A process to run; ``stop`` is the signal that it gets instead of another one, None: each as it is."""

    name: str
    command: Sequence[str]
    stop: int | None = None


class Running:
    """A program that runs in a session of its own, so that a terminal does not send it signals, too."""

    def __init__(self, program: Program, environment: Mapping[str, str]) -> None:
        self.program = program
        self.process = subprocess.Popen(
            program.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),  # there is no other thread yet
        )

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        stop = self.program.stop
        self.process.send_signal(number if stop is None else stop)


class Together:
    """Runs programs until one of them ends, or until a signal; then ends all. ``say(name, line)`` prints a line."""

    def __init__(self, programs: Sequence[Program], say: Callable[[str, str], None]) -> None:
        self.programs = programs
        self.say = say
        self.events: SimpleQueue[int | Running] = SimpleQueue()  # signals, and programs that have ended
        self.running: list[Running] = []
        self.stopping = False
        self.code = 0

    def run(self, environment: Mapping[str, str]) -> int:
        """Return the exit code: 1 if a program ended by itself, else the highest of theirs."""
        handlers = {number: signal.signal(number, self.note) for number in SIGNALS}
        try:
            for program in self.programs:  # before the first thread
                self.running.append(Running(program, environment))
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

    def handle(self, event: int | Running) -> None:
        """Pass a signal on, or end the others after one program has ended."""
        if isinstance(event, int):
            self.stopping = True
            for one in self.running:
                one.signal(event)
            return
        self.running.remove(event)
        code, name = event.process.returncode, event.program.name
        if self.stopping:
            self.code = max(self.code, code)
            return
        self.stopping, self.code = True, 1
        others = " and ".join(one.program.name for one in self.running)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.say("dev", f"the {name} {how}; ending the {others}" if others else f"the {name} {how}")
        for one in self.running:
            one.signal(signal.SIGTERM)

    def note(self, number: int, frame: object) -> None:
        self.events.put(number)

    def wait(self, one: Running) -> None:
        """Report the end of a program; in a thread of its own."""
        one.process.wait()
        if one.program.stop is not None:  # its own children may be left
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(one.process.pid, signal.SIGKILL)
        self.events.put(one)

    def read(self, one: Running) -> None:
        """Print the lines of a program; in a thread of its own."""
        output: IO[bytes] | None = one.process.stdout
        for line in output or ():
            self.say(one.program.name, line.decode(errors="replace").rstrip("\r\n"))


def start_thread(target: Callable[[Running], None], one: Running) -> threading.Thread:
    thread = threading.Thread(target=target, args=(one,), daemon=True)
    thread.start()
    return thread
