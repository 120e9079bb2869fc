"""``Results[T]``, the results of many upstream nodes as an argument, read when needed; and codecs for values of nodes."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar, overload

from asgiref.sync import sync_to_async

from horsies_django.core import kinds
from horsies_django.core.codec import CodecError, ResultCodec, Shape, shape_of
from horsies_django.core.codec.envelopes import opened
from horsies_django.core.errors import WorkflowError
from horsies_django.core.results import TaskResult
from horsies_django.workflows.nodes import Graph, Node
from horsies_django.workflows.operations import reading

T = TypeVar("T")

CHUNK = 500  # results per query


class Results(Sequence[T], Generic[T]):
    """The values of the upstream nodes of an argument, in order: of a map, or of a list of nodes.

    It keeps none of them: every iteration, also with ``async for``, reads them from the database in chunks. Results of upstream
    nodes that did not complete are left out. Raises WorkflowError for a result that was redacted or deleted.
    """

    def __init__(self, workflow: uuid.UUID, node: int, parameter: str, item: Shape) -> None:
        self._workflow = workflow
        self._node = node
        self._parameter = parameter
        self._item = item
        self._length: int | None = None

    @staticmethod
    def horsies_shape(item: Shape) -> Shape:
        """Return the shape of ``Results[item]``, for the codec."""

        def dump(_value: Any) -> Any:
            raise CodecError("Results come from a workflow and cannot be sent: pass a node, or a list of nodes")

        def load(stored: Any) -> Results[Any]:
            return Results(uuid.UUID(stored["workflow"]), stored["node"], stored["parameter"], item)

        return Shape(f"Results[{item.name}]", frozenset({dict}), lambda value: isinstance(value, Results), dump, load)

    def __iter__(self) -> Iterator[T]:
        yield from map(self._value, self._completed())

    async def __aiter__(self) -> AsyncIterator[T]:
        found = self._completed()
        while some := await sync_to_async(lambda: list(islice(found, CHUNK)))():
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
        while rows := reading().results(self._workflow, self._node, self._parameter, start, CHUNK):
            yield from (result for _place, status, result in rows if status == "COMPLETED")
            start = rows[-1][0] + 1

    def _value(self, result: str | None) -> T:
        envelope = opened(result or "")
        if "ok" not in envelope:
            raise WorkflowError(f"a result for {self._parameter!r} was redacted")
        value: T = self._item.load(envelope["ok"])
        return value


class ValueCodec(NamedTuple):
    """Decodes the value of a node by a function, which can be pickled, as handles can."""

    load: Callable[[Any], Any]

    def decode(self, envelope: Mapping[str, Any] | str) -> TaskResult[Any]:
        """Return the value in an envelope. Raises CodecError, TaskDefinitionError for an annotation that nothing can be."""
        found = opened(envelope)
        return ResultCodec.decode_error(found) if "err" in found else TaskResult(ok=self.load(found["ok"]))


def load_elements(codec: ResultCodec, values: list[Any]) -> list[Any]:
    """Return the values of the tasks of a map."""
    return [codec.decode({"ok": each}).ok_value for each in values]


def load_declared(annotation: Any, name: str, value: Any) -> Any:
    """Return the value of an input, or of a signal, whose data has an annotation."""
    return shape_of(annotation, name).load(value)


def codec_of(node: Node | None) -> Any:
    """Return the codec for the value of a node, None for plain JSON."""
    if node is None:
        return None
    if node.kind is kinds.WORKFLOW:
        return codec_of(node.output)
    if node.task is None:
        return None if node.type is Any else ValueCodec(partial(load_declared, node.type, node.name))
    return ValueCodec(partial(load_elements, node.task.result)) if node.kind.many else node.task.result


def codecs_of(flow: Graph) -> dict[int, Any]:
    """Return the codecs of the nodes without a task, by number: the database does not know their types."""
    return {node.number: codec_of(node) for node in flow.nodes if node.task is None}
