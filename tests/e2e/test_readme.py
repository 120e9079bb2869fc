"""The README and the tutorials, followed literally.

The tests use the checkout, the files and the commands as they are printed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from horsies_django import __version__
from tests.conftest import wait_until
from tests.support.distributions import Distributions, built, environment_of
from tests.support.distributions import run as run_outside
from tests.support.sites import fresh_database, libpq_variables
from tests.support.workers import ROOT

pytestmark = pytest.mark.timeout(600)

UUID = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
# The files that a checkout needs to be installed.
CHECKOUT = ("horsies_django", "pyproject.toml", "README.md", "LICENSE")
# Commands that ``installed`` runs, and commands that a machine cannot type.
ELSEWHERE = ("python3 -m venv", ". ../", "pip install", "createdb", "cd ")


class Reader:
    """A reader who follows a page, and writes its files and types its commands in order."""

    def __init__(self, page: Path, directory: Path, env: dict[str, str]) -> None:
        self.steps = [
            (code.splitlines()[0].removeprefix("# "), code) if language == "python" else ("", line)
            for language, code in re.findall(
                r"```(python|sh)\n(.*?)```", page.read_text(), re.DOTALL
            )
            for line in (code.splitlines() if language == "sh" else [code])
        ]

        self.commands = [text for name, text in self.steps if not name]
        (project,) = [line.split()[-1] for line in self.commands if line.startswith("django-admin")]

        self.directory = directory
        self.project = directory / project
        self.env = env
        self.printed: dict[str, str] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def follow(self, *, until: str = "the end") -> None:
        """Follow the page up to a command."""
        for name, text in self.steps:
            if until in text and not name:
                return
            if name:
                self.write(name, text)
            elif not text.startswith(ELSEWHERE):
                self.type(text)

    def write(self, name: str, text: str) -> None:
        target = self.project / name
        if name.endswith("settings.py"):
            text = target.read_text() + text  # The page says "Add to".
        target.write_text(text)

    def type(self, command: str) -> str:
        """Type a command. Commands that do not end by themselves go on in the background."""
        words = shlex.split(command, comments=True)

        if "createsuperuser" in words:
            words.append("--noinput")
        if "runserver" in words:
            words += ["--noreload", "127.0.0.1:0"]

        if "runserver" in words or ("horsies_worker" in words and "--until-empty" not in words):
            null = subprocess.DEVNULL
            self.running[words[2]] = subprocess.Popen(
                words, cwd=self.project, env=self.env, stdout=null, stderr=null
            )
            return ""

        cwd = self.directory if words[0] == "django-admin" else self.project
        self.printed[command] = run(*words, cwd=cwd, env=self.env)
        return self.printed[command]

    def that(self, part: str) -> str:
        """Return the only command of the page that contains ``part``."""
        (command,) = [command for command in self.commands if part in command]
        return command

    def said(self, part: str) -> str:
        """Return the output of that command."""
        return self.printed[self.that(part)]

    def shell(self, code: str) -> str:
        """Return the last line of output of some Python code."""
        return (
            self.type(shlex.join(["python", "manage.py", "shell", "--command", code]))
            .strip()
            .splitlines()[-1]
        )

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


def run(*command: str, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def variables(url: str) -> dict[str, str]:
    """Return an environment with the PostgreSQL of the test server and the Python of the tests."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("DJANGO", "HORSIES", "PYTHONPATH"))
    }
    return {
        **kept,
        **libpq_variables(url),
        "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "DJANGO_SUPERUSER_USERNAME": "ada",
        "DJANGO_SUPERUSER_PASSWORD": "lovelace",
        "DJANGO_SUPERUSER_EMAIL": "ada@example.org",
    }


@contextmanager
def installed(page: Path, tmp_path: Path) -> Iterator[Reader]:
    """Yield a reader whose first commands, up to ``createdb``, have installed a checkout."""
    checkout = tmp_path / "checkout"
    for needed in CHECKOUT:
        copy = shutil.copytree if (ROOT / needed).is_dir() else shutil.copy
        checkout.mkdir(exist_ok=True)
        copy(ROOT / needed, checkout / needed)

    # The dependencies come from the environment that runs the tests. Nothing is downloaded, and the
    # versions are the same.
    tested = tmp_path / "tested.pth"
    tested.write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    beside = f'cp {tested} "$VIRTUAL_ENV"/lib/python*/site-packages/'

    with fresh_database("page") as url:
        reader = Reader(page, tmp_path, variables(url))
        commands = reader.commands[: reader.commands.index(reader.that("createdb"))]
        typed = [line + f"; {beside}" * line.startswith(". ") for line in commands]
        run("bash", "-ec", "\n".join(typed), cwd=checkout, env=reader.env)

        venv = tmp_path / Path(commands[0].split()[-1]).name
        assert list((venv / "lib").glob("python*/site-packages/horsies_django/__init__.py")), (
            "the page installs it"
        )
        reader.env["PATH"] = f"{venv / 'bin'}:{reader.env['PATH']}"

        try:
            yield reader
        finally:
            reader.end()


