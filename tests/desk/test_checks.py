"""The system checks: each kind of mistake is named, with its place and its remedy, and without a database."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage, Error, run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections
from django.db.backends.postgresql import psycopg_any

from horsies_django import checks
from tests.desk.conftest import AddApp

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "checks.md"
MODELS = "from django.db import models\n\nclass {name}(models.Model):\n    class Meta:\n        app_label = '{app}'\n"


class ProjectOnSecond:
    """A project's router that keeps the project's models on ``second``."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "second" if model._meta.app_label.startswith("shop") else None


class Replica:
    """A project's router that reads everything from ``second``."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "second"


class NoMigrations:
    """A project's router that leaves the schema to somebody else."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return False


def found(id_: str) -> CheckMessage:
    """Run the checks and return the only message there is."""
    [message] = run_checks(tags=[checks.TAG])
    assert message.id == f"horsies.{id_}"
    assert message.hint
    return message


def test_the_checks_run_in_every_command_and_need_no_database(settings: Any) -> None:
    assert run_checks(tags=[checks.TAG]) == []
    settings.HORSIES = {"MAX_PAYLOAD": 5}
    with pytest.raises(SystemCheckError, match=r"horsies\.E002"):
        call_command("check", stdout=StringIO(), stderr=StringIO())


@pytest.mark.promise("S0.27", "S0.28", "S1.39")
def test_every_refused_combination_is_its_own_message(settings: Any) -> None:
    settings.HORSIES = {
        "CLUSTER_WIDE_CAP": 15,
        "PREFETCH_BUFFER": 4,
        "RECOVERY": {"CLAIMER_HEARTBEAT_INTERVAL_MS": 6_000},
        "QUEUES": {"mail": {"partition": {"by_task": True}}},
    }
    messages = run_checks(tags=[checks.TAG])
    assert {(one.id, one.obj) for one in messages} == {
        ("horsies.E014", "HORSIES['PREFETCH_BUFFER']"),
        ("horsies.E015", "HORSIES['CLAIM_LEASE_MS']"),
        ("horsies.E017", "HORSIES['RECOVERY']['RUNNING_STALE_THRESHOLD_MS']"),
        ("horsies.E018", "HORSIES['QUEUES']['mail']['partition']"),
    }
    assert all(isinstance(one, Error) and one.hint for one in messages)
    settings.HORSIES = {"CLAIM_LEASE_MS": 4_999}
    assert found("E016").obj == "HORSIES['CLAIM_LEASE_MS']"


def test_a_warning_when_a_lease_has_nothing_to_hold(settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "CLAIM_LEASE_MS": 60_000}
    message = found("W003")
    assert message.obj == "HORSIES['CLAIM_LEASE_MS']"
    assert "PREFETCH_BUFFER is 0" in message.msg
    settings.HORSIES = {**settings.HORSIES, "PREFETCH_BUFFER": 1}
    assert run_checks(tags=[checks.TAG]) == []
    settings.HORSIES = {**settings.HORSIES, "PREFETCH_BUFFER": -1}
    assert found("E003").obj == "HORSIES['PREFETCH_BUFFER']"


def test_an_alias_that_is_not_postgresql_or_its_driver_is_told(
    second_alias: Any, settings: Any, monkeypatch: Any
) -> None:
    second_alias.update(ENGINE="django.db.backends.sqlite3", NAME=":memory:")
    for key in ("DATABASE", "LISTEN_DATABASE"):
        settings.HORSIES = {key: "second"}
        message = found("E008")
        assert message.obj == f"HORSIES['{key}']"
        assert "django.db.backends.sqlite3" in message.msg
    settings.HORSIES = {}
    monkeypatch.setattr(psycopg_any, "is_psycopg3", False)  # what Django says when only psycopg2 can be imported
    assert "psycopg[binary]" in str(found("E009").hint)
    settings.HORSIES = {"DATABASE": "nowhere"}
    assert "'nowhere'" in found("E004").msg, "an alias that does not exist is one problem, not two"


@pytest.mark.usefixtures("second_alias")
def test_routers_that_keep_the_queue_elsewhere_than_its_alias_are_an_error(settings: Any) -> None:
    ours = "horsies_django.routers.HorsiesRouter"
    settings.DATABASE_ROUTERS = [f"{__name__}.Replica"]
    assert "models of horsies are read from 'second'." in found("E010").msg
    settings.DATABASE_ROUTERS = [f"{__name__}.NoMigrations"]
    assert "not migrated on 'default'" in found("E010").msg
    settings.DATABASE_ROUTERS = [ours, f"{__name__}.Replica"]
    assert run_checks(tags=[checks.TAG]) == []
    settings.HORSIES = {**settings.HORSIES, "DATABASE": "second"}
    settings.DATABASE_ROUTERS = []
    message = found("E010")
    assert "read from 'default', written to 'default'" in message.msg
    assert ours in str(message.hint)
    settings.DATABASE_ROUTERS = [ours]
    assert run_checks(tags=[checks.TAG]) == []


