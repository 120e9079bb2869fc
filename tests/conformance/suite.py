"""The classes of Django's own tests of task backends, with HorsiesBackend in place of Django's.

Tests that do not apply are skipped with a reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import skip
from urllib.parse import urlsplit

from conformance.relay import Server
from conformance.settings import KIND
from django.db import connection
from django.test import TransactionTestCase, override_settings

from tests.support.deadlines import wait_until

test_tasks = import_module("tasks.test_tasks")
test_dummy = import_module("tasks.test_dummy_backend")
test_immediate = import_module("tasks.test_immediate_backend")

NAMES_ANOTHER = "names one of Django's own backends"
READS_ANOTHER = "reads the list of results that only Django's DummyBackend has"
CHANGES_ANOTHER = "changes that list, to see the change come back"
NOT_LIMITED = "expects that results cannot be read, and here they can"
NOT_REFUSED = "expects that run_after is refused, and here it is supported"

SKIPPED: dict[str, dict[str, str]] = {
    "ContractTests": {
        "test_using_correct_backend": NAMES_ANOTHER,
        "test_get_backend": NAMES_ANOTHER,
        "test_enqueue_task": READS_ANOTHER,
        "test_enqueue_task_async": READS_ANOTHER,
    },
    "QueuedTests": {
        "test_using_correct_backend": NAMES_ANOTHER,
        "test_clear": READS_ANOTHER,
        "test_enqueue_task": READS_ANOTHER,
        "test_enqueue_task_async": READS_ANOTHER,
        "test_refresh_result": CHANGES_ANOTHER,
        "test_refresh_result_async": CHANGES_ANOTHER,
    },
    "ExecutionTests": {
        "test_using_correct_backend": NAMES_ANOTHER,
        "test_cannot_get_result": NOT_LIMITED,
        "test_cannot_refresh_result": NOT_LIMITED,
        "test_cannot_pass_run_after": NOT_REFUSED,
    },
}
if KIND == "backport":
    SKIPPED["QueuedTests"]["test_validate_disallowed_async_task"] = (
        "expects a capital letter in a message of the backport"
    )


def backend(name: str) -> dict[str, Any]:
    """Return the setting of a backend."""
    return {"BACKEND": f"conformance.kinds.{name}", "QUEUES": []}


def without(name: str) -> Any:
    """Return a class decorator that skips the tests which do not apply."""

    def decorate(case: type[Any]) -> type[Any]:
        for test, reason in SKIPPED[name].items():
            if hasattr(case, test):
                setattr(case, test, skip(reason)(getattr(case, test)))
        return case

    return decorate


class Base(TransactionTestCase):
    """Allows the tests, which are written for backends without a database, to use one."""

    databases = {"default"}  # noqa: RUF012

    def setUp(self) -> None:
        """Allow test_refresh_result to call sync code in a coroutine, as it does."""
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
        self.addCleanup(os.environ.pop, "DJANGO_ALLOW_ASYNC_UNSAFE")


@without("ContractTests")
@override_settings(
    TASKS={
        "default": {**backend("Queued"), "QUEUES": ["default", "queue_1"]},
        "immediate": backend("Inline"),
        "missing": {"BACKEND": "does.not.exist"},
    },
    USE_TZ=True,
)
class ContractTests(Base, test_tasks.TaskTestCase):
    """Tasks, ``using``, validation and results."""


@without("QueuedTests")
@override_settings(TASKS={"default": backend("Queued")})
class QueuedTests(Base, test_dummy.DummyBackendTestCase):
    """Tasks that stay in the queue."""


@without("ExecutionTests")
@override_settings(TASKS={"default": backend("Inline")})
class ExecutionTests(Base, test_immediate.ImmediateBackendTestCase):
    """Tasks that run, in the process of the test."""


@without("ExecutionTests")
@override_settings(TASKS={"default": backend("Served")})
class WorkerTests(Base, test_immediate.ImmediateBackendTestCase):
    """The same tests with a real worker process."""

    @classmethod
    def setUpClass(cls) -> None:
        """Start a worker on the test database."""
        super().setUpClass()

        url = (
            urlsplit(os.environ["DATABASE_URL"])
            ._replace(path=f"/{connection.settings_dict['NAME']}")
            .geturl()
        )
        environment = {
            **os.environ,
            "DATABASE_URL": url,
            "CONFORMANCE_LOG_PORT": str(Server().port),
        }

        log = Path("worker.log")
        with log.open("wb") as output:
            command = [sys.executable, "-m", "django", "horsies_worker", "--processes=1"]
            cls.worker = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

        cls.addClassCleanup(cls.stop, log)
        wait_until(
            lambda: "Worker started" in log.read_text() or cls.worker.poll() is not None,
            "the worker starts",
        )
        assert cls.worker.poll() is None, log.read_text()

    @classmethod
    def stop(cls, log: Path) -> None:
        """End the worker as a service manager does."""
        cls.worker.terminate()
        try:
            assert cls.worker.wait(30) == 0, log.read_text()
        finally:
            if cls.worker.poll() is None:
                cls.worker.kill()
                cls.worker.wait()

    def _fixture_teardown(self) -> None:
        """Delete no rows after a test, because the worker is still using them."""
