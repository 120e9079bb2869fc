"""``manage.py horsies_dev``: the development server and a worker in one terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from argparse import Action, ArgumentParser
from collections.abc import Iterable, Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.autoreload import get_child_arguments
from django.utils.termcolors import colorize

from horsies_django.management.dev_processes import Program, Together
from horsies_django.worker.process.colors import choose_colors, palette_for

COLORS = {"site": "cyan", "worker": "magenta", "dev": "yellow"}
WIDTH = max(map(len, COLORS))
NO_WINDOWS = "the worker does not run on Windows: use WSL or a container, or 'runserver' alone"


class Command(BaseCommand):
    """Runs ``runserver`` and ``horsies_worker --reload`` as two processes."""

    _called_from_command_line: bool  # Django sets it

    help = (
        "Run the development server and a worker, both of which restart when code changes. Ctrl-C ends both. Options are those "
        "of horsies_worker."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        if sys.platform == "win32":
            parser.error(NO_WINDOWS)
        from horsies_django.management.commands import horsies_worker

        parser.add_argument(
            "addrport", nargs="?", help="address and port of the site, as for runserver (127.0.0.1:8000)"
        )
        known = set(parser._actions)
        horsies_worker.Command().add_arguments(parser)
        self.worker_actions = [action for action in parser._actions if action not in known]

    def handle(self, **options: Any) -> None:
        if not self._called_from_command_line:
            raise CommandError("horsies_dev: it runs the command line again, so it works only from there")
        if options["until_empty"]:
            raise CommandError("horsies_dev: the worker restarts when code changes, so there is no --until-empty")
        choose_colors(no_color=options["no_color"], force_color=options["force_color"])
        colored = palette_for(sys.stdout) is not None
        color = "--force-color" if colored else "--no-color"
        common = [color, *(f"--pythonpath={path}" for path in filter(None, [options["pythonpath"]]))]
        manage = get_child_arguments()[: -len(sys.argv[1:])]
        address = [options["addrport"]] if options["addrport"] else []
        reload = [] if options["reload"] else ["--reload"]
        programs = [
            Program("site", [*manage, "runserver", *address, *common], stop=signal.SIGTERM),
            Program("worker", [*manage, "horsies_worker", *reload, *given(self.worker_actions, options), *common]),
        ]
        self.colored = colored
        self.printing = threading.Lock()
        if code := Together(programs, self.say).run({**os.environ, "PYTHONUNBUFFERED": "1"}):
            sys.exit(code)

    def say(self, name: str, line: str) -> None:
        prefix = f"{name:<{WIDTH}} |"
        if self.colored:
            prefix = colorize(prefix, fg=COLORS[name])
        with self.printing:
            self.stdout.write(f"{prefix} {line}")
            self.stdout.flush()


def given(actions: Iterable[Action], options: Mapping[str, Any]) -> list[str]:
    """Return options of a command line that differ from their defaults, as they are written there."""
    found = []
    for action in actions:
        value, name = options[action.dest], action.option_strings[-1]
        if value == action.default:
            continue
        if value is True:
            found.append(name)
        else:
            found += [f"{name}={each}" for each in (value if isinstance(value, list) else [value])]
    return found
