"""Workflows: nodes know their values, a workflow that of its output, and its handle the result."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from horsies_django import Batch, Node, TaskResult, Workflow, WorkflowHandle, get_workflow, quorum
from shop.tasks import Line, add, clean, largest, mail, price, rates, total


def invoice() -> WorkflowHandle[int]:
    flow = Workflow[int](
        "invoice", on_error="stop", key="2026-01", good_until=timedelta(hours=1), max_in_flight=5
    )
    table = flow.add(rates, ["EUR"], undo=clean)
    assert_type(table, Node[dict[str, int]])
    prices = flow.map(price, line=[Line("a"), Line("b")], rates=table)
    assert_type(prices, Node[list[int]])
    most = flow.add(largest, prices, name="largest", after=table)
    rest = flow.add(total.with_options(queue="mail"), prices, after=[table, most], join=quorum(1))
    sums = flow.add(total, [most, rest], when=table.matches("$.EUR > 0"), allow_failed=False)
    assert_type(sums, Node[int])
    assert_type(flow.add("shop.mail", to="a@b"), Node[Any])
    assert_type(flow.sleep(60, after=sums), Node[None])
    flow.signal("paid", annotation=int, timeout=timedelta(days=1), on_timeout="complete")
    flow.gate("checked", permission="shop.check", announce=mail)
    flow.returns(sums)
    return flow.send()


def result(handle: WorkflowHandle[int]) -> int:
    assert_type(handle.get(), TaskResult[int])
    assert_type(get_workflow(handle.workflow_id), WorkflowHandle[Any])
    return invoice().get(timeout_ms=100).unwrap()


async def awaited(flow: Workflow[int]) -> None:
    handle = await flow.asend()
    assert_type(handle, WorkflowHandle[int])
    assert_type(await handle.aget(), TaskResult[int])


def nested() -> None:
    child = Workflow[int]("child")
    days = child.input("days", int)
    assert_type(days, Node[int])
    child.returns(child.add(add, days, b=1))
    parent = Workflow("parent")
    assert_type(parent.add(child, days=3), Node[int])


def batch() -> None:
    mails = Batch("mails", on_error="fail")
    mails.add(mail, "a@b")
    assert_type(mails.on_success(clean), Node[None])
    assert_type(mails.on_finish(add, 1), Node[int])


def refused(flow: Workflow[int]) -> None:
    text = flow.add(mail, "a@b")
    flow.returns(text)  # error: arg-type reportArgumentType
    flow.add(len, [1])  # error: arg-type reportArgumentType
    flow.add(add, 1, after="table")  # error: arg-type reportArgumentType
    flow.add(add, 1, undo=print)  # error: arg-type reportArgumentType
    flow.map(flow, numbers=[1])  # error: arg-type reportArgumentType
    flow.continue_as(add)  # error: arg-type reportArgumentType
    Workflow("x", on_error="ignore")  # error: arg-type reportArgumentType
    Batch("x", on_eror="stop")  # error: call-arg reportCallIssue
    value: str = flow.send().get().unwrap()  # error: assignment reportAssignmentType
    flow.send().cancel("bored")  # error: call-arg reportCallIssue
    print(value)
