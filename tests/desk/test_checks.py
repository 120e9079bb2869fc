"""The system checks report each kind of mistake with its place and remedy, without a database."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections
from django.db.backends.postgresql import psycopg_any

from horsies_django.conf.section import CHECK_TAG
from horsies_django.tasks import produced_codes
from tests.desk.conftest import AddApp

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "checks.md"
MODELS = (
    "from django.db import models\n\nclass {name}(models.Model):\n    class Meta:\n        "
    "app_label = '{app}'\n"
)


# Routers of projects: the first reads all from ``second``, the next one migrates nothing, the last
# one writes the project's models to ``second``
REPLICA = SimpleNamespace(db_for_read=lambda model, **hints: "second")
NO_MIGRATIONS = SimpleNamespace(allow_migrate=lambda db, app_label, **hints: False)
PARTLY = SimpleNamespace(
    db_for_write=lambda model, **hints: (
        "second" if model._meta.app_label.startswith("shop") else None
    )
)


def expect(*expected: tuple[str, ...]) -> None:
    """Run the checks and compare the id and place of each message, and words of its texts."""
    messages = run_checks(tags=[CHECK_TAG])
    assert [(message.id, message.obj) for message in messages] == [
        (f"horsies.{id_}", at) for id_, at, *_ in expected
    ]

    for message, (_, _, *words) in zip(messages, expected, strict=True):
        assert message.hint
        assert [word for word in words if word not in f"{message.msg}\n{message.hint}"] == []


def test_the_checks_of_the_settings_need_no_database(
    settings: Any,
) -> None:
    """The checks run in every command, without a database, and report each problem."""
    expect()

    settings.HORSIES = {
        "MAX_PAYLOAD": 5,
        "CLUSTER_WIDE_CAP": 15,
        "PREFETCH_BUFFER": 4,
        "CLAIM_LEASE_MS": 60_000,
    }

    with pytest.raises(SystemCheckError, match=r"horsies\.E002"):
        call_command("check", stdout=StringIO(), stderr=StringIO())

    expect(("E002", "HORSIES['MAX_PAYLOAD']"), ("E014", "HORSIES['PREFETCH_BUFFER']"))


def test_a_warning_when_a_lease_has_nothing_to_hold(settings: Any) -> None:
    settings.HORSIES = {**settings.HORSIES, "CLAIM_LEASE_MS": 60_000}
    expect(("W003", "HORSIES['CLAIM_LEASE_MS']", "PREFETCH_BUFFER is 0"))

    settings.HORSIES = {**settings.HORSIES, "PREFETCH_BUFFER": 1}
    expect()


def test_a_check_reports_an_alias_without_postgresql_or_psycopg(
    second_alias: Any, settings: Any, monkeypatch: Any
) -> None:
    second_alias.update(ENGINE="django.db.backends.sqlite3", NAME=":memory:")

    for key in ("DATABASE", "LISTEN_DATABASE"):
        settings.HORSIES = {key: "second"}
        expect(("E008", f"HORSIES['{key}']", "django.db.backends.sqlite3"))

    settings.HORSIES = {}
    # Django sets this when only psycopg2 can be imported.
    monkeypatch.setattr(psycopg_any, "is_psycopg3", False)
    expect(("E009", "HORSIES['DATABASE']", "psycopg[binary]"))

    settings.HORSIES = {"DATABASE": "nowhere"}
    expect(("E004", "HORSIES['DATABASE']", "'nowhere'"))  # one problem, not two


@pytest.mark.usefixtures("second_alias")
def test_a_router_that_contradicts_the_alias_is_an_error(settings: Any) -> None:
    """A router that keeps the queue on another alias than its own is an error."""
    ours = "horsies_django.routers.HorsiesRouter"
    place = "HORSIES['DATABASE']"

    settings.DATABASE_ROUTERS = [REPLICA]
    expect(("E010", place, "models of horsies are read from 'second'."))

    settings.DATABASE_ROUTERS = [NO_MIGRATIONS]
    expect(("E010", place, "not migrated on 'default'"))

    settings.DATABASE_ROUTERS = [ours, REPLICA]
    expect()

    settings.HORSIES = {**settings.HORSIES, "DATABASE": "second"}
    settings.DATABASE_ROUTERS = []
    expect(("E010", place, "read from 'default', written to 'default'", ours))

    settings.DATABASE_ROUTERS = [ours]
    expect()


@pytest.mark.usefixtures("second_alias")
def test_a_warning_when_models_are_written_to_another_alias(settings: Any, add_app: AddApp) -> None:
    """The check warns if all models of the project are written to another alias than the queue."""
    proxy = "class Team(Group):\n    class Meta:\n        proxy = True\n"
    add_app("shop_l", models=f"from django.contrib.auth.models import Group\n\n{proxy}")
    add_app(
        "shop_c", models=MODELS.format(name="Order", app="shop_c") + "        managed = False\n"
    )

    settings.DATABASE_ROUTERS = [PARTLY]
    expect()

    add_app("shop_a", models=MODELS.format(name="Order", app="shop_a"))
    expect(("W001", "HORSIES['DATABASE']", "Tasks are sent to 'default'", "written to 'second'"))

    add_app("shelf", models=MODELS.format(name="Book", app="shelf"))
    expect()  # only some of them are elsewhere


def test_a_warning_when_a_pooler_listens(
    second_alias: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "DISABLE_SERVER_SIDE_CURSORS", True)
    expect(("W002", "HORSIES['LISTEN_DATABASE']", "'default'"))

    settings.HORSIES = {**settings.HORSIES, "LISTEN_DATABASE": "second"}
    expect()

    second_alias["DISABLE_SERVER_SIDE_CURSORS"] = True
    expect(("W002", "HORSIES['LISTEN_DATABASE']", "'second'"))


TASK = "from horsies_django import task\n\n"


def test_a_module_that_cannot_be_imported_is_named_with_its_line(
    add_app: AddApp,
) -> None:
    """Every module that cannot be imported is named with its exception and line."""
    add_app("shop_d", tasks="x = 1\nimport no_such_module_anywhere\n")
    add_app("shop_e", tasks="import json\n\njson.loads('{')\n")
    add_app("shop_f", tasks="def broken(:\n")
    add_app("shop_s", tasks=TASK + "@task(bind=True)\ndef pack(self: object) -> None: ...\n")

    expect(
        (
            "E011",
            "shop_d.tasks",
            "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
            "shop_d/tasks.py, line 2",
        ),
        # It is the project's line, not one of the json module.
        ("E011", "shop_e.tasks", "shop_e/tasks.py, line 3"),
        ("E011", "shop_f.tasks", "SyntaxError"),
        (
            "E011",
            "shop_s.tasks",
            "unexpected keyword argument 'bind': remove it",
            "shop_s/tasks.py, line 3",
        ),
    )


def test_a_task_with_an_undeclared_queue_is_an_error_at_its_line(
    add_app: AddApp,
) -> None:
    """Every task that is invalid or has an undeclared queue is an error at its line."""
    add_app("shop_g", tasks=TASK + "@task(name='pack')\ndef pack() -> None: ...\n")
    add_app("shop_h", tasks=TASK + "@task(name='pack')\ndef wrap() -> None: ...\n")
    add_app("shop_i", tasks=TASK + "\n@task(priority=0)\ndef pack() -> None: ...\n")
    add_app("shop_j", tasks=TASK + "@task(queue='mial')\ndef pack() -> None: ...\n")
    add_app("shop_l", tasks=TASK + "@task\ndef pack(box: 'Bxo') -> None: ...\n")

    expect(
        (
            "E012",
            "shop_h.tasks",
            "shop_g.tasks.pack",
            "shop_h.tasks.wrap",
            "shop_h/tasks.py, line 3",
        ),
        ("E012", "shop_i.tasks", "priority", "shop_i/tasks.py, line 4"),
        ("E012", "shop_l.tasks.pack", "Bxo"),
        ("E013", "shop_j.tasks.pack", "'mial'", "mail"),
    )


def test_all_missing_annotations_of_a_module_are_named_at_once(
    add_app: AddApp,
) -> None:
    """All missing annotations of all tasks of a module are named at once."""
    code = (
        "from horsies_django import task as job\n\n@job\ndef pack(box: int) -> None: ...\n\n\n"
        "@job(priority=5)\ndef wrap(box, paper=None): ...\n\n\n@job\nasync def send(box: int, to): "
        "...\n\n\n"
        "def helper(box): ...\n\n\n@job(priority=6)\ndef tape(*, width) -> int: ...\n"
    )
    add_app("shop_m", tasks=code)

    types = (
        "decoded: box, paper, return. Write types, as in\n    def wrap(box: int, paper: int | None"
    )
    others = "\nSo does send in line 12: to, return\nSo does tape in line 19: width\n"

    expect(("E012", "shop_m.tasks", "shop_m.tasks.wrap lacks annotations", types, others))


def test_bad_settings_are_not_blamed_on_the_tasks(settings: Any, add_app: AddApp) -> None:
    add_app("shop_k", tasks=TASK + "@task(queue='new')\ndef pack() -> None: ...\n")
    settings.HORSIES = {"QUEUES": ["new"]}

    expect(("E001", "HORSIES['QUEUES']"))


WRAPPED = """
from django.db import transaction
from horsies_django import task

