"""What a release uploads, away from the checkout: the archive of sources with its tests, and the wheel in a project."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from horsies_django import __version__
from tests.conftest import wait_until
from tests.e2e.test_readme import CHECKOUT
from tests.support.distributions import Distributions, built, environment_of, run
from tests.support.fresh import fresh_database, libpq_variables
from tests.support.workers import ROOT

pytestmark = pytest.mark.timeout(240)

MANAGE = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
SETTINGS = """
import os
SECRET_KEY = "only for a test"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "horsies_django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"]}}
HORSIES = {}
"""
TASKS = """
from horsies_django import task

@task
def add(a: int, *, b: int = 0) -> int:
    return a + b
"""
SENDS = """
import horsies_django
from shop.tasks import add
print(horsies_django.__file__)
print(add.send(1, b=2).get().unwrap())
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return built(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def python(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the interpreter of an environment in which the wheel is installed, and nothing of the checkout."""
    return environment_of(distributions.wheel, tmp_path_factory.mktemp("environment") / "env", beside=True)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_wheel_leaves_one_wheel_and_says_how_to_install_it(tmp_path: Path) -> None:
    for needed in (*CHECKOUT, "Makefile"):
        (shutil.copytree if (ROOT / needed).is_dir() else shutil.copy)(ROOT / needed, tmp_path / needed)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "bin").symlink_to(Path(sys.executable).parent)
    (tmp_path / "venv" / ".made").touch()
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "horsies_django-0.0.1-py3-none-any.whl").touch()  # of another day
    done = run("make", "wheel", f"VENV={tmp_path / 'venv'}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.startswith(f"horsies_django-{__version__}-")
    assert done.stdout.splitlines() == [
        "Install it into the environment of your project:", f'    pip install "{wheel}[binary]"',
    ]  # fmt: skip


def test_a_wheel_has_the_package_with_its_marker_for_type_checkers_and_nothing_else(
    distributions: Distributions,
) -> None:
    """Naive: SQL and templates are left out, or the tests are installed beside the package."""
    with zipfile.ZipFile(distributions.wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = [name for name in names if name.endswith("/METADATA")]
        assert "Classifier: Typing :: Typed" in archive.read(metadata).decode()
        plugins = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    assert plugins.split() == ["[pytest11]", "horsies_django", "=", "horsies_django.testing.pytest_plugin"]
    assert "horsies_django/py.typed" in names
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "horsies_django").rglob("*") if path.is_file()}
    installed = {name for name in names if not name.startswith(metadata.split("/")[0])}
    assert installed == {name for name in package if "__pycache__" not in name}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
def test_an_archive_has_what_is_in_the_checkout_and_nothing_that_happens_to_lie_there(
    distributions: Distributions, tmp_path: Path
) -> None:
    """Naive: a list that forgets a new folder, without which the tests or make do not run."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    ).stdout.splitlines()  # fmt: skip
    with tarfile.open(distributions.sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert names - {"PKG-INFO"} == {name for name in listed if (ROOT / name).exists()}


@pytest.mark.skipif(find_spec("twine") is None, reason="twine is not installed: it is in the dependency group lint")
def test_the_index_would_take_both(distributions: Distributions, tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "twine", "check", "--strict", *distributions, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


def test_the_tests_of_an_archive_pass_where_it_was_unpacked(
    distributions: Distributions, python: Path, tmp_path: Path
) -> None:
    """Naive: tests need what only a checkout has."""
    with tarfile.open(distributions.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    done = run(python, "-m", "pytest", "tests/unit", "-q", "-p", "no:cacheprovider", cwd=unpacked, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_a_project_in_another_place_runs_with_an_installed_wheel(
    transactional_db: None, python: Path, tmp_path: Path
) -> None:
    """Naive: what the package reads at run time was found in the checkout only."""
    (tmp_path / "shop").mkdir()
    for name, code in {"manage": MANAGE, "shop/__init__": "", "shop/settings": SETTINGS, "shop/tasks": TASKS}.items():
        (tmp_path / f"{name}.py").write_text(code)
    with fresh_database("wheel") as url:
        database = libpq_variables(url)

        def manage(*words: str) -> str:
            done = run(python, "manage.py", *words, cwd=tmp_path, **database)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert "no issues" in manage("check", "--database", "default", "--fail-level", "WARNING")
        assert "horsies.0002" in manage("migrate")
        assert "No changes" in manage("makemigrations", "--check", "--dry-run")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("DJANGO", "HORSIES", "PYTHON"))}
        with (tmp_path / "worker.log").open("wb") as log:
            worker = subprocess.Popen(
                [python, "manage.py", "horsies_worker", "--processes", "1"],
                cwd=tmp_path, env={**kept, **database}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            where, value = manage("shell", "--command", SENDS).splitlines()[-2:]
            assert Path(where).is_relative_to(python.parents[1])
            assert value == "3"
            worker.send_signal(signal.SIGTERM)
            wait_until(lambda: worker.poll() is not None, "the worker ends")
            assert worker.returncode == 0, (tmp_path / "worker.log").read_text()
        finally:
            worker.kill()
            worker.wait()
