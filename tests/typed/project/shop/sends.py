"""Sends and results: the parameters are those of the function, the result is what it returns."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type
from uuid import UUID

from horsies_django import RetryPolicy, TaskHandle, TaskResult, get_handle
from shop.tasks import Line, add, anything, clean, mail, price


def sent() -> None:
    handle = add.send(1, b=2)
    assert_type(handle, TaskHandle[int])
    assert_type(handle.get(), TaskResult[int])
    assert_type(handle.get(timeout_ms=timedelta(seconds=1)).unwrap(), int)
    assert_type(handle.task_id, UUID)
    assert_type(mail.schedule(timedelta(1), "a@b").get().ok_value, str)
    assert_type(clean.send().get().ok_value, None)
    assert_type(price.send(Line("a"), rates={"a": 1}), TaskHandle[int])
    assert_type(add.send_many([{"a": 1}, {"a": 2, "b": 3}]), list[TaskHandle[int]])
    assert_type(get_handle(str(handle.task_id)), TaskHandle[Any])


def with_options() -> None:
    sender = add.with_options(
        queue="mail",
        priority=5,
        good_until=timedelta(hours=1),
        retry_policy=RetryPolicy.exponential(),
    )
    assert_type(sender.send(1), TaskHandle[int])
    assert_type(sender.with_options(delay=60, timeout_ms=500).send(1, b=1).get().ok_value, int)


async def awaited() -> None:
    handle = await mail.asend("a@b")
    assert_type(handle, TaskHandle[str])
    assert_type(await handle.aget(), TaskResult[str])
    assert_type(await add.with_options(priority=1).asend_many([{"a": 1}]), list[TaskHandle[int]])
    await mail.asend()  # error: call-arg reportCallIssue
    await mail.asend(5)  # error: arg-type reportArgumentType


def refused() -> None:
    anything.send("1")  # error: - reportArgumentType
    add.send("1")  # error: arg-type reportArgumentType
    add.send()  # error: call-arg reportCallIssue
    add.send(1, 2)  # error: call-arg reportCallIssue
    add.send(1, c=3)  # error: call-arg reportCallIssue
    add.send(1, b=None)  # error: arg-type reportArgumentType
    add.schedule(1)  # error: call-arg reportCallIssue
    add.send_many([1])  # error: list-item reportArgumentType
    price.send({"sku": "a"}, {})  # error: arg-type reportArgumentType
    add.with_options(queue=5)  # error: arg-type reportArgumentType
    add.with_options(priority=5).send("1")  # error: arg-type reportArgumentType
    add.delay(1)  # error: attr-defined reportAttributeAccessIssue,reportUnknownMemberType
    text: str = add.send(1).get().unwrap()  # error: assignment reportAssignmentType
    handle: TaskHandle[str] = add.send(1)  # error: assignment reportAssignmentType
    print(text, handle)
