"""The log of a worker.

No thread waits for it, it has its own colors, and a stuck task has one line.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from horsies_django import TaskContextFilter
from horsies_django.core.records import Claim, Outcome, Reply
from horsies_django.core.texts import printable_name, visible
from horsies_django.tasks.context import CurrentTask, running_task
from horsies_django.worker.logs import console as logs
from horsies_django.worker.logs import relay
from horsies_django.worker.logs.console import (
    Formatter,
    choose_colors,
    palette_for,
)
from horsies_django.worker.logs.task_log import (
    MANY_A_SECOND,
    TaskLog,
    in_parentheses,
    log_expired,
    named_class,
    task_label,
)
from horsies_django.worker.pool.process import PoolProcess
from horsies_django.worker.pool.timeouts import StuckWatch
from horsies_django.worker.process.options import WorkerOptions
from tests.conftest import wait_until

logger = logging.getLogger("horsies.worker")


class Slow(logging.Handler):
    """A handler that writes a line only while the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.arrived = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.arrived.set()
        self.gate.wait(30)
        self.lines.append(self.format(record))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Return a handler that is the only one of the "horsies" logger."""
    handler = Slow()
    horsies = logging.getLogger("horsies")

    monkeypatch.setattr(horsies, "handlers", [handler])
    monkeypatch.setattr(horsies, "propagate", False)
    horsies.setLevel("INFO")
    return handler


def test_lines_that_a_slow_log_cannot_take_are_counted(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "MOST_WAITING_RECORDS", 2)

    with logs.relayed_logs():
        logger.info("line %s", 0)
        assert slow.arrived.wait(30)
        for number in range(1, 6):  # no line is written, so each of these returns at once
            logger.info("line %s", number)
        assert slow.lines == []

        slow.gate.set()
        wait_until(lambda: len(slow.lines) == 3, "what waited is written")
        logger.info("the next")

    lost = "(3 line(s) before this one are lost: the log is written too slowly)"
    assert slow.lines == ["line 0", "line 1", "line 2", f"the next {lost}"]


def test_a_line_arrives_whole_with_its_traceback(
    slow: Slow,
) -> None:
    """A line arrives whole with its traceback, and only in handlers of its level."""
    slow.gate.set()
    slow.setLevel("WARNING")

    with logs.relayed_logs():
        try:
            raise LookupError("the cause")
        except LookupError:
            logger.exception("it failed: %s", "so")

        logger.info("not wanted")
        assert slow not in logging.getLogger("horsies").handlers

    assert slow in logging.getLogger("horsies").handlers
    (line,) = slow.lines
    assert line.startswith("it failed: so\nTraceback")
    assert line.endswith("LookupError: the cause")


GREEN = "\x1b[32;1m"
YELLOW = "\x1b[33;1m"
RED = "\x1b[31;1m"
OFF = "\x1b[0m"


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def lines(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines that the "horsies" loggers write on a terminal from now on."""
    for name in ("NO_COLOR", "FORCE_COLOR", "DJANGO_COLORS"):
        monkeypatch.setenv(name, "")  # so that changes of the test are undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("TERM", "xterm")

    for name in ("horsies", "horsies.task", "horsies.worker"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)

    slow.gate.set()
    slow.setFormatter(Formatter(palette_for(Terminal())))
    return slow.lines


@pytest.mark.parametrize(
    ("environment", "stream", "colored"),
    [
        ({}, Terminal, True),
        ({}, io.StringIO, False),
        ({"NO_COLOR": "1"}, Terminal, False),
        ({"NO_COLOR": ""}, Terminal, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, Terminal, False),
        ({"FORCE_COLOR": "1"}, io.StringIO, True),
        ({"TERM": "dumb"}, Terminal, False),
    ],
)
def test_color_options_of_a_command_reach_its_processes(
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
    environment: dict[str, str],
    stream: type[io.StringIO],
    colored: bool,
) -> None:
    """Environment and stream decide on colors by default.

    The options of a command decide first, and reach the processes that it starts.
    """
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    choose_colors(no_color=False, force_color=False)
    assert (palette_for(stream()) is not None) == colored

    choose_colors(no_color=False, force_color=True)
    assert palette_for(io.StringIO()) is not None

    choose_colors(no_color=True, force_color=False)
    assert palette_for(Terminal()) is None


