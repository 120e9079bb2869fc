"""The layout of the picture of a run: positions of nodes and lines of edges.

This is pure code. The unit is a CSS pixel.

The nodes are put into layers, each of them below its upstream nodes, in an order with few
crossings. The method is that of Sugiyama. The layer of a node is the length of the longest path to
it. An edge that passes layers gets a bend in each of them. Nodes are moved towards their
neighbours, layer by layer. Edges from one node share their bends. A layer with many nodes is a
block of several rows. Lines reach its nodes through the gaps between the columns.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from statistics import fmean
from typing import NamedTuple

MOST_BENDS = 4  # per node; the longest edges beyond that are drawn without bends
BOX_WIDTH = 190  # of a box
HEIGHT = 68  # of a box
# between boxes of a layer, and between rows of a block
GAP = 30
ROW_GAP = 18
LAYER_GAP = 46  # between layers
MORE_GAP = 54  # added between layers where lines run far sideways, at most
BEND = 14  # width of a line that passes a layer
MARGIN = 16
WIDEST = 10  # boxes side by side; a layer with more boxes is a block
SIDE = 9  # from a box in a block to the lines beside it
CORNER = 6
# How much a bend pulls at a node, compared with another node. With this value, chains of nodes are
# straight, and bends lie beside them.
ASIDE = 0.001


class Edge(NamedTuple):
    """An edge between two nodes.

    Edges from one node share their lines if they have the same ``style``.
    """

    upstream: int
    downstream: int
    style: str = ""


class Layers(NamedTuple):
    """Nodes and bends in layers.

    A bend is named by a negative number. ``layer`` is the number of the layer of each node or bend.
    ``steps`` lead from a node or bend to one in the next layer. ``direct`` are edges that pass
    layers without bends.
    """

    rows: list[list[int]]
    layer: dict[int, int]
    steps: list[Edge]
    direct: list[Edge]


def layered(numbers: Iterable[int], edges: Iterable[Edge]) -> Layers:
    """Return the layers of a graph.

    Edges from or to unknown nodes, and edges that would lead up in a cycle, are left out.
    """
    nodes = sorted(set(numbers))
    edges = [edge for edge in dict.fromkeys(edges) if edge.upstream != edge.downstream]
    layer = longest_paths(nodes, edges)

    edges = [one for one in edges if layer.get(one.upstream, 0) < layer.get(one.downstream, -1)]
    edges = [one for one in edges if one.upstream in layer]
    steps, direct = bent(edges, layer, MOST_BENDS * len(nodes))

    rows: list[list[int]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for item, place in layer.items():
        rows[place].append(item)

    untangle(rows, steps)
    return Layers(rows, layer, steps, direct)


def longest_paths(nodes: Sequence[int], edges: list[Edge]) -> dict[int, int]:
    """Return the layer of each node, in the order of the nodes.

    If there is a cycle, only edges to higher numbers count.
    """
    above: dict[int, list[int]] = {node: [] for node in nodes}
    for upstream, downstream, _style in edges:
        if upstream in above and downstream in above:
            above[downstream].append(upstream)

    layer = dict.fromkeys(nodes, 0)
    try:
        for node in TopologicalSorter(above).static_order():
            layer[node] = max((layer[upper] + 1 for upper in above[node]), default=0)
    except CycleError:
        return longest_paths(nodes, [edge for edge in edges if edge.upstream < edge.downstream])

    return layer


def bent(edges: list[Edge], layer: dict[int, int], most: int) -> tuple[list[Edge], list[Edge]]:
    """Add bends to ``layer``, and return steps, and edges without bends.

    At most ``most`` bends are added, beginning with the shortest lines.
    """
    last: dict[tuple[int, str], int] = defaultdict(int)
    for upstream, downstream, style in edges:
        last[upstream, style] = max(last[upstream, style], layer[downstream])

    pieces = {(node, style, layer[node]): node for node, style in last}  # by the layer of their end
    many = 0
    steps = []
    direct = []

    for (node, style), end in sorted(
        last.items(), key=lambda item: (item[1] - layer[item[0][0]], item[0][0])
    ):
        passed = range(layer[node] + 1, end)
        if many + len(passed) > most:
            break

        before = node
        for place in passed:
            many += 1
            layer[-many] = place
            steps.append(Edge(before, -many, style))
            before = pieces[node, style, place] = -many

    for edge in edges:
        start = pieces.get((edge.upstream, edge.style, layer[edge.downstream] - 1))
        if start is None:
            direct.append(edge)
        else:
            steps.append(Edge(start, edge.downstream, edge.style))

    return steps, direct


def neighbours(steps: Iterable[Edge]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return the neighbours of each item in the layer above it, and in the layer below it."""
    above = defaultdict(list)
    below = defaultdict(list)
    for upper, lower, _style in steps:
        above[lower].append(upper)
        below[upper].append(lower)
    return above, below


