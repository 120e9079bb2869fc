"""What type checkers say of a project that uses the installed wheel: wrong lines are errors, and no
others.

A wrong line of ``project`` ends in ``# error:`` with the code of mypy and the rule of pyright,
several with commas, "-" for none. What is right is proven by ``assert_type``, which is an error
where the type is another one.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.distributions import built, environment_of, run

PROJECT = Path(__file__).with_name("project")
MARK = re.compile(r"# error: (\S+) (\S+)$")
MYPY = re.compile(r"^(\S+?):(\d+): error: (.*)  \[([\w-]+)\]$", re.MULTILINE)

pytestmark = [
    pytest.mark.skipif(
        find_spec(name) is None, reason=f"{name} is not installed: make types runs this"
    )
    for name in ("build", "mypy", "pyright")
]


class Installed(NamedTuple):
    """A copy of the project, and two environments with the wheel: with nothing else, and beside
    Django and its stubs.
    """

    project: Path
    alone: Path
    beside: Path


class Found(NamedTuple):
    """An error that a checker reports, or that a line is marked with."""

    file: str
    line: int
    code: str


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    directory = tmp_path_factory.mktemp("typed")
    wheel = built(directory).wheel
    project = directory / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    alone = environment_of(wheel, directory / "alone", beside=False)
    beside = environment_of(wheel, directory / "beside", beside=True)
    for python in (alone, beside):
        where = run(
            python, "-c", "import horsies_django; print(horsies_django.__file__)", cwd=project
        ).stdout
        assert Path(where.strip()).is_relative_to(python.parents[1]), (
            "it is the installed one that is checked"
        )
    return Installed(project, alone, beside)


def marked(project: Path, checker: int, *, without: tuple[str, ...] = ()) -> set[Found]:
    """Return the marks of the lines, for the checker whose code comes first or second."""
    found = set()
    for path in sorted((project / "shop").glob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if path.name not in without and (mark := MARK.search(line)):
                found |= {
                    Found(path.name, number, code)
                    for code in mark.group(checker).split(",")
                    if code != "-"
                }
    return found


def differences(said: dict[Found, str], expected: set[Found]) -> list[str]:
    """Return what was said too much, and what was not said."""
    return [
        f"{each.file}:{each.line} {each.code}: {said.get(each, 'missing')}"
        for each in sorted(said.keys() ^ expected)
    ]


@pytest.mark.parametrize(
    ("config", "stubs", "without"),
    [
        pytest.param(
            "mypy.ini", False, ("rows.py",), id="neither Django nor its stubs are installed"
        ),
        pytest.param(
            "with_plugin.ini", True, (), id="with the plugin of django-stubs, also the columns"
        ),
    ],
)
def test_mypy_reports_exactly_the_marked_lines(
    installed: Installed, config: str, stubs: bool, without: tuple[str, ...]
) -> None:
    """mypy reports exactly the marked lines of the project.

    Fails if: py.typed is missing, a decorator returns Any, or importing the app while the plugin
    sets Django up fails.
    """
    python = installed.beside if stubs else sys.executable
    options = [] if stubs else [f"--python-executable={installed.alone}"]
    options += [f"--config-file={config}", f"--cache-dir={installed.project.parent / config}"]
    done = run(python, "-m", "mypy", *options, cwd=installed.project, timeout=280)
    said = {
        Found(Path(file).name, int(line), code): words
        for file, line, words, code in MYPY.findall(done.stdout)
    }
    expected = marked(installed.project, 1, without=without)
    assert len(expected) > 35
    assert differences(said, expected) == [], done.stderr


def test_pyright_reports_exactly_the_marked_lines(installed: Installed) -> None:
    command = (sys.executable, "-m", "pyright", "--outputjson", f"--pythonpath={installed.alone}")
    done = run(*command, cwd=installed.project, timeout=200)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    said = {
        Found(
            Path(each["file"]).name, each["range"]["start"]["line"] + 1, each.get("rule", "")
        ): each["message"]
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    }
    expected = marked(installed.project, 2)
    assert differences(said, expected) == []
