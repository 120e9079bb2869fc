"""Who is elected to be told of new tasks, and whom a worker without free slots wakes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.utils import timezone

from horsies_django.models import Heartbeat
from horsies_django.store.notify import channel_prefix
from horsies_django.store.tasks import TaskStore
from horsies_django.store.workers import Load, WorkerStore
from tests.conftest import Claimer, put
from tests.db.conftest import Connect
from tests.db.test_statements import explained, plans, states

pytestmark = pytest.mark.django_db(transaction=True)

FRESH = timedelta(seconds=10)
Teams = Callable[..., "Team"]


class Team:
    """Workers that beat by one connection, in the order of their ids, and hear what each of them alone is told."""

    def __init__(self, connection: psycopg.Connection[Any], count: int, **columns: Any) -> None:
        self.connection = connection
        self.store = WorkerStore(connection)
        self.prefix = channel_prefix(connection)
        self.ids = sorted(uuid.uuid4() for _ in range(count))
        columns = {"queues": ["default"], "task_names": ["a"], "processes": 1, "threads": 1, **columns}
        for id_ in self.ids:
            self.store.register(id_, hostname="here", pid=1, version="1", wire=1, async_concurrency=1, **columns)
            connection.execute(f'LISTEN "{self.prefix}_{id_}"')
        self.places()

    def beat(self, place: int, *, listens: bool = True) -> int | None:
        return self.store.beat(self.ids[place], [], Load(0, 0, 0.0, 0.0), FRESH, listens=listens).place

    def places(self) -> list[int | None]:
        """Let all of them beat, and return what each of them learns."""
        return [self.beat(place) for place in range(len(self.ids))]

    def pass_on(self, *queues: str, lane: str = "sync") -> int | None:
        """Let the first one wake others."""
        return TaskStore(self.connection).pass_on(self.ids[0], self.prefix, lane, queues or ("default",))

    def heard(self) -> dict[int, str]:
        """Return what was said to which of them."""
        self.connection.execute("NOTIFY nobody")
        return {
            self.ids.index(uuid.UUID(one.channel.removeprefix(self.prefix + "_"))): one.payload
            for one in self.connection.notifies(timeout=0)
        }

    def claim(self, place: int, count: int) -> None:
        claimer = Claimer(self.connection)
        claimer.id = self.ids[place]
        assert len(claimer.run_pass(sync=count).claims) == count


@pytest.fixture
def team(connect: Connect) -> Teams:
    return lambda count=5, **columns: Team(connect(), count, **columns)


@pytest.mark.parametrize("places", [[0], [0, 1], [0, 1, 2], [0, 1, None, 2], [0, 1, None, None, 2]])
def test_the_two_oldest_and_the_youngest_of_a_team_are_elected(team: Teams, places: list[int | None]) -> None:
    """Naive: the three oldest, which may have been started together on one machine, and die with it."""
    assert team(len(places)).places() == places


@pytest.mark.parametrize("other", [{"queues": ["default", "mail"]}, {"task_names": ["a", "b"]}])
def test_workers_that_can_run_other_tasks_elect_their_own(team: Teams, other: dict[str, Any]) -> None:
    ours, others = team(2), team(2, **other)
    assert ours.places() == others.places() == [0, 1]


def test_who_does_not_listen_is_not_elected_and_comes_back_to_its_place(team: Teams) -> None:
    ours = team(5)
    assert ours.beat(1, listens=False) is None
    assert [ours.beat(place) for place in (0, 2, 3, 4)] == [0, 1, None, 2]
    assert ours.places()[1:] == [1, None, None, 2]
    assert ours.beat(4, listens=False) is None
    assert ours.beat(3) == 2


@pytest.mark.parametrize(
    "columns", [{"died_at": timezone.now()}, {"sent_at": timezone.now() - FRESH}], ids=["dead", "silent"]
)
def test_who_was_declared_dead_or_sends_no_heartbeats_is_not_elected(team: Teams, columns: dict[str, Any]) -> None:
    ours = team(4)
    Heartbeat.objects.filter(pk=ours.ids[0]).update(**columns)
    assert [ours.beat(place) for place in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("count", "stops", "told"),
    [
        (5, 0, {1: "place 0", 2: "place 1"}),
        (5, 1, {2: "place 1"}),
        (5, 3, {}),
        (5, 4, {3: "place 2"}),
        (3, 0, {1: "place 0", 2: "place 1"}),
        (3, 2, {}),
        (2, 0, {1: "place 0"}),
    ],
)
def test_those_that_replace_an_elected_one_that_stops_are_told_at_once(
    team: Teams, count: int, stops: int, told: dict[int, str]
) -> None:
    ours = team(count)
    ours.store.stop(ours.ids[stops])
    assert ours.heard() == told
    left = [place for place in range(count) if place != stops]
    assert {place: f"place {ours.beat(place)}" for place in told} == told
    assert len([place for place in left if ours.beat(place) is not None]) == min(3, len(left))


def test_as_many_others_are_woken_as_tasks_wait(team: Teams) -> None:
    ours = team(5)
    put(2)
    assert ours.pass_on() == 2
    told = ours.heard()
    assert list(told.values()) == ["now sync default"] * 2
    assert 0 not in told
    put(9)
    assert ours.pass_on() == 4
    assert ours.heard().keys() == {1, 2, 3, 4}


def test_only_workers_with_a_free_slot_of_the_lane_are_woken(team: Teams) -> None:
    ours = team(4)
    put(4)
    put(lane="async")
    ours.claim(0, 1)
    ours.claim(2, 1)
    assert ours.pass_on() == 2
    assert ours.heard().keys() == {1, 3}
    ours.claim(1, 1)
    ours.claim(3, 1)
    put()
    assert ours.pass_on() == 0, "a task waits, and nobody has a slot for it"
    assert ours.pass_on(lane="async") == 1
    assert set(ours.heard().values()) == {"now async default"}


def test_who_wakes_others_counts_tasks_through_their_indexes(team: Teams, connect: Connect) -> None:
    for state in states(connect()):
        ours = team(3, task_names=[state])
        put(3)
        ours.claim(1, 1)
        notices = explained(Claimer(ours.connection))
        assert ours.pass_on() == 1, state
        counting = plans(notices, "horsies_tasks t")
        assert "using horsies_tasks_holding" in "\n".join(counting), state
        counting = [plan for plan in counting if "horsies_tasks_claim" in plan]
        assert len(counting) >= 2, "the first task, and those beside it"
        assert not any("Sort" in plan for plan in counting), state


def test_a_worker_with_more_slots_than_tasks_is_woken(team: Teams) -> None:
    ours = team(2, processes=2, threads=2)
    put(5)
    ours.claim(1, 3)
    assert ours.pass_on() == 1
    ours.claim(1, 1)
    assert ours.pass_on() == 0


def test_nobody_is_woken_if_nothing_waits_or_nobody_else_listens(team: Teams) -> None:
    ours = team(2)
    put(due_at=timezone.now() + timedelta(hours=1))
    put(queue="mail")
    assert ours.pass_on() is None
    put()
    ours.beat(1, listens=False)
    assert ours.pass_on() is None
    ours.beat(1)
    assert ours.pass_on() == 1


def test_a_task_behind_others_that_are_due_later_and_in_another_queue_is_seen(team: Teams) -> None:
    ours = team(2, queues=["default", "mail"])
    put(5, priority=1, due_at=timezone.now() + timedelta(hours=1))
    put(queue="mail", priority=7)
    assert ours.pass_on("default", "mail") == 1
    assert ours.heard() == {1: "now sync *"}