@pytest.mark.usefixtures("second_alias")
def test_a_warning_when_the_models_of_the_project_are_written_to_another_alias(settings: Any, add_app: AddApp) -> None:
    proxy = "class Team(Group):\n    class Meta:\n        proxy = True\n"
    add_app("shop_l", models=f"from django.contrib.auth.models import Group\n\n{proxy}")
    add_app("shop_c", models=MODELS.format(name="Order", app="shop_c") + "        managed = False\n")
    settings.DATABASE_ROUTERS = [f"{__name__}.ProjectOnSecond"]
    assert run_checks(tags=[checks.TAG]) == []
    add_app("shop_a", models=MODELS.format(name="Order", app="shop_a"))
    message = found("W001")
    assert "Tasks are sent to 'default'" in message.msg
    assert "written to 'second'" in message.msg
    assert "'second'" in str(message.hint)
    add_app("shelf", models=MODELS.format(name="Book", app="shelf"))
    assert run_checks(tags=[checks.TAG]) == [], "only some of them are elsewhere"


def test_a_warning_when_a_pooler_listens(second_alias: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "DISABLE_SERVER_SIDE_CURSORS", True)
    assert found("W002").obj == "HORSIES['LISTEN_DATABASE']"
    settings.HORSIES = {**settings.HORSIES, "LISTEN_DATABASE": "second"}
    assert run_checks(tags=[checks.TAG]) == []
    second_alias["DISABLE_SERVER_SIDE_CURSORS"] = True
    assert "'second'" in found("W002").msg


def test_every_module_that_cannot_be_imported_is_named_with_its_exception_and_line(add_app: AddApp) -> None:
    add_app("shop_d", tasks="x = 1\nimport no_such_module_anywhere\n")
    add_app("shop_e", tasks="import json\n\njson.loads('{')\n")
    add_app("shop_f", tasks="def broken(:\n")
    bound = "@task(bind=True)\ndef pack(self: object) -> None: ...\n"
    add_app("shop_s", tasks=f"from horsies_django import task\n\n{bound}")
    messages = run_checks(tags=[checks.TAG])
    assert [(one.id, one.obj) for one in messages] == [("horsies.E011", f"shop_{one}.tasks") for one in "defs"]
    missing, failing, broken, option = messages
    assert "ModuleNotFoundError: No module named 'no_such_module_anywhere'" in missing.msg
    assert "shop_d/tasks.py, line 2" in str(missing.hint)
    assert "shop_e/tasks.py, line 3" in str(failing.hint), "the project's line, not one of the json module"
    assert "SyntaxError" in broken.msg
    assert "unexpected keyword argument 'bind': leave it out" in option.msg, "which is an option of another queue"
    assert "shop_s/tasks.py, line 3" in str(option.hint)


def test_two_tasks_of_one_name_and_a_function_that_cannot_be_a_task_are_errors_at_their_lines(add_app: AddApp) -> None:
    source = "from horsies_django import task\n\n@task(name='pack')\ndef {}() -> None: ...\n"
    add_app("shop_g", tasks=source.format("pack"))
    add_app("shop_h", tasks=source.format("wrap"))
    add_app("shop_i", tasks="from horsies_django import task\n\n\n@task(priority=0)\ndef pack() -> None: ...\n")
    twice, unfit = run_checks(tags=[checks.TAG])
    assert [(one.id, one.obj) for one in (twice, unfit)] == [("horsies.E012", f"shop_{app}.tasks") for app in "hi"]
    assert "shop_g.tasks.pack" in twice.msg
    assert "shop_h.tasks.wrap" in twice.msg
    assert "shop_h/tasks.py, line 3" in str(twice.hint)
    assert "priority" in unfit.msg
    assert "shop_i/tasks.py, line 4" in str(unfit.hint)


def test_all_missing_annotations_of_all_tasks_of_a_module_are_named_at_once(add_app: AddApp) -> None:
    code = (
        "from horsies_django import task as job\n\n@job\ndef pack(box: int) -> None: ...\n\n\n"
        "@job(priority=5)\ndef wrap(box, paper=None): ...\n\n\n@job\nasync def send(box: int, to): ...\n\n\n"
        "def helper(box): ...\n\n\n@job(priority=6)\ndef tape(*, width) -> int: ...\n"
    )
    add_app("shop_m", tasks=code)
    message = found("E012")
    assert "shop_m.tasks.wrap lacks annotations" in message.msg
    assert "decoded: box, paper, return. Write types, as in\n    def wrap(box: int, paper: int | None" in message.msg
    assert message.msg.endswith("\nSo does send in line 12: to, return\nSo does tape in line 19: width")


