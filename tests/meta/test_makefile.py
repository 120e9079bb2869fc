"""The Makefile's first words to somebody whose machine lacks what it needs: one line that names it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(tmp_path: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make with an interpreter that is ``script``, in a virtual environment directory of its own."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    command = ["make", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """Return the only line that is not make's own."""
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    return line


@pytest.mark.parametrize("target", ["demo", "test"])
def test_a_python_that_is_too_old_is_named_in_one_line(tmp_path: Path, target: str) -> None:
    old = 'case "$1" in --version) echo "Python 3.9.1";; *) exit 1;; esac'
    line = complaint(make(tmp_path, old, target))
    assert "Python 3.11 or newer is needed" in line
    assert "Python 3.9.1" in line


def test_a_python_without_venv_is_named_in_one_line(tmp_path: Path) -> None:
    bare = 'case "$2" in *version_info*) exit 0;; *) exit 1;; esac'
    assert "has no venv module" in complaint(make(tmp_path, bare, "test"))


def test_help_lists_the_commands(tmp_path: Path) -> None:
    done = make(tmp_path, "exit 1")
    assert done.returncode == 0
    targets = "demo test e2e unit browser stress soak mutants conformance lint types ci docs bench wheel clean"
    for target in targets.split():
        assert f"make {target}" in done.stdout


@pytest.mark.parametrize(("given", "used"), [([], False), (["DATABASE_URL=postgresql://u@h/d"], True)])
def test_the_demo_uses_only_a_database_of_the_command_line(
    tmp_path: Path, given: list[str], used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://stranger@elsewhere/production")
    done = make(tmp_path, "exit 1", "--dry-run", "demo", *given)
    (line,) = [line for line in done.stdout.splitlines() if "manage.py demo" in line]
    assert "env -u DATABASE_URL" in line
    assert ("--database-url" in line) == used


def test_the_test_files_that_ci_names_exist() -> None:
    text = (ROOT / ".ci" / "run").read_text()
    named = set(re.findall(r"tests/\w+/test_\w+\.py", text))
    for layer, names in re.findall(r"printf 'tests/(\w+)/test_%s\.py '([^)]*)\)", text):
        named |= {f"tests/{layer}/test_{name}.py" for name in names.replace("\\", "").split()}
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
