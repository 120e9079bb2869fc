"""The arguments of a node: constants are encoded, and nodes become inputs if their results fit.

Results are compared with annotations. The functions write into the node and yield its problems,
without its name. The rules of the kinds call all of them.

``Results[T]`` is an argument with the results of many nodes, which are read when they are needed.
"""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, overload

from asgiref.sync import sync_to_async

from horsies_django.core.codec import CodecError, Shape
from horsies_django.core.codec.advice import annotation_name
from horsies_django.core.codec.envelopes import open_envelope
from horsies_django.core.codec.fits import bare_annotation, element, fits
from horsies_django.core.codec.jsondata import write_json
from horsies_django.core.codec.signatures import hints_of
from horsies_django.core.errors import TaskDefinitionError, WorkflowError
from horsies_django.core.options import drops_result
from horsies_django.core.results import TaskResult
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.workflows.nodes import Node, Problems
from horsies_django.workflows.operations import reading

T = TypeVar("T")
RESULTS_PER_QUERY = 500


class Given(NamedTuple):
    """The arguments of a node as they were given.

    ``options`` has the names of options given beside them that could be meant as arguments.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Collection[str] = ()


def take_arguments(node: Node, task: TaskDefinition, given: Given) -> Problems:
    codec = task.arguments
    names = list(codec.signature.parameters)[len(given.args) :]

    if mistakes := unclear(node, names, given.options, f"{task.name} has a parameter"):
        yield from mistakes
        return

    try:
        bound = codec.bind(given.args, given.kwargs)
    except CodecError as error:
        yield str(error)
        return

    constants = yield from connect_nodes(node, bound, hints(task))
    if node.over in constants:
        yield from take_elements(node, task, node.over, constants.pop(node.over))

    try:
        node.kwargs = codec.encode_values(constants)
    except CodecError as error:
        yield argument_problem(error, constants)


def take_elements(node: Node, task: TaskDefinition, over: str, elements: Any) -> Problems:
    """Store the plain values that a map maps over, and yield the problems."""
    if not isinstance(elements, list | tuple):
        yield (
            f"the first keyword argument of map(), {over!r}, must be a list or a node, not "
            f"{type(elements).__name__}. Pass list(...)"
        )
        return

    stored = []
    for place, value in enumerate(elements):
        try:
            stored.append(json.loads(task.arguments.encode_values({over: value}))[over])
        except CodecError as error:
            yield f"element {place}: {argument_problem(error, {over: value})}"
            return

    node.texts["value"] = write_json(stored)


def connect_nodes(
    node: Node, values: Mapping[str, Any], types: Mapping[str, Any]
) -> Problems[dict[str, Any]]:
    """Make nodes among the values inputs of a node, and return the other values.

    Yields the problems.
    """
    constants = {}
    for name, value in values.items():
        several = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(each, Node) for each in several):
            yield from connect(
                node, name, list(several), types.get(name, Any), alone=isinstance(value, Node)
            )
        else:
            constants[name] = value
    return constants


def connect(
    node: Node, parameter: str, several: list[Any], annotation: Any, *, alone: bool
) -> Problems:
    """Make one or several nodes the input for a parameter, and yield the problems.

    ``alone`` is true if the argument is one node, not a list.
    """
    if not all(isinstance(each, Node) for each in several):
        yield f"the list for {parameter!r} contains nodes and other values. Pass only nodes"
        return
    if problem := next(filter(None, map(node.flow.foreign, several)), None):
        yield f"{parameter}=: {problem}"
        return

    for each in several:
        yield from dropped(each)
    node.wait_for(several, counts=not alone)

    first = several[0]
    many = not alone or several[0].kind.many
    results = [(each.name, each.type) for each in several]

    if parameter == node.over:
        form = "elements"
        wanted = annotation
        if not many:
            results = [(f"an element of {first.name}", element(first.type))]
            if element(first.type) is None:
                yield f"a map needs a list, but {first.name} gives {annotation_name(first.type)}"
                results = []
    else:
        form, wanted = form_and_type(annotation, many=many)
        if many and wanted is None:
            yield (
                f"{parameter!r} takes {annotation_name(annotation)}, but gets a list. Annotate "
                "it with list[...] or Results[...]"
            )
            return

        if form == "results" and not many:
            yield (
                f"{parameter!r} takes Results, which come only from a map or from a list of nodes. "
                f"Annotate it with list[...] to take the list that {first.name} gives"
            )
            return

    source = {"node": first.number} if alone else {"nodes": [each.number for each in several]}
    node.inputs[parameter] = {**source, "as": form}

    for name, result in results:
        if not fits(result, wanted):
            actual = annotation_name(result)
            yield f"{parameter!r} takes {annotation_name(wanted)}, but {name} gives {actual}"
            return


def form_and_type(parameter: Any, *, many: bool) -> tuple[str, Any]:
    """Return how results become an argument, and the type that each result must have.

    The first is "value", "result", "results" or "list". The type is None if there are several
    results and the parameter takes no list.
    """
    origin = get_origin(parameter)
    args = get_args(parameter)

    if origin is Results:
        return "results", bare_annotation(args[0])
    if origin is TaskResult and not many:
        return "result", bare_annotation(args[0])
    return ("list", element(parameter)) if many else ("value", parameter)


def unsure_arguments(node: Node) -> Problems:
    """Yield the arguments that may be missing if upstream nodes do not complete."""
    if not may_miss(node):
        return

    arguments = None if node.task is None else node.task.arguments
    for parameter, source in node.inputs.items():
        if source["as"] == "elements":
            yield (
                f"a map cannot run without its list, {parameter!r}. Remove allow_failed= and join="
            )
        elif source["as"] == "value" and (
            arguments is None or parameter in arguments.names - arguments.optional
        ):
            instead = (
                ""
                if node.task is not None and node.task.codec
                else ", or annotate it with TaskResult[...]"
            )
            yield (
                f"the node may run without a value for {parameter!r}. Give the parameter a "
                f"default{instead}"
            )


def may_miss(node: Node) -> bool:
    """Return whether a node may run although some upstream nodes did not complete."""
    return node.allow_failed or node.rule == "quorum"


def dropped(node: Node, taker: str = "") -> Problems:
    """Yield a problem if the value of a node is used, but its task does not keep its result.

    The value may be used by another node or by the run. ``taker`` begins the message.
    """
    if drops_result(node.texts.get("options")):
        yield (
            f"{taker}the task of {node.name} does not keep its result, which is needed. Remove "
            "keep_result=False there, or add the task with_options(keep_result=True)"
        )


def unclear(node: Node, names: Iterable[str], options: Collection[str], what: str) -> list[str]:
    """Return the problems of given options that are also names of parameters or inputs.

    A reader cannot see which of the two is meant.
    """
    return [
        f"{name}= is an option of {node.kind.verb}(), and {what} {name!r}. Pass the "
        f"argument in kwargs={{{name!r}: ...}}; then {name}= is the option"
        for name in names
        if name in options
    ]


def argument_problem(error: Exception, values: Mapping[str, Any]) -> str:
    """Return the reason why values cannot be arguments: the error, or a value with nodes inside."""
    inside = [name for name, value in values.items() if holds_node(value)]
    if not inside:
        return str(error)
    return f"{inside[0]!r} has nodes inside. Pass a node as an argument, or in a list of nodes"


def holds_node(value: Any, levels: int = 50) -> bool:
    """Return whether there is a node inside a value, in nested lists, tuples, sets or mappings."""
    if isinstance(value, Mapping | list | tuple | set | frozenset) and levels:
        return any(
            holds_node(each, levels - 1)
            for each in (value.values() if isinstance(value, Mapping) else value)
        )
    return isinstance(value, Node)


def hints(task: TaskDefinition) -> dict[str, Any]:
    """Return the annotations of a task.

    They are empty if they cannot be resolved yet, or if the task takes plain JSON.
    """
    try:
        return {} if task.codec is not None else resolved(task)
    except TaskDefinitionError:
        return {}


@functools.cache
def resolved(task: TaskDefinition) -> dict[str, Any]:
    """Return the annotations of a task. Raises TaskDefinitionError if one cannot be resolved."""
    return {name: bare_annotation(hint) for name, hint in hints_of(task.function).items()}


def result_type(task: TaskDefinition) -> Any:
    """Return the type of the values that a task returns."""
    found = hints(task).get("return", Any)
    if get_origin(found) is TaskResult:
        return bare_annotation(get_args(found)[0])
    return type(None) if found is None else found


class Results(Sequence[T], Generic[T]):
    """The values of the upstream nodes of an argument, in order: of a map, or of a list of nodes.

    No value is kept in memory: each iteration, also one with ``async for``, reads all of them from
    the database in chunks. Results of upstream nodes that did not complete are left out. Raises
    WorkflowError if a result was redacted or deleted.
    """

    def __init__(self, workflow: uuid.UUID, node: int, parameter: str, item: Shape) -> None:
        self._workflow = workflow
        self._node = node
        self._parameter = parameter
        self._item = item
        self._length: int | None = None

    @staticmethod
    def horsies_shape(item: Shape) -> Shape:
        """Return the shape of ``Results[item]``, which the codec uses."""

        def dump(_value: Any) -> Any:
            raise CodecError(
                "Results come from a workflow and cannot be sent: pass a node, or a list of nodes"
            )

        def load(stored: Any) -> Results[Any]:
            return Results(uuid.UUID(stored["workflow"]), stored["node"], stored["parameter"], item)

        return Shape(
            f"Results[{item.name}]",
            frozenset({dict}),
            lambda value: isinstance(value, Results),
            dump,
            load,
        )

    def __iter__(self) -> Iterator[T]:
        yield from map(self._value, self._completed())

    async def __aiter__(self) -> AsyncIterator[T]:
        found = self._completed()
        while some := await sync_to_async(lambda: list(islice(found, RESULTS_PER_QUERY)))():
            for result in some:
                yield self._value(result)

    def __len__(self) -> int:
        if self._length is None:
            self._length = sum(1 for _ in self._completed())
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return list(self)[index]
        for place, value in enumerate(self):
            if place == (index if index >= 0 else index + len(self)):
                return value
        raise IndexError(index)

    def __repr__(self) -> str:
        return f"<Results for {self._parameter!r} of node {self._node}>"

    def _completed(self) -> Iterator[str | None]:
        start = 0
        while rows := reading().results(
            self._workflow, self._node, self._parameter, start, RESULTS_PER_QUERY
        ):
            yield from (result for _place, status, result in rows if status == "COMPLETED")
            start = rows[-1][0] + 1

    def _value(self, result: str | None) -> T:
        envelope = open_envelope(result or "")
        if "ok" not in envelope:
            raise WorkflowError(f"a result for {self._parameter!r} was redacted")
        value: T = self._item.load(envelope["ok"])
        return value