def test_colors_are_those_that_django_was_given(
    monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    for chosen, expected in (
        ("nocolor", "[ERROR] said"),
        ("error=blue", f"[\x1b[34mERROR{OFF}] said"),
    ):
        monkeypatch.setenv("DJANGO_COLORS", chosen)
        record = logging.LogRecord("horsies.worker", logging.ERROR, "", 0, "said", (), None)
        assert Formatter(palette_for(Terminal())).format(record).endswith(expected)


def runs(member: PoolProcess, number: int, since: float, name: str = "tests.nothing") -> Claim:
    """Give a process a task that was handed over at this moment."""
    claim = Claim(uuid.uuid4(), 1, "sync", name, "{}")
    member.held["sync"][number] = claim
    member.since["sync"][number] = since
    return claim


def test_a_long_running_task_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A long-running task is reported once, however many heartbeats follow."""
    member = PoolProcess(WorkerOptions(queues=(), processes=1))
    member.pid = 7
    watch = StuckWatch(stopped_seconds=10.0, long_seconds=60.0)
    claim = runs(member, 1, since=100.0)

    with caplog.at_level(logging.WARNING, "horsies.worker"):
        watch.check([member], 159.0)
        assert caplog.messages == []

        for now in (161.0, 162.0, 163.0):  # the report, and two heartbeats after it
            watch.check([member], now)
        assert [str(claim.id) in line for line in caplog.messages] == [True]
        assert "(tests.nothing) has been running for more than 60 s in process 7" in caplog.text

        member.take_off("sync", 1)
        other = runs(member, 2, since=163.0, name="a\n[CRITICAL] \x1b[2J")
        for now in (222.0, 224.0, 225.0):
            watch.check([member], now)

    assert [str(other.id) in line for line in caplog.messages] == [False, True]
    assert all(line.isprintable() for line in caplog.messages), "its name forges no line"


def done(count: int, name: str = "shop.tasks.pack") -> list[Outcome]:
    """Return completed tasks."""
    claim = Claim(uuid.uuid4(), 1, "sync", name, "{}", 3, None, "mail")
    return [Outcome.of(claim, Reply("COMPLETED", '{"ok":null}'), seconds=0.5)] * count


def failed(**reply: Any) -> Outcome:
    """Return a failed task."""
    usual = {"status": "FAILED", "result": '{"err":{"exception":null}}', "error_code": "OH_NO"}
    return done(1)[0]._replace(**usual | reply)


def test_tasks_above_the_limit_of_a_second_are_counted_by_name() -> None:
    """Tasks above the limit of a second are counted, and then reported under up to ten names."""
    log = TaskLog()
    assert (len(log.take(done(MANY_A_SECOND - 1), 10.0)), len(log.take(done(1), 10.9))) == (
        MANY_A_SECOND - 1,
        1,
    )
    assert log.summary_at == float("inf"), "as many as a second may have are not counted"

    assert len(log.take(done(MANY_A_SECOND + 1_300), 11.0)) == MANY_A_SECOND
    assert log.take(done(100, "shop.tasks.ship"), 11.5) == []
    assert log.summary_at == 12.0

    assert log.summary(12.25) == (
        "1,400 tasks completed in 1.2 s: shop.tasks.pack 1,300, shop.tasks.ship 100"
    )
    assert log.summary_at == float("inf")

    for number in range(13):
        log.take(done(13 - number, f"t{number:02}"), 12.5)

    line = log.summary(13.5)
    assert line.startswith("91 tasks completed in 1.2 s: t00 13, t01 12, ")
    assert line.endswith("t09 4, and 6 of 3 more names")


def test_the_second_after_a_busy_one_is_only_counted() -> None:
    """The second after a busy one is only counted, and lines come back after a quiet one."""
    log = TaskLog()
    log.take(done(MANY_A_SECOND + 1), 10.0)
    log.summary(11.0)

    # This is within the limit of a second, but that is not known yet.
    assert log.take(done(MANY_A_SECOND), 11.5) == []
    assert log.summary(12.0).startswith("200 tasks completed in 1.0 s: ")

    assert len(log.take(done(MANY_A_SECOND + 1), 12.5)) == MANY_A_SECOND
    log.summary(13.0)
    assert len(log.take(done(1), 72.0)) == 1, "after an idle minute"

    log.take(done(MANY_A_SECOND * 3), 72.1)
    log.summary(77.0)  # the worker was stopped meanwhile: 600 in 5 s
    assert len(log.take(done(1), 77.5)) == 1


def test_a_worker_logs_its_last_counts_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker logs its last counts when it ends, if it logs at level INFO."""
    caplog.set_level("WARNING", "horsies.task")
    task_log = TaskLog()
    task_log.settled(done(MANY_A_SECOND * 2))
    task_log.close()
    assert (task_log.summary_at, caplog.text) == (float("inf"), "")

    caplog.set_level("INFO", "horsies.task")
    task_log.settled(done(MANY_A_SECOND + 7))
    task_log.tick(task_log.summary_at - 0.01)
    assert len(caplog.records) == MANY_A_SECOND

    task_log.close()
    assert caplog.messages[-1].startswith("7 tasks completed in ")
    task_log.tick(time.monotonic() + 100)
    assert len(caplog.records) == MANY_A_SECOND + 1


AT = 1_000_000_000.0
MOMENT = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(AT))


