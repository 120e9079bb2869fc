"""Which commits wait for the disk: with ``durable`` False those of claims and starts do not, and all others do.

A trigger that is deferred to the commit of each pass that changes a task notes the setting that the commit then reads.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

from horsies_django.core.options import options_text
from horsies_django.core.records import Claim, Wanted
from horsies_django.core.retry import RetryPolicy
from horsies_django.models import Task
from tests.conftest import Claimer, limit, put
from tests.db.conftest import Claimers, Connect
from tests.db.test_pass import aware, done

pytestmark = pytest.mark.django_db(transaction=True)

LEASE = dt.timedelta(minutes=5)
NOTE = (
    """
    CREATE FUNCTION notes_the_commit() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE NOTICE '%', current_setting('synchronous_commit'); RETURN NULL; END $$
    """,
    """
    CREATE CONSTRAINT TRIGGER notes_the_commit AFTER UPDATE ON horsies_tasks DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION notes_the_commit()
    """,
)


class Noted:
    """A worker that does not want durable claims, and how its transactions committed: "on" or "off"."""

    def __init__(self, claimer: Claimer) -> None:
        self.claimer = claimer
        self.commits: list[str] = []
        claimer.conn.execute("SET synchronous_commit = on")
        claimer.conn.add_notice_handler(lambda notice: self.commits.append(notice.message_primary or ""))

    def taken(self) -> list[str]:
        """Return how the transactions since the last call committed."""
        found, self.commits[:] = [*self.commits], []
        return found

    def claim(self, durable: bool = False, **owed: Any) -> Claim:
        (claim,) = self.claimer.run_pass(wanted=Wanted(1, durable=durable), **owed).claims
        return claim

    def ahead(self) -> Claim:
        (claim,) = self.claimer.run_pass(wanted=Wanted(prefetch=1, lease=LEASE, durable=False)).prefetched
        return claim

    def run_pass(self, **owed: Any) -> Any:
        """Run a whole pass that claims nothing."""
        return self.claimer.run_pass(wanted=Wanted(durable=False), **owed)

    def short_pass(self, *outcomes: Any, durable: bool = False) -> Any:
        passed = self.claimer.run_pass(wanted=Wanted(1, durable=durable), news="default", outcomes=list(outcomes))
        assert passed.short
        return passed


@pytest.fixture
def noted(claimer: Claimers, connect: Connect) -> Iterator[Noted]:
    other = connect()
    for statement in NOTE:
        other.execute(statement)
    yield Noted(claimer())
    other.execute("DROP FUNCTION notes_the_commit CASCADE")


def test_claims_and_starts_do_not_wait_for_the_disk_unless_they_are_asked_to(noted: Noted) -> None:
    put(5)
    noted.claim()
    noted.run_pass(starts=[noted.ahead()])
    noted.short_pass()
    assert noted.taken() == ["off"] * 4
    noted.claim(durable=True)
    noted.short_pass(durable=True)
    assert noted.taken() == ["on"] * 2
    assert noted.claimer.conn.execute("SHOW synchronous_commit").fetchone() == ("on",), "the session's is as before"


def test_a_claim_under_limits_and_what_it_parks_do_not_wait_either(noted: Noted) -> None:
    limit("default", max_concurrency=2, partition_by_args=["a"], partition_max_concurrency=1)
    put(2, kwargs=['{"a": 1}'] * 2)
    (claim,) = noted.claimer.run_pass(wanted=Wanted(2, durable=False)).claims
    assert Task.objects.filter(parked=True).exclude(pk=claim.id).count() == 1
    assert noted.taken() == ["off"] * 2


@pytest.mark.parametrize("way", ["whole", "short"])
def test_what_settles_waits_and_with_it_what_is_claimed_beside(noted: Noted, way: str) -> None:
    put(2)
    outcome = done(noted.claim())
    noted.claim(outcomes=[outcome]) if way == "whole" else noted.short_pass(outcome)
    assert noted.taken() == ["off", "on", "on"]


def test_a_retry_and_a_release_wait(noted: Noted) -> None:
    put(max_retries=1, options=options_text(RetryPolicy.fixed([60], auto_retry_for=["OH_NO"]), None))
    noted.run_pass(outcomes=[done(noted.claim(), "FAILED", error_code="OH_NO", error_message="it broke")])
    assert Task.objects.get().status == "PENDING"
    put()
    noted.run_pass(releases=[noted.claim()])
    assert noted.taken() == ["off", "on"] * 2


def test_what_expires_or_goes_back_on_the_way_waits(noted: Noted) -> None:
    put(good_until=aware(seconds=-1))
    put()
    noted.claim()
    assert noted.taken() == ["on"] * 2
    put()
    claim = noted.ahead()
    Task.objects.filter(pk=claim.id).update(good_until=aware(seconds=-1))
    assert noted.run_pass(starts=[claim]).expired == [claim.id]
    assert noted.taken() == ["off", "on"]
    put()
    claim = noted.ahead()
    limit("default", max_concurrency=0)
    assert noted.run_pass(starts=[claim]).returned == [claim.id], "for want of a permit"
    assert noted.taken() == ["off", "on"]
    limit("default", max_concurrency=None)
    noted.ahead()
    Task.objects.filter(pk=claim.id).update(claim_expires_at=aware(seconds=-1))
    noted.claim(expired_leases=True)
    assert noted.taken() == ["off", "on", "on"]
