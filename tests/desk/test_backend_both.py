"""Django's own package and the backport in one project, which is what apps make of it that still import the backport."""

from __future__ import annotations

from typing import Any

import django
import pytest
from django.test import override_settings

from horsies_django.testing import drain
from tests.apps.errands import tasks
from tests.apps.errands.api import TaskResultStatus, task_backends

backport = pytest.importorskip("django_tasks")

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has no tasks of its own"),
]


def of_the_backport(n):  # type: ignore[no-untyped-def]
    if n < 0:
        raise ValueError("less than nothing")
    return n * 2


def test_an_app_that_imports_the_backport_sends_and_reads_through_the_backend_of_django() -> None:
    made = backport.task(priority=3)(tasks.add.func)
    result = made.enqueue(1, b=2)
    drain()
    result.refresh()
    assert (result.status, result.return_value) == (backport.TaskResultStatus.SUCCESSFUL, 3)
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert backport.task_backends["default"].get_result(result.id) == task_backends["default"].get_result(result.id)
    assert made.using(queue_name="mail").get_result(result.id).task.priority == 3


def test_the_backend_of_the_backport_has_its_classes_and_signals_beside_that_of_django() -> None:
    from django_tasks.signals import task_finished

    from horsies_django.backends.backport import HorsiesBackend

    heard: list[Any] = []

    def hear(task_result: Any, **kwargs: Any) -> None:
        heard.append((task_result.id, task_result.status))

    old = {"BACKEND": "horsies_django.backends.backport.HorsiesBackend", "QUEUES": []}
    new = {"BACKEND": "horsies_django.backends.HorsiesBackend", "QUEUES": []}
    task_finished.connect(hear, sender=HorsiesBackend)
    try:
        with override_settings(TASKS={"default": new, "old": old}):
            made = backport.task(backend="old", max_attempts=2, backoff=60)(of_the_backport)
            first, second, own = made.enqueue(4), made.enqueue(-1), tasks.add.enqueue(1)
            drain(raise_errors=False)
            for result in (first, second, own):
                result.refresh()
            assert isinstance(made, backport.base.Task)
            assert isinstance(first, backport.TaskResult)
            assert not isinstance(own, backport.TaskResult)
            assert (first.return_value, second.status, own.return_value) == (8, "READY", 1)
            assert second.errors[0].exception_class is ValueError
            with pytest.raises(backport.exceptions.TaskResultDoesNotExist):
                backport.task_backends["old"].get_result(own.id)
    finally:
        task_finished.disconnect(hear, sender=HorsiesBackend)
    assert heard == [(first.id, "SUCCESSFUL")]
