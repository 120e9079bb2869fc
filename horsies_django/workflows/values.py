"""Codecs for the values of nodes and runs, by what is known of them: the task of a node, or what its type was declared as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from horsies_django.core.codec import ResultCodec, shape_of
from horsies_django.core.codec.envelopes import opened
from horsies_django.core.results import TaskResult
from horsies_django.workflows.nodes import Node


class ListCodec:
    """Decodes the value of a map: a list of results of one task."""

    def __init__(self, item: ResultCodec) -> None:
        self.item = item

    def decode(self, envelope: Mapping[str, Any] | str) -> TaskResult[Any]:
        """Return the list in an envelope. Raises CodecError."""
        found = opened(envelope)
        if "err" in found:
            return ResultCodec.decode_error(found)
        return TaskResult(ok=[self.item.decode({"ok": each}).ok_value for each in found["ok"]])


class DeclaredCodec:
    """Decodes the value of a node without a task: an input, or a signal, whose data has an annotation."""

    def __init__(self, annotation: Any, name: str) -> None:
        self.annotation = annotation
        self.name = name

    def decode(self, envelope: Mapping[str, Any] | str) -> TaskResult[Any]:
        """Return the value in an envelope. Raises CodecError, TaskDefinitionError for an annotation that nothing can be."""
        found = opened(envelope)
        if "err" in found:
            return ResultCodec.decode_error(found)
        return TaskResult(ok=shape_of(self.annotation, self.name).load(found["ok"]))


def codec_of(node: Node | None) -> Any:
    """Return the codec for the value of a node, None for plain JSON."""
    if node is None:
        return None
    if node.kind == "workflow":
        return codec_of(node.output)
    if node.task is not None:
        return ListCodec(node.task.result) if node.kind == "map" else node.task.result
    return None if node.type is Any else DeclaredCodec(node.type, node.name)


def codecs_of(flow: Any) -> dict[int, Any]:
    """Return the codecs of the nodes without a task, by number: the database does not know their types."""
    return {node.number: codec_of(node) for node in flow.nodes if node.task is None}
