"""The lines about tasks: which of them have one each, what is counted, and what records carry."""

from __future__ import annotations

import json
import logging
import time
import uuid
from typing import Any

import pytest

from horsies_django import TaskContextFilter
from horsies_django.core.records import Claim, Outcome
from horsies_django.tasks.context import CurrentTask, running
from horsies_django.worker.process.logs import Formatter, one_line, shown_name
from horsies_django.worker.process.task_log import (
    MANY,
    Summary,
    TaskLog,
    label,
    named,
    tell_expired,
)


def done(count: int, name: str = "shop.tasks.pack") -> list[Outcome]:
    """Return completed tasks."""
    claim = Claim(uuid.uuid4(), 1, "sync", name, "{}", 3, None, "mail")
    return [Outcome.of(claim, ("COMPLETED", '{"ok":null}', None, None, None, False, ()), seconds=0.5)] * count


def failed(**reply: Any) -> Outcome:
    """Return a failed task."""
    return done(1)[0]._replace(status="FAILED", result='{"err":{"exception":null}}', error_code="OH_NO", **reply)


def test_as_many_tasks_as_a_second_may_have_lines_have_one_each_and_nothing_is_counted() -> None:
    summary = Summary()
    assert len(summary.take(done(MANY - 1), 10.0)) == MANY - 1
    assert len(summary.take(done(1), 10.9)) == 1
    assert summary.due == float("inf")
    assert len(summary.take(done(MANY), 11.0)) == MANY  # another second
    assert summary.due == float("inf")


def test_what_exceeds_a_second_is_counted_and_told_when_it_is_over() -> None:
    summary = Summary()
    assert len(summary.take(done(MANY + 1_300), 10.0)) == MANY
    assert summary.take(done(100, "shop.tasks.ship"), 10.5) == []
    assert summary.due == 11.0
    assert summary.tell(11.25) == ("1,400 tasks completed in 1.2 s: shop.tasks.pack 1,300, shop.tasks.ship 100")
    assert summary.due == float("inf")


def test_after_a_busy_second_the_next_is_only_counted_and_after_one_that_was_not_lines_are_back() -> None:
    summary = Summary()
    summary.take(done(MANY + 1), 10.0)
    summary.tell(11.0)
    assert summary.take(done(MANY), 11.5) == []  # no more than a second may have, but that is not known yet
    assert summary.tell(12.0).startswith("200 tasks completed in 1.0 s: ")
    assert len(summary.take(done(5), 12.5)) == 5


def test_a_burst_after_an_idle_minute_begins_with_lines() -> None:
    summary = Summary()
    summary.take(done(MANY + 1), 10.0)
    summary.tell(11.0)
    assert summary.take(done(MANY + 1), 11.0) == []
    summary.tell(12.0)
    assert len(summary.take(done(1), 72.0)) == 1


def test_a_summary_that_comes_late_counts_by_the_second_all_the_same() -> None:
    summary = Summary()
    summary.take(done(MANY * 3), 10.0)
    summary.tell(15.0)  # the worker was stopped meanwhile: 600 in 5 s
    assert len(summary.take(done(1), 15.5)) == 1


def test_a_summary_names_ten_and_counts_the_others() -> None:
    summary = Summary()
    summary.take(done(MANY), 10.0)
    for number in range(13):
        summary.take(done(13 - number, f"t{number:02}"), 10.1)
    line = summary.tell(11.0)
    assert line.startswith("91 tasks completed in 1.0 s: t00 13, t01 12, ")
    assert line.endswith("t09 4, and 6 of 3 more names")


def test_a_journal_without_info_counts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "horsies.task")
    task_log = TaskLog()
    task_log.settled(done(MANY * 2))
    task_log.close()
    assert task_log.summary_at == float("inf")
    assert caplog.text == ""


def test_what_is_counted_last_is_told_when_the_worker_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "horsies.task")
    task_log = TaskLog()
    task_log.settled(done(MANY + 7))
    task_log.tick(task_log.summary_at - 0.01)
    assert len(caplog.records) == MANY
    task_log.close()
    assert caplog.messages[-1].startswith("7 tasks completed in ")
    task_log.tick(time.monotonic() + 100)
    assert len(caplog.records) == MANY + 1


def test_a_failure_says_what_the_database_decided(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "horsies.task")
    outcome, at = failed(error_message="no answer"), time.time() + 3 * 86_400
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    label = f"shop.tasks.pack {outcome.id} (attempt 3)"
    for decided, level, text in [
        ({"retry": 2, "of": 5, "at": at}, "INFO", f"failed in 0.500 s: OH_NO: no answer; retry 2 of 5 at {moment}"),
        ({"retry": None}, "INFO", "failed in 0.500 s: OH_NO: no answer; it is tried again"),
        ({"code": "POISON"}, "ERROR", "failed in 0.500 s: POISON: no answer"),
        ({}, "ERROR", "failed in 0.500 s: OH_NO: no answer"),
    ]:
        caplog.clear()
        TaskLog().settled([outcome], {str(outcome.id): decided})
        (record,) = caplog.records
        assert record.levelname == level
        assert record.getMessage() == f"{label} {text}"


