"""``manage.py horsies_import_beat``: the import of Celery's schedules, and what is left out."""

from __future__ import annotations

import datetime as dt
import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import celery
import hypothesis
import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar
from django.apps import apps
from django.contrib import admin
from django.core.management import CommandError, call_command
from django.test import modify_settings, override_settings
from hypothesis import strategies as st

from horsies_django import schedules
from horsies_django.contrib.beat import Untranslatable, pattern_of
from horsies_django.models import AuditEntry, Schedule
from tests.apps.project import tasks
from tests.support.commands import command, ran
from tests.support.sizes import examples

pytestmark = pytest.mark.django_db
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
PAST = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
run, _, refusal = command("horsies_import_beat")
NIGHTLY = {"task": tasks.noop.name, "schedule": crontab(minute=30, hour=4, day_of_week="mon-fri")}


def left_out(*words: str) -> str:
    """Run the command, which leaves a schedule out, and return the printed text."""
    out = io.StringIO()
    with pytest.raises(CommandError, match="left out"):
        call_command("horsies_import_beat", *words, stdout=out, stderr=out)
    return out.getvalue()


def rows() -> dict[str, dict[str, Any]]:
    """Return the definitions in force, without the keys that have their default."""
    usual = {
        "zone": "UTC",
        "kwargs": {},
        "catch_up": "latest",
        "most": 100,
        "jitter_ms": 0,
        "enabled": True,
    }
    return {
        row.name: {key: value for key, value in row.definition.items() if value != usual.get(key)}
        for row in Schedule.objects.all()
    }


@pytest.fixture
def beat(settings: Any) -> dict[str, Any]:
    settings.CELERY_BEAT_SCHEDULE = {}
    settings.CELERY_TIMEZONE = "Europe/Istanbul"
    found: dict[str, Any] = settings.CELERY_BEAT_SCHEDULE
    return found


# The patterns


def fields(least: int, greatest: int, names: tuple[str, ...] = ()) -> st.SearchStrategy[Any]:
    """Return values for a field of a crontab as Celery accepts it.

    These are a star, a number, a set, a range, steps, or names.
    """
    number = st.integers(least, greatest)
    bounds = st.tuples(number, number)

    return st.one_of(
        st.just("*"),
        number,
        st.sets(number, min_size=1, max_size=5),
        bounds.map(lambda pair: f"{pair[0]}-{pair[1]}"),  # also backwards: Celery wraps around
        st.tuples(bounds, st.integers(1, 7)).map(lambda it: f"{min(it[0])}-{max(it[0])}/{it[1]}"),
        st.integers(1, 7).map(lambda step: f"*/{step}"),
        *([st.sampled_from(names)] if names else []),
    )


def made(**given: Any) -> crontab:
    """Return a crontab; a day that no month has is refused by Celery, too, and rejected here."""
    try:
        return crontab(**given)
    except ValueError:
        hypothesis.reject()


crontabs = st.builds(
    made,
    minute=fields(0, 59),
    hour=fields(0, 23),
    day_of_month=st.one_of(fields(1, 31), st.sampled_from(["1-7", "8-14", "15-21,22-28", "29-31"])),
    month_of_year=fields(1, 12),
    day_of_week=fields(0, 6, ("mon-fri", "sunday", "fri-mon", "sat,sun")),
)


def next_of_celery(tab: crontab, after: dt.datetime) -> dt.datetime | None:
    """Return when a crontab of Celery fires next, in UTC.

    The moment is computed from the numbers to which Celery expands the crontab.
    """
    for days in range(15_000):  # a 29 February is a Monday every 28 years, or every 40 around 2100
        day = after.replace(hour=0, minute=0, second=0) + dt.timedelta(days=days)

        if (
            day.month in tab.month_of_year
            and day.day in tab.day_of_month
            and day.isoweekday() % 7 in tab.day_of_week
        ):
            for hour, minute in itertools.product(sorted(tab.hour), sorted(tab.minute)):
                if (moment := day.replace(hour=hour, minute=minute)) > after:
                    return moment

    return None


MOMENTS = st.datetimes(
    dt.datetime(2026, 1, 1), dt.datetime(2029, 12, 31), timezones=st.just(dt.UTC)
)


