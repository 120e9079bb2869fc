"""What a worker does not know: its pass leaves it to others while it is young, and it stands in nobody's way."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from typing import Any

import pytest

from horsies_django.core.records import Wanted
from horsies_django.models import Task
from tests.conftest import Claimer, Claimers, Connect, limit, put
from tests.db.test_statements import entries, explained, states
from tests.support.factories import now, serving

pytestmark = pytest.mark.django_db(transaction=True)

GRACE = dt.timedelta(minutes=5)
KNOWN, STRANGE = "shop.tasks.old", "shop.tasks.new"


@pytest.fixture
def old(claimer: Claimers) -> Claimer:
    """Give a worker that knows one task."""
    return knowing(claimer())


def knowing(worker: Claimer, **columns: Any) -> Claimer:
    """Give a claimer its rows."""
    serving(*worker.served.queues, id=worker.id, **{"task_names": [KNOWN], "wire": 1, **columns})
    return worker


def claimed(worker: Claimer, sync: int = 10, **options: Any) -> list[uuid.UUID]:
    return [claim.id for claim in worker.run_pass(sync=sync, grace=GRACE, **options).claims]


def test_what_one_worker_leaves_another_that_knows_it_takes_with_its_first_attempt(
    old: Claimer, claimer: Claimers
) -> None:
    (id_,) = put(name=STRANGE)
    (met,) = old.run_pass(sync=1).claims
    assert claimed(old, releases=[met]) == []
    task = Task.objects.get(pk=id_)
    assert (task.status, task.retry_count, task.claimed_by, task.started_at) == ("PENDING", 0, None, None)
    (claim,) = knowing(claimer(), task_names=[STRANGE]).run_pass(sync=1, grace=GRACE).claims
    assert (claim.id, claim.attempt) == (id_, 1)


@pytest.mark.promise("S2.21")
def test_what_has_been_due_for_as_long_as_the_grace_is_taken_whoever_knows_it(old: Claimer) -> None:
    young, aged = put(2, name=STRANGE)
    Task.objects.filter(pk=aged).update(enqueued_at=now() - GRACE)
    Task.objects.filter(pk=young).update(sent_at=now() - 2 * GRACE)
    past = put(name=STRANGE, good_until=dt.datetime.now(dt.UTC) - GRACE)
    passed = old.run_pass(sync=10, grace=GRACE)
    taken = [claim.id for claim in passed.claims]
    assert taken == [aged], "a task counts from when it became due, however long ago it was sent"
    assert passed.expired == past, "what is past its good_until expires"


def test_what_a_newer_release_sent_is_left_to_workers_that_read_it(old: Claimer, claimer: Claimers) -> None:
    (newer,) = put(name=KNOWN, options='{"wire": 2}')
    (today,) = put(name=KNOWN, options='{"wire": 1, "timeout_ms": 1000}')
    assert claimed(old) == [today]
    assert claimed(knowing(claimer(), wire=2)) == [newer]


def test_a_worker_that_knows_nothing_leaves_all_and_one_of_an_earlier_release_does_not_say_so_and_leaves_nothing(
    claimer: Claimers,
) -> None:
    ids = put(2, name=STRANGE)
    assert claimed(knowing(claimer(), task_names=[])) == []
    assert claimed(knowing(claimer(), task_names=None, wire=None)) == ids


def test_the_permit_of_what_is_given_back_goes_to_what_the_worker_knows(old: Claimer) -> None:
    limit("default", max_concurrency=1)
    put(name=STRANGE)
    (met,) = old.run_pass(sync=5).claims
    (known,) = put(name=KNOWN)
    assert claimed(old, releases=[met]) == [known]
    assert Task.objects.filter(status="PENDING").count() == 1


def test_a_worker_that_leaves_all_that_waits_wakes_nobody(old: Claimer, connect: Connect) -> None:
    limit("default", max_concurrency=2)
    put(3, name=STRANGE)
    met = old.run_pass(sync=2).claims
    listener = connect()
    listener.execute(f'LISTEN "{old.channel}_new"'.encode(), prepare=False)
    old.run_pass(sync=2, releases=met, grace=GRACE)
    assert list(listener.notifies(timeout=5, stop_after=1)), "others hear of what came back"
    list(listener.notifies(timeout=0))
    assert old.run_pass(sync=2, grace=GRACE).claims == []
    put(name=KNOWN, queue="mail")  # what is heard next is this, and nothing before it
    (heard,) = listener.notifies(timeout=5, stop_after=1)
    assert heard.payload.endswith(" mail")


def test_a_pass_that_asks_for_it_leaves_out_what_the_workers_row_does_not_name_and_so_does_its_buffer(
    old: Claimer,
) -> None:
    put(5, name=STRANGE)
    known = put(5, name=KNOWN)
    assert claimed(old, 2) == known[:2]
    passed = old.run_pass(wanted=Wanted(1, prefetch=4, lease=GRACE), grace=GRACE)
    assert [claim.id for claim in passed.claims + passed.prefetched] == known[2:]
    assert len(old.run_pass(sync=10).claims) == 5, "one that does not ask takes everything"


def test_tasks_of_a_full_partition_that_nobody_here_knows_hide_nothing(old: Claimer) -> None:
    limit("default", partition_by_args=["tenant"], partition_max_concurrency=1)
    put(50, name=STRANGE, kwargs=['{"tenant": 1}'] * 50)
    first = put(1, name=KNOWN, kwargs=['{"tenant": 1}'])
    second = put(1, name=KNOWN, kwargs=['{"tenant": 2}'])
    assert claimed(old) == first + second


def test_leaving_tasks_out_reads_the_index_of_what_can_be_claimed_and_never_sorts(
    claimer: Claimers, connect: Connect
) -> None:
    for state in states(connect(), name=STRANGE):
        worker = knowing(claimer())
        put(name=KNOWN)
        notices = explained(worker)
        assert len(claimed(worker, 4)) == 1, state
        assert not [text for text in notices if re.search(r"Seq Scan on horsies_tasks\b", text)], state
        looking = [text.partition("plan:")[2] for text in notices if "horsies_worker_knows(" in text]
        looking = [plan for plan in looking if "horsies_tasks " in plan]
        assert looking, state
        for plan in looking:
            assert "horsies_tasks_claim" in plan, state
            assert not re.search(r"^ *(->)? *Sort\b", plan, re.MULTILINE), state
            assert "Filter: " in plan, state
            assert "horsies_worker_knows" not in plan.partition("Index Scan")[2], "it is part of the plan, not a call"


def test_a_worker_that_met_no_stranger_reads_no_more_than_the_tasks_it_takes(old: Claimer) -> None:
    put(2_000, name=STRANGE)
    assert entries(old, "horsies_tasks_claim", sync=2) < 20