def untangle(rows: list[list[int]], steps: Iterable[Edge]) -> None:
    """Reorder the items of each layer so that few steps cross.

    Each layer is sorted by the mean place of the neighbours in the layer above, then in the layer
    below, and so on. The best order is kept.
    """
    above, below = neighbours(steps)
    place: dict[int, float] = {}
    for row in rows:
        _number(row, place)

    best = [list(row) for row in rows]
    fewest = crossings(rows, below, place)

    for sweep in range(8):  # down and up in turns
        if not fewest:
            break

        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            row.sort(
                key=lambda item: fmean([place[other] for other in near[item]] or [place[item]])
            )
            _number(row, place)

        now = crossings(rows, below, place)
        if now < fewest:
            best = [list(row) for row in rows]
            fewest = now

    rows[:] = best


def crossings(
    rows: Iterable[Collection[int]], below: dict[int, list[int]], place: dict[int, float]
) -> int:
    """Return how many pairs of steps cross.

    Two steps cross if their ends are in another order than their starts.
    """
    found = 0
    for row in rows:
        ends: list[float] = []
        for item in row:
            for end in sorted(place[lower] for lower in below[item]):
                found += len(ends) - bisect_right(ends, end)
                insort(ends, end)

    return found


def _number(row: Collection[int], place: dict[int, float]) -> None:
    """Set the places of the items of a layer, from 0 to 1.

    So places in layers of different lengths can be compared.
    """
    for number, item in enumerate(row):
        place[item] = (number + 0.5) / len(row)


class Box(NamedTuple):
    """The place of the box of a node: its upper left corner, and its row in a block.

    ``row`` is None if the layer is not a block.
    """

    number: int
    x: int
    y: int
    row: int | None


class Drawing(NamedTuple):
    """A graph as it is drawn.

    It consists of the boxes in reading order, and of the lines and the arrowheads by style, as SVG
    paths.
    """

    width: int
    height: int
    layers: int
    boxes: list[Box]
    lines: dict[str, str]
    heads: dict[str, str]


class Slot(NamedTuple):
    """One of the things that are side by side in a layer: a node, a bend, or a block of nodes."""

    items: list[int]
    width: int
    columns: int  # 0 if it is not a block


def drawn(numbers: Iterable[int], edges: Iterable[Edge]) -> Drawing:
    """Return the drawing of a graph. The same graph is always drawn in the same way."""
    graph = layered(numbers, edges)
    slots = [_slots(row) for row in graph.rows]
    places = _columns(slots, graph.steps)

    left = (
        min((places[slot.items[0]] - slot.width / 2 for row in slots for slot in row), default=0)
        - MARGIN
        + GAP / 2
    )
    right = (
        max((places[slot.items[0]] + slot.width / 2 for row in slots for slot in row), default=0)
        + MARGIN
        - GAP / 2
    )

    x = {item: round(place - left) for item, place in places.items()}
    tops, bottoms = _heights(slots, graph, x)
    boxes = [
        box
        for row, top in zip(slots, tops, strict=True)
        for slot in row
        for box in _boxes(slot, x[slot.items[0]], top)
    ]
    lines, heads = Pen({box.number: box for box in boxes}, x, tops, bottoms, graph.layer).paths(
        graph
    )

    return Drawing(
        round(right - left),
        (bottoms[-1] if bottoms else 0) + MARGIN,
        len(slots),
        boxes,
        lines,
        heads,
    )


