"""The kinds of nodes of a workflow: one table, which the builder, the admin, the reports and the explanations read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """What the nodes of a kind have in common. ``name`` is in the column ``kind``, and what people read.

    ``verb`` is the method that adds them. ``many``: they have a task per element, and their value is a list. ``runs``: their
    ``task_id`` is that of a run. ``waits``: they have no task, and are WAITING until something happens. ``outlined``: they have
    an outline of their own in the picture of a run. ``sends`` says what a worker does with one that is ready.
    """

    name: str
    verb: str = "add"
    many: bool = False
    runs: bool = False
    waits: bool = False
    outlined: bool = True
    sends: str = "sends its task"


TASK = Kind("task")
MAP = Kind("map", "map", many=True, sends="sends its tasks")
WORKFLOW = Kind("workflow", runs=True, sends="sends its run")
CONTINUE = Kind("continue", "continue_as", runs=True, outlined=False, sends="sends the next run")
INPUT = Kind("input", "input")
TIMER = Kind("timer", "sleep", waits=True, sends="lets it wait")
SIGNAL = Kind("signal", "signal", waits=True, sends="lets it wait")
GATE = Kind("gate", "gate", waits=True, sends="lets it wait")
UNDO = Kind("undo", "undo", sends="sends its tasks")  # inserted by the database; it has a task per task that it undoes

KINDS = {kind.name: kind for kind in (TASK, MAP, WORKFLOW, CONTINUE, INPUT, TIMER, SIGNAL, GATE, UNDO)}


def kind_of(name: str) -> Kind:
    """Return the kind of a name, also of one that only a newer version knows."""
    return KINDS.get(name) or Kind(name, outlined=False)
