"""Rows that a stranger writes into the table of tasks, as wild as its CHECK allows.

They stop no other tasks.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.db import DataError, IntegrityError, connection, transaction
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from horsies_django import explain
from horsies_django.models import Task
from tests.apps.project import tasks
from tests.conftest import limit, wait_until
from tests.support.workers import Start

FINAL = ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED")
LONG_AGO = ("0003-01-01", "1969-12-31", "2026-01-01")

plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
nested = st.integers(1, 3_000).map(lambda levels: "[" * levels + "]" * levels)
numbers = st.sampled_from(["1e400", "-1e400", "9" * 5_000, "1.5", "-1", "2147483648", "0"])
values = st.recursive(
    plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner), max_leaves=6
)
texts = values.map(json.dumps) | nested | numbers


def objects(*names: str) -> st.SearchStrategy[str]:
    """Generate texts of JSON objects with some of these names, and others."""
    pairs = st.lists(st.tuples(st.sampled_from(names) | st.text(max_size=4), texts), max_size=4)
    return pairs.map(
        lambda found: "{" + ",".join(f"{json.dumps(name)}: {value}" for name, value in found) + "}"
    )


CODES = '"codes": ["UNHANDLED_ERROR", "WORKER_SERIALIZATION_ERROR"]'
policies = objects("strategy", "intervals", "jitter", "most").map(
    lambda text: f"{text[:-1]}{', ' * (len(text) > 2)}{CODES}}}"
)
options = st.one_of(
    st.none(),
    objects("wire", "timeout_ms", "retry"),
    policies.map(lambda policy: f'{{"wire": 1, "retry": {policy}}}'),
    st.sampled_from(["[]", "5", '{"timeout_ms": "abc"}', '{"wire": "x"}', '{"wire": 99999999999}']),
)
counts = st.sampled_from([0, 1, 2, 32_765, 32_766, 32_767, -1]) | st.integers(0, 100)
WILD: dict[str, st.SearchStrategy[Any]] = {
    "task_name": st.sampled_from(["anoop", "add", "mirror"]).map(
        "tests.apps.project.tasks.{}".format
    )
    | st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=20),
    "queue_name": st.just("mail"),
    "lane": st.just("async"),
    "kwargs": objects("a", "b", "message", "point") | objects("args", "kwargs", "names") | texts,
    "codec": st.sampled_from(["plain", "plain", "newer"]),
    "options": options,
    "priority": st.sampled_from([1, 201]),
    "claim_generation": st.sampled_from([5, 2**31 - 2, 2**31 - 1, -1]),
    "retry_count": counts,
    "max_retries": counts,
    "enqueued_at": st.sampled_from([*LONG_AGO, "infinity", "-infinity", "20000-01-01"]),
    "good_until": st.sampled_from([*LONG_AGO, "9998-01-01", "infinity", "-infinity"]),
    "partition_key": st.text(
        st.characters(min_codepoint=33, blacklist_categories=["Cs"]), max_size=201
    ),
    "partition_version": st.integers(-(2**31), 2**31 - 1),
    "cancel_requested_at": st.just("2026-01-01"),
    "terminate": st.just(True),
    "status": st.sampled_from(["RUNNING", "CLAIMED"]),
    "started_at": st.sampled_from(LONG_AGO),
    "claimed_at": st.sampled_from(LONG_AGO),
    "claim_expires_at": st.sampled_from(LONG_AGO),
}
USUAL = {
    "lane": "sync",
    "status": "PENDING",
    "kwargs": '{"message": "again"}',
    "enqueued_at": "2026-01-01",
}
USUAL |= {"task_name": "tests.apps.project.tasks.raises", "queue_name": "twin"}
rows = st.sets(st.sampled_from(sorted(WILD)), min_size=1, max_size=4).flatmap(
    lambda names: st.fixed_dictionaries({name: WILD[name] for name in sorted(names)})
)


def write(row: dict[str, Any]) -> uuid.UUID | None:
    """Insert a row as it is. Return its id, or None if the table refuses it."""
    columns = {**USUAL, **row, "id": uuid.uuid4()}
    columns["claimed_by"] = uuid.uuid4() if columns["status"] != "PENDING" else None
    names = ", ".join(columns)

    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO horsies_tasks ({names}) VALUES ({', '.join(['%s'] * len(columns))})",
                list(columns.values()),
            )
    except (DataError, IntegrityError):
        return None

    return columns["id"]


def waits_for_good_reason(task: Task) -> bool:
    """Return whether a task waits for its next attempt, and ``explain`` reports so."""
    return (
        task.status == "PENDING"
        and task.next_retry_at is not None
        and "RETRY" in str(explain(task.pk).reasons[0].code)
    )


def test_strange_rows_end_or_wait_for_a_reason(
    worker: Start,
) -> None:
    """Each strange row ends or waits for a stated reason, and other tasks run."""
    process = worker(
        "--processes=2", HORSIES_TEST_GRACE_MS="1000", HORSIES_TEST_STALE_MS="2000"
    ).ready()
    limit("twin", partition_by_args=["message", "a"], partition_max_concurrency=1)
    written: list[uuid.UUID] = []

    @settings(max_examples=30, deadline=None, derandomize=True, phases=[Phase.generate])
    @given(st.lists(rows, min_size=1, max_size=8))
    def fuzz(strange: list[dict[str, Any]]) -> None:
        written.extend(filter(None, map(write, strange)))
        assert tasks.add.send(2, 3).get(30_000).ok_value == 5
        assert tasks.anoop.send().get(30_000).is_ok()
        assert process.process.poll() is None

    fuzz()
    assert len(written) > 50, "the CHECK leaves too little to try"

    unended = Task.objects.filter(pk__in=written).exclude(status__in=FINAL)
    wait_until(
        lambda: all(map(waits_for_good_reason, unended.all())),
        "every row ended, or waits for a reason",
    )

    assert not Task.objects.filter(pk__in=written, status="FAILED", error_code="").exists()
    assert process.stop() == 0
    assert "the database is not available" not in process.log