@pytest.mark.parametrize(
    ("told", "decided", "level", "line"),
    [
        ({"status": "COMPLETED"}, {}, "INFO", f"{GREEN}completed{OFF} in 0.500 s"),
        (
            {"error_message": "\x1b[32mdone"},
            {},
            f"{RED}ERROR{OFF}",
            f"{RED}failed{OFF} in 0.500 s: OH_NO: \\x1b[32mdone",
        ),
        ({}, {"code": "POISON"}, f"{RED}ERROR{OFF}", f"{RED}failed{OFF} in 0.500 s: POISON"),
        (
            {"returned": True},
            {},
            f"{YELLOW}WARNING{OFF}",
            f"{RED}returned an error{OFF} in 0.500 s: OH_NO",
        ),
        ({"status": "CANCELLED"}, {}, "INFO", f"{YELLOW}was cancelled{OFF} after 0.500 s"),
        (
            {"status": "CANCELLED", "error_code": "TASK_SKIPPED"},
            {},
            "INFO",
            f"{YELLOW}skipped itself{OFF} after 0.500 s",
        ),
        (
            {},
            {"retry": 2, "of": 5, "at": AT},
            "INFO",
            f"{YELLOW}failed{OFF} in 0.500 s: OH_NO; {YELLOW}retry 2 of 5 at {MOMENT}{OFF}",
        ),
        (
            {},
            {"retry": None},
            "INFO",
            f"{YELLOW}failed{OFF} in 0.500 s: OH_NO; {YELLOW}it is retried{OFF}",
        ),
    ],
    ids=[
        "completed",
        "failed",
        "poison",
        "returned",
        "cancelled",
        "skipped",
        "retried",
        "retried, the answer was lost",
    ],
)
def test_each_outcome_has_a_log_line_with_its_colors(
    lines: list[str], told: dict[str, Any], decided: dict[str, Any], level: str, line: str
) -> None:
    """Each outcome has a line with its own colors.

    The name of the task, "shop.failed", and the message are not colored.

    Fails if: the first "failed" of the line is colored, which belongs to the name.
    """
    outcome = failed(task_name="shop.failed", **told)
    TaskLog().settled([outcome], {str(outcome.id): decided})

    assert [one.partition("[task] ")[2] for one in lines] == [
        f"[{level}] shop.failed {outcome.id} (attempt 3) {line}"
    ]


