"""Where a task failed: the last place of its traceback in the project's own code."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from django.utils.dateparse import parse_date

from horsies_django.core.errors import TaskSendError
from horsies_django.worker.child.run_task import project_path, site_of
from tests.apps.project import tasks

HERE = "tests/worker/test_site.py in "


def raised(function: Any, *arguments: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - any
        function(*arguments)
    return caught.value


def nested() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        raise LookupError from error


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [(json.loads, "{", "raised"), (parse_date, 5, "raised"), (nested, None, "nested")],
)
def test_frames_of_libraries_are_passed_over(function: Any, arguments: Any, name: str) -> None:
    """Naive: all failures of a kind are one group, which is named after a line of the standard library or of Django."""
    error = raised(function, *(() if arguments is None else (arguments,)))
    site = site_of(error)
    assert site is not None
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.name == name]
    assert site == (f"{HERE}{name}", lines[-1])


def test_frames_of_this_package_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    error = raised(tasks.add.send, object())
    assert isinstance(error, TaskSendError)
    assert site_of(error)[0] == f"{HERE}raised"  # type: ignore[index]


def test_an_error_without_a_frame_of_the_project_has_no_site() -> None:
    assert site_of(LookupError()) is None
    assert site_of(raised(eval, "1 / 0").with_traceback(None)) is None
    inner = raised(json.loads, "{")
    assert inner.__traceback__ is not None
    assert site_of(inner.with_traceback(inner.__traceback__.tb_next)) is None


def test_a_path_begins_below_the_folder_that_is_imported_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inner = tmp_path / "src"
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(inner), *sys.path])
    project_path.cache_clear()
    assert project_path(str(inner / "shop" / "tasks.py")) == "shop/tasks.py"
    assert project_path("/elsewhere/shop/tasks.py") == "/elsewhere/shop/tasks.py"
    assert project_path("<string>") is None
    project_path.cache_clear()
