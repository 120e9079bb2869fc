"""Tests wait for conditions, not for time: each place in tests/ that lets time pass has a reason.

Helpers, and programs or statements in strings, count as well. A wait with a deadline for a
condition does not: ``wait_until``, the end of a process or a thread, a barrier, a loop that an
event ends.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A file, or a function in it, and why time passes there.
ALLOWED = {
    "tests/support/deadlines.py::wait_until": "the one loop that waits for conditions, with an end",
    "tests/e2e/test_reload.py::": "the body of a task that waits for a file",
    "tests/stress/chaos/evidence.py::steady": "asks again until the database answers, with an end",
    "tests/stress/chaos/failover.py::Failovers.strike": (
        "how long the standby lags, and how long there is no primary"
    ),
    "tests/stress/chaos/faults.py::Faults.restart": (
        "how long the server is down is a part of the storm"
    ),
    "tests/stress/chaos/measure.py::Measurement.machines": (
        "deaths come at any moment between two heartbeats, not all at once"
    ),
    "tests/stress/chaos/patients.py::Patient.send": "sends again until the database answers",
    "tests/stress/chaos/sending.py::Sender.attempted": "asks again until the database answers",
    "tests/stress/chaos/sending.py::Sender.cancel": (
        "a cancel comes at any moment of its task's life"
    ),
    "tests/stress/chaos/storm.py::Storm.until": (
        "a loop that waits for a condition and tends the fleet meanwhile, with an end"
    ),
    "tests/stress/chaos/storm.py::Storm.lull": "the same",
    "tests/e2e/test_outages.py::": "a statement that PostgreSQL ends at its time limit",
    "tests/stress/soak/run.py::Soak.soak": "an hour of work by the clock",
    "tests/stress/test_step_storm.py::": (
        "a trigger that makes commits slow, so that many kills come within one"
    ),
    "tests/stress/test_step_storm.py::Storm.kill_all_the_time": "kills come at any moment",
    "tests/stress/test_step_storm.py::Storm.freeze_all_the_time": (
        "what was woken runs for a moment before its worker ends it"
    ),
    "tests/stress/test_workflow_storm.py::Storm.rage": (
        "a fault does not wait longer than a while for the runs before it"
    ),
    "tests/db/test_send.py::test_a_delay_and_a_good_until_count_from_the_send": (
        "a moment between the start of a transaction and a send"
    ),
    "tests/db/test_undo.py::slow_begin": "a slow statement of the server",
    "tests/meta/test_private_postgres.py"
    "::test_the_next_start_removes_the_files_of_a_killed_parent": (
        "a statement that is under way when its server is killed"
    ),
    "tests/worker/test_kill_timer.py::": (
        "a task that keeps the GIL, and a stand-in for the heart that beats"
    ),
    "tests/worker/test_outbox.py::test_a_batch_that_exceeds_its_time_limit_is_halved": (
        "a trigger that makes each row slow: the database's time limit ends the statement"
    ),
    "tests/worker/test_scheduler.py::test_a_change_during_a_round_is_not_slept_through": (
        "the sleep that is woken"
    ),
    "tests/worker/test_scheduler.py::test_a_cut_connection_wakes_it_and_is_replaced": (
        "the sleep that is woken"
    ),
}

# Seconds: only a wait for a process, a gate or a barrier takes so long, and only in a failure.
A_DEADLINE = 10
IN_A_STRING = re.compile(r"\b(pg_|u)?sleep\(")
CLOCKS = {"time.monotonic", "time.time", "monotonic", "time.perf_counter"}


def calls(node: ast.AST) -> list[str]:
    return [ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)]


def asks_the_clock(node: ast.AST) -> bool:
    """Whether a condition becomes true by the passing of time."""
    return not CLOCKS.isdisjoint(calls(node))


def lets_time_pass(node: ast.AST) -> bool:
    """Whether this very node waits for time."""
    if isinstance(node, ast.ImportFrom):
        return node.module in ("time", "asyncio") and any(
            alias.name == "sleep" for alias in node.names
        )
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and bool(IN_A_STRING.search(node.value))
    if isinstance(node, ast.While):
        return asks_the_clock(node.test) and all(isinstance(step, ast.Pass) for step in node.body)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return waits_for_nothing(node.value)

    return isinstance(node, ast.Call) and sleeps(node)


def waits_for_nothing(call: ast.Call) -> bool:
    """Whether a wait only takes time because its result is unused, such as ``event.wait(1.0)``.

    The wait for a process does not count: it raises.
    """
    first = call.args[0] if call.args else None
    long = (
        isinstance(first, ast.Constant)
        and isinstance(first.value, int)
        and first.value >= A_DEADLINE
    )
    receiver, _, name = ast.unparse(call.func).rpartition(".")
    return name == "wait" and first is not None and not long and not receiver.endswith("process")


def sleeps(call: ast.Call) -> bool:
    receiver, _, name = ast.unparse(call.func).rpartition(".")
    first = call.args[0] if call.args else None
    at_once = isinstance(first, ast.Constant) and first.value == 0

    if name == "sleep" and receiver.endswith(("flow", "growing", "child")):
        return False  # ``sleep`` of a workflow: adds a timer
    if name in ("sleep", "usleep", "select") and not at_once:
        return first is not None
    if name == "wait":
        return receiver.endswith("Event()")

    if name == "notifies":
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        timeout = given.get("timeout")
        return "stop_after" not in given and not (
            isinstance(timeout, ast.Constant) and timeout.value == 0
        )

    if name == "wait_until":
        return isinstance(first, ast.Lambda) and asks_the_clock(first.body)
    return (receiver, name) == ("signal", "pause")


def where(tree: ast.AST, name: str = "") -> Iterator[str]:
    """Yield the names of the functions in which time passes, "" for the module itself."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from where(node, f"{name}.{node.name}".lstrip("."))
        else:
            if lets_time_pass(node):
                yield name
            yield from where(node, name)