def test_a_record_about_a_task_has_the_attributes_of_the_filter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A record about a task has the attributes that the filter would add."""
    caplog.set_level("INFO", "horsies.task")
    (outcome,) = done(1)
    TaskLog().settled([outcome])
    TaskLog().settled([failed(returned=True)])

    for record in caplog.records:
        TaskContextFilter().filter(record)
        about = (record.task_name, record.queue_name, record.attempt)  # type: ignore[attr-defined]
        assert about == ("shop.tasks.pack", "mail", 3)

    assert caplog.records[0].task_id == str(outcome.id)  # type: ignore[attr-defined]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_some_of_many_tasks_are_named_and_none_that_nobody_knows() -> None:
    (one,) = done(1)

    assert in_parentheses([]) == in_parentheses([Claim(uuid.uuid4(), 1, "", "", "")]) == ""
    assert in_parentheses([one]) == f" (shop.tasks.pack {one.id} (attempt 3))"
    assert (
        in_parentheses([one] * 12)
        == f" ({', '.join([f'shop.tasks.pack {one.id} (attempt 3)'] * 10)}, and 2 more)"
    )


FORGED = f"a\n[12:00:00] [worker] [CRITICAL] \x1b[2J\u202e\ud800 {'x' * 200}"


def test_the_name_of_a_row_forges_no_line_and_floods_none(caplog: pytest.LogCaptureFixture) -> None:
    """Fails if: only the worker's own formatter escapes the name, and handlers of the project write
    the lines of an attacker.
    """
    (one,) = done(1, FORGED)
    log = TaskLog()

    with caplog.at_level(logging.INFO, "horsies.task"):
        log.settled(
            [one, failed()._replace(task_name=FORGED, queue_name=FORGED, error_message=None)]
        )
        log.settled([failed()._replace(task_name=FORGED, status="CANCELLED")])
        log.settled(done(MANY_A_SECOND + 1, FORGED))
        log.close()
        log_expired([one])

    assert len(caplog.records) > 4
    for record in caplog.records:
        names = [
            value
            for value in record.__dict__.values()
            if isinstance(value, str) and "CRITICAL" in value
        ]

        for text in (record.getMessage(), *names):
            assert text.isprintable()
            assert len(text) < 320

    assert task_label(one) == f"{printable_name(FORGED)} {one.id} (attempt 3)"
    assert printable_name("shop.tasks.größe") == "shop.tasks.größe"


def test_the_filter_adds_the_task_attributes_to_every_record() -> None:
    """The filter adds the attributes of the task to every record.

    Outside of a task, they have neutral values.
    """

    def filtered(**extra: object) -> logging.LogRecord:
        record = logging.getLogger("shop").makeRecord(
            "shop", logging.INFO, "f", 1, "one\n\ttwo", (), None, extra=extra
        )
        assert TaskContextFilter().filter(record) is True
        return record

    def attributes(record: Any) -> tuple[Any, ...]:
        return record.task_id, record.task_name, record.queue_name, record.attempt

    id_ = uuid.UUID(int=7)
    token = running_task.set(
        CurrentTask(Claim(id_, 1, "sync", "shop.tasks.pack", "{}", 2, None, "mail"))
    )

    try:
        inside = filtered()
    finally:
        running_task.reset(token)

    assert attributes(inside) == (str(id_), "shop.tasks.pack", "mail", 2)
    assert (
        Formatter()
        .format(inside)
        .endswith(f"[shop] [INFO] shop.tasks.pack {id_} (attempt 2): one\n        two")
    )

    outside = filtered()
    assert attributes(outside) == ("-", "-", "-", 0)
    assert Formatter().format(outside).endswith("[shop] [INFO] one\n        two")

    assert attributes(filtered(task_id="of-the-project"))[:2] == ("of-the-project", "-")


def test_what_could_end_or_hide_a_line_is_escaped() -> None:
    for sign in "\n\r\x1b\x00\x85\u2028\u2029\u202e\u2066\udcff\x9b":
        assert visible(f"a{sign}b") == f"a{sign.encode('unicode_escape').decode()}b"

    assert visible("Grüße, 東京 \u00a0 🐎\u200d!") == "Grüße, 東京 \u00a0 🐎\u200d!"


def test_the_record_of_a_failure_has_the_class_of_the_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The record of a failure has the class and the text of the exception.

    Fails if: services that group errors by class get one class for all tasks.
    """
    told = {"type": "Tray.NoPaper", "module": "shop.errors", "message": "tray 2\nis empty"}
    told["traceback"] = "first\n  second\n"
    outcome = failed()._replace(
        result=json.dumps({"err": {"exception": told}}), error_message="tray 2"
    )

    TaskLog().settled([outcome, outcome])

    kind, other = (record.exc_info[0] for record in caplog.records if record.exc_info)
    assert kind is other
    assert kind is not None
    assert (kind.__module__, kind.__qualname__, kind.__name__) == (
        "shop.errors",
        "Tray.NoPaper",
        "NoPaper",
    )

    text = logging.Formatter("%(message)s").format(caplog.records[0])
    assert text.endswith("\nshop.errors.Tray.NoPaper: tray 2\\nis empty\n    first\n      second")


