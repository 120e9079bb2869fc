"""The drawings of the admin: the picture of a workflow run, and charts."""

from __future__ import annotations

import random
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies_django.admin.base.html import LEAST_BAR, LINE, bars
from horsies_django.admin.workflows import picture
from horsies_django.admin.workflows.geometry import (
    BOX_WIDTH,
    GAP,
    HEIGHT,
    WIDEST,
    Box,
    Edge,
    drawn,
    layered,
)

graphs = st.integers(1, 40).flatmap(
    lambda many: st.tuples(
        st.just(list(range(many))),
        st.lists(
            st.builds(
                Edge,
                st.integers(0, many - 1),
                st.integers(0, many - 1),
                st.sampled_from(["a", "b"]),
            ),
            max_size=90,
        ),
    )
)


def layer_of(numbers: list[int], edges: list[Edge]) -> dict[int, int]:
    return {item: layer for layer, row in enumerate(layered(numbers, edges).rows) for item in row}


def overlap(one: Box, other: Box) -> bool:
    return abs(one.x - other.x) < BOX_WIDTH and abs(one.y - other.y) < HEIGHT


def reached(numbers: list[int], edges: list[Edge]) -> set[Edge]:
    """Return the edges that the steps and the direct lines make up.

    From each node, steps are followed along the bends of one style.
    """
    graph = layered(numbers, edges)
    found = set(graph.direct)

    for start in numbers:
        ends = [(step.downstream, step.style) for step in graph.steps if step.upstream == start]
        while ends:
            item, style = ends.pop()
            if item >= 0:
                found.add(Edge(start, item, style))
            else:
                ends += [(step.downstream, style) for step in graph.steps if step.upstream == item]

    return found


@given(graphs)
def test_a_node_is_one_layer_below_its_lowest_upstream_node(
    graph: tuple[list[int], list[Edge]],
) -> None:
    numbers, edges = graph
    edges = [edge for edge in edges if edge.upstream < edge.downstream]
    layer = layer_of(numbers, edges)

    for number in numbers:
        above = [layer[edge.upstream] for edge in edges if edge.downstream == number]
        assert layer[number] == max(above, default=-1) + 1

    assert all(
        layer[step.downstream] - layer[step.upstream] == 1 for step in layered(numbers, edges).steps
    )
    assert reached(numbers, edges) == set(edges)


@given(graphs)
def test_no_boxes_overlap_and_all_are_on_the_picture(graph: tuple[list[int], list[Edge]]) -> None:
    found = drawn(*graph)
    boxes = found.boxes

    assert sorted(box.number for box in boxes) == graph[0]
    assert not [
        (one, other) for n, one in enumerate(boxes) for other in boxes[:n] if overlap(one, other)
    ]
    assert all(
        0 <= box.x <= found.width - BOX_WIDTH and 0 <= box.y <= found.height - HEIGHT
        for box in boxes
    )
    assert [(box.y, box.x) for box in boxes] == sorted((box.y, box.x) for box in boxes), (
        "they are in reading order"
    )

    curves = re.findall(r"M\d+ (\d+)C\d+ (-?\d+) \d+ \2 \d+ (\d+)", "".join(found.lines.values()))
    assert all(int(above) < int(middle) < int(below) for above, middle, below in curves)


@given(graphs, st.randoms(use_true_random=False))
def test_the_same_graph_is_drawn_in_the_same_way(
    graph: tuple[list[int], list[Edge]], chance: random.Random
) -> None:
    numbers, edges = graph

    assert drawn(numbers, edges) == drawn(numbers, edges)

    mixed = list(numbers)
    chance.shuffle(mixed)
    assert drawn(mixed, edges) == drawn(numbers, edges)


@given(graphs)
def test_edges_up_in_a_cycle_or_of_unknown_nodes_are_not_drawn(
    graph: tuple[list[int], list[Edge]],
) -> None:
    numbers, edges = graph
    edges = [*edges, Edge(0, 99), Edge(99, 0), Edge(0, 0)]
    layer = layer_of(numbers, edges)

    assert {item for item in layer if item >= 0} == set(numbers)

    found = reached(numbers, edges)
    assert found <= set(edges)
    assert all(layer[edge.upstream] < layer[edge.downstream] for edge in found)


def test_a_line_crosses_no_other_where_none_has_to() -> None:
    """The nodes of two chains were added in turns, in the opposite order in every second layer."""
    edges = [Edge(0, 3), Edge(1, 2), Edge(2, 5), Edge(3, 4), Edge(4, 7), Edge(5, 6)]
    rows = layered(range(8), edges).rows

    assert rows == [[0, 1], [3, 2], [4, 5], [7, 6]]