def test_an_annotation_that_names_nothing_and_an_undeclared_queue_are_errors(add_app: AddApp) -> None:
    code = "from __future__ import annotations\nfrom horsies_django import task\n\n@task\ndef pack(box: Bxo) -> None: ...\n"
    add_app("shop_l", tasks=code)
    add_app("shop_j", tasks="from horsies_django import task\n\n@task(queue='mial')\ndef pack() -> None: ...\n")
    found_ = {(one.id, one.obj): one for one in run_checks(tags=[checks.TAG])}
    assert set(found_) == {("horsies.E012", "shop_l.tasks.pack"), ("horsies.E013", "shop_j.tasks.pack")}
    assert "Bxo" in found_["horsies.E012", "shop_l.tasks.pack"].msg
    undeclared = found_["horsies.E013", "shop_j.tasks.pack"]
    assert "'mial'" in undeclared.msg
    assert "mail" in str(undeclared.hint)


def test_bad_settings_are_not_blamed_on_the_tasks(settings: Any, add_app: AddApp) -> None:
    add_app("shop_k", tasks="from horsies_django import task\n\n@task(queue='new')\ndef pack() -> None: ...\n")
    settings.HORSIES = {"QUEUES": ["new"]}
    assert found("E001").obj == "HORSIES['QUEUES']"


WRAPPED = """
from django.db import transaction
from horsies_django import task

def count(function):
    return function

{}
def charge(order: int) -> None: ...

"""


def test_a_transaction_above_the_task_is_an_error_that_says_to_swap_the_lines(add_app: AddApp) -> None:
    wrong = ("@transaction.atomic", "@transaction.atomic()", "@transaction.atomic\n@transaction.atomic")
    for number, above in enumerate(wrong):
        add_app(f"shop_m{number}", tasks=WRAPPED.format(f"{above}\n@task"))
    messages = run_checks(tags=[checks.TAG])
    assert [(one.id, one.obj) for one in messages] == [
        ("horsies.E023", f"shop_m{number}.tasks.charge") for number in range(3)
    ]
    for message in messages:
        assert "workers run the task without the decorator" in message.msg
        assert "Swap the two lines" in str(message.hint)

    above = ("@task\n@transaction.atomic", "@count\n@task", "@task", "@(lambda one: one)\n@task\n@transaction.atomic")
    for number, right in enumerate(above):
        code = WRAPPED.format(right) + "\nfor_direct_calls = transaction.atomic(charge)\n"
        add_app(f"shop_n{number}", tasks=code)
    assert len(run_checks(tags=[checks.TAG])) == 3, "the right order is none"


RETRIED = """
from horsies_django import RetryPolicy, TaskError, TaskResult, task

@task(retry_policy=RetryPolicy.fixed([1], auto_retry_for=[OSError, "WORKER_CRASHED", "{code}"]){options})
def pack(status: int) -> TaskResult[int]:
    return TaskResult(err=TaskError({produced}))
"""
CODE = "box_trn".upper()  # nowhere in this file, which is code of the project as well


def test_a_code_to_retry_that_nothing_produces_is_a_warning_that_names_the_nearest(add_app: AddApp) -> None:
    options = f", exception_mapper={{KeyError: {CODE.replace('RN', 'ORN')!r}}}"
    add_app("shop_o", tasks=RETRIED.format(code=CODE, produced="'OTHER'", options=options))
    message = found("W004")
    assert message.obj == "shop_o.tasks.pack"
    assert f"error code {CODE!r}, which nothing in this project produces" in message.msg
    assert f"Did you mean {CODE.replace('RN', 'ORN')!r}?" in str(message.hint)


PRODUCED: dict[str, dict[str, Any]] = {
    "constant": {"produced": repr(CODE)},
    "beginning": {"produced": f"f'{CODE[:4]}{{status}}'"},
    "format": {"produced": f"'{CODE[:4]}%s' % status"},
    "end": {"produced": f"'%s{CODE[3:]}' % status"},
    "name": {"produced": f"Codes.{CODE}.name", "helpers": f"class Codes:\n    {CODE} = 1\n"},
    "other module": {"produced": "CODE", "helpers": f"CODE = {CODE!r}\n"},
    "module that only a task imports": {
        "late": f"from horsies_django import TaskError\n\nERROR = TaskError({CODE!r})\n"
    },
    "mapper": {"options": f", exception_mapper={{KeyError: {CODE!r}}}"},
    "mapper of the settings": {"EXCEPTION_MAPPER": {KeyError: CODE}},
    "default of the settings": {"DEFAULT_UNHANDLED_ERROR_CODE": CODE},
}


