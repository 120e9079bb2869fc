"""Whether the calls that unfinished runs still have to make fit the tasks of this code. Reads no database."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from horsies_django.core.codec import CodecError
from horsies_django.core.codec.advice import name_of
from horsies_django.core.texts import close_to
from horsies_django.store.workflows import OpenCalls
from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition
from horsies_django.workflows.arguments import hints, way

GIVEN = {"value": "a value", "result": "a TaskResult", "list": "a list of values", "results": "Results"}


class Misfit(NamedTuple):
    """Why calls fail with this code, and what to do. ``argument`` is None if it is not about one."""

    code: str
    argument: str | None
    problem: str
    advice: str


def misfits(calls: OpenCalls, queues: Collection[str]) -> Iterator[Misfit]:
    """Yield what does not fit about a group of calls; ``queues`` are those that are declared."""
    task = registry.find(calls.task)
    if task is not None and calls.codec != task.codec:
        form = "typed arguments by name" if task.codec is None else "the arguments of django.tasks"
        wrong = f"it takes {form} now, and they are written for what it was before"
        yield Misfit("OTHER_FORM", None, wrong, "Keep the former task under this name until these runs have ended")
    if calls.queue not in queues:
        wrong = f"the queue {calls.queue!r} is not declared, so no worker serves it"
        yield Misfit("UNDECLARED_QUEUE", None, wrong, "Keep it in HORSIES['QUEUES'] until these runs have ended")
    if task is None:
        wrong = f"there is no task of this name{close_to(calls.task, registry.names())}"
        yield Misfit("UNKNOWN_TASK", None, wrong, f"Keep one until these runs have ended: @task(name={calls.task!r})")
    else:
        yield from of_names(task, calls.given)
        yield from of_values(task, calls.given, calls.constants)


def of_names(task: TaskDefinition, given: Mapping[str, str]) -> Iterator[Misfit]:
    """Yield arguments that the function does not take, and parameters that it needs and does not get."""
    arguments = task.arguments
    for name in [] if arguments.takes_any else sorted(given.keys() - arguments.names):
        yield Misfit("UNKNOWN_ARGUMENT", name, f"it takes no {name!r}", "Take it until these runs have ended")
    for name in arguments.signature.parameters:
        if name in arguments.names - arguments.optional - given.keys():
            yield Misfit("MISSING_ARGUMENT", name, f"it needs {name!r}, which they do not give", "Give it a default")


def of_values(task: TaskDefinition, given: Mapping[str, str], constants: Collection[str]) -> Iterator[Misfit]:
    """Yield constants that cannot be decoded, and results in a form that another annotation had chosen."""
    types = hints(task) if task.codec is None else dict.fromkeys(given, Any)
    advice = "Take both until these runs have ended, or add a parameter with a default"
    for name in sorted(given.keys() & types.keys()):
        many = given[name] in ("list", "results")
        if given[name] not in GIVEN:
            continue
        form, wanted = way(types[name], many=many)
        if form != given[name] or wanted is None:
            problem = f"{name!r} is annotated {name_of(types[name])}, and gets {GIVEN[given[name]]}"
            yield Misfit("OTHER_TYPE", name, problem, advice)
    found = {}
    for text in constants:
        for name, value in json.loads(text).items():
            if name in task.arguments.names:
                try:
                    task.arguments.decode_one(name, value)
                except CodecError as error:
                    found[name] = Misfit("OTHER_TYPE", name, str(error), advice)
    yield from found.values()
