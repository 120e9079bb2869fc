"""The pass and a model of partitions with a policy agree, after each of many random events in the lives of a few keys."""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection

from horsies_django.core.records import Claim
from horsies_django.models import Task
from tests.conftest import Claimer, limit, put
from tests.db.conftest import Claimers, sweep
from tests.db.test_order import cancel, claim, insert, retry, skip
from tests.db.test_pass import done, failed
from tests.support.factories import now
from tests.support.sizes import examples

HOUR = dt.timedelta(hours=1)
KEYS = "abc"


@dataclass
class Life:
    """A task as the model sees it. ``at`` is when it was sent, as the table says."""

    id: uuid.UUID
    key: str
    lane: str
    at: dt.datetime
    status: str = "PENDING"
    begun: bool = False
    due: bool = True
    stops: str = ""
    into: uuid.UUID | None = None

    @property
    def finished(self) -> bool:
        return self.status not in ("PENDING", "RUNNING")


class World:
    """Random events, each told to the database and to the model."""

    def __init__(self, worker: Claimer, seed: int, coalesce: bool) -> None:
        self.worker = worker
        self.random = random.Random(seed)
        self.policy = "coalesce" if coalesce else "stop"
        self.lives: dict[uuid.UUID, Life] = {}
        self.claims: dict[uuid.UUID, Claim] = {}
        self.declare()

    def declare(self) -> None:
        if self.policy == "coalesce":
            limit("default", partition_policy=self.policy, partition_by_args=[], partition_by_task=True)
        else:
            limit("default", partition_policy=self.policy, partition_by_args=["customer_id"])

    def some(self, *statuses: str) -> Life | None:
        found = [life for life in self.lives.values() if life.status in statuses]
        return self.random.choice(found) if found else None

    def order(self, key: str) -> list[Life]:
        """Return who has a place in the order of a key, the first one first."""
        there = [life for life in self.lives.values() if life.key == key and (not life.finished or life.stops)]
        return sorted(there, key=lambda life: (not life.begun, life.at, life.id))

    def send(self) -> None:
        key, lane = self.random.choice(KEYS), self.random.choice(["sync", "async"])
        back = dt.timedelta(seconds=self.random.choice([0, 0, 600]))  # a clock that was set back
        id_, kwargs = uuid.UUID(int=self.random.getrandbits(128)), json.dumps({"customer_id": key})
        if self.random.random() < 0.2:  # by a client that knows no rule
            id_ = insert(connection.cursor(), kwargs, lane)
            Task.objects.filter(pk=id_).update(max_retries=2)
        else:
            put(kwargs=[kwargs], lane=lane, max_retries=2, now=now() - back, ids=[id_])
        at = Task.objects.get(pk=id_).sent_at
        assert self.policy == "coalesce" or all(other.at < at for other in self.order(key))
        self.lives[id_] = Life(id_, key, lane, at)

    def settle(self) -> dict[str, Any]:
        """Return what the next pass has to write about some that run, and tell the model."""
        outcomes, releases = [], []
        for life in [one for one in self.lives.values() if one.status == "RUNNING" and self.random.random() < 0.6]:
            one = self.claims[life.id]
            how = self.random.choice(["done", "done", "failed", "retry", "retry now", "release"])
            life.status = {"done": "COMPLETED", "failed": "FAILED"}.get(how, "PENDING")
            if how.startswith("retry") and Task.objects.get(pk=life.id).retry_count >= 2:
                how, life.status = "failed", "FAILED"
            life.due = how != "retry"
            if how == "release":
                releases.append(one)
                self.reopened.append(life)
            elif how == "done":
                outcomes.append(done(one))
            elif how == "failed":
                outcomes.append(failed(one))
                life.stops = self.policy if self.policy in ("stop", "cancel") else ""
            else:
                outcomes.append(failed(one, retry=3_600 if how == "retry" else 0))
        return {"outcomes": outcomes, "releases": releases}

    def cancel_behind(self, key: str) -> list[Life]:
        """Cancel those behind a failed task that has come to be the first one; return the order that is left."""
        order = self.order(key)
        while order and order[0].stops == "cancel":
            ended = Task.objects.get(pk=order[0].id).finished_at
            for other in order[1:]:
                if not other.finished and (order[0].at, order[0].id) < (other.at, other.id) and other.at <= ended:
                    other.status = "CANCELLED"
            order[0].stops = ""
            order = self.order(key)
        return order

    def run_pass(self) -> None:
        self.reopened: list[Life] = []
        owed = self.settle()
        slots = self.random.choice([{"sync": 99, "async": 99}, {"sync": 99, "async": 99}, {"sync": 99}, {"async": 99}])
        claims = claim(self.worker, slots.get("sync", 0), slots.get("async", 0), **owed)
        for survivor in self.reopened:
            self.take_reopened(survivor)
        for life in self.lives.values():  # a clock that was set back makes none wait
            life.due = life.due or Task.objects.filter(pk=life.id, enqueued_at__lte=now()).exists()
        expected: set[uuid.UUID] = set()
        for key in KEYS:
            expected |= self.start(key, {one.id for one in claims}, slots)
        assert {one.id for one in claims} == expected
        self.claims |= {one.id: one for one in claims}

    def take_reopened(self, survivor: Life) -> None:
        """Which of those that were merged into a released one is reopened is open: take it from the database."""
        folded = [life for life in self.lives.values() if life.into == survivor.id]
        into = set(Task.objects.filter(pk__in=[life.id for life in folded]).values_list("merged_into", flat=True))
        again = [life for life in folded if life.id in into or len(folded) == 1]
        assert len(again) == bool(folded)
        for life in folded:
            life.into = None if life in again else again[0].id
            if life in again:
                life.status = "PENDING"

    def start(self, key: str, claimed: set[uuid.UUID], lanes: Container[str]) -> set[uuid.UUID]:
        """Let the model start what may start of a key in lanes with slots; return its id."""
        order = self.cancel_behind(key)
        if not order or any(life.status == "RUNNING" for life in order):
            return set()
        head = order[0]
        if self.policy == "coalesce" and not head.begun:
            due = [life for life in order if life.due and life.lane in lanes]
            head = next((life for life in due if life.id in claimed), due[0]) if due else head
        if head.stops or not head.due or head.lane not in lanes:
            return set()
        head.status, head.begun = "RUNNING", True
        for other in order if self.policy == "coalesce" else ():
            if other is not head and other.due:
                other.status, other.into = "CANCELLED", head.id
        return {head.id}

    def cancel(self) -> None:
        if life := self.some("PENDING"):
            cancel(life.id)
            life.status = "CANCELLED"
            self.cancel_behind(life.key)

    def retry(self) -> None:
        life = self.some("FAILED", "CANCELLED")
        if life is not None and life.into is None:
            assert retry(life.id) == "RETRIED"
            life.status, life.stops, life.due = "PENDING", "", True

    def skip(self) -> None:
        key = self.random.choice(KEYS)
        if self.policy != "coalesce":
            stopped = next((life for life in self.order(key)[:1] if life.stops), None)
            assert skip(key) == (stopped and stopped.id)
            if stopped:
                stopped.stops = ""
                self.cancel_behind(key)

    def hasten(self) -> None:
        if (life := self.some("PENDING")) and not life.due:
            Task.objects.filter(pk=life.id).update(enqueued_at=now() - HOUR, parked=False)
            life.due = True

    def change(self) -> None:
        if self.policy != "coalesce":
            self.policy = self.random.choice(["stop", "continue", "cancel"])
            self.declare()
            sweep()

    def compare(self) -> None:
        rows = {row.pk: row for row in Task.objects.all()}
        assert {id_: row.status for id_, row in rows.items()} == {id_: life.status for id_, life in self.lives.items()}
        assert {row.pk: row.merged_into for row in rows.values()} == {
            life.id: life.into for life in self.lives.values()
        }
        stops = {row.pk: row.order_stop for row in rows.values() if row.order_stop}
        assert stops == {life.id: life.stops for life in self.lives.values() if life.stops}


@pytest.mark.thorough
@pytest.mark.promise("S4.24")
@pytest.mark.parametrize("coalesce", [False, True])
@pytest.mark.parametrize("seed", range(examples(12, 400)))
def test_what_starts_merges_stops_and_is_cancelled_is_as_the_model_says(
    claimer: Claimers, seed: int, coalesce: bool
) -> None:
    world = World(claimer(), seed, coalesce)
    events = [world.send] * 3 + [world.run_pass] * 2
    events += [world.cancel, world.retry, world.skip, world.hasten, world.change]
    for _ in range(60):
        world.random.choice(events)()
        world.compare()
    for _ in range(300):  # whatever stands still is let go, and everything ends
        if all(life.finished for life in world.lives.values()):
            break
        world.hasten()
        world.skip()
        world.run_pass()
        world.compare()
    assert not Task.objects.filter(finished_at__isnull=True).exists()