def _slots(row: list[int]) -> list[Slot]:
    """Return the slots of a layer from left to right.

    In a layer with a block, each bend is on the nearer side of the block.
    """
    nodes = [item for item in row if item >= 0]
    if len(nodes) <= WIDEST:
        return [Slot([item], BOX_WIDTH + GAP if item >= 0 else BEND, 0) for item in row]

    columns = max(WIDEST, math.ceil(math.sqrt(len(nodes) * (HEIGHT + ROW_GAP) / (BOX_WIDTH + GAP))))
    block = Slot(nodes, columns * (BOX_WIDTH + GAP), columns)

    middle = (len(row) + 1) // 2
    before, after = (
        [Slot([item], BEND, 0) for item in half if item < 0]
        for half in (row[:middle], row[middle:])
    )

    return [*before, block, *after]


def _columns(slots: list[list[Slot]], steps: Iterable[Edge]) -> dict[int, float]:
    """Return the horizontal middle of the slot of each item, near to those of its neighbours."""
    above, below = neighbours(steps)
    x: dict[int, float] = {}
    for row in slots:
        _place(row, x, [0.0] * len(row), [1.0] * len(row))

    for sweep in range(7):
        beside = above if sweep % 2 == 0 else below
        for row in slots if sweep % 2 == 0 else reversed(slots):
            wishes = []
            weights = []
            for slot in row:
                near = [other for item in slot.items for other in beside[item]]
                pulls = [ASIDE if other < 0 <= slot.items[0] else 1.0 for other in near]
                target = sum(pull * x[other] for pull, other in zip(pulls, near, strict=True))
                wishes.append(target / sum(pulls) if near else x[slot.items[0]])
                weights.append(ASIDE if slot.items[0] < 0 or not near else 1.0)

            _place(row, x, wishes, weights)

    return x


def _place(
    row: Sequence[Slot], x: dict[int, float], wishes: Sequence[float], weights: Sequence[float]
) -> None:
    """Place slots side by side, as near as possible to their wishes.

    The weighted sum of the squared distances to the wishes is the least. This is an isotonic
    regression: neighbours that would overlap are pooled, and each pool lies at the mean of its
    wishes.
    """
    offsets = []
    edge = 0.0
    for slot in row:
        offsets.append(edge + slot.width / 2)
        edge += slot.width

    pools: list[tuple[float, float, int]] = []  # mean wish, weight, number of slots
    for wish, weight, offset in zip(wishes, weights, offsets, strict=True):
        mean = wish - offset
        heavy = weight
        many = 1

        while pools and pools[-1][0] >= mean:
            before, weight_before, more = pools.pop()
            mean = (before * weight_before + mean * heavy) / (weight_before + heavy)
            heavy, many = heavy + weight_before, many + more

        pools.append((mean, heavy, many))

    places = [mean for mean, _weight, many in pools for _ in range(many)]
    for slot, place, offset in zip(row, places, offsets, strict=True):
        x.update(dict.fromkeys(slot.items, place + offset))