def test_a_long_edge_passes_beside_a_straight_chain() -> None:
    """A chain is straight, and a long edge passes beside it, with its own style."""
    found = drawn(
        range(4), [Edge(0, 1, "done"), Edge(1, 2, "done"), Edge(2, 3, "done"), Edge(0, 3, "undo")]
    )

    assert set(found.lines) == set(found.heads) == {"done", "undo"}
    (left,) = {box.x for box in found.boxes}
    lines = found.lines["done"] + found.lines["undo"]
    bends = {int(x) for x in re.findall(r"M(\d+) \d+V\d+", lines)} - {left + BOX_WIDTH // 2}

    assert bends
    assert all(not left <= x <= left + BOX_WIDTH for x in bends)


def test_the_lines_of_a_wide_layer_avoid_its_boxes() -> None:
    """A wide layer becomes a block, and no line crosses its boxes."""
    many = 3 * WIDEST
    found = drawn(
        range(many + 2),
        [edge for n in range(1, many + 1) for edge in (Edge(0, n), Edge(n, many + 1))],
    )

    block = [box for box in found.boxes if 0 < box.number <= many]
    assert len({box.x for box in block}) == WIDEST
    assert len({box.y for box in block}) == 3

    upright = [tuple(map(int, part)) for part in re.findall(r"M(\d+) (\d+)V(\d+)", found.lines[""])]
    upright += [
        (int(x), int(y0), int(y1))
        for x, y0, y1 in re.findall(r"Q\d+ \d+ (\d+) (\d+)V(\d+)", found.lines[""])
    ]

    assert len(upright) > WIDEST
    assert not [
        (line, box)
        for line in upright
        for box in block
        if box.x <= line[0] <= box.x + BOX_WIDTH and line[1] < box.y + HEIGHT and line[2] > box.y
    ]
    assert found.width < (WIDEST + 1) * (BOX_WIDTH + GAP)


def test_many_nodes_with_long_edges_have_few_bends() -> None:
    """Fails if: the work and the width grow with nodes times layers; here the longest path has 299
    layers.
    """
    chance = random.Random(7)
    edges = [Edge(n, n + 1) for n in range(299)] + [
        Edge(*sorted(chance.sample(range(300), 2))) for _ in range(600)
    ]

    graph = layered(range(300), edges)

    assert sum(item < 0 for row in graph.rows for item in row) <= 4 * 300
    assert graph.direct
    assert len(drawn(range(300), edges).boxes) == 300


@given(st.text(max_size=80), st.integers(300, 2_000))
def test_a_name_is_cut_into_at_most_two_lines_that_fit(name: str, most: int) -> None:
    found = picture.lines(name, most)

    assert 1 <= len(found) <= 2
    assert all(picture.text_width(line) <= most for line in found)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("charge", ["charge"]),
        ("fetch the book with a rather long name", ["fetch the book with", "a rather long name"]),
        ("documents.tasks.import_file", ["documents.tasks.", "import_file"]),
        ("a" * 60, ["aaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaa…"]),
        ("書籍" * 20, ["書籍書籍書籍書籍書籍", "書籍書籍書籍書籍書…"]),
        ("", [""]),
    ],
)
def test_a_name_breaks_between_its_parts(name: str, expected: list[str]) -> None:
    assert picture.lines(name, 1_050) == expected


SVG = "{http://www.w3.org/2000/svg}"
BAR = re.compile(r"M(\S+) (\S+)v-(\S+)h(\S+)v\3z")
Rect = tuple[float, float, float, float]


def bars_of(text: str) -> dict[str, list[Rect]]:
    """Return the bars of a chart by their kind: x, bottom, height, width."""
    svg = ElementTree.fromstring(text)
    assert svg.get("role") == "img"
    paths = {
        path.get("class", "").rpartition("-")[2]: path.get("d", "") for path in svg.iter("path")
    }

    found: dict[str, list[Rect]] = {}
    for kind in ("done", "failed"):
        assert not BAR.sub("", paths[kind])
        found[kind] = [
            (float(x), float(y), float(high), float(wide))
            for x, y, high, wide in BAR.findall(paths[kind])
        ]

    return found


def title(text: str) -> str:
    return ElementTree.fromstring(text).findtext("title") or ""


def test_the_title_of_a_chart_contains_its_figures() -> None:
    assert title(bars([(2, 1), (1_200, 34), (7, 0)], "Tasks of mail")) == (
        "Tasks of mail: least 3, most 1,234, last 7; total failed: 35"
    )
    assert title(bars([], "Tasks")) == "Tasks: least 0, most 0, last 0; total failed: 0"


def test_bars_are_as_high_as_their_figures() -> None:
    """Bars are as high as their figures; failed tasks stand on the completed ones.

    A bar of failed tasks is never too small to see.
    """
    found = bars_of(bars([(10, 0), (5, 5), (0, 10), (2, 0)], "Tasks", width=40, height=20))

    assert [(x, high) for x, _, high, _ in found["done"]] == [(0, 20), (10, 10), (30, 4)]
    assert [(x, bottom, high) for x, bottom, high, _ in found["failed"]] == [
        (10, 10, 10),
        (20, 20, 20),
    ]

    found = bars_of(bars([(10**6, 1)], "Tasks", width=40, height=20))
    ((_, bottom, high, _),) = found["failed"]

    assert (high, bottom - high >= -0.1) == (LEAST_BAR, True)
    assert found["done"][0][2] == pytest.approx(20 - bottom, abs=0.11)


def test_texts_of_a_graph_with_marks_are_escaped() -> None:
    """A chart with marks has room for their texts, which are escaped."""
    text = bars([(10, 0), (5_000, 0)], "<b>", width=600, height=160, marks=["<i>", "12:00", "now"])
    (_, (_, bottom, high, _)) = bars_of(text)["done"]

    assert (bottom, high) == (160 - LINE, 160 - 2 * LINE)

    texts = [
        (one.get("x"), one.get("text-anchor"), one.text)
        for one in ElementTree.fromstring(text).iter("text")
    ]

    assert texts == [
        ("0", "start", "5,000"),
        ("0", "start", "<i>"),
        ("300", "middle", "12:00"),
        ("600", "end", "now"),
    ]
    assert title(text).startswith("<b>: ")
