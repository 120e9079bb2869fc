"""What running code asks of its own task, and its durable steps."""

from __future__ import annotations

from typing import assert_type
from uuid import UUID

from horsies_django import CurrentTask, current_task, task


def length(text: str, *, least: int = 0) -> int:
    return max(least, len(text))


async def fetch(address: str) -> bytes:
    return address.encode()


@task
def measure(text: str) -> int:
    here = current_task()
    assert_type(here, CurrentTask)
    assert_type(here.task_id, UUID | None)
    here.raise_if_cancelled()
    assert_type(here.step("length", length, text), int)
    assert_type(here.step("length", length, text, least=3), int)
    here.step("length", length, 5)  # error: call-overload reportArgumentType
    here.step("length", length)  # error: call-overload reportCallIssue
    here.step("length", length, text, most=5)  # error: call-arg reportCallIssue
    here.step("length", 5)  # error: call-overload reportCallIssue,reportArgumentType
    return "many"  # error: return-value reportReturnType


@task
async def load(address: str) -> str:
    here = current_task()
    assert_type(await here.astep("length", length, address), int)
    assert_type(await here.astep("length", length, address, atomic=False), int)
    assert_type(await here.astep("fetch", fetch, address, atomic=False), bytes)
    await here.astep("length", length, 5)  # error: call-overload reportArgumentType
    return address