def _heights(
    slots: list[list[Slot]], graph: Layers, x: dict[int, int]
) -> tuple[list[int], list[int]]:
    """Return the tops and the bottoms of the layers."""
    sideways = [0] * len(slots)
    for upper, lower, _style in graph.steps:
        sideways[graph.layer[upper]] = max(sideways[graph.layer[upper]], abs(x[upper] - x[lower]))

    tops = []
    bottoms = []
    y = MARGIN
    for layer, row in enumerate(slots):
        rows = max(
            (math.ceil(len(slot.items) / slot.columns) for slot in row if slot.columns), default=1
        )
        tops.append(y)
        bottoms.append(y + rows * (HEIGHT + ROW_GAP) - ROW_GAP)
        y = bottoms[-1] + LAYER_GAP + min(MORE_GAP, sideways[layer] // 16)

    return tops, bottoms


def _boxes(slot: Slot, middle: int, top: int) -> list[Box]:
    if not slot.columns:
        return [Box(item, middle - BOX_WIDTH // 2, top, None) for item in slot.items if item >= 0]
    left = middle - slot.width // 2 + GAP // 2
    places = ((item, *divmod(place, slot.columns)) for place, item in enumerate(slot.items))
    return [
        Box(item, left + column * (BOX_WIDTH + GAP), top + row * (HEIGHT + ROW_GAP), row)
        for item, row, column in places
    ]


class Pen:
    """A pen that draws the lines of a graph. Equal pieces of lines are drawn once."""

    def __init__(
        self,
        boxes: dict[int, Box],
        x: dict[int, int],
        tops: list[int],
        bottoms: list[int],
        layer: dict[int, int],
    ) -> None:
        self.boxes = boxes
        self.x = x
        self.tops = tops
        self.bottoms = bottoms
        self.layer = layer
        self.lines: dict[str, dict[str, None]] = defaultdict(dict)
        self.heads: dict[str, dict[str, None]] = defaultdict(dict)

    def paths(self, graph: Layers) -> tuple[dict[str, str], dict[str, str]]:
        """Return all lines and arrowheads, one path for each style."""
        for upper, lower, style in [*graph.steps, *graph.direct]:
            x0, y0 = self._leave(upper, style)
            x1, y1 = self._enter(lower, style, x0)
            if x0 == x1:
                self._line(style, f"M{x0} {y0}V{y1}")
            else:
                middle = (y0 + y1) // 2
                self._line(style, f"M{x0} {y0}C{x0} {middle} {x1} {middle} {x1} {y1}")

        lines = {style: "".join(pieces) for style, pieces in sorted(self.lines.items())}
        return lines, {style: "".join(pieces) for style, pieces in sorted(self.heads.items())}

    def _line(self, style: str, path: str) -> None:
        self.lines[style][path] = None

    def _leave(self, item: int, style: str) -> tuple[int, int]:
        """Return where a line leaves the layer of an item, below it."""
        box = self.boxes.get(item)
        x = self.x[item]
        bottom = self.bottoms[self.layer[item]]

        if box is None:
            self._line(style, f"M{x} {self.tops[self.layer[item]]}V{bottom}")
        elif box.row is not None:
            y = box.y + HEIGHT // 2
            x = box.x + BOX_WIDTH + SIDE
            self._line(
                style, f"M{box.x + BOX_WIDTH} {y}H{x - CORNER}Q{x} {y} {x} {y + CORNER}V{bottom}"
            )

        return x, bottom

    def _enter(self, item: int, style: str, start: int) -> tuple[int, int]:
        """Return where a line from ``start`` enters the layer of an item, above it."""
        box = self.boxes.get(item)
        x = self.x[item]
        top = self.tops[self.layer[item]]

        if box is None:
            return x, top

        if box.row is None:
            # A line that runs less far sideways is drawn straight.
            x = start if abs(start - x) < 8 else x
            self.heads[style][f"M{x - 4} {top - 7}h8l-4 7z"] = None
            return x, top - 5

        y = box.y + HEIGHT // 2
        x = box.x - SIDE
        self._line(style, f"M{x} {top}V{y - CORNER}Q{x} {y} {x + CORNER} {y}")
        self.heads[style][f"M{box.x - 7} {y - 4}v8l7-4z"] = None
        return x, top
