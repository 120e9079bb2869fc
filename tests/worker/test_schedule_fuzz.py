"""Schedules that a stranger writes into the table, as wild as its CHECK lets them be: they hold up no other."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.db import DataError, IntegrityError, connection, transaction
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from horsies_django.core.patterns.kinds import EXAMPLES
from horsies_django.models import Schedule
from tests.worker.test_scheduler import NOON, SECOND, Clockwork, fire_times, make
from tests.worker.test_scheduler import clockwork as clockwork

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = 60 * SECOND
letters = st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])
field = st.one_of(
    st.sampled_from(
        ["*", "*/7", "0", "59", "l", "L", "5#5", "30-10/1000000", "0-999999999999", "1," * 30 + "2", "*/0"]
    ),
    st.text("0123456789*,/-#lL", min_size=1, max_size=6),
)
patterns = st.one_of(
    st.sampled_from(EXAMPLES),
    st.tuples(field, field, field, field, field).map(" ".join),
    st.sampled_from(["0 0 30 2 *", "1," * 100_000 + "1 * * * *", "every 999999999 days"]),
    st.just("weekly on " + "mon, " * 9_999 + "mon at 09:00"),
    st.text(letters, max_size=30),
)  # fmt: skip
plain = st.none() | st.booleans() | st.integers() | st.sampled_from([1e300, -0.5]) | st.text(letters, max_size=8)
anything = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(letters, max_size=4), inner, max_size=3),
    max_leaves=5,
)
WILD: dict[str, st.SearchStrategy[Any]] = {
    "pattern": patterns,
    "zone": st.sampled_from(["Mars/Olympus", "", "../../etc/passwd", "/etc/passwd", "Europe", "x" * 5_000, "posixrules"]),
    "task": st.sampled_from(["", "no.such.task", "os.system", "tests.apps.project.tasks.add"]) | st.text(letters, max_size=9),
    "kwargs": st.dictionaries(st.sampled_from(["a", "x"]), anything, max_size=2),
    "queue": st.sampled_from(["mail", "nowhere", "*", ""]),
    "jitter_ms": st.sampled_from([86_400_000, 10**30, -1]),
    "catch_up": st.sampled_from(["all", "none", "some"]),
    "most": st.sampled_from([1_000, 10**30, 0]),
    "good_for_ms": st.sampled_from([1_000, 10**30, 0]),
    "priority": st.sampled_from([1, 0, 10**30]),
    "enabled": st.sampled_from([False, "yes"]),
}  # fmt: skip
definitions = st.sets(st.sampled_from(sorted(WILD)), min_size=1, max_size=4).flatmap(
    lambda names: st.fixed_dictionaries({name: WILD[name] | anything for name in sorted(names)})
)
USUAL = {"task": "tests.apps.project.tasks.noop", "pattern": "every minute"}
sound = definitions.map(lambda found: json.dumps({**USUAL, **found}))
texts = sound | sound | sound | st.one_of(
    st.sampled_from(["[]", "5", "null", '{{"kwargs": {}{}}}'.format("[" * 3_000, "]" * 3_000), '{"most": %s}' % ("9" * 5_000)]),
    anything.map(json.dumps),
)  # fmt: skip
usual = st.sampled_from(["2027-03-01 12:00Z", "2020-02-29", "1970-01-01", "0003-02-01", "8999-01-01"])
beyond = st.sampled_from(["infinity", "-infinity", "9999-12-31"])
moments = st.integers(1, 10).flatmap(lambda number: beyond if number == 7 else usual)
rows = st.fixed_dictionaries(
    {
        "declared": texts,
        "since": moments,
        "last_fire_at": st.none() | moments,
        "next_at": moments | st.just("2027-01-01"),
    }
)


def write(name: str, row: dict[str, Any]) -> bool:
    """Insert a schedule as it is; return whether the table took it."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO horsies_schedules (name, declared, since, last_fire_at, next_at) "
                "VALUES (%(name)s, %(declared)s, %(since)s, %(last_fire_at)s, %(next_at)s)",
                {**row, "name": name},
            )
    except (DataError, IntegrityError):
        return False
    return True


def test_whatever_schedules_a_stranger_writes_the_others_fire(
    clockwork: Clockwork, caplog: pytest.LogCaptureFixture
) -> None:
    make("sound")
    now, taken = NOON, 0

    @settings(
        max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate]
    )  # time goes on: nothing shrinks
    @given(st.lists(rows, min_size=1, max_size=4))
    def fuzz(strange: list[dict[str, Any]]) -> None:
        nonlocal now, taken
        written = [f"{now}, {number}" for number, row in enumerate(strange) if write(f"{now}, {number}", row)]
        taken += len(written)
        now += MINUTE
        clockwork.at(now)
        clockwork.later(now)
        assert now in fire_times("sound")
        clockwork.later(now + dt.timedelta(minutes=5))  # nobody else could send them: now it says so
        now += dt.timedelta(minutes=6)
        clockwork.later(now)
        assert now in fire_times("sound")
        left = Schedule.objects.filter(name__in=written)
        assert [row.definition for row in left.filter(next_at__lte=now, error=None)] == [], (
            "still due, and nothing says why"
        )
        left.delete()

    fuzz()
    assert "will try again" not in caplog.text, "each is sent, or has a problem that its row tells"
    assert taken > 40, "the CHECK leaves too little to try"
