"""The kinds of nodes of a workflow.

The builder, the admin, the reports and the explanations read this table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeKind:
    """A kind of nodes.

    ``name`` is the value of the column ``kind``, and is shown to people. ``verb`` is the method
    that adds nodes of the kind. With ``many``, a node has a task per element, and its value is a
    list. With ``runs``, the ``task_id`` of a node is the id of a run. With ``waits``, a node has no
    task, and is WAITING until something happens. ``outline`` is the shape of a node in the picture
    of a run.

    ``sends`` is the phrase for the action of a worker on a node that is ready, and ``awaits`` the
    phrase for the event for which a WAITING node waits. Columns of the node are in braces.
    ``{keyed}`` is "" without a key, and ``{allowed}`` is "" without a permission.
    """

    name: str
    verb: str = "add"
    many: bool = False
    runs: bool = False
    waits: bool = False
    outline: str = "task"
    sends: str = "sends its task"
    awaits: str = "its event"

    @property
    def outlined(self) -> bool:
        """Whether nodes of the kind have another shape than tasks in the picture of a run."""
        return self.outline != "task"


TASK = NodeKind("task")
MAP = NodeKind("map", "map", many=True, outline="map", sends="sends its tasks")
WORKFLOW = NodeKind("workflow", runs=True, outline="workflow", sends="sends its run")
CONTINUE = NodeKind("continue", "continue_as", runs=True, sends="sends the next run")
INPUT = NodeKind("input", "input", outline="input")
TIMER = NodeKind(
    "timer", "sleep", waits=True, outline="timer", sends="starts its wait", awaits="its time"
)
SIGNAL = NodeKind(
    "signal",
    "signal",
    waits=True,
    outline="signal",
    sends="starts its wait",
    awaits="the signal {signal!r}{keyed}",
)
GATE = NodeKind(
    "gate",
    "gate",
    waits=True,
    outline="gate",
    sends="starts its wait",
    awaits="the decision of a person{allowed}",
)
# The database adds the nodes of this kind. A node has a task per task that it undoes.
UNDO = NodeKind("undo", "undo", outline="undo", sends="sends its tasks")

KINDS = {
    kind.name: kind for kind in (TASK, MAP, WORKFLOW, CONTINUE, INPUT, TIMER, SIGNAL, GATE, UNDO)
}


def kind_of(name: str) -> NodeKind:
    """Return the kind of a name.

    For a name of a newer version, return a kind with the default values.
    """
    return KINDS.get(name) or NodeKind(name)
