"""Colors of log lines: only on a terminal, only where they belong, and nothing that a task says can bring its own."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest

from horsies_django.core.records import Outcome
from horsies_django.worker.process import task_log
from horsies_django.worker.process.logs import OUTCOMES, Formatter, choose_colors, palette_for

ESCAPE = "\x1b"
ID = "0199a8c4-0000-7000-8000-000000000000"


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "DJANGO_COLORS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


class Keeper(logging.Handler):
    """Keeps the formatted lines."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(Formatter(palette_for(Terminal())))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the lines that the "horsies" loggers write on a terminal from now on."""
    keeper = Keeper()
    horsies = logging.getLogger("horsies")
    monkeypatch.setattr(horsies, "handlers", [keeper])
    monkeypatch.setattr(horsies, "propagate", False)
    for name in ("horsies", "horsies.task", "horsies.worker"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)
    horsies.setLevel("INFO")
    return keeper.lines


def tell(status: str, decided: dict[str, Any] | None = None, **fields: Any) -> None:
    """Log an outcome as a worker does."""
    outcome = Outcome(ID, 1, status, '{"err": {}}', task_name="shop.failed", attempt=1, seconds=0.1, **fields)  # type: ignore[arg-type]
    task_log.TaskLog().settled([outcome], {ID: decided} if decided else {})


@pytest.mark.parametrize(
    ("color", "words", "told"),
    [
        ("32;1", "completed", lambda: tell("COMPLETED")),
        ("31;1", "failed", lambda: tell("FAILED", error_code="X", error_message="it failed")),
        ("31;1", "returned an error", lambda: tell("FAILED", error_code="X", error_message="no", returned=True)),
        ("33;1", "was cancelled", lambda: tell("CANCELLED", error_code="TASK_CANCELLED")),
        ("33;1", "skipped itself", lambda: tell("CANCELLED", error_code="TASK_SKIPPED")),
        ("33;1", "failed", lambda: tell("FAILED", {"retry": 1, "of": 3, "at": 0.0}, error_code="X", error_message="it failed")),
    ],
)  # fmt: skip
def test_the_outcome_of_a_task_has_its_color_and_the_name_of_the_task_none(
    lines: list[str], color: str, words: str, told: Any
) -> None:
    """The task is named "shop.failed". Naive: the first "failed" of the line is colored, which belongs to its name."""
    told()
    (line,) = lines
    assert f"shop.failed {ID} (attempt 1) {ESCAPE}[{color}m{words}{ESCAPE}[0m" in line
    if "retry" in line:
        assert f"{ESCAPE}[33;1mretry 1 of 3 at " in line


def test_every_line_about_the_end_of_a_task_has_a_color() -> None:
    """The templates of the task log and those of the palette are in two modules: one without the other has no effect."""
    import inspect

    source = inspect.getsource(task_log)
    assert [template for template in OUTCOMES if f'"{template}"' not in source] == []


def test_levels_above_info_have_colors_in_all_loggers(lines: list[str]) -> None:
    logger = logging.getLogger("horsies.worker")
    logger.info("quiet")
    logger.warning("careful")
    logger.error("broken")
    assert ESCAPE not in lines[0]
    assert f"[{ESCAPE}[33;1mWARNING{ESCAPE}[0m] careful" in lines[1]
    assert f"[{ESCAPE}[31;1mERROR{ESCAPE}[0m] broken" in lines[2]


def test_what_a_task_says_brings_no_colors_of_its_own(lines: list[str]) -> None:
    tell("FAILED", error_code="X", error_message=f"{ESCAPE}[32mcompleted{ESCAPE}[0m")
    (line,) = lines
    assert "\\x1b[32mcompleted" in line
    assert line.count(ESCAPE) == 4  # of the level and of the outcome


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
def test_who_wants_colors_is_asked(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], stream: type[io.StringIO], colored: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (palette_for(stream()) is not None) == colored


def test_the_colors_are_those_that_django_was_given(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    record = logging.LogRecord("horsies.worker", logging.ERROR, "", 0, "broken", (), None)
    for chosen, expected in (("nocolor", "[ERROR] broken"), ("error=blue", f"[{ESCAPE}[34mERROR{ESCAPE}[0m] broken")):
        monkeypatch.setenv("DJANGO_COLORS", chosen)
        assert Formatter(palette_for(Terminal())).format(record).endswith(expected)


def test_the_options_of_a_command_reach_the_processes_that_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    choose_colors(no_color=False, force_color=False)
    assert palette_for(Terminal()) is None
    choose_colors(no_color=False, force_color=True)
    assert palette_for(io.StringIO()) is not None
    choose_colors(no_color=True, force_color=False)
    assert palette_for(Terminal()) is None
