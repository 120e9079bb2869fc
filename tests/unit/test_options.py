"""What a task brings along, read by a worker: whatever the text says, reading it raises nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies_django.core.options import LONGEST_TIMEOUT_MS, NAMED_WIRE, WIRE, TaskOptions, options_text, read_options
from horsies_django.core.retry import RetryPolicy


def test_what_the_sender_writes_is_read() -> None:
    assert read_options(options_text(RetryPolicy.fixed([1] * 100), 500)) == TaskOptions(NAMED_WIRE, 500)
    assert read_options(options_text(None, None)) == TaskOptions()
    assert read_options(options_text(None, 500, plain=True)) == TaskOptions(WIRE, 500)


def test_only_what_the_release_before_cannot_read_is_sent_in_the_new_format() -> None:
    """Naive: all tasks carry the new version, so that workers of the release before leave each of them to others."""
    assert options_text(None, None) is None
    assert [json.loads(options_text(None, 5, plain=plain) or "")["wire"] for plain in (False, True)] == [1, 2]
    assert json.loads(options_text(None, None, plain=True) or "") == {"wire": 2}


@pytest.mark.parametrize(
    "text",
    ["[]", "5", "null", '"x"', '{"wire": "x"}', '{"wire": null}', '{"wire": true}', '{"timeout_ms": "abc"}']
    + ['{"timeout_ms": 0}', '{"timeout_ms": 1.5}', '{"timeout_ms": true}', '{"timeout_ms": 1e400}', '{"wire": ' + "-" * 9]
    + [f'{{"timeout_ms": {LONGEST_TIMEOUT_MS + 1}}}', '{"timeout_ms": %s}' % ("9" * 5_000)]
    + ['{{"x": {}{}}}'.format("[" * 3_000, "]" * 3_000), '{{"x": {}{}}}'.format('{"a": ' * 3_000 + "1", "}" * 3_000)],
)  # fmt: skip
def test_options_that_cannot_be_read_are_told_as_a_problem(text: str) -> None:
    found = read_options(text)
    assert found.problem
    assert found.timeout_ms is None


@pytest.mark.parametrize("text", ['{"wire": 3, "timeout_ms": "a new form"}', '{"wire": 1e400}', '{"wire": 2.5}'])
def test_the_options_of_a_newer_release_are_no_problem_but_newer(text: str) -> None:
    found = read_options(text)
    assert (found.wire > WIRE, found.problem, found.timeout_ms) == (True, None, None)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["wire", "timeout_ms", "retry", "x"]), inner),
)


@given(values.map(json.dumps) | st.text())
def test_reading_raises_nothing_whatever_the_text_says(text: str) -> None:
    found = read_options(text)
    assert found.timeout_ms is None or 1 <= found.timeout_ms <= LONGEST_TIMEOUT_MS
