"""The kinds of nodes of a workflow: one table, which the builder, the admin, the reports and the
explanations read.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """What the nodes of a kind have in common. ``name`` is in the column ``kind``, and what people
    read.

    ``verb`` is the method that adds them. ``many``: they have a task per element, and their value
    is a list. ``runs``: their ``task_id`` is that of a run. ``waits``: they have no task, and are
    WAITING until something happens. ``outline`` is the shape of their boxes in the picture of a
    run. ``sends`` says what a worker does with one that is ready, ``awaits`` for what one waits
    that is WAITING; columns of the node are in braces, ``{keyed}`` and ``{allowed}`` are "" without
    key and permission.
    """

    name: str
    verb: str = "add"
    many: bool = False
    runs: bool = False
    waits: bool = False
    outline: str = "task"
    sends: str = "sends its task"
    awaits: str = "what it waits for"

    @property
    def outlined(self) -> bool:
        """Whether their boxes have another shape than those of tasks."""
        return self.outline != "task"


TASK = Kind("task")
MAP = Kind("map", "map", many=True, outline="map", sends="sends its tasks")
WORKFLOW = Kind("workflow", runs=True, outline="workflow", sends="sends its run")
CONTINUE = Kind("continue", "continue_as", runs=True, sends="sends the next run")
INPUT = Kind("input", "input", outline="input")
TIMER = Kind("timer", "sleep", waits=True, outline="timer", sends="lets it wait", awaits="its time")
SIGNAL = Kind(
    "signal",
    "signal",
    waits=True,
    outline="signal",
    sends="lets it wait",
    awaits="the signal {signal!r}{keyed}",
)
GATE = Kind(
    "gate",
    "gate",
    waits=True,
    outline="gate",
    sends="lets it wait",
    awaits="the decision of a person{allowed}",
)
# The database adds undos; one has a task per task that it undoes.
UNDO = Kind("undo", "undo", outline="undo", sends="sends its tasks")

KINDS = {
    kind.name: kind for kind in (TASK, MAP, WORKFLOW, CONTINUE, INPUT, TIMER, SIGNAL, GATE, UNDO)
}


def kind_of(name: str) -> Kind:
    """Return the kind of a name, also of one that only a newer version knows."""
    return KINDS.get(name) or Kind(name)