def runs_in_a_worker(path: Path) -> bool:
    """Whether a file has the bodies of tasks.

    Code that a worker runs takes time, or stops until a test releases it.
    """
    return path.name == "tasks.py" or path.is_relative_to(ROOT / "tests" / "apps")


def test_time_passes_in_tests_only_where_there_is_a_reason() -> None:
    found = set()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        file = str(path.relative_to(ROOT))
        if path != Path(__file__) and not runs_in_a_worker(path):
            found |= {
                file if file in ALLOWED else f"{file}::{name}"
                for name in where(ast.parse(path.read_text()))
            }

    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        ("time.sleep(1)", True),
        ("await asyncio.sleep(0.5)", True),
        ("await asyncio.sleep(0)", False),
        ("flow.sleep(60)", False),
        ("from time import sleep", True),
        ("connection.execute('SELECT pg_sleep(1)')", True),
        ("TASKS = '''\nctypes.PyDLL(None).usleep(5)\n'''", True),
        ("threading.Event().wait(2)", True),
        ("assert arrived.wait(30)", False),
        ("while not over.wait(0.1): work()", False),
        ("select.select([], [], [], 2)", True),
        ("selector.select(0)", False),
        ("list(listener.notifies(timeout=2))", True),
        ("wait_until(lambda: tended() and time.monotonic() > until, 'its moment comes')", True),
        ("wait_until(lambda: server.is_up(), 'the server is up')", False),
        ("while time.monotonic() < until: pass", True),
    ],
)
def test_a_sleep_is_distinguished_from_a_wait_for_a_condition(code: str, passes: bool) -> None:
    """Code that lets time pass is found, and a wait for a condition is not."""
    source = f"async def test_it():\n    {code}" if code.startswith("await") else code
    assert bool(list(where(ast.parse(source)))) == passes
