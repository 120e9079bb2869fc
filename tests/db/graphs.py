"""Random graphs for the model of workflows, and the workflows built from them."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

from horsies_django import Batch, RetryPolicy, Workflow, quorum
from horsies_django.workflows.nodes import Node
from tests.apps.project import flows
from tests.support.models.workflows import Graph, Path, Spot

AGAIN = RetryPolicy.fixed([0] * 9, auto_retry_for=["AGAIN", "WORKER_CRASHED"], jitter=False)


class Dice(random.Random):
    """Random choices."""

    def chance(self, share: float) -> bool:
        return self.random() < share


def graph_of(
    dice: Dice, size: int, *, depth: int = 0, on_error: str | None = None, large: bool = False
) -> Graph:
    """Return a random graph of ``size`` nodes.

    If values are ``large``, a node takes a value only after the set of its values is final.
    """
    graph = Graph(on_error=on_error or dice.choice(["fail", "fail", "pause"]), large=large)
    graph.max_in_flight = dice.choice([None, None, 1, 3])
    graph.callbacks = dice.chance(0.2) and size > 2
    members = size - (dice.randint(1, 3) if graph.callbacks else 0)

    for number in range(members):
        graph.spots[number] = spot_of(dice, graph, number, size, depth)
    for number in range(len(graph.spots), size):
        rule = dice.choice(["succeeded", "failed", "finished"])
        graph.spots[number] = Spot(number, upstream=frozenset(range(members)), rule=rule)

    maps = [number for number, spot in graph.spots.items() if spot.kind == "map"]
    graph.output = dice.choice([None, *graph.spots, *maps, *maps])
    return graph


def spot_of(dice: Dice, graph: Graph, number: int, size: int, depth: int) -> Spot:
    """Return a random node that may wait for earlier nodes."""
    spot = Spot(number, retries=dice.choice([0, 0, 0, 9]), delayed=dice.chance(0.2))
    before = list(graph.spots)
    kind = dice.random()
    upstream = (
        set(dice.sample(before, min(len(before), dice.choice([0, 1, 1, 1, 2, 2, 3, 8]))))
        if before
        else set()
    )

    if kind < 0.15:
        spot.kind = "map"
        source = dice.random()
        if source < 0.5 and (lists := [each for each in before if gives(graph.spots[each])]):
            spot.over = dice.choice(lists)
            upstream.add(spot.over)
        elif source < 0.7 and before:
            spot.over = tuple(dice.sample(before, min(len(before), 3)))
            upstream.update(spot.over)
        else:
            spot.over = [dice.randrange(4) for _ in range(dice.choice([0, 1, 3, 7]))]
    elif kind < 0.25 and depth < 2 and size > 4:
        spot.kind = "workflow"
        spot.graph = graph_of(
            dice, dice.randint(1, min(6, size // 2)), depth=depth + 1, large=graph.large
        )

    if upstream and dice.chance(0.25):
        values = [each for each in upstream if graph.spots[each].kind != "map"]
        if values:
            spot.when = (dice.choice(values), dice.randrange(3))

    if spot.kind == "map" and not isinstance(spot.over, list):
        pass  # it needs its list
    elif upstream and dice.chance(0.3):
        spot.rule = "quorum"
        spot.allow_failed = dice.chance(0.3)
    else:
        spot.allow_failed = dice.chance(0.3)

    if (
        spot.kind == "task"
        and upstream
        and dice.chance(0.5)
        and not (graph.large and spot.rule == "quorum")
    ):
        spot.source = dice.choice(sorted(upstream))
        if dice.chance(0.3):
            spot.source = tuple(sorted(upstream))

    spot.upstream = frozenset(upstream)
    if spot.rule == "quorum":
        spare = (
            set() if isinstance(spot.source, tuple) else {spot.source, spot.when and spot.when[0]}
        )
        uncounted = {each for each in spare if dice.chance(0.5)}
        spot.branches = frozenset(spot.upstream - uncounted or spot.upstream)
        spot.needs = dice.randint(1, len(spot.branches))

    return spot


def gives(spot: Spot) -> bool:
    """Return whether a node may return a list, according to its annotations."""
    return spot.graph is None or (
        spot.graph.output is not None and gives(spot.graph.spots[spot.graph.output])
    )


Work = Callable[[Path, Spot], tuple[Any, dict[str, Any]]]


def acting(path: Path, spot: Spot) -> tuple[Any, dict[str, Any]]:
    """Return the task of a node without arguments of its own; the test decides how it ends."""
    options: dict[str, Any] = {"retry_policy": AGAIN} if spot.retries else {}
    options |= {"delay": dt.timedelta(milliseconds=10)} if spot.delayed else {}
    return flows.act.with_options(**options) if options else flows.act, {}


def build(graph: Graph, name: str, work: Work = acting, path: Path = ()) -> Workflow:
    """Return the workflow of a graph, whose nodes have the same numbers; ``work`` returns their
    tasks and constant arguments.
    """
    flow = (Batch if graph.callbacks else Workflow)(
        name, on_error=graph.on_error, max_in_flight=graph.max_in_flight
    )

    made: dict[int, Node] = {}
    for spot in graph.spots.values():
        made[spot.number] = add(flow, spot, made, f"n{spot.number}", work, path)

    if graph.output is not None:
        flow.returns(made[graph.output])

    return flow


def add(
    flow: Workflow,
    spot: Spot,
    made: dict[int, Node],
    name: str,
    work: Work = acting,
    path: Path = (),
) -> Node:
    """Add a node to a workflow."""

    def nodes(numbers: int | tuple[int, ...]) -> Any:
        return [made[each] for each in numbers] if isinstance(numbers, tuple) else made[numbers]

    task, constants = work(path, spot)

    if spot.rule in ("succeeded", "failed", "finished"):
        assert isinstance(flow, Batch)
        verb = {
            "succeeded": flow.on_success,
            "failed": flow.on_failure,
            "finished": flow.on_finish,
        }[spot.rule]
        return verb(task, name=name, **constants)

    after = sorted(spot.branches if spot.rule == "quorum" else spot.upstream)
    how: dict[str, Any] = {"after": [made[each] for each in after], "name": name}
    how["join"] = quorum(spot.needs) if spot.rule == "quorum" else "all"
    how["allow_failed"] = spot.allow_failed
    if spot.when is not None:
        how["when"] = made[spot.when[0]].matches(f"strict $ == {spot.when[1]}")

    if spot.kind == "map":
        assert spot.over is not None
        return flow.map(
            task,
            value=spot.over if isinstance(spot.over, list) else nodes(spot.over),
            **how,
            **constants,
        )

    if spot.kind == "workflow":
        assert spot.graph is not None
        return flow.add(build(spot.graph, name, work, (*path, spot.number)), **how)

    return flow.add(
        task, **({} if spot.source is None else {"value": nodes(spot.source)}), **how, **constants
    )
