"""The code keeps its rules: small files and functions, layered imports, SQL in one place.

Files beside the code keep theirs, too: the Makefile's messages, the versions of pyproject.toml, the
service files of the pages.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.statements import FUNCTIONS, STATEMENTS, TYPES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "horsies_django"
CONTRIB = PACKAGE / "contrib"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "0001_initial.py")

LONGEST_FILE = 400  # statements
LONGEST_FUNCTION = 50  # statements


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.relative_to(ROOT)}::{node.name}", node


def statements(node: ast.AST) -> int:
    """Count the statements below a node, docstrings among them."""
    return sum(isinstance(one, ast.stmt) for one in ast.walk(node) if one is not node)


def test_files_and_functions_stay_small() -> None:
    long = [str(path) for path in MODULES if statements(tree(path)) > LONGEST_FILE]
    long += [
        name
        for path in MODULES
        for name, node in functions(path)
        if statements(node) > LONGEST_FUNCTION
    ]

    assert long == []


@pytest.mark.promise("S3.4")
def test_only_contrib_imports_clients_of_other_services() -> None:
    """Only modules in ``contrib`` import clients of services other than PostgreSQL.

    Each of its modules is for users of one other program. No other module imports ``contrib``, but
    for the command that imports schedules of Celery beat.
    """
    without = {PACKAGE / "management/commands/horsies_import_beat.py"}
    nodes = [
        node
        for path in MODULES
        if CONTRIB not in path.parents and path not in without
        for node in ast.walk(tree(path))
    ]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}

    assert not any(module.startswith("horsies_django.contrib") for module in modules)

    own = {
        "horsies_django",
        "django",
        "django_tasks",
        "asgiref",
        "typing_extensions",
        "pydantic",
        "croniter",
        "cron_descriptor",
        "prometheus_client",
        "psutil",
        "pytest",
    }
    new_in_python_314 = {"annotationlib"}
    roots = {module.partition(".")[0] for module in modules} - new_in_python_314

    assert roots - own - set(sys.stdlib_module_names) == {"psycopg"}


def test_only_the_store_opens_cursors() -> None:
    found = {
        path.relative_to(PACKAGE).parts[0]
        for path in MODULES
        if re.search(r"\.cursor\(", path.read_text())
    }

    assert found == {"store"}


def test_only_statements_of_the_store_write_a_status() -> None:
    pattern = re.compile(
        r"objects[^\n]*\.update\(|queryset\.update\(|\.save\(|bulk_update|SET\s+status"
    )

    assert [str(path) for path in MODULES if pattern.search(path.read_text())] == []


def test_every_statement_has_exactly_one_caller() -> None:
    """Each statement has exactly one caller, and each function at least one."""
    place = {"run_statement": 1, "execute": 1, "executed": 1, "self.run": 0, "self.execute": 0}
    called = [
        argument.value
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and (at := place.get(ast.unparse(node.func))) is not None
        for argument in node.args[at : at + 1]
        if isinstance(argument, ast.Constant)
    ]

    assert sorted(name for name in called if not name.startswith("horsies_")) == sorted(STATEMENTS)

    texts = {
        path: path.read_text() for path in (*STATEMENTS.values(), *FUNCTIONS.values(), *MODULES)
    }
    for name, own in FUNCTIONS.items():
        of_trigger = f"EXECUTE FUNCTION {name}(" in texts[own]
        assert of_trigger or any(
            re.search(rf"\b{name}\b", text) for path, text in texts.items() if path != own
        ), name

    assert {name for name in called if name.startswith("horsies_")} <= FUNCTIONS.keys()


def test_a_type_is_named_as_its_file() -> None:
    """Each file of a type creates a type of its name.

    tests/db/test_statements.py checks the same for functions, in the database.
    """
    for path in TYPES.values():
        assert f"CREATE TYPE {path.stem} " in path.read_text()


def test_the_version_is_one() -> None:
    import horsies_django

    assert f'version = "{horsies_django.__version__}"' in (ROOT / "pyproject.toml").read_text()

    released, _, more = horsies_django.__version__.partition(".dev")
    assert f"## {'Unreleased' if more else released}" in (ROOT / "CHANGELOG.md").read_text()


PLACES = ("horsies_django", "example_project", "benchmarks", "docs", "tests")
KINDS = {".py", ".sql", ".html", ".css", ".md"}
FILES = sorted(
    path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in KINDS
)
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")


def test_nothing_is_left_for_later_in_the_code() -> None:
    assert len(FILES) > 200
    found = [str(path.relative_to(ROOT)) for path in FILES if UNFINISHED.search(path.read_text())]

    assert found == []


def make(tmp_path: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make with an interpreter that is ``script``, and a virtual environment of its own."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)

    command = ["make", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}", *arguments]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }

    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """Return the only line that is not make's own."""
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    return line


