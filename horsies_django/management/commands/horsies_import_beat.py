"""``manage.py horsies_import_beat``: create schedules from those of Celery beat."""

from __future__ import annotations

import datetime as dt
import pprint
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.core.management.base import CommandError
from django.db import transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from horsies_django import schedules
from horsies_django.conf import config
from horsies_django.contrib.beat import Entry, Translation, entries, translate
from horsies_django.core.errors import ScheduleError
from horsies_django.core.schedules import read_definition
from horsies_django.core.texts import visible
from horsies_django.management import shared
from horsies_django.management.reports import table
from horsies_django.management.shared import actor, refusing
from horsies_django.models import Schedule

LEFT_OUT = "left out"
HERE = ("created", "changed", "unchanged")
REASON = "imported from Celery beat"


class Done(NamedTuple):
    """The action taken for an entry, and the reasons for it."""

    state: str
    reasons: Sequence[str] = ()


class Command(shared.Command):
    """The command that imports the entries of a Celery beat schedule and of django-celery-beat."""

    help = (
        "Create schedules from those of Celery beat: from CELERY_BEAT_SCHEDULE in the settings or "
        "from a Celery app, and from the tables of django-celery-beat. Schedules that are left out "
        "are listed with the reasons; the exit code is then 1. Existing schedules are not created "
        "again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "names", nargs="*", metavar="NAME", help="import only these schedules (default: all)"
        )
        parser.add_argument(
            "--app",
            metavar="PATH",
            help="the Celery app, such as shop.celery.app, instead of the settings",
        )
        parser.add_argument(
            "--replace", action="store_true", help="change schedules that exist here and differ"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="print the changes without making them"
        )
        parser.add_argument(
            "--print",
            action="store_true",
            help="print HORSIES['SCHEDULES'] for the settings, and create nothing",
        )

    def handle(self, **options: Any) -> None:
        with refusing("horsies_import_beat", ScheduleError):
            self.run(**options)

    def run(self, **options: Any) -> None:
        now = timezone.now()
        found = [
            translate(entry, now)
            for entry in chosen_entries(entries(celery_app(options["app"])), options["names"])
        ]

        if options["print"]:
            declared = {one.entry.name: one.declared for one in found if one.declared is not None}
            self.stdout.write(
                f"HORSIES['SCHEDULES'] = {pprint.pformat(declared, width=110, sort_dicts=False)}"
            )
            done = [Done("printed") if one.declared is not None else without(one) for one in found]
        else:
            with transaction.atomic(using=config().database):
                done = [self.write(one, options["replace"], options["dry_run"]) for one in found]

        (self.stderr if options["print"] else self.stdout).write(summary_text(found, done, now))
        if left := sum(one.state == LEFT_OUT for one in done):
            raise CommandError(
                f"horsies_import_beat: {left} of {len(found)} schedules were left out, for the "
                "reasons above"
            )

    def write(self, one: Translation, replace: bool, dry_run: bool) -> Done:
        """Create or change a schedule, and return the action that was taken."""
        if one.stored is None:
            return without(one)

        name = one.entry.name
        definition = full(one.stored)
        existing = Schedule.objects.using(config().database).filter(name=name).first()

        if existing is None:
            if not dry_run:
                schedules.create(name, definition, actor=actor(), reason=REASON)
            return Done("would be created" if dry_run else "created", one.notes)

        keys = [key for key, value in definition.items() if existing.definition.get(key) != value]
        if not keys:
            return Done("unchanged", one.notes)
        if not replace:
            reason = (
                f"a schedule of this name exists here, with another {', '.join(keys)}: use "
                "--replace to change it"
            )
            return Done(LEFT_OUT, [reason])

        if not dry_run:
            schedules.change(name, definition, actor=actor(), reason=REASON)
        return Done("would be changed" if dry_run else "changed", one.notes)


def celery_app(path: str | None) -> Any:
    """Return the Celery app of a dotted path, which may also be written as module:name.

    Return None if ``path`` is None. Raises CommandError if the app cannot be imported.
    """
    if path is None:
        return None

    try:
        app = import_string(path.replace(":", "."))
        app.finalize()  # runs the functions that add periodic tasks to the app
        app.conf.beat_schedule  # noqa: B018 - loading the settings runs them, too
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        # ValueError and TypeError are raised for paths such as ":".
        raise CommandError(
            f"horsies_import_beat: --app={path}: {error}. Name a Celery app, such as "
            "shop.celery.app"
        ) from error

    return app


def chosen_entries(found: dict[str, Entry], names: list[str]) -> list[Entry]:
    """Return the entries of these names, or all entries if no name is given.

    Raises CommandError if there are no entries, or if a name is unknown.
    """
    if not found:
        raise CommandError(
            "horsies_import_beat: there is nothing to import: no CELERY_BEAT_SCHEDULE in the "
            "settings, and no rows of django_celery_beat. Name the Celery app with --app if the "
            "schedule is part of one"
        )
    if unknown := [name for name in names if name not in found]:
        raise CommandError(
            f"horsies_import_beat: Celery beat has no {', '.join(map(repr, unknown))}; it has: "
            f"{', '.join(sorted(found))}"
        )
    return [found[name] for name in sorted(names or found)]


def without(one: Translation) -> Done:
    """Return the reason why nothing is done about an entry."""
    return Done("not needed", [one.done]) if one.done else Done(LEFT_OUT, one.problems)


def full(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a valid definition with all of its keys."""
    found, _ = read_definition(stored)
    assert found is not None
    return found.definition()


def twice(found: Sequence[Translation], done: Sequence[Done], now: dt.datetime) -> list[str]:
    """Return advice about schedules that exist here and that beat also fires.

    Their tasks would be sent twice.
    """
    here = [one.entry for one, (state, _) in zip(found, done, strict=True) if state in HERE]
    firing = [one for one in here if one.enabled and not (one.ends and one.ends <= now)]

    return [
        "Beat still fires "
        f"{', '.join(repr(one.name) for one in firing if one.in_rows is in_rows)}: {way}"
        for in_rows, way in (
            (True, "switch these rows off in django-celery-beat"),
            (False, "stop beat, or remove these entries"),
        )
        if any(one.in_rows is in_rows for one in firing)
    ]


def summary_text(found: Sequence[Translation], done: Sequence[Done], now: dt.datetime) -> str:
    """Return a table of the schedules, the reasons, the counts, and advice.

    The counts are of each kind of action. The advice is about schedules that beat also fires.
    """
    rows = []
    for one, (state, _) in zip(found, done, strict=True):
        pattern = one.pattern
        fires, zone = (pattern.in_words, pattern.zone) if pattern else ("-", "-")
        rows.append((one.entry.name, state, fires, zone, one.entry.task))

    reasons = [
        f"{one.entry.name}: {note}"
        for one, (_, notes) in zip(found, done, strict=True)
        for note in notes
    ]
    counted = ", ".join(
        f"{count} {state}" for state, count in Counter(state for state, _ in done).items()
    )

    lines = [
        table(("SCHEDULE", "", "FIRES", "ZONE", "TASK"), rows),
        "\n".join(map(visible, reasons)),
        f"{counted}.",
    ]
    lines.append("\n".join(map(visible, twice(found, done, now))))
    return "\n\n".join(filter(None, lines))