def test_the_readme_works_as_it_is_printed(transactional_db: None, tmp_path: Path) -> None:
    with installed(ROOT / "README.md", tmp_path) as reader:
        reader.follow()

        assert reader.said("orders.sending").split()[-1] == "15"


def test_the_first_tutorial_works_as_it_is_printed(transactional_db: None, tmp_path: Path) -> None:
    """The first tutorial runs on the checkout, not on an installed copy.

    An installed copy would need one more package, which is already there.
    """
    with fresh_database("page") as url, psycopg.connect(url, autocommit=True) as conn:
        page = ROOT / "docs" / "tutorial" / "first-task.md"
        reader = Reader(page, tmp_path, {**variables(url), "PYTHONPATH": str(ROOT)})

        try:
            reader.follow()

            assert "no issues" in reader.said("manage.py check")
            assert uuid.UUID(reader.said("confirm.send").strip().splitlines()[-1])
            assert "('orders.tasks.confirm', 'COMPLETED')" in reader.said("values_list")
            assert "Ran 3 tests" in reader.said("manage.py test")
            assert "OK" in reader.said("manage.py test")

            assert uuid.UUID(reader.said("count_orders").strip().splitlines()[-1])
            assert "orders.reports.count_orders" in reader.said("horsies_task list")
            assert (
                "Worker stopped" in reader.printed["python manage.py horsies_worker --until-empty"]
            )

            reader.type(reader.that("confirm.send"))
            done = "SELECT count(*) = 3 FROM horsies_tasks WHERE status = 'COMPLETED'"
            wait_until(
                lambda: conn.execute(done).fetchone() == (True,),
                "the second worker ran the second task",
            )

            worker = reader.running["horsies_worker"]
            worker.send_signal(signal.SIGINT)
            assert worker.wait(60) == 0
        finally:
            reader.end()


def test_the_shop_works_as_it_is_printed(transactional_db: None, tmp_path: Path) -> None:
    with installed(ROOT / "docs" / "tutorial" / "shop.md", tmp_path) as shop:
        shop.follow(until="horsies_queue")
        check_the_shop(shop)


def check_the_shop(shop: Reader) -> None:
    sockets = psutil.Process(shop.running["runserver"].pid).net_connections
    listening = wait_until(
        lambda: [one for one in sockets() if one.status == "LISTEN"], "the site listens"
    )

    def get(path: str) -> Any:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{listening[0].laddr.port}{path}", timeout=60
        ) as answer:
            return json.load(answer)

    # it is the installed copy
    assert shop.env["PATH"].split(":")[0][:-4] in shop.shell(
        "import horsies_django; print(horsies_django.__file__)"
    )

    # the view: a send inside its transaction, and the result by id in another request
    task = get("/place/?address=ada@example.org")["task"]
    assert get(f"/outcome/{task}/") == {"value": "order 1 confirmed to ada@example.org"}
    unusable = get("/place/?address=nowhere")["task"]
    assert get(f"/outcome/{unusable}/")["error"] == "NO_ADDRESS"

    # the rollback: neither the order, nor its task, nor the one that the signal sent
    count = (
        "from horsies_django.models import Task; from orders.models import Order; "
        "print(Task.objects.count(), Order.objects.count())"
    )
    before = shop.shell(count)
    with pytest.raises(urllib.error.HTTPError):
        get("/place/?address=ada@example.org&fail=1")
    assert shop.shell(count) == before

    # the async task, from an async view
    assert get("/rates/") == {"EUR": 3, "TRY": 3}

    # the killed child
    crash = (
        "from orders.tasks import crash; result = crash.send().get(); "
        "print(result.err_value.error_code)"
    )
    assert shop.shell(crash) == "WORKER_CRASHED"

    # the cap: shown, overridden for two hours, and a task explained
    listed, overridden, explained = [
        line for line in shop.commands if "horsies_queue" in line or "explain" in line
    ]
    assert re.search(r"mail +.*\b3\b", shop.type(listed))
    assert '"max_concurrency": 1' in shop.type(overridden)
    assert re.search(r"mail +.*\b1\b", shop.type(listed))
    assert re.match(rf"Task {UUID} is [A-Z]+\.", shop.type(explained))
    assert "COMPLETED" in shop.type(f"python manage.py horsies_explain {task}")

    # the schedule: listed, switched off
    listed, disabled = [line for line in shop.commands if "horsies_schedule" in line]
    assert re.search(r"orders\.tasks\.count_orders +Every 15 minutes .* on ", shop.type(listed))
    assert "is disabled" in shop.type(disabled)

    # the workflow: a result, a map and its value
    for name in ("orders/workflows.py", "orders/tests.py"):
        shop.write(name, dict(shop.steps)[name])
    assert shop.type(shop.that("orders.workflows")).splitlines()[-1] == "[300, 300]"

    # the project's own tests, with drain()
    shop.type("python manage.py test")

    # SIGTERM
    shop.running["horsies_worker"].send_signal(signal.SIGTERM)
    assert shop.running["horsies_worker"].wait(60) == 0


