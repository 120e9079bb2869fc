"""What payloads mean, and that none of them can do harm: any role of the database may send any."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from horsies_django.core.notifications import LATEST, Told, read_ids, read_told
from tests.support.payloads import HOSTILE, payloads

WORKER = str(uuid.UUID(int=7))


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ("1763748000.500000 mail", Told("mail", 1763748000.5)),
        ("1763748000.5!sync mail", Told("sync mail", 1763748000.5)),
        ("1763748000!async mail", Told("async mail", 1763748000.0)),
        ("1763748000.5 behind mail", Told("behind mail", 1763748000.5)),
        ("0 *", Told("*")),
        ("0 kuyruğu-1", Told("kuyruğu-1")),
        ("cancel", Told("cancel")),
        ("now sync mail", Told("now sync mail")),
        ("place 2", Told("place 2")),
        (f"advance {WORKER}", Told("advance", run=uuid.UUID(WORKER))),
    ],
)
def test_what_our_own_functions_send_is_understood(payload: str, told: Told) -> None:
    assert read_told(payload) == told


@pytest.mark.parametrize(
    ("payload", "since"),
    [
        ("-62135596800.000000 mail", 0.0),
        ("-Infinity mail", 0.0),
        ("999999999999.5 mail", LATEST),
        ("Infinity mail", LATEST),
    ],
)
def test_a_moment_that_no_mark_can_hold_is_brought_into_range(payload: str, since: float) -> None:
    assert read_told(payload) == Told("mail", since)


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_a_payload_that_is_not_ours_says_nothing(payload: str) -> None:
    assert read_told(payload) is None
    assert read_ids(payload) == []


@settings(max_examples=1_000, deadline=None)
@given(payloads)
@example("²")
def test_whatever_a_payload_says_reading_it_raises_nothing_and_gives_what_a_mark_can_hold(payload: str) -> None:
    told = read_told(payload)
    if told is not None:
        assert 0.0 <= told.since <= LATEST
        assert 0 < len(told.word) <= 110
    assert all(isinstance(id_, uuid.UUID) for id_ in read_ids(payload))


@given(st.lists(st.uuids(), min_size=1, max_size=200))
def test_ids_are_read_as_they_were_sent(ids: list[uuid.UUID]) -> None:
    assert read_ids(" ".join(map(str, ids))) == ids