@pytest.mark.parametrize("how", PRODUCED)
def test_a_code_that_the_project_may_produce_is_no_warning(settings: Any, add_app: AddApp, how: str) -> None:
    given = {"produced": "'OTHER'", "options": "", "helpers": "", "late": "", **PRODUCED[how]}
    settings.HORSIES = {**settings.HORSIES, **{key: value for key, value in given.items() if key.isupper()}}
    source = RETRIED.format(code=CODE, produced=given["produced"], options=given["options"])
    modules = {name: given[name] for name in ("helpers", "late")}
    add_app("shop_p", tasks="from shop_p.helpers import *\n" + source, **modules)
    assert run_checks(tags=[checks.TAG]) == []


IN_ORDER = """
from horsies_django import RetryPolicy, task

POLICY = RetryPolicy.fixed([1])

@task(queue="ledger"{options})
def book({parameters}) -> None: ...
"""


def ledger(settings: Any, **rule: Any) -> None:
    queue = {"partition": {"by_args": ["account_id"], "ordered": True, **rule}}
    settings.HORSIES = {**settings.HORSIES, "QUEUES": {**settings.HORSIES["QUEUES"], "ledger": queue}}


@pytest.mark.parametrize(
    ("options", "parameters", "id_", "said", "advice"),
    [
        (", retry_policy=POLICY, priority=5", "account_id: int", "E028", "has the priority 5", "Leave out the prior"),
        (", retry_policy=POLICY", "account: int", "W008", "has no argument 'account_id'", "Add the argument"),
        (", retry_policy=POLICY", "account_id: int = 0", "W009", "a default for 'account_id'", "Remove the default"),
        ("", "account_id: int", "W010", "has no retry policy", "'on_failure': 'continue'"),
    ],
)
def test_what_does_not_suit_an_ordered_queue_is_one_message_with_the_way_out(
    settings: Any, add_app: AddApp, options: str, parameters: str, id_: str, said: str, advice: str
) -> None:
    ledger(settings)
    add_app("shop_r", tasks=IN_ORDER.format(options=options, parameters=parameters))
    message = found(id_)
    assert message.obj == "shop_r.tasks.book"
    assert said in message.msg
    assert "'ledger'" in message.msg
    assert advice in str(message.hint)


SUITS = ", retry_policy=POLICY", "account_id: int, cents: int = 0"
COALESCED = {"ordered": False, "by_task": True, "by_args": "all", "coalesce": True}
ANY_TASK = ", priority=5", "document_id: int = 0"


@pytest.mark.parametrize(
    ("rule", "task"),
    [
        ({}, SUITS),
        ({"by_args": "all"}, SUITS),
        ({"on_failure": "continue"}, ("", SUITS[1])),
        ({"on_failure": "cancel"}, ("", SUITS[1])),
        (COALESCED, ANY_TASK),
        ({"ordered": False, "max_concurrency": 1}, ANY_TASK),
    ],
)
def test_what_suits_an_ordered_queue_and_any_task_of_others_is_none(
    settings: Any, add_app: AddApp, rule: dict[str, Any], task: tuple[str, str]
) -> None:
    ledger(settings, **rule)
    add_app("shop_s", tasks=IN_ORDER.format(options=task[0], parameters=task[1]))
    assert run_checks(tags=[checks.TAG]) == []


def test_a_task_without_a_queue_is_one_of_the_queue_default(settings: Any, add_app: AddApp) -> None:
    default = {"partition": {"by_args": ["account_id"], "ordered": True, "on_failure": "continue"}}
    settings.HORSIES = {**settings.HORSIES, "QUEUES": {**settings.HORSIES["QUEUES"], "default": default}}
    task = "@task(priority=9)\ndef tidy(account_id: int) -> None: ...\n"
    add_app("shop_u", tasks=f"from horsies_django import task\n\n{task}")
    assert ("horsies.E028", "shop_u.tasks.tidy") in [(one.id, one.obj) for one in run_checks(tags=[checks.TAG])]


def test_the_page_explains_every_id_of_the_code_once() -> None:
    package = ROOT / "horsies_django"
    used: set[str] = set()
    for path in (*(package / "conf").glob("*.py"), package / "backends" / "backend.py", package / "checks.py"):
        used |= set(re.findall(r'"([EW]\d{3})"', path.read_text()))
    assert sorted(re.findall(r"^### horsies\.([EW]\d{3}): .+$", PAGE.read_text(), re.MULTILINE)) == sorted(used)
    sections = re.split(r"^#+ .*$", PAGE.read_text(), flags=re.MULTILINE)
    assert all(section.strip() for section in sections[1:])
