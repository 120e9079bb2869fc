"""What tests of the project use."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from horsies_django import TaskHandle, WorkflowHandle, explain
from horsies_django.testing import drain, open_gate, signal


def drained(handle: WorkflowHandle[int], task: TaskHandle[int]) -> None:
    assert_type(drain(until=timedelta(1), raise_errors=False, queues=["mail"]), int)
    signal(handle, "paid", {"amount": 5}, key="2026-01")
    open_gate(handle, "checked", reason="all is well")
    assert_type(str(explain(task.task_id)), str)
    drain(until=60)  # error: arg-type reportArgumentType
    signal("paid", handle)  # error: arg-type reportArgumentType