OLD = 'case "$1" in --version) echo "Python 3.9.1";; *) exit 1;; esac'
BARE = 'case "$2" in *version_info*) exit 0;; *) exit 1;; esac'


@pytest.mark.parametrize(
    ("script", "target", "said"),
    [
        (OLD, "demo", "Python 3.11 or newer is needed.*Python 3.9.1"),
        (OLD, "test", "Python 3.11 or newer is needed.*Python 3.9.1"),
        (BARE, "test", "has no venv module"),
    ],
    ids=["too old for the demo", "too old for the tests", "without venv"],
)
def test_a_python_that_will_not_do_is_named_in_one_line(
    tmp_path: Path, script: str, target: str, said: str
) -> None:
    assert re.search(said, complaint(make(tmp_path, script, target)))


def test_help_lists_the_commands(tmp_path: Path) -> None:
    done = make(tmp_path, "exit 1")

    assert done.returncode == 0

    targets = (
        "demo test e2e unit browser stress soak mutants conformance lint types ci docs bench wheel "
        "clean"
    )
    for target in targets.split():
        assert f"make {target}" in done.stdout


@pytest.mark.parametrize(
    ("given", "used"), [([], False), (["DATABASE_URL=postgresql://u@h/d"], True)]
)
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


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_lowest_tested_versions_are_the_lowest_allowed_ones() -> None:
    """The lowest tested versions are the lowest versions that pyproject.toml allows.

    Fails if: a bound is raised in one place only, and a version is promised that no test ever ran.
    """
    bounds: dict[str, Version] = {}
    for text in (
        *PROJECT["dependencies"],
        *(each for extra in PROJECT["optional-dependencies"].values() for each in extra),
    ):
        found = Requirement(text)
        (bound,) = found.specifier
        assert bound.operator == ">=", f"{text}: no upper bounds"

        # psycopg[binary] is psycopg-binary.
        names = [f"{found.name}-{extra}" for extra in found.extras] or [found.name]
        bounds |= {canonicalize_name(name): Version(bound.version) for name in names}

    lines = (ROOT / "constraints" / "lowest.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))

    assert {name: Version(version) for name, version in pins.items()} == bounds


def test_tox_has_a_cell_for_each_python_and_django_classifier() -> None:
    """Tox has a cell for each Python and each Django version in the classifiers."""
    versions = {"py": set[str](), "dj": set[str]()}
    for text in PROJECT["classifiers"]:
        if found := re.fullmatch(
            r"Programming Language :: Python :: (\d\.\d+)|Framework :: Django :: (\d\.\d)", text
        ):
            python, django = found.groups()
            versions["py" if python else "dj"].add((python or django).replace(".", ""))

    cells = (ROOT / "tox.ini").read_text().partition("env_list =")[2].partition("skip_missing")[0]
    assert set(re.findall(r"py(\d+)", cells)) == versions["py"]

    numbers = set(re.findall(r"\d\d", " ".join(re.findall(r"-dj(\d\d|\{[^}]*\})", cells))))
    assert numbers == versions["dj"]


PAGE = (ROOT / "docs" / "howto" / "run-a-worker.md").read_text()
OPTION = re.compile(r"--shutdown-timeout=(\d+)")
MARGIN_SECONDS = 30


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def unit() -> str:
    (text,) = blocks("ini")
    return text


def test_systemd_verifies_the_unit_without_a_warning(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")

    path = tmp_path / "shop-worker.service"
    path.write_text(unit().replace("/srv/shop/.venv/bin/python", sys.executable))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    about_it = [line for line in (done.stdout + done.stderr).splitlines() if "shop-worker" in line]

    assert about_it == []


@pytest.mark.parametrize(
    ("language", "pattern"),
    [
        ("ini", r"TimeoutStopSec=(\d+)"),
        ("yaml", r"stop_grace_period: (\d+)s"),
        ("yaml", r"terminationGracePeriodSeconds: (\d+)"),
    ],
    ids=["systemd", "Compose", "Kubernetes"],
)
def test_a_service_gets_a_margin_above_the_workers_own_timeout(language: str, pattern: str) -> None:
    (text,) = [block for block in blocks(language) if re.search(pattern, block)]
    (own,) = OPTION.findall(text)
    (grace,) = re.findall(pattern, text)

    assert int(grace) >= int(own) + MARGIN_SECONDS
    assert language != "ini" or {"KillMode=mixed", "Restart=on-failure"} <= set(text.splitlines())
