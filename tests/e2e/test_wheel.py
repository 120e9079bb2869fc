"""The wheel that ``make wheel`` builds: what is in it, and what a type checker sees where it is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from horsies_django import __version__
from tests.e2e.test_readme import CHECKOUT
from tests.support.workers import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

USER = """
from horsies_django import TaskHandle, task

@task
def add(a: int, *, b: int = 0) -> int:
    return a + b

handle: TaskHandle[int] = add.send(1, b=2)
total: int = handle.get().unwrap()
add.send("one")
"""


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "PYTHONPATH"))}
    return subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which ``make wheel`` was run, with the interpreter that runs the tests."""
    made = tmp_path_factory.mktemp("checkout")
    for needed in (*CHECKOUT, "Makefile"):
        (shutil.copytree if (ROOT / needed).is_dir() else shutil.copy)(ROOT / needed, made / needed)
    (made / "venv").mkdir()
    (made / "venv" / "bin").symlink_to(Path(sys.executable).parent)
    (made / "venv" / ".made").touch()
    (made / "dist").mkdir()
    (made / "dist" / "horsies_django-0.0.1-py3-none-any.whl").touch()  # of another day
    done = run("make", "wheel", f"VENV={made / 'venv'}", cwd=made)
    assert done.returncode == 0, done.stderr
    (wheel,) = (made / "dist").glob("*.whl")
    assert done.stdout.splitlines() == [
        "Install it into the environment of your project:", f'    pip install "{wheel}[binary]"',
    ]  # fmt: skip
    return made


def wheel_of(checkout: Path) -> Path:
    (wheel,) = (checkout / "dist").glob(f"horsies_django-{__version__}-*.whl")
    return wheel


def test_a_wheel_that_says_typed_has_the_marker_and_every_file_of_the_package(checkout: Path) -> None:
    with zipfile.ZipFile(wheel_of(checkout)) as archive:
        names = set(archive.namelist())
        (metadata,) = [name for name in names if name.endswith("/METADATA")]
        assert "Classifier: Typing :: Typed" in archive.read(metadata).decode()
        plugins = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    assert plugins.split() == ["[pytest11]", "horsies_django", "=", "horsies_django.testing.pytest_plugin"]
    assert "horsies_django/py.typed" in names
    package = ROOT / "horsies_django"
    files = {path.relative_to(ROOT).as_posix() for path in package.rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} <= names
    assert {name.split("/")[0] for name in names} == {"horsies_django", metadata.split("/")[0]}


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_a_type_checker_sees_the_types_of_an_installed_wheel(checkout: Path, tmp_path: Path) -> None:
    made = run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    python = str(tmp_path / "env" / "bin" / "python")
    install = ("install", "--quiet", "--no-deps", "--no-index", str(wheel_of(checkout)))
    installed = run(sys.executable, "-m", "pip", "--python", python, *install, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    (tmp_path / "user.py").write_text(USER)
    done = run(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "user.py", cwd=tmp_path)
    lines = [line for line in done.stdout.splitlines() if line.startswith("user.py")]
    assert len(lines) == 1, done.stdout
    assert lines[0].startswith("user.py:10: error: Argument 1 to")
    assert 'expected "int"' in lines[0]