@pytest.mark.thorough
@hypothesis.settings(max_examples=examples(50, 1_000), deadline=None)
@hypothesis.given(tab=crontabs, moments=st.lists(MOMENTS, min_size=3, max_size=6))
def test_a_crontab_fires_when_celery_would_fire_it(
    tab: crontab, moments: list[dt.datetime]
) -> None:
    """An imported crontab fires at the moments of Celery, or is refused.

    Fails if: the text of the fields is copied, so that days match either of two fields, or a range
    that wraps is refused.
    """
    try:
        pattern = pattern_of(tab, "UTC")
    except Untranslatable:
        assert len(tab.day_of_week) < 7
        assert len(tab.day_of_month) < 31
        return

    for moment in moments:
        after = moment.replace(microsecond=0)
        assert pattern.next(after, START) == next_of_celery(tab, after), str(pattern)


@pytest.mark.parametrize(
    ("tab", "text"),
    [
        (crontab(minute=0, hour="22-2", day_of_week="mon-fri"), "0 22-2 * * mon-fri"),
        (crontab(minute=[0, 30], hour={9}), "0,30 9 * * *"),
        (
            crontab(minute=0, hour=9, day_of_month="1-7,15-21", day_of_week="tue"),
            "0 9 * * tue#1,tue#3",
        ),
        (crontab(minute=0, hour=9, day_of_month="*/2", day_of_week="sat"), "0 9 */2 * sat"),
    ],
)
def test_a_crontab_keeps_the_text_that_means_the_same(tab: crontab, text: str) -> None:
    assert str(pattern_of(tab, "UTC")) == text


# The settings


def test_entries_become_schedules_with_their_zone_and_options(
    beat: dict[str, Any],
) -> None:
    """Entries become schedules with their zone, arguments and options.

    Fails if: the crontab moves to UTC, positional arguments are lost, or the seconds of ``expires``
    are milliseconds.
    """
    beat["nightly"] = NIGHTLY
    more = {"args": (1,), "kwargs": {"b": 2}, "options": {"expires": 60}}
    beat["sum"] = {"task": tasks.add.name, "schedule": 900, **more}

    options = {"queue": "mail", "priority": 9, "expires": dt.timedelta(minutes=2)}
    often = schedule(dt.timedelta(hours=36))
    beat["mail"] = {
        "task": tasks.echo.name,
        "schedule": often,
        "kwargs": {"text": "hello"},
        "options": options,
    }

    printed = run()

    assert rows() == {
        "nightly": {
            "task": tasks.noop.name,
            "pattern": "30 4 * * mon-fri",
            "zone": "Europe/Istanbul",
        },
        "sum": {
            "task": tasks.add.name,
            "pattern": "every 15 minutes",
            "kwargs": {"a": 1, "b": 2},
            "good_for_ms": 60_000,
        },
        "mail": {
            "task": tasks.echo.name,
            "pattern": "every 36 hours",
            "kwargs": {"text": "hello"},
            "queue": "mail",
            "good_for_ms": 120_000,
        },
    }

    assert "mail: dropped priority=9" in printed
    assert "3 created." in printed

    entries = AuditEntry.objects.filter(action="schedule.create")
    assert {entry.reason for entry in entries} == {"imported from Celery beat"}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"schedule": dt.timedelta(seconds=0.5)}, "it fires every 0.5 s"),
        (
            {"schedule": crontab(day_of_month="1,15", day_of_week="mon")},
            "match both day_of_month and day_of_week",
        ),
        ({"schedule": object()}, "object has no counterpart"),
        # Celery can make a real one only if ephem is installed.
        ({"schedule": object.__new__(solar)}, "it follows the sun"),
        ({"schedule": dt.timedelta(days=400)}, "seconds must be a whole number from 0 to 31536000"),
        ({"task": "shop.tasks.gone"}, "there is no task 'shop.tasks.gone'"),
        ({"task": None}, "the name of a task"),
        ({"task": tasks.add.name, "args": (1, 2, 3)}, "too many positional arguments"),
        ({"task": tasks.add.name, "args": ("one",)}, "argument 'a'"),
        ({"args": 7}, "expected a list and an object"),
        ({"options": {"queue": "celery"}}, "'celery' is not declared"),
        ({"options": {"expires": START}}, "the same time for all fire times"),
        ({"options": {"expires": 0.1}}, "good_for_ms"),
        ({"options": {"countdown": 5}}, "the option countdown=5 has no counterpart"),
    ],
)
def test_what_cannot_be_imported_is_named(
    beat: dict[str, Any], entry: dict[str, Any], why: str
) -> None:
    """An entry that cannot be imported is named, and the others are imported.

    Fails if: one entry ends the import, or is created with another meaning and without a message.
    """
    beat["good"] = NIGHTLY
    beat["odd"] = {**NIGHTLY, **entry}

    printed = left_out()

    assert why in " ".join(printed.split())
    assert "1 created, 1 left out." in printed
    assert list(rows()) == ["good"]


