"""Texts that PostgreSQL cannot store, such as those with NUL bytes, as actor, reason or key."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import translation
from django.utils.translation import gettext_lazy

from horsies_django import (
    TaskSendError,
    Workflow,
    WorkflowDefinitionError,
    WorkflowError,
    explain_node,
    queues,
    schedules,
)
from horsies_django.core.errors import QueueError, ScheduleError
from horsies_django.models import AuditEntry, Task, WorkflowRun
from horsies_django.monitoring import workflows
from horsies_django.tasks import operations, redaction, selection
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.support.factories import TaskFactory
from tests.support.runs import sent as sent_run

pytestmark = pytest.mark.django_db

NUL = "a\x00b"
SURROGATE = "a\udcffb"


def run_after(verb: str) -> Any:
    handle = sent_run()
    getattr(handle, verb)(actor="ada")
    return handle


def sent() -> Any:
    return flows.number.send(1).task_id


def ended() -> Any:
    return TaskFactory(status="CANCELLED").pk


def scheduled() -> None:
    schedules.create(*TIDY, actor="ada")


TIDY = ("tidy", {"task": flows.skips.name, "pattern": "every hour"})
FLOOD = {"reason": "flood"}
CHANGES: dict[str, tuple[Callable[[], Any], Callable[..., Any], type[Exception]]] = {
    "pause of a run": (sent_run, lambda run, **how: run.pause(**how), WorkflowError),
    "resume of a run": (
        lambda: run_after("pause"),
        lambda run, **how: run.resume(**how),
        WorkflowError,
    ),
    "cancel of a run": (sent_run, lambda run, **how: run.cancel(**how), WorkflowError),
    "retry of a run": (
        lambda: run_after("cancel"),
        lambda run, **how: run.retry(**how),
        WorkflowError,
    ),
    "skip of a node": (sent_run, lambda run, **how: run.skip("plus", **how), WorkflowError),
    "cancel of a task": (sent, lambda id_, **how: operations.cancel([id_], **how), ValueError),
    "retry of a task": (ended, lambda id_, **how: operations.retry(id_, **how), ValueError),
    "redaction": (
        ended,
        lambda id_, **how: redaction.redact(id_, **{"reason": "wish", **how}),
        ValueError,
    ),
    "purge": (
        sent,
        lambda _, **how: selection.act(selection.matching("PENDING"), "purge", **how),
        ValueError,
    ),
    "pause of a queue": (sent, lambda _, **how: queues.pause("mail", **how), QueueError),
    "resume of a queue": (sent, lambda _, **how: queues.resume("mail", **how), QueueError),
    "change of a queue": (
        sent,
        lambda _, **how: queues.change("mail", {"priority": 9}, **how),
        QueueError,
    ),
    "override": (
        sent,
        lambda _, **how: queues.override("mail", {"max_concurrency": 1}, **FLOOD | how),
        QueueError,
    ),
    "end of an override": (sent, lambda _, **how: queues.clear("mail", **how), QueueError),
    "change of a schedule": (
        scheduled,
        lambda _, **how: schedules.disable("tidy", **how),
        ScheduleError,
    ),
    "schedule run now": (
        scheduled,
        lambda _, **how: schedules.run_now("tidy", **how),
        ScheduleError,
    ),
    "new schedule": (sent, lambda _, **how: schedules.create(*TIDY, **how), ScheduleError),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_actor_that_cannot_be_stored_changes_nothing(
    change: str,
) -> None:
    """An actor or a reason that cannot be stored is refused before anything changes."""
    begin, act, error = CHANGES[change]
    subject = begin()
    AuditEntry.objects.all().delete()
    before = state()

    texts = (
        (NUL, SURROGATE, "", 7, "x" * 10_001) if change == "pause of a run" else (NUL, SURROGATE)
    )

    for how in [{"actor": text} for text in texts] + [
        {"actor": "ada", "reason": text} for text in texts if text
    ]:
        with pytest.raises(
            error, match=r"was (not |changed|cancelled).*: (actor|reason) must be a str"
        ) as raised:
            act(subject, **how)

        assert not isinstance(raised.value, UnicodeError)
        assert connection.in_atomic_block  # and usable
        assert (state(), AuditEntry.objects.count()) == (before, 0)


@pytest.mark.parametrize(
    "change", sorted(set(CHANGES) - {"resume of a queue", "end of an override"})
)
def test_a_lazy_reason_is_stored_in_the_active_language(change: str) -> None:
    """Fails if: the reason of a view, marked for translation, has to be made a ``str`` before."""
    begin, act, _error = CHANGES[change]
    subject = begin()
    AuditEntry.objects.all().delete()

    with translation.override("de"):
        act(subject, actor=gettext_lazy("No"), reason=gettext_lazy("Yes"))

    assert AuditEntry.objects.values_list("actor", "reason").first() == ("Nein", "Ja")


def test_a_gate_takes_a_lazy_reason() -> None:
    flow = Workflow("asks")
    flow.gate("approve")
    handle = flow.send()
    drain()

    with translation.override("de"):
        handle.approve("approve", actor="ada", reason=gettext_lazy("Yes"))

    assert handle.results()["approve"].ok_value == {"by": "ada", "reason": "Ja"}  # type: ignore[union-attr]


def test_lazy_names_keys_and_data_are_refused_with_advice() -> None:
    text: Any = gettext_lazy("Yes")
    advice = "lazy text, which differs between languages: pass str() of it"
    flow = Workflow(text, key=text)
    flow.add(flows.number, 1, name=text)
    flow.signal(text, key=text)
    handle = sent_run()

    with pytest.raises(WorkflowDefinitionError) as raised:
        flow.send()
    with pytest.raises(WorkflowError, match=re.escape(advice)):
        handle.signal("paid", text)
    with pytest.raises(TaskSendError, match=re.escape(advice)):
        flows.number.with_options(key=text).send(1)

    assert len(raised.value.problems) == 5
    assert all(problem.endswith(advice) for problem in raised.value.problems)


def state() -> list[Any]:
    tasks = Task.objects.order_by("pk").values_list("pk", "status")
    return [*tasks, *WorkflowRun.objects.order_by("pk").values_list("pk", "status")]


@pytest.mark.parametrize("text", [NUL, SURROGATE], ids=["nul", "surrogate"])
def test_a_key_that_cannot_be_stored_is_refused_or_not_found(text: str) -> None:
    """A key or a name that cannot be stored is refused or not found."""
    flow = Workflow("keyed", key=text)
    flow.add(flows.number, 1)
    flow.signal("paid", key=text)

    with pytest.raises(WorkflowDefinitionError) as raised:
        flow.send()

    assert all(
        "key must be a str without NUL bytes and lone surrogates" in one
        for one in raised.value.problems
    )
    assert len(raised.value.problems) == 2

    handle = sent_run()
    with pytest.raises(LookupError, match="no node named"):
        handle.skip(text)
    with pytest.raises(LookupError, match="has no node"):
        explain_node(handle.workflow_id, text)

    assert workflows.keyed("default", text) == []
    with pytest.raises(QueueError, match="there is no queue"):
        queues.pause(text, actor="ada")

    for verb in (schedules.enable, schedules.revert, schedules.run_now):
        with pytest.raises(ScheduleError, match="there is no schedule"):
            verb(text, actor="ada")

    with pytest.raises(
        CommandError, match="reason must be a str without NUL bytes and lone surrogates"
    ):
        call_command("horsies_task", "cancel", str(sent()), "--reason", SURROGATE)
