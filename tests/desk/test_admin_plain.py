"""The admin shows tasks of django.tasks: their arguments by name, their priority as Django counts it, tracebacks of attempts."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from tests.desk.test_admin import body, client_with, page_of
from tests.support.factories import TaskAttemptFactory, TaskFactory, error

pytestmark = pytest.mark.django_db


def reader(*more: str) -> Any:
    return client_with("view_task", "view_payload", *more)


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page))


@pytest.mark.parametrize(
    ("kwargs", "shown"),
    [
        ({"args": ["Ann"], "kwargs": {"loud": True}, "names": ["name"]}, '{\n  "loud": true,\n  "name": "Ann"\n}'),
        ({"args": [1, 2], "kwargs": {}}, '{\n  "*": [\n    1,\n    2\n  ]\n}'),
        ({}, "{}"),
        ({"args": 5}, '{\n  "args": 5\n}'),
    ],
)
def test_the_arguments_of_a_plain_task_are_shown_by_name(kwargs: Any, shown: str) -> None:
    """Naive: they are shown as they are stored, so that nobody sees for which parameter a value is."""
    task = TaskFactory(codec="plain", kwargs=kwargs)
    assert shown in text_of(body(reader(), page_of(task)))


def test_a_typed_task_whose_parameters_are_named_like_the_plain_form_is_shown_as_it_is() -> None:
    task = TaskFactory(kwargs={"args": [1], "kwargs": {"a": 2}})
    shown = text_of(body(reader(), page_of(task)))
    assert '{\n  "args": [\n    1\n  ],\n  "kwargs": {\n    "a": 2\n  }\n}' in shown


def test_the_priority_of_django_tasks_is_shown_beside_ours() -> None:
    assert "101 (django.tasks: 0)" in body(reader(), page_of(TaskFactory(codec="plain", priority=101)))
    assert "(django.tasks" not in body(reader(), page_of(TaskFactory(priority=100)))


def test_a_traceback_of_an_attempt_is_folded_and_only_for_those_who_may_see_payloads() -> None:
    """Naive: whoever may see the task sees its tracebacks, which have values of users in them; or they bury the page."""
    task = TaskFactory(status="FAILED", result=error("BROKEN"), error_code="BROKEN")
    trace = "Traceback <most recent call last>:\nValueError: ann@example.org\n"
    TaskAttemptFactory(task_id=task.pk, error_code="BROKEN", error_message="no", exception_class="a.B", traceback=trace)
    TaskAttemptFactory(task_id=task.pk, attempt=2)
    page = body(reader(), page_of(task))
    folded = re.findall(r"<details><summary>Traceback</summary>(.*?)</details>", page, re.DOTALL)
    assert [text_of(one) for one in folded] == [trace]
    hidden = body(client_with("view_task"), page_of(task))
    assert "ann@example.org" not in hidden
    assert "<details><summary>Traceback" not in hidden