def count(function):
    return function

{}
def charge(order: int) -> None: ...

for_direct_calls = transaction.atomic(charge)
"""


@pytest.mark.parametrize(
    ("above", "wrong"),
    [
        ("@transaction.atomic\n@task", True),
        ("@transaction.atomic()\n@task", True),
        ("@transaction.atomic\n@transaction.atomic\n@task", True),
        ("@task\n@transaction.atomic", False),
        ("@count\n@task", False),
        ("@task", False),
        ("@(lambda one: one)\n@task\n@transaction.atomic", False),
    ],
)
def test_a_transaction_decorator_above_the_task_is_an_error(
    add_app: AddApp, above: str, wrong: bool
) -> None:
    """A transaction decorator above ``@task`` is an error, with the hint to swap the two lines."""
    add_app("shop_m", tasks=WRAPPED.format(above))
    said = (
        "E023",
        "shop_m.tasks.charge",
        "workers run the task without the decorator",
        "Swap the two lines",
    )

    expect(*[said] if wrong else [])


RETRIED = """
from horsies_django import RetryPolicy, TaskError, TaskResult, task

@task(retry_policy=RetryPolicy.fixed([1], auto_retry_for=[OSError, "WORKER_CRASHED", "{code}"])\
{options})
def pack(status: int) -> TaskResult[int]:
    return TaskResult(err=TaskError({produced}))
