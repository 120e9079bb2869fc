"""Puts the nodes of a graph into layers, each below its upstream nodes, in an order with few crossings. Pure code.

The method is that of Sugiyama: the layer of a node is the length of the longest path to it; an edge that passes layers gets a
bend in each of them; and nodes are moved towards their neighbours, layer by layer. Edges from one node share their bends.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

MOST_BENDS = 4  # per node; edges beyond are drawn without bends, the longest ones


class Edge(NamedTuple):
    """An edge between two nodes. Edges of one node share their lines if they are of one ``style``."""

    upstream: int
    downstream: int
    style: str = ""


class Layers(NamedTuple):
    """Nodes and bends in layers. A bend is named by a negative number.

    ``steps`` lead from a node or bend to one in the next layer; ``direct`` are edges that pass layers without bends.
    """

    rows: list[list[int]]
    steps: list[Edge]
    direct: list[Edge]


def layered(numbers: Iterable[int], edges: Iterable[Edge]) -> Layers:
    """Return the layers of a graph. Edges from or to unknown nodes, and edges that would go up in a circle, are left out."""
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
    return Layers(rows, steps, direct)


def longest_paths(nodes: Sequence[int], edges: Iterable[Edge]) -> dict[int, int]:
    """Return the layer of each node, in the order of the nodes. In a circle, the node with the lowest number comes first."""
    down, open_ = defaultdict(list), dict.fromkeys(nodes, 0)
    for upstream, downstream, _style in edges:
        if upstream in open_ and downstream in open_:
            down[upstream].append(downstream)
            open_[downstream] += 1
    found = dict.fromkeys(nodes, 0)
    layer: dict[int, int] = {}
    ready = [node for node in nodes if not open_[node]]
    waiting = iter(nodes)
    heapify(ready)
    while len(layer) < len(nodes):
        node = heappop(ready) if ready else next(one for one in waiting if one not in layer)
        if node in layer:
            continue
        layer[node] = found[node]
        for other in down[node]:
            found[other] = max(found[other], layer[node] + 1)
            open_[other] -= 1
            if not open_[other]:
                heappush(ready, other)
    return {node: layer[node] for node in nodes}


def bent(edges: list[Edge], layer: dict[int, int], most: int) -> tuple[list[Edge], list[Edge]]:
    """Add bends to ``layer``, at most ``most``, the shortest lines first; return steps, and edges without bends."""
    last: dict[tuple[int, str], int] = defaultdict(int)
    for upstream, downstream, style in edges:
        last[upstream, style] = max(last[upstream, style], layer[downstream])
    bends: dict[tuple[int, str, int], int] = {}
    steps, direct = [], []
    for (node, style), end in sorted(last.items(), key=lambda item: (item[1] - layer[item[0][0]], item[0][0])):
        passed = range(layer[node] + 1, end)
        if len(bends) + len(passed) > most:
            break
        before = node
        for place in passed:
            bend = bends[node, style, place] = -len(bends) - 1
            layer[bend] = place
            steps.append(Edge(before, bend, style))
            before = bend
    for edge in edges:
        before_last = layer[edge.downstream] - 1
        start = (
            edge.upstream
            if before_last == layer[edge.upstream]
            else bends.get((edge.upstream, edge.style, before_last))
        )
        if start is None:
            direct.append(edge)
        else:
            steps.append(Edge(start, edge.downstream, edge.style))
    return steps, direct


def untangle(rows: list[list[int]], steps: Iterable[Edge]) -> None:
    """Order each layer by the mean place of the neighbours in the layer above, then below, and so on; keep the best order."""
    above, below = defaultdict(list), defaultdict(list)
    for upper, lower, _style in steps:
        above[lower].append(upper)
        below[upper].append(lower)
    place: dict[int, float] = {}
    for row in rows:
        _number(row, place)
    best, fewest = [list(row) for row in rows], crossings(rows, below, place)
    for sweep in range(8):  # down and up in turns
        if not fewest:
            break
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            row.sort(key=lambda item: _mean([place[other] for other in neighbours[item]], place[item]))
            _number(row, place)
        now = crossings(rows, below, place)
        if now < fewest:
            best, fewest = [list(row) for row in rows], now
    rows[:] = best


def crossings(rows: Iterable[Collection[int]], below: dict[int, list[int]], place: dict[int, float]) -> int:
    """Return how many pairs of steps cross: those whose ends are in another order than their starts."""
    found = 0
    for row in rows:
        ends: list[float] = []
        for item in row:
            for end in sorted(place[lower] for lower in below[item]):
                found += len(ends) - bisect_right(ends, end)
                insort(ends, end)
    return found


def _number(row: Collection[int], place: dict[int, float]) -> None:
    """Give the items of a layer their places in it, from 0 to 1: layers of different lengths can be compared."""
    for number, item in enumerate(row):
        place[item] = (number + 0.5) / len(row)


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default