def test_a_record_about_a_task_carries_what_the_filter_would_give_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "horsies.task")
    (outcome,) = done(1)
    TaskLog().settled([outcome])
    TaskLog().settled([failed(returned=True)])
    for record in caplog.records:
        TaskContextFilter().filter(record)
        assert (record.task_name, record.queue_name, record.attempt) == ("shop.tasks.pack", "mail", 3)  # type: ignore[attr-defined]
    assert caplog.records[0].task_id == str(outcome.id)  # type: ignore[attr-defined]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_some_of_many_tasks_are_named_and_none_that_nobody_knows() -> None:
    (one,) = done(1)
    assert named([]) == named([Claim(uuid.uuid4(), 1, "", "", "")]) == ""
    assert named([one]) == f" (shop.tasks.pack {one.id} (attempt 3))"
    assert named([one] * 12) == f" ({', '.join([f'shop.tasks.pack {one.id} (attempt 3)'] * 10)}, and 2 more)"


FORGED = f"a\n[12:00:00] [worker] [CRITICAL] \x1b[2J\u202e\ud800 {'x' * 200}"


def test_the_name_of_a_row_forges_no_line_and_floods_none(caplog: pytest.LogCaptureFixture) -> None:
    """Naive: only the worker's own formatter escapes it, and handlers of the project write the lines of an attacker."""
    (one,), log = done(1, FORGED), TaskLog()
    with caplog.at_level(logging.INFO, "horsies.task"):
        log.settled([one, failed()._replace(task_name=FORGED, queue_name=FORGED, error_message=None)])
        log.settled([failed()._replace(task_name=FORGED, status="CANCELLED")])
        log.settled(done(MANY + 1, FORGED))
        log.close()
        tell_expired([one])
    assert len(caplog.records) > 4
    for record in caplog.records:
        names = [value for value in record.__dict__.values() if isinstance(value, str) and "CRITICAL" in value]
        for text in (record.getMessage(), *names):
            assert text.isprintable()
            assert len(text) < 320
    assert label(one) == f"{shown_name(FORGED)} {one.id} (attempt 3)"
    assert shown_name("shop.tasks.größe") == "shop.tasks.größe"


def record_of(name: str = "shop", **extra: object) -> logging.LogRecord:
    return logging.getLogger(name).makeRecord(name, logging.INFO, "f", 1, "hello", (), None, extra=extra)


def test_the_filter_gives_a_record_its_task_and_lets_it_pass() -> None:
    token = running.set(CurrentTask("0199a8c4-0000-7000-8000-000000000001", "shop.tasks.pack", 2, "mail"))
    try:
        record = record_of()
        assert TaskContextFilter().filter(record) is True
    finally:
        running.reset(token)
    found = (record.task_id, record.task_name, record.queue_name, record.attempt)  # type: ignore[attr-defined]
    assert found == ("0199a8c4-0000-7000-8000-000000000001", "shop.tasks.pack", "mail", 2)
    line = Formatter().format(record)
    assert line.endswith("[shop] [INFO] shop.tasks.pack 0199a8c4-0000-7000-8000-000000000001 (attempt 2): hello")


def test_outside_of_a_task_the_filter_gives_every_attribute_all_the_same() -> None:
    record = record_of()
    assert TaskContextFilter().filter(record) is True
    assert (record.task_id, record.task_name, record.queue_name, record.attempt) == ("-", "-", "-", 0)  # type: ignore[attr-defined]
    assert Formatter().format(record).endswith("[shop] [INFO] hello")


def test_the_filter_leaves_what_a_record_has_already_and_adds_what_it_has_not() -> None:
    record = record_of(task_id="of-the-project")
    TaskContextFilter().filter(record)
    assert (record.task_id, record.task_name) == ("of-the-project", "-")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "sign", ["\n", "\r", "\x1b", "\x00", "\x85", "\u2028", "\u2029", "\u202e", "\u2066", "\udcff", "\x9b"]
)
def test_what_could_end_or_hide_a_line_is_escaped(sign: str) -> None:
    assert one_line(f"a{sign}b") == f"a{sign.encode('unicode_escape').decode()}b"
    assert one_line("Grüße, 東京 \u00a0 🐎\u200d!") == "Grüße, 東京 \u00a0 🐎\u200d!"


def test_further_lines_of_a_record_are_indented() -> None:
    record = logging.getLogger("shop").makeRecord(
        "shop", logging.INFO, "f", 1, "one\n\ttwo\n[12:00:00] three", (), None
    )
    assert Formatter().format(record).split("] ", 3)[-1] == "one\n        two\n    [12:00:00] three"


def test_the_record_of_a_failure_has_the_class_and_the_text_of_the_exception(caplog: pytest.LogCaptureFixture) -> None:
    """Naive: services that group errors by class see one for all tasks."""
    told = {
        "type": "Tray.NoPaper",
        "module": "shop.errors",
        "message": "tray 2\nis empty",
        "traceback": "first\n  second\n",
    }
    outcome = failed()._replace(result=json.dumps({"err": {"exception": told}}), error_message="tray 2")
    TaskLog().settled([outcome, outcome])
    kinds = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert kinds[0] is kinds[1]
    assert kinds[0] is not None
    assert (kinds[0].__module__, kinds[0].__qualname__, kinds[0].__name__) == ("shop.errors", "Tray.NoPaper", "NoPaper")
    text = logging.Formatter("%(message)s").format(caplog.records[0])
    assert text.endswith("\nshop.errors.Tray.NoPaper: tray 2\\nis empty\n    first\n      second")