"""
CODE = "box_trn".upper()  # nowhere in this file, which is code of the project as well


def test_an_unknown_code_to_retry_is_a_warning(
    add_app: AddApp,
) -> None:
    """A code to retry that the project never produces is a warning with the nearest known code."""
    options = f", exception_mapper={{KeyError: {CODE.replace('RN', 'ORN')!r}}}"
    add_app("shop_o", tasks=RETRIED.format(code=CODE, produced="'OTHER'", options=options))
    said = f"error code {CODE!r}, which nothing in this project produces"

    expect(("W004", "shop_o.tasks.pack", said, f"Did you mean {CODE.replace('RN', 'ORN')!r}?"))


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
def test_a_code_that_the_project_may_produce_is_no_warning(
    settings: Any, add_app: AddApp, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Fails if: the code of a project that is installed like a library is not searched."""
    monkeypatch.setattr(produced_codes, "INSTALLED_ROOTS", ("/",))
    given = {"produced": "'OTHER'", "options": "", "helpers": "", "late": "", **PRODUCED[how]}
    settings.HORSIES = {
        **settings.HORSIES,
        **{key: value for key, value in given.items() if key.isupper()},
    }

    source = RETRIED.format(code=CODE, produced=given["produced"], options=given["options"])
    modules = {name: given[name] for name in ("helpers", "late")}
    add_app("shop_p", tasks="from shop_p.helpers import *\n" + source, **modules)

    expect()


