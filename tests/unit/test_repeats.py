"""Log lines that would repeat."""

from __future__ import annotations

from horsies_django.core.repeats import Repeats


def test_a_line_is_said_once_a_minute_for_each_kind_with_how_many_were_left_out() -> None:
    repeats = Repeats()
    said = [repeats.due("refused", now) for now in (5.0, 5.0, 64.9, 65.0, 66.0, 200.0)]
    assert said == [
        "",
        None,
        None,
        " (and 2 more since the last such line)",
        None,
        " (and 1 more since the last such line)",
    ]
    assert repeats.due("other", 66.0) == ""