class Export(logging.Handler):
    """A handler that a tool adds to the root logger to send records elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


Root = Callable[..., logging.Logger]


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Root:
    """Return a function that resets the root logger to Python's defaults, with these handlers.

    It replaces stderr by a text buffer. Call it in the test itself, because pytest adds handlers
    before the test.
    """

    def bare(*handlers: logging.Handler) -> logging.Logger:
        stream = io.StringIO()
        monkeypatch.setattr(logging.root, "handlers", list(handlers))
        monkeypatch.setattr(logging.root, "level", logging.WARNING)
        monkeypatch.setattr(logging, "lastResort", None)
        monkeypatch.setattr(logs.Level, "given", logging.WARNING)

        monkeypatch.setattr(logging.getLogger("horsies"), "handlers", [])
        monkeypatch.setattr(logging.getLogger("horsies"), "propagate", True)
        monkeypatch.setattr(logging.getLogger("shop"), "handlers", [])
        monkeypatch.setattr(logs, "stream_of_its_own", lambda: stream)

        logging.root.manager._clear_cache()  # type: ignore[attr-defined]
        return logging.root

    return bare


def shown() -> list[str]:
    """Return the messages on stderr."""
    text = logs.stream_of_its_own().getvalue()  # type: ignore[attr-defined]
    return sorted(line.rpartition("] ")[2] for line in text.splitlines())


def log_all() -> None:
    """Log as a worker and its tasks do, in the worker's own process."""
    logs.configure_logging("INFO")
    logs.configure_logging("INFO")  # as in a child, which is forked
    with logs.relayed_logs():
        logger.info("of the worker")
        logging.getLogger("shop").info("of a task")


def test_a_handler_that_a_tool_added_gets_the_lines_in_addition(root: Root) -> None:
    """Fails if: any handler of the root logger silences the worker and its tasks on stderr."""
    export = Export()
    root(export)

    log_all()

    assert shown() == ["of a task", "of the worker"]
    assert sorted(export.seen) == ["of a task", "of the worker"]


def test_a_handler_added_after_the_start_silences_nothing(root: Root) -> None:
    """A handler that is added after the start silences nothing."""
    made = root()
    logs.configure_logging("INFO")
    made.addHandler(Export())

    log_all()

    assert shown() == ["of a task", "of the worker"]


@pytest.mark.parametrize("how", ["level", "stream", "LOGGING"])
def test_a_root_logger_that_the_project_configures_is_left_alone(
    root: Root, settings: Any, how: str
) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream) if how == "stream" else Export()
    made = root(handler)
    if how == "level":
        made.setLevel(logging.INFO)
    if how == "LOGGING":
        settings.LOGGING = {"root": {"handlers": []}}

    log_all()

    assert shown() == []
    assert made.handlers == [handler]


def test_a_logger_with_a_handler_of_its_own_is_not_shown_twice(root: Root) -> None:
    own = Export()
    root(Export())
    logging.getLogger("shop").handlers = [own]

    log_all()

    assert shown() == ["of the worker"]
    assert own.seen == ["of a task"]


def test_a_handler_that_raises_ends_the_log_of_nobody(
    slow: Slow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if: the thread that writes the log ends, and the worker is silent from then on."""

    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise LookupError("no such index")

    slow.gate.set()
    monkeypatch.setattr(logging.getLogger("horsies"), "handlers", [Broken(), slow])

    with logs.relayed_logs():
        logger.info("one")
        logger.info("two")

    assert slow.lines == ["one", "two"]
    assert "LookupError: no such index" in capsys.readouterr().err


def test_the_record_of_a_failure_can_be_pickled() -> None:
    """Fails if: handlers that pass the record to another thread or process as bytes lose it."""
    kind = named_class("shop.errors", "Outer.Refused")
    error = kind("no such order")
    error.add_note("    Traceback")

    again = pickle.loads(pickle.dumps((kind, error)))

    assert again[0] is kind
    assert (type(again[1]), again[1].args, again[1].__notes__) == (
        kind,
        ("no such order",),
        ["    Traceback"],
    )