IN_ORDER = """
from horsies_django import RetryPolicy, task

POLICY = RetryPolicy.fixed([1])

@task(queue="ledger"{options})
def book({parameters}) -> None: ...
"""


POLICY = ", retry_policy=POLICY"
ACCOUNT = "account_id: int"
CENTS = "account_id: int, cents: int = 0"
COALESCED = {"ordered": False, "by_task": True, "by_args": "all", "coalesce": True}
ANY_TASK = ", priority=5", "document_id: int = 0"


def ordered(settings: Any, queue: str, **rule: Any) -> None:
    declared = {"partition": {"by_args": ["account_id"], "ordered": True, **rule}}
    settings.HORSIES = {
        **settings.HORSIES,
        "QUEUES": {**settings.HORSIES["QUEUES"], queue: declared},
    }


@pytest.mark.parametrize(
    ("rule", "options", "parameters", "id_", "said", "advice"),
    [
        ({}, POLICY + ", priority=5", ACCOUNT, "E028", "has the priority 5", "Remove the priority"),
        ({}, POLICY, "account: int", "W008", "has no argument 'account_id'", "Add the argument"),
        ({}, POLICY, ACCOUNT + " = 0", "W009", "a default for 'account_id'", "Remove the default"),
        ({}, "", ACCOUNT, "W010", "has no retry policy", "'on_failure': 'continue'"),
        ({}, POLICY, CENTS, None, "", ""),
        ({"by_args": "all"}, POLICY, CENTS, None, "", ""),
        ({"on_failure": "continue"}, "", CENTS, None, "", ""),
        ({"on_failure": "cancel"}, "", CENTS, None, "", ""),
        (COALESCED, *ANY_TASK, None, "", ""),
        ({"ordered": False, "max_concurrency": 1}, *ANY_TASK, None, "", ""),
    ],
)
def test_an_option_that_breaks_the_order_of_a_queue_is_reported(
    settings: Any,
    add_app: AddApp,
    rule: dict[str, Any],
    options: str,
    parameters: str,
    id_: str | None,
    said: str,
    advice: str,
) -> None:
    """A task that does not suit an ordered queue is one message with a remedy.

    A task that suits it is no message.
    """
    ordered(settings, "ledger", **rule)
    add_app("shop_r", tasks=IN_ORDER.format(options=options, parameters=parameters))

    expect(*[(id_, "shop_r.tasks.book", "'ledger'", said, advice)] if id_ else [])


def test_a_task_without_a_queue_is_one_of_the_queue_default(settings: Any, add_app: AddApp) -> None:
    ordered(settings, "default", on_failure="continue")
    add_app("shop_u", tasks=TASK + "@task(priority=9)\ndef tidy(account_id: int) -> None: ...\n")

    assert ("horsies.E028", "shop_u.tasks.tidy") in [
        (one.id, one.obj) for one in run_checks(tags=[CHECK_TAG])
    ]


def test_the_page_explains_every_id_of_the_code_once() -> None:
    package = ROOT / "horsies_django"
    used: set[str] = set()

    for path in (
        *(package / "conf").glob("*.py"),
        package / "backends" / "backend.py",
        package / "checks.py",
    ):
        used |= set(re.findall(r'"([EW]\d{3})"', path.read_text()))

    assert sorted(
        re.findall(r"^### horsies\.([EW]\d{3}): .+$", PAGE.read_text(), re.MULTILINE)
    ) == sorted(used)

    sections = re.split(r"^#+ .*$", PAGE.read_text(), flags=re.MULTILINE)
    assert all(section.strip() for section in sections[1:])
