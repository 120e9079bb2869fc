"""Output of commands: no row and no message of an error controls the terminal of its reader."""

from __future__ import annotations

import io
import json
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class

from horsies_django import Workflow, queues, schedules
from horsies_django.management import shared
from horsies_django.models import Schedule, WorkflowRun
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.conftest import limit
from tests.support.commands import ran
from tests.support.factories import TaskAttemptFactory, TaskFactory, error

pytestmark = pytest.mark.django_db(transaction=True)

# ESC, BEL, the CSI of C1, a return of the carriage, marks of direction, invisible characters
HOSTILE = "\x1b]0;t\x07\x1b[2J\x9b31mre\u202ed\r\u2066\u061c\u200b\ufeff\u2028\x7f\U000e0041"
OTHER_LANGUAGES = "ü 漢字 می‌خواهم 👩‍💻 שלום"


def unsafe(text: str) -> set[str]:
    """Return the control and format characters of a text, except line ends, tabs and joiners."""
    kept = {"\n", "\t", "\u200c", "\u200d"}
    return {each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp")} - kept


@pytest.fixture
def hostile() -> dict[str, str]:
    """Write hostile texts into rows of all kinds; return the ids of a task and of a run."""
    columns = {
        "status": "FAILED",
        "error_code": f"OH{HOSTILE}",
        "queue_name": "mail",
        "partition_key": HOSTILE,
    }
    ordered = {"partition_version": 1, "ordered": True, "order_stop": "stop"}
    task = TaskFactory(result=error("OH_NO", HOSTILE, data=HOSTILE), **columns, **ordered)
    message = f"one\nattempt 9: COMPLETED{HOSTILE}"
    TaskAttemptFactory(task_id=task.pk, error_code=HOSTILE, error_message=message, site=HOSTILE)
    TaskFactory(queue_name="mail", partition_key=HOSTILE, partition_version=1, ordered=True)

    limit("mail", partition_by_args=["a"], partition_max_concurrency=1, partition_policy="stop")
    queues.pause("mail", actor=HOSTILE, reason=HOSTILE)
    queues.override("mail", {"max_concurrency": 3}, actor=HOSTILE, reason=HOSTILE)

    schedules.create("tidy", {"task": flows.skips.name, "pattern": "every hour"}, actor="ada")
    Schedule.objects.update(
        changes={"task": HOSTILE, "pattern": HOSTILE, "zone": HOSTILE}, error=HOSTILE
    )

    flow = Workflow("order")
    flow.add(flows.broken, 1)
    flow.gate("go")
    run = flow.send()
    drain(raise_errors=False)
    run.pause(actor=HOSTILE, reason=HOSTILE)
    WorkflowRun.objects.update(name=HOSTILE, key=HOSTILE, error_code=HOSTILE)

    return {"TASK": str(task.pk), "RUN": str(run.workflow_id)}


def texts(value: Any) -> Iterator[str]:
    """Yield each text in a value of JSON."""
    if isinstance(value, str):
        yield value

    items: Iterable[Any] = ()
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, list):
        items = value
    for item in items:
        yield from texts(item)


COMMANDS = [
    ("horsies_task", "show", "TASK", "--payload"),
    ("horsies_task", "list"),
    ("horsies_task", "retry", "--status=FAILED", "--dry-run"),
    ("horsies_queue", "show", "mail"),
    ("horsies_queue", "list"),
    ("horsies_schedule", "list"),
    ("horsies_workflow", "list"),
    ("horsies_workflow", "show", "RUN", "--payload"),
    ("horsies_explain",),
    ("horsies_status",),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_row_controls_the_terminal(words: tuple[str, ...], hostile: dict[str, str]) -> None:
    _code, out, err = ran(*[hostile.get(word, word) for word in words])

    assert unsafe(out + err) == set()
    assert "x1b" in out or words[1:] in (("list",), ()), "it is shown, escaped"
    assert not [line for line in out.splitlines() if line.startswith("attempt 9")], (
        "no message forges a line"
    )


@pytest.mark.parametrize(
    "words", [one for one in COMMANDS if "show" in one or "list" in one], ids=" ".join
)
def test_json_keeps_each_character(words: tuple[str, ...], hostile: dict[str, str]) -> None:
    _code, out, _err = ran(*[hostile.get(word, word) for word in words], "--json")

    assert out.isascii()
    assert any(HOSTILE in text for text in texts(json.loads(out)))


def test_an_error_does_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    command = load_command_class("horsies_django", "horsies_task")

    with pytest.raises(SystemExit):
        command.run_from_argv(
            ["manage.py", "horsies_task", "--skip-checks", "send", f"shop.{HOSTILE}"]
        )

    err = capsys.readouterr().err
    assert "there is no task named" in err
    assert unsafe(err) == set()


def test_each_command_writes_through_one_function() -> None:
    ours = [name for name, app in get_commands().items() if app == "horsies_django"]
    relays = {"horsies_dev"}  # the lines of other processes, with their colours

    plain = {
        name
        for name in ours
        if not isinstance(load_command_class("horsies_django", name), shared.Command)
    }

    assert plain == relays


def test_letters_of_all_languages_are_shown() -> None:
    stream = io.StringIO()

    shared.Terminal(stream).write(f"{OTHER_LANGUAGES}\n\tnext")

    assert stream.getvalue() == f"{OTHER_LANGUAGES}\n\tnext\n"
