"""A pure model of workflow runs: computes final statuses from a graph and the fates of its tasks.

It involves neither database nor time. The end does not depend on the order in which tasks run,
except with ``on_error="stop"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

BAD = ("FAILED", "CANCELLED", "EXPIRED")
FINAL = (*BAD, "COMPLETED", "SKIPPED")
# Two of these values do not fit into the payload of a task or the value of a run.
LARGE = "x" * 12_000
Path = tuple[int, ...]  # the numbers of the nodes that lead from the root run to a child run
Place = tuple[Path, int, int]  # a run, a node, an element


class Fate(NamedTuple):
    """The fate of a task: the status of its node, its value, and whether it begins at all.

    The value is that of a COMPLETED node.
    """

    status: str
    value: Any = None
    begins: bool = True


# Of an element of a map that is passed over because its element in the map before was skipped.
SKIPPED = Fate("SKIPPED")


@dataclass
class Spot:
    """A node.

    ``branches`` are the upstream nodes that a quorum counts. ``over``: of a map, a node, several
    nodes as a tuple, or a list of values. ``source``: a node, or several, whose value is the
    argument; ``constant``: an argument that is no node's. ``when``: a node and the value that it
    must have.
    """

    number: int
    kind: str = "task"
    upstream: frozenset[int] = frozenset()
    rule: str = "all"
    branches: frozenset[int] = frozenset()
    needs: int = 0
    allow_failed: bool = False
    when: tuple[int, int] | None = None
    over: int | tuple[int, ...] | list[int] | None = None
    source: int | tuple[int, ...] | None = None
    graph: Graph | None = None
    retries: int = 0
    constant: Any = None
    delayed: bool = False

    @property
    def tolerant(self) -> bool:
        """Whether it may run although an upstream node failed, which then does not fail the run."""
        return self.rule == "quorum" or (self.rule == "all" and self.allow_failed)


@dataclass
class Graph:
    """The nodes of a run. ``large``: some values are large."""

    spots: dict[int, Spot] = field(default_factory=dict)
    output: int | None = None
    on_error: str = "fail"
    max_in_flight: int | None = None
    callbacks: bool = False
    large: bool = False


class Run:
    """A run of a graph.

    ``fate`` returns the fate of a task. ``skipped`` are the nodes that were skipped by hand,
    ``kept`` the statuses that a retry left as they were, ``decided`` the nodes that could run or
    ran at a retry, whose conditions it does not check again. ``told`` is how often a task added a
    node differently from an earlier attempt of it.
    """

    def __init__(self, graph: Graph, fate: Callable[[Place], Fate], path: Path = ()) -> None:
        self.graph = graph
        self.fate = fate
        self.path = path

        self.skipped: set[int] = set()
        self.kept: dict[int, str] = {}
        self.kept_begun: set[int] = set()
        self.decided: set[int] = set()

        self.children: dict[int, Run] = {
            spot.number: Run(spot.graph, fate, (*path, spot.number))
            for spot in graph.spots.values()
            if spot.graph
        }

        self.known: dict[int, str] = {}
        self.told = 0

    def find(self, path: Path) -> Run:
        """Return the run at a path."""
        return self if not path else self.children[path[0]].find(path[1:])

    def add(self, spot: Spot) -> None:
        """Add a node for a task. A node of that name from an earlier attempt stays."""
        self.told += self.graph.spots.setdefault(spot.number, spot).constant != spot.constant

    def forget(self) -> None:
        """Drop all computed values."""
        self.known.clear()
        for child in self.children.values():
            child.forget()

    def node(self, number: int) -> str:
        """Return the final status of a node."""
        if number not in self.known:
            self.known[number] = self._node(self.graph.spots[number])
        return self.known[number]

    def _node(self, spot: Spot) -> str:
        if spot.number in self.kept:
            return self.kept[spot.number]
        if spot.number in self.skipped or not self.joins(spot) or not self.matches(spot):
            return "SKIPPED"

        if spot.kind == "workflow":
            return self.children[spot.number].as_node()
        if spot.kind == "task":
            return (
                "FAILED"
                if too_large(self.argument(spot))
                else self.fate((self.path, spot.number, 0)).status
            )

        if self.elements(spot) is None:
            return "FAILED"
        if not any(fate.status in BAD for fate in self.fates(spot.number)):
            return "COMPLETED"
        return "FAILED" if any(fate.begins for fate in self.fates(spot.number)) else "CANCELLED"

    def joins(self, spot: Spot) -> bool:
        """Return whether the upstream nodes allow a node to run."""
        if spot.number in self.decided:
            return True

        ends = [self.node(number) for number in spot.upstream]
        completed = ends.count("COMPLETED")
        failed = any(end in BAD for end in ends)

        if spot.rule == "quorum":
            counted = [self.node(number) for number in spot.branches]
            return (len(counted) if spot.allow_failed else counted.count("COMPLETED")) >= spot.needs

        if spot.rule == "all":
            return spot.allow_failed or completed == len(ends)
        return {"succeeded": not failed, "failed": failed, "finished": True}[spot.rule]

    def matches(self, spot: Spot) -> bool:
        """Return whether the condition of a node holds."""
        if spot.when is None or spot.number in self.decided:
            return True
        number, wanted = spot.when
        return self.node(number) == "COMPLETED" and self.value(number) == wanted

    def elements(self, spot: Spot) -> list[Any] | None:
        """Return the elements of a map; None if the value is no list."""
        if isinstance(spot.over, list):
            return spot.over

        assert spot.over is not None
        if isinstance(spot.over, tuple):
            return [each for number in spot.over for each in self.parts(number)]
        if self.graph.spots[spot.over].kind == "map":
            return self.parts(spot.over)

        found = self.value(spot.over)
        return found if isinstance(found, list) else None

    def parts(self, number: int) -> list[Any]:
        """Return the values that a node contributes to a map over several nodes.

        They are its value, or the elements of a map.
        """
        if self.graph.spots[number].kind != "map":
            return [self.value(number)]
        return [
            fate.value if fate.status == "COMPLETED" else SKIPPED for fate in self.fates(number)
        ]

    def fates(self, number: int) -> list[Fate]:
        """Return the fates of the tasks of a map."""
        many = self.elements(self.graph.spots[number]) or []
        return [
            SKIPPED if element is SKIPPED else self.fate((self.path, number, index))
            for index, element in enumerate(many)
        ]

    def value(self, number: int) -> Any:
        """Return the value of a node that is COMPLETED."""
        spot = self.graph.spots[number]
        if spot.kind == "map":
            return [fate.value for fate in self.fates(number) if fate.status == "COMPLETED"]
        if spot.kind == "workflow":
            return self.children[number].result()

        return self.fate((self.path, number, 0)).value

    def argument(self, spot: Spot) -> dict[str, Any]:
        """Return the arguments of the task of a node.

        Not of a node with a quorum, whose arguments depend on which nodes came first.
        """
        if spot.source is None:
            return {} if spot.constant is None else {"value": spot.constant}
        if isinstance(spot.source, tuple):
            return {"value": [value for number in spot.source for value in self.given(number)]}

        values = self.given(spot.source)
        if self.graph.spots[spot.source].kind == "map":
            return {"value": values}
        return {"value": values[0]} if values else {}

    def given(self, number: int) -> list[Any]:
        """Return the values that a node adds to a list: its own, or those of a map's elements.

        Only completed nodes and elements count.
        """
        if self.graph.spots[number].kind == "map":
            return self.value(number) if self.many(number) else []
        return [self.value(number)] if self.node(number) == "COMPLETED" else []

    def fatal(self) -> set[int]:
        """Return the failed nodes without a dependent node that ran nevertheless."""
        saved = {
            number
            for spot in self.graph.spots.values()
            if spot.tolerant and self.node(spot.number) != "SKIPPED"
            for number in spot.upstream
        }
        return {number for number in self.graph.spots if self.node(number) in BAD} - saved

    def status(self) -> str:
        """Return the final status of the run.

        A run whose value is too large has failed, too.
        """
        number = self.graph.output
        no_value = number is not None and self.node(number) in BAD or too_large(self.result())
        return "FAILED" if self.fatal() or no_value else "COMPLETED"

    def as_node(self) -> str:
        """Return the status of the node that this run is in another run."""
        skipped = self.graph.output is not None and self.node(self.graph.output) == "SKIPPED"
        return "SKIPPED" if skipped and self.status() == "COMPLETED" else self.status()

    def result(self) -> Any:
        """Return the value of the run if it is COMPLETED."""
        number = self.graph.output
        return (
            self.value(number) if number is not None and self.node(number) == "COMPLETED" else None
        )

    def began(self, number: int) -> bool:
        """Return whether a node was sent, or a child run started."""
        if number in self.kept:
            return number in self.kept_begun
        spot = self.graph.spots[number]
        return number not in self.skipped and self.joins(spot) and self.matches(spot)

    def many(self, number: int) -> int:
        """Return the final number of tasks of a node."""
        spot = self.graph.spots[number]
        if not self.began(number) or spot.kind == "workflow" or too_large(self.argument(spot)):
            return 0
        return (
            1
            if spot.kind == "task"
            else sum(element is not SKIPPED for element in self.elements(spot) or [])
        )

    def progress(self) -> tuple[int, int, int, int]:
        """Return the numbers of all, completed, failed and skipped nodes.

        A map that began counts as its elements.
        """
        ends: list[str] = []
        for number, spot in self.graph.spots.items():
            if spot.kind == "map" and self.began(number) and self.elements(spot) is not None:
                ends += [
                    "COMPLETED" if fate.status == "SKIPPED" else fate.status
                    for fate in self.fates(number)
                ]
            else:
                ends.append(self.node(number))

        failed = sum(end in BAD for end in ends)
        return len(ends), ends.count("COMPLETED"), failed, ends.count("SKIPPED")

    def all(self) -> list[Run]:
        """Return this run and those of its children that began."""
        begun = [child for number, child in self.children.items() if self.began(number)]
        return [self, *(run for child in begun for run in child.all())]

    def again(self, now: Mapping[int, str]) -> set[int]:
        """Return the nodes that a retry runs again if nodes are ``now`` so.

        They are the failed ones, and those skipped because of a failure, not by hand.
        """
        found = {number for number, status in now.items() if status in BAD}
        waits = {
            number for number, status in now.items() if status in ("ADDED", "PENDING", "SKIPPED")
        } - self.skipped
        while more := {
            number for number in waits - found if self.graph.spots[number].upstream & found
        }:
            found |= more
        return found

    def keep(self, now: Mapping[int, str], again: set[int]) -> None:
        """Record that a retry leaves all nodes as they are ``now``, except ``again``."""
        begun = {number for number in now if self.began(number)}
        final = {number for number, status in now.items() if status in FINAL}

        self.kept = {number: self.node(number) for number in final - again}
        self.kept_begun = begun & self.kept.keys()
        self.decided = {number for number, status in now.items() if status in ("READY", "ENQUEUED")}
        self.skipped -= again


def too_large(value: Any) -> bool:
    """Return whether a value is larger than MAX_PAYLOAD_BYTES."""
    return repr(value).count(LARGE) > 1