def test_a_second_import_changes_nothing(
    beat: dict[str, Any],
) -> None:
    """A second import changes nothing and keeps a changed schedule, unless ``--replace`` is given.

    Names select the entries to import.

    Fails if: the second import overwrites a change that was made here, or fails at the first name.
    """
    beat["nightly"] = NIGHTLY
    run()
    assert "1 unchanged." in run()

    schedules.change("nightly", {"pattern": "every 2 hours", "zone": "UTC"}, actor="ann")
    assert (
        "nightly: a schedule of this name exists here, with another pattern, zone: use --replace"
        in left_out()
    )
    assert rows()["nightly"]["pattern"] == "every 2 hours"

    assert "1 would be changed." in run("--replace", "--dry-run")
    assert rows()["nightly"]["pattern"] == "every 2 hours"

    assert "1 changed." in run("--replace")
    assert rows()["nightly"] == {
        "task": tasks.noop.name,
        "pattern": "30 4 * * mon-fri",
        "zone": "Europe/Istanbul",
    }
    assert "1 unchanged." in run("--replace")

    beat["hourly"] = {**NIGHTLY, "schedule": 3600}
    beat["weekly"] = NIGHTLY

    assert "2 would be created." in run("--dry-run", "hourly", "weekly")
    assert "1 created." in run("hourly")
    assert sorted(rows()) == ["hourly", "nightly"]
    assert "beat has no 'daily'; it has: hourly, nightly, weekly" in refusal("daily")


def test_the_printed_settings_declare_the_same_schedules(
    beat: dict[str, Any], settings: Any
) -> None:
    """The printed settings declare the same schedules that an import creates.

    Fails if: the printed arguments are JSON, and the settings declare another schedule than the
    table would have.
    """
    beat["nightly"] = NIGHTLY
    beat["sum"] = {"task": tasks.add.name, "schedule": 900, "args": (1,)}
    beat["cleanup"] = {"task": "celery.backend_cleanup", "schedule": crontab(hour=4, minute=0)}

    _code, out, told = ran("horsies_import_beat", "--print")

    assert rows() == {}
    assert "cleanup: retention deletes finished tasks" in told

    names: dict[str, Any] = {"HORSIES": dict(settings.HORSIES)}
    exec(out, names)
    with override_settings(HORSIES=names["HORSIES"]):
        schedules.declare(actor="a test")
    printed = rows()

    Schedule.objects.all().delete()
    run()

    assert rows() == printed
    assert len(printed) == 2


# A Celery app

app = Celery("shop", set_as_current=False)
app.conf.timezone = "Asia/Tokyo"
app.conf.beat_schedule = {"nightly": NIGHTLY}


@app.on_after_finalize.connect
def add_periodic_tasks(sender: Celery, **_: Any) -> None:
    sender.add_periodic_task(60, sender.signature(tasks.add.name, (1, 2)), name="every minute")


def test_an_app_is_read_with_its_zone_and_tasks_added_by_code(
    settings: Any, monkeypatch: Any
) -> None:
    """An app is read with its zone and the tasks that its code adds.

    Fails if: ``beat_schedule`` is read before the signals of the app have run; or the zone is that
    of the site.
    """
    run("--app", f"{__name__}.app")

    assert rows()["nightly"]["zone"] == "Asia/Tokyo"
    assert rows()["every minute"]["kwargs"] == {"a": 1, "b": 2}
    assert "2 unchanged" in run(f"--app={__name__}:app")

    monkeypatch.setattr(celery._state, "default_app", app)
    settings.CELERY_BEAT_SCHEDULE = {"by a setting": NIGHTLY}
    run()
    assert rows()["by a setting"]["zone"] == "Asia/Tokyo"


def test_a_path_without_an_app_is_named() -> None:
    """A path that is no app is named.

    Without schedules to import, the error lists the places that were searched.
    """
    for path in ("shop.celery", "tests.apps.project.tasks.add", "nothing", ":", "..x"):
        assert "Name a Celery app, such as shop.celery.app" in refusal("--app", path)

    assert "no CELERY_BEAT_SCHEDULE in the settings, and no rows of" in refusal()


# The rows of django-celery-beat


@pytest.fixture
def models(db: None) -> Iterator[Any]:
    """Yield the models of django-celery-beat, whose tables are made for this test."""
    pytest.importorskip("django_celery_beat", reason="its release refuses this version of Django")

    with (
        modify_settings(INSTALLED_APPS={"append": "django_celery_beat"}),
        override_settings(MIGRATION_MODULES={"django_celery_beat": None}),
    ):
        call_command("migrate", "django_celery_beat", run_syncdb=True, verbosity=0)
        yield apps.get_app_config("django_celery_beat").models_module

        for model in apps.get_app_config("django_celery_beat").get_models():
            if admin.site.is_registered(model):  # by an import of the URLs during the test
                admin.site.unregister(model)


