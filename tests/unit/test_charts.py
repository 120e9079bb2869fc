"""Charts: what their bars and texts say, for any figures."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies_django.admin.base.html import LEAST, LINE, bars

SVG = "{http://www.w3.org/2000/svg}"
BAR = re.compile(r"M(\S+) (\S+)v-(\S+)h(\S+)v\3z")
Rect = tuple[float, float, float, float]
pairs = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=70)


def drawn(text: str) -> dict[str, list[Rect]]:
    """Return the bars of a chart by their kind: x, bottom, height, width."""
    svg = ElementTree.fromstring(text)
    assert svg.get("role") == "img"
    paths = {path.get("class", "").rpartition("-")[2]: path.get("d", "") for path in svg.iter("path")}
    found: dict[str, list[Rect]] = {}
    for kind in ("done", "failed"):
        assert not BAR.sub("", paths[kind])
        found[kind] = [(float(x), float(y), float(high), float(wide)) for x, y, high, wide in BAR.findall(paths[kind])]
    return found


def title(text: str) -> str:
    return ElementTree.fromstring(text).findtext("title") or ""


def test_a_chart_says_its_figures() -> None:
    assert title(bars([(2, 1), (1_200, 34), (7, 0)], "Tasks of mail")) == (
        "Tasks of mail: least 3, most 1,234, last 7; failed in all: 35"
    )
    assert title(bars([], "Tasks")) == "Tasks: least 0, most 0, last 0; failed in all: 0"


@given(pairs)
def test_each_figure_has_a_bar_and_what_failed_stands_on_what_completed(given_: list[tuple[int, int]]) -> None:
    found = drawn(bars(given_, "Tasks", width=120, height=24))
    assert len(found["failed"]) == sum(1 for _, bad in given_ if bad), (
        "a failure is seen beside however much that completed"
    )
    for x, bottom, high, wide in found["done"] + found["failed"]:
        assert -0.1 <= bottom - high <= bottom <= 24
        assert x + wide <= 120.1
    assert min((high for *_, high, _ in found["failed"]), default=LEAST) >= LEAST
    tops = {x: bottom - high for x, bottom, high, _ in found["done"]}
    for x, bottom, _, _ in found["failed"]:
        assert bottom == pytest.approx(tops.get(x, 24), abs=0.11)


def test_bars_are_as_high_as_their_figures() -> None:
    found = drawn(bars([(10, 0), (5, 5), (0, 10), (2, 0)], "Tasks", width=40, height=20))
    assert [(x, high) for x, _, high, _ in found["done"]] == [(0, 20), (10, 10), (30, 4)]
    assert [(x, bottom, high) for x, bottom, high, _ in found["failed"]] == [(10, 10, 10), (20, 20, 20)]


def test_a_graph_with_marks_has_room_for_the_texts_which_are_escaped() -> None:
    text = bars([(10, 0), (5_000, 0)], "<b>", width=600, height=160, marks=["<i>", "12:00", "now"])
    (_, (_, bottom, high, _)) = drawn(text)["done"]
    assert (bottom, high) == (160 - LINE, 160 - 2 * LINE)
    texts = [(one.get("x"), one.get("text-anchor"), one.text) for one in ElementTree.fromstring(text).iter("text")]
    assert texts == [("0", "start", "5,000"), ("0", "start", "<i>"), ("300", "middle", "12:00"), ("600", "end", "now")]
    assert title(text).startswith("<b>: ")
