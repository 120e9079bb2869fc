"""Data that other code may have written: options and metadata of tasks, and payloads of
notifications.

Reading them raises nothing.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from horsies_django.core.codec import CodecError
from horsies_django.core.metadata import (
    MOST_BYTES,
    MOST_METADATA_BRACKETS,
    encode_metadata,
    read_metadata,
    with_metadata,
    without_metadata,
)
from horsies_django.core.notifications import (
    LATEST,
    Notification,
    Stalled,
    read_ids,
    read_notification,
)
from horsies_django.core.options import (
    LONGEST_TIMEOUT_MS,
    NAMED_WIRE,
    WIRE,
    TaskOptions,
    options_text,
    read_options,
)
from horsies_django.core.retry import RetryPolicy
from tests.support.payloads import HOSTILE, payloads
from tests.unit.shapes import PLAIN, TEXT


def test_only_unsupported_options_are_sent_in_the_new_format() -> None:
    """Options that are sent can be read.

    Only options that the previous release cannot read have the new format.

    Fails if: all tasks have the new version, so that workers of the previous release leave each of
    them to others.
    """
    assert (NAMED_WIRE, WIRE) == (1, 2)
    assert read_options(options_text(RetryPolicy.fixed([1] * 100), 500)) == TaskOptions(
        NAMED_WIRE, 500
    )

    assert options_text(None, None) is None
    assert read_options(None) == TaskOptions()

    assert read_options(options_text(None, 500, plain=True)) == TaskOptions(WIRE, 500)
    assert json.loads(options_text(None, None, plain=True) or "") == {"wire": 2}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "5",
        "null",
        '"x"',
        '{"wire": "x"}',
        '{"wire": null}',
        '{"wire": true}',
        '{"timeout_ms": "abc"}',
    ]
    + [
        '{"timeout_ms": 0}',
        '{"timeout_ms": 1.5}',
        '{"timeout_ms": true}',
        '{"timeout_ms": 1e400}',
        '{"wire": ' + "-" * 9,
    ]
    + [f'{{"timeout_ms": {LONGEST_TIMEOUT_MS + 1}}}', '{"timeout_ms": %s}' % ("9" * 5_000)]
    + [
        '{{"x": {}{}}}'.format("[" * 3_000, "]" * 3_000),
        '{{"x": {}{}}}'.format('{"a": ' * 3_000 + "1", "}" * 3_000),
    ],
)
def test_reading_unreadable_options_returns_a_problem(text: str) -> None:
    found = read_options(text)

    assert found.problem
    assert found.timeout_ms is None


@pytest.mark.parametrize(
    "text", ['{"wire": 3, "timeout_ms": "a new form"}', '{"wire": 1e400}', '{"wire": 2.5}']
)
def test_the_options_of_a_newer_release_are_no_problem_but_newer(text: str) -> None:
    found = read_options(text)
    assert (found.wire > WIRE, found.problem, found.timeout_ms) == (True, None, None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["wire", "timeout_ms", "retry", "x"]), inner)
    ),
)


@given(
    st.text()
    | json_values.map(json.dumps)
    | PLAIN.map(lambda value: json.dumps({"metadata": value}))
)
def test_reading_options_from_any_text_raises_nothing(text: str) -> None:
    found = read_options(text)
    metadata = read_metadata(text)

    assert found.timeout_ms is None or 1 <= found.timeout_ms <= LONGEST_TIMEOUT_MS
    assert metadata == {} or metadata == json.loads(text)["metadata"]


OPTIONS = [None, options_text(None, 500), options_text(RetryPolicy.fixed([1, 2]), 500)]


@given(st.dictionaries(TEXT, PLAIN, max_size=4), st.sampled_from(OPTIONS))
def test_what_is_sent_is_read_beside_the_other_options(
    metadata: dict[str, Any], options: str | None
) -> None:
    """Fails if: metadata with the text "[{" in it, or with the key "wire", spoils the options."""
    text = with_metadata(options, encode_metadata(metadata))

    assert read_metadata(text) == metadata
    assert read_options(text) == read_options(options)
    assert without_metadata(text) == options


@pytest.mark.parametrize("options", OPTIONS)
def test_options_with_the_most_allowed_brackets_are_readable(options: str | None) -> None:
    """Options stay readable with the most brackets that may be sent.

    Fails if: a text has 500 brackets, and the task fails in the worker instead of at the send.
    """
    text = encode_metadata({"text": "[" * (MOST_METADATA_BRACKETS - 1)})

    assert read_options(with_metadata(options, text)).problem is None

    with pytest.raises(CodecError, match="more than 400 opening brackets"):
        encode_metadata({"text": "[" * MOST_METADATA_BRACKETS})


def test_the_size_counts_in_bytes_of_its_json() -> None:
    room = MOST_BYTES - len('{"x":""}')

    assert len(encode_metadata({"x": "a" * room})) == MOST_BYTES
    assert encode_metadata({"x": "ü" * (room // 2)})

    for text in ("a" * (room + 1), "ü" * (room // 2 + 1)):
        with pytest.raises(
            CodecError,
            match="it has 4,09[78] bytes of JSON, and at most 4,096 are allowed",
        ):
            encode_metadata({"x": text})


def test_metadata_cannot_be_changed_where_it_is_read() -> None:
    found = read_metadata('{"metadata": {"a": 1}}')

    with pytest.raises(TypeError):
        found["a"] = 2  # type: ignore[index]


def test_a_release_without_metadata_reads_the_other_options() -> None:
    """Fails if: metadata have a format version of their own, so that workers of the previous
    release leave such tasks alone during a deployment.
    """
    assert read_options(with_metadata(None, '{"a":1}')) == TaskOptions()
    assert json.loads(with_metadata(None, '{"a":1}') or "") == {"metadata": {"a": 1}}


WORKER = str(uuid.UUID(int=7))


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ("1763748000.500000 mail", Notification("mail", 1763748000.5)),
        ("1763748000.5!sync mail", Notification("sync mail", 1763748000.5)),
        ("1763748000!async mail", Notification("async mail", 1763748000.0)),
        ("1763748000.5 behind mail", Notification("behind mail", 1763748000.5)),
        ("0 *", Notification("*")),
        ("0 kuyruğu-1", Notification("kuyruğu-1")),
        ("cancel", Notification("cancel")),
        ("now sync mail", Notification("now sync mail")),
        ("place 2", Notification("place 2")),
        (f"advance {WORKER}", Notification("advance", run=uuid.UUID(WORKER))),
        (
            f"stalled soon {WORKER}",
            Notification("stalled", stalled=Stalled(uuid.UUID(WORKER), False)),
        ),
        (
            f"stalled now {WORKER}",
            Notification("stalled", stalled=Stalled(uuid.UUID(WORKER), True)),
        ),
        ("-62135596800.000000 mail", Notification("mail", 0.0)),
        ("-Infinity mail", Notification("mail", 0.0)),
        ("999999999999.5 mail", Notification("mail", LATEST)),
        ("Infinity mail", Notification("mail", LATEST)),
    ],
)
def test_payloads_of_our_own_functions_are_parsed(payload: str, told: Notification) -> None:
    """Payloads of our own functions are parsed, with a moment that a mark can hold."""
    assert read_notification(payload) == told


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_reading_a_foreign_payload_returns_nothing(payload: str) -> None:
    assert read_notification(payload) is None
    assert read_ids(payload) == []


@settings(max_examples=1_000, deadline=None)
@given(payloads)
@example("²")
def test_reading_any_payload_raises_nothing(
    payload: str,
) -> None:
    """Reading any payload raises nothing, and gives a moment that a mark can hold."""
    told = read_notification(payload)

    if told is not None:
        assert 0.0 <= told.since <= LATEST
        assert 0 < len(told.word) <= 110

    assert all(isinstance(id_, uuid.UUID) for id_ in read_ids(payload))