@pytest.fixture
def add(models: Any) -> Callable[..., Any]:
    """Return a function that writes a periodic task.

    By default it runs a task without effect every two minutes.
    """
    often = models.IntervalSchedule.objects.create(every=2, period="minutes")

    def add_(name: str, **columns: Any) -> None:
        usual = {} if columns.keys() & {"crontab", "solar", "clocked"} else {"interval": often}
        row = models.PeriodicTask(**{"name": name, "task": tasks.noop.name, **usual, **columns})
        models.PeriodicTask.objects.bulk_create([row])  # past the rules of save()

    return add_


def test_rows_become_schedules_and_win_over_entries(
    models: Any, add: Any, beat: dict[str, Any]
) -> None:
    """Rows become schedules, and replace entries of the same name.

    Fails if: a row that is switched off starts to fire, or every crontab has the zone of Celery.
    """
    tokyo = models.CrontabSchedule.objects.create(
        minute="0", hour="9", day_of_week="1-5", timezone="Asia/Tokyo"
    )

    add(
        "tokyo",
        task=tasks.echo.name,
        crontab=tokyo,
        kwargs='{"text": "good morning"}',
        queue="mail",
        priority=5,
    )
    add("often", task=tasks.add.name, args="[1, 2]", expire_seconds=90, enabled=False)
    add("ended", expires=PAST, start_time=PAST)
    add("ran once", one_off=True, enabled=False)
    beat["ended"] = NIGHTLY  # which beat has copied into the row

    printed = run()

    morning = {"text": "good morning"}
    often = {"pattern": "every 2 minutes", "enabled": False}
    assert rows() == {
        "tokyo": {
            "task": tasks.echo.name,
            "pattern": "0 9 * * 1-5",
            "zone": "Asia/Tokyo",
            "kwargs": morning,
            "queue": "mail",
        },
        "often": {
            "task": tasks.add.name,
            "kwargs": {"a": 1, "b": 2},
            "good_for_ms": 90_000,
            **often,
        },
        "ended": {"task": tasks.noop.name, **often},
    }

    assert "ran once: it runs only once, and it is disabled" in printed
    assert "3 unchanged" in run()

    add("mirror", task=tasks.mirror.name, kwargs='{"point": {"x": 1, "y": 2}}')
    assert f"'point': {tasks.Point(1, 2)!r}" in run("--print"), "as a value of Python"


def test_what_beat_fires_as_well_after_an_import_is_named(
    models: Any, add: Callable[..., Any], settings: Any
) -> None:
    """Fails if: both send the tasks of such a row, every night."""
    settings.CELERY_BEAT_SCHEDULE = {"nightly": NIGHTLY}
    add("on")
    add("off", enabled=False)
    add("ended", expires=PAST)

    assert "Beat still fires" not in run("--dry-run")

    told = (
        "Beat still fires 'on': switch these rows off in django-celery-beat\nBeat still fires "
        "'nightly': stop beat"
    )
    assert told in run()
    assert told in run()

    models.PeriodicTask.objects.update(enabled=False)
    assert "'on'" not in left_out()


def test_rows_that_cannot_be_imported_are_named(models: Any, add: Callable[..., Any]) -> None:
    """Rows that cannot be imported are named.

    Fails if: a one-off task fires every day, a schedule outlives its end, or a row that is no JSON
    ends the import.
    """
    later = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
    quick = models.IntervalSchedule.objects.create(every=500, period="microseconds")
    sunset = models.SolarSchedule.objects.create(event="sunset", latitude=41, longitude=29)
    clock = models.ClockedSchedule.objects.create(clocked_time=later)

    wrong: dict[str, dict[str, Any]] = {
        "it follows the sun": {"solar": sunset},
        "it fires once, at 2100-01-01T": {"clocked": clock, "one_off": True},
        "it fires every 0.0005 s": {"interval": quick},
        "it runs only once, but": {"one_off": True},
        "it starts to fire at 2100-01-01": {"start_time": later},
        "it stops firing at 2100-01-01": {"expires": later},
        "args: expected a list and an object, not '[1'": {"args": "[1"},
    }

    for number, columns in enumerate(wrong.values()):
        add(str(number), **columns)

    told = left_out()

    assert [f"{number}: {why}" in told for number, why in enumerate(wrong)] == [True] * len(wrong)
    assert rows() == {}
