"""Nodes without a task: inputs, and those that wait: timers, signals and gates."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, get_args, overload

from horsies_django.core.codec.type_texts import text_of
from horsies_django.core.texts import text_problem
from horsies_django.tasks.decorator import Sender
from horsies_django.tasks.options import LONGEST_DELAY
from horsies_django.workflows import checks
from horsies_django.workflows.nodes import Condition, Join, N, Node, Quorum

OnTimeout = Literal["fail", "skip", "complete"]
ON_TIMEOUT = get_args(OnTimeout)


class Wait(NamedTuple):
    """What a node waits for. ``delay`` counts from when it is ready, ``due_at`` is absolute; both None: it has no end."""

    on_timeout: str = "complete"
    delay: dt.timedelta | None = None
    due_at: dt.datetime | None = None
    signal: str | None = None
    key: str | None = None
    permission: str | None = None
    type: str | None = None  # of the data of a signal, see type_texts; None: any

    def json(self, *, deadline: bool) -> dict[str, Any]:
        """Return the columns of the node that are set; without an absolute time if not wanted."""
        columns = {
            "on_timeout": self.on_timeout,
            "delay": None if self.delay is None else f"{self.delay.total_seconds():f} s",
            "due_at": self.due_at.isoformat() if self.due_at is not None and deadline else None,
            "signal": self.signal,
            "signal_key": self.key,
            "signal_type": self.type,
            "permission": self.permission,
        }
        return {name: value for name, value in columns.items() if value is not None}


class Waits:
    """The methods of a workflow that add nodes without tasks. A node that waits holds no slot and no connection."""

    problems: list[str]

    def add(self, what: Any, /, *args: Any, **kwargs: Any) -> Node:
        """Add a task."""
        raise NotImplementedError

    def _node(self, wanted: str, given: str | None, kind: str) -> Node:
        raise NotImplementedError

    def _join(self, node: Node, after: Any, join: str | Quorum, *, allow_failed: bool, when: Any) -> Node:
        raise NotImplementedError

    @overload
    def input(self, name: str, annotation: type[N]) -> Node[N]: ...
    @overload
    def input(self, name: str, annotation: Any = ...) -> Node: ...
    def input(self, name: str, annotation: Any = Any) -> Node:
        """Add an input, whose value another workflow gives when this one is a node of it."""
        node = self._node(name, name, "input")
        node.type = checks.plain(annotation)
        return node

    def sleep(
        self,
        delay: float | dt.timedelta,
        /,
        *,
        after: Node | Iterable[Node] = (),
        join: Join = "all",
        allow_failed: bool = False,
        when: Condition | None = None,
        name: str | None = None,
    ) -> Node[None]:
        """Add a timer: a node that completes ``delay`` after it is ready, a timedelta or seconds. Its value is None."""
        node = self._node("sleep", name, "timer")
        return self._wait(node, Wait(delay=self._span(node, "delay", delay)), after, join, allow_failed, when)

    def until(
        self,
        moment: dt.datetime,
        /,
        *,
        after: Node | Iterable[Node] = (),
        join: Join = "all",
        allow_failed: bool = False,
        when: Condition | None = None,
        name: str | None = None,
    ) -> Node[None]:
        """Add a timer that completes at an aware datetime, or when it is ready if that is later. Its value is None."""
        node = self._node("until", name, "timer")
        if not isinstance(moment, dt.datetime) or moment.utcoffset() is None or not 2 < moment.year < 9999:
            self.problems.append(
                f"{node.name}: until() takes an aware datetime between the years 3 and 9998, not {moment!r:.80}"
            )
            moment = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
        return self._wait(node, Wait(due_at=moment), after, join, allow_failed, when)

    def signal(
        self,
        signal: str,
        /,
        *,
        key: str | None = None,
        annotation: Any = Any,
        timeout: float | dt.timedelta | None = None,
        on_timeout: OnTimeout = "fail",
        after: Node | Iterable[Node] = (),
        join: Join = "all",
        allow_failed: bool = False,
        when: Condition | None = None,
        name: str | None = None,
    ) -> Node:
        """Add a node that waits for a signal of this name, whose data becomes its value; see ``WorkflowHandle.signal``.

        Each signal is taken by one node, the oldest first, also if it was sent before the node began to wait. With a
        ``key``, only signals with that key are taken. ``annotation`` is the type of the data, which is checked when it is sent.
        After ``timeout``, a timedelta or seconds from when the node is ready, it is FAILED ("fail"), SKIPPED ("skip") or
        COMPLETED with None ("complete").
        """
        text = isinstance(signal, str)
        node = self._node(signal if text else "signal", name, "signal")
        if not text or not 1 <= len(signal) <= 200 or not signal.isprintable():
            self.problems.append(
                f"{node.name}: the name of a signal is a str of 1 to 200 printable characters, not {signal!r:.80}"
            )
        if key is not None and (problem := text_problem("key", key, 255)):
            self.problems.append(f"{node.name}: {problem}")
        delay = None if timeout is None else self._span(node, "timeout", timeout)
        node.type = self._type(node, checks.plain(annotation), delay, on_timeout)
        return self._wait(
            node, Wait(on_timeout, delay, None, signal, key, type=text_of(annotation)), after, join, allow_failed, when
        )

    def gate(
        self,
        name: str,
        /,
        *,
        permission: str | None = None,
        timeout: float | dt.timedelta | None = None,
        on_timeout: OnTimeout = "fail",
        announce: Sender[..., Any] | str | None = None,
        after: Node | Iterable[Node] = (),
        join: Join = "all",
        allow_failed: bool = False,
        when: Condition | None = None,
    ) -> Node:
        """Add a node that waits until a person approves or rejects it; see ``WorkflowHandle.approve``.

        Its value is ``{"by": ..., "reason": ...}``; a rejection fails it with GATE_REJECTED. ``permission``, as in
        "shop.approve", is what users need. ``timeout`` and ``on_timeout`` are those of ``signal``. ``announce`` is a task that is
        sent when the gate opens, with the name of the gate as its argument ``gate``.
        """
        node = self._node("gate", name, "gate")
        text = isinstance(permission, str) and permission.isprintable() and len(permission) <= 255
        if permission is not None and not (text and all(permission.partition("."))):
            self.problems.append(f"{node.name}: permission must be a str like 'shop.approve', not {permission!r:.80}")
        delay = None if timeout is None else self._span(node, "timeout", timeout)
        node.type = self._type(node, dict[str, Any], delay, on_timeout)
        self._wait(
            node, Wait(on_timeout, delay, signal=node.name, permission=permission), after, join, allow_failed, when
        )
        self._announce(node, node.name, announce, after=after, join=join, allow_failed=allow_failed, when=when)
        return node

    def _announce(
        self,
        gate: Node,
        name: str,
        announce: Any,
        *,
        after: Any = (),
        join: str | Quorum = "all",
        allow_failed: bool = False,
        when: Any = None,
        **_others: Any,
    ) -> None:
        """Add the task that tells people of a gate: it waits for the same nodes."""
        if announce is not None:
            how = {"after": after, "join": join, "allow_failed": allow_failed, "when": when}
            self.add(announce, gate=gate.name, name=f"announce {name[:180]}", **how)

    def _span(self, node: Node, what: str, value: object) -> dt.timedelta:
        """Return a time from when a node is ready; note the problem with one that is wrong."""
        span = value
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                span = dt.timedelta(seconds=value)
            except (OverflowError, ValueError):
                span = None
        if isinstance(span, dt.timedelta) and dt.timedelta(0) <= span <= LONGEST_DELAY:
            return span
        self.problems.append(
            f"{node.name}: {what} must be a timedelta or seconds, from 0 to 100 years, not {value!r:.80}"
        )
        return dt.timedelta(0)

    def _type(self, node: Node, annotation: Any, delay: dt.timedelta | None, on_timeout: object) -> Any:
        """Return the type of the value, which may be None after a timeout."""
        if on_timeout not in ON_TIMEOUT:
            self.problems.append(
                f"{node.name}: on_timeout must be 'fail', 'skip' or 'complete', not {on_timeout!r:.80}"
            )
        if delay is None or on_timeout != "complete" or annotation is Any:
            return annotation
        return checks.optional(annotation)

    def _wait(self, node: Node, wait: Wait, after: Any, join: Any, allow_failed: bool, when: Any) -> Node:
        node.wait = wait
        if node.kind == "timer":
            node.type = type(None)
        return self._join(node, after, join, allow_failed=allow_failed, when=when)