# The files that a release uploads, used away from the checkout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return built(tmp_path_factory.mktemp("dist"))


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_wheel_keeps_one_wheel_and_prints_the_pip_command(tmp_path: Path) -> None:
    for needed in (*CHECKOUT, "Makefile"):
        (shutil.copytree if (ROOT / needed).is_dir() else shutil.copy)(
            ROOT / needed, tmp_path / needed
        )

    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "bin").symlink_to(Path(sys.executable).parent)
    (tmp_path / "venv" / ".made").touch()
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "horsies_django-0.0.1-py3-none-any.whl").touch()  # of another day

    done = run_outside("make", "wheel", f"VENV={tmp_path / 'venv'}", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.startswith(f"horsies_django-{__version__}-")
    assert f'pip install "{wheel}[binary]"' in done.stdout


def test_a_wheel_contains_the_package_and_its_type_marker_only(
    distributions: Distributions,
) -> None:
    """A wheel contains the package with its marker for type checkers and nothing else.

    Fails if: SQL and templates are missing, or the tests are installed beside the package.
    """
    with zipfile.ZipFile(distributions.wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = [name for name in names if name.endswith("/METADATA")]
        assert "Classifier: Typing :: Typed" in archive.read(metadata).decode()
        plugins = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()

    assert plugins.split() == [
        "[pytest11]",
        "horsies_django",
        "=",
        "horsies_django.testing.pytest_plugin",
    ]
    assert "horsies_django/py.typed" in names

    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "horsies_django").rglob("*")
        if path.is_file()
    }
    installed = {name for name in names if not name.startswith(metadata.split("/")[0])}
    assert installed == {name for name in package if "__pycache__" not in name}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
def test_an_archive_contains_the_files_of_the_checkout_only(
    distributions: Distributions, tmp_path: Path
) -> None:
    """An archive contains the files of the checkout, but no other files that lie there.

    Fails if: the list of files lacks a new folder that the tests or make need.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()

    with tarfile.open(distributions.sdist) as archive:
        names = {
            member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()
        }

    assert names - {"PKG-INFO"} == {name for name in listed if (ROOT / name).exists()}


@pytest.mark.skipif(
    find_spec("twine") is None, reason="twine is not installed: it is in the dependency group lint"
)
def test_the_index_would_take_both(distributions: Distributions, tmp_path: Path) -> None:
    done = run_outside(
        sys.executable, "-m", "twine", "check", "--strict", *distributions, cwd=tmp_path
    )

    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


def test_the_tests_of_an_archive_pass_where_it_was_unpacked(
    distributions: Distributions, tmp_path: Path
) -> None:
    """Fails if: tests need files that only a checkout has."""
    python = environment_of(distributions.wheel, tmp_path / "env", beside=True)
    with tarfile.open(distributions.sdist) as archive:
        archive.extractall(tmp_path / "archive", filter="data")
    (unpacked,) = (tmp_path / "archive").iterdir()

    done = run_outside(
        python,
        "-m",
        "pytest",
        "tests/unit",
        "-q",
        "-p",
        "no:cacheprovider",
        cwd=unpacked,
        timeout=200,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
