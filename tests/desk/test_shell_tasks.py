"""Tasks that are defined in a shell: no worker can import them, so sending one is refused, in each of its forms."""

from __future__ import annotations

from code import InteractiveConsole
from collections.abc import Callable

import pytest
from django.core.management import call_command

from horsies_django.core.errors import TaskSendError
from horsies_django.models import Task, WorkflowRun
from horsies_django.tasks import registry

pytestmark = pytest.mark.django_db

OWN = """
from horsies_django import task
@task{options}
def welcome(user_id: int) -> None: ...
"""
FLOW = """
from horsies_django import Workflow
flow = Workflow("one")
flow.add(welcome, 1)
flow.send()
"""
PLAIN = """
from tests.apps.errands.api import task
@task()
def welcome(user_id): ...
"""
FORMS = {
    "send": OWN.format(options="") + "welcome.send(1)",
    "send_many": OWN.format(options="") + "welcome.send_many([{'user_id': 1}])",
    "workflow": OWN.format(options="") + FLOW,
    "enqueue": PLAIN + "welcome.enqueue(1)",
}


def shell(code: str) -> None:
    """Run code as ``manage.py shell -c`` does."""
    call_command("shell", command=code, verbosity=0)


def console(code: str) -> None:
    """Run code as the console of ``manage.py shell`` does."""
    InteractiveConsole(locals={}).runcode(compile(code, "<console>", "exec"))


def script(code: str) -> None:
    """Run code as the main module of a process."""
    exec(code, {"__name__": "__main__"})


@pytest.fixture(autouse=True)
def registered_here_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("run", [shell, script])
def test_a_task_that_no_worker_can_import_is_refused_when_it_is_sent(run: Callable[[str], None], form: str) -> None:
    """Naive: it fails minutes later in a worker, which knows no task of that name."""
    with pytest.raises(TaskSendError, match=r"welcome: defined in .*define tasks in the tasks\.py of an app"):
        run(FORMS[form])
    assert not Task.objects.exists()
    assert not WorkflowRun.objects.exists()


def test_a_name_of_its_own_makes_a_task_of_a_script_one_for_a_worker_in_this_process_but_not_one_of_a_shell() -> None:
    code = OWN.format(options="(name='shop.welcome')") + "welcome.send(1)"
    with pytest.raises(TaskSendError, match=r"shell\.welcome: defined in a shell"):
        shell(code)
    registry._tasks.pop("shop.welcome")
    script(code)
    assert Task.objects.get().task_name == "shop.welcome"


def test_the_module_of_a_console_is_none_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    console(FORMS["send"])
    assert "TaskSendError" in (said := capsys.readouterr().err)
    assert "None.welcome: defined in a shell" in said
    assert not Task.objects.exists()
