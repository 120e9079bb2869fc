"""The README and the tutorial of the shop, done literally: the checkout, the files and the commands as they are printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import psycopg
import pytest
from psycopg import sql

from tests.conftest import wait_until
from tests.support.workers import ROOT, database_url

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

UUID = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
# What has to be in a checkout for it to be installed.
CHECKOUT = ("horsies_django", "pyproject.toml", "README.md", "LICENSE")


class Page:
    """A page, by what it lets its reader type: files, and commands, of which the first ones, up to ``createdb``, install it."""

    def __init__(self, path: Path) -> None:
        blocks = re.findall(r"```(\w+)\n(.*?)```", path.read_text(), re.DOTALL)
        self.files = {
            code.splitlines()[0].removeprefix("# "): code for language, code in blocks if language == "python"
        }
        self.commands = [line for language, code in blocks if language == "sh" for line in code.splitlines()]
        self.installs = self.commands[: next(n for n, line in enumerate(self.commands) if line.startswith("createdb"))]
        self.venv = Path(self.installs[0].split()[-1]).name
        (self.project,) = [line.split()[-1] for line in self.commands if line.startswith("django-admin")]


README, SHOP = Page(ROOT / "README.md"), Page(ROOT / "docs" / "tutorial" / "shop.md")


def run(*command: str, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@contextmanager
def installed(page: Page, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Give an environment in which the page's first commands have installed a checkout, and a fresh database."""
    checkout, name, url = tmp_path / "checkout", f"{page.project}_{uuid.uuid4().hex[:8]}", database_url()
    for needed in CHECKOUT:
        copy = shutil.copytree if (ROOT / needed).is_dir() else shutil.copy
        checkout.mkdir(exist_ok=True)
        copy(ROOT / needed, checkout / needed)
    variables = {
        key: value for key, value in os.environ.items() if not key.startswith(("DJANGO", "HORSIES", "PYTHONPATH"))
    }
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    # What it depends on comes from the environment that runs the tests: nothing is downloaded, versions are the same.
    tested = tmp_path / "tested.pth"
    tested.write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    beside = f'cp {tested} "$VIRTUAL_ENV"/lib/python*/site-packages/'
    typed = [line + f"; {beside}" * line.startswith(". ") for line in page.installs]
    run("bash", "-ec", "\n".join(typed), cwd=checkout, env=variables)
    venv = tmp_path / page.venv
    assert list((venv / "lib").glob("python*/site-packages/horsies_django/__init__.py")), "the page installs it"
    parts = urlsplit(url)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        variables |= {
            "PATH": f"{venv / 'bin'}:{variables['PATH']}",
            "PGDATABASE": name,
            "PGHOST": parts.hostname or "",
            "PGPORT": str(parts.port or 5432),
            "PGUSER": unquote(parts.username or ""),
            "PGPASSWORD": unquote(parts.password or ""),
            "PYTHONUNBUFFERED": "1",
        }
        yield variables
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


class Project:
    """The project of a page, with its worker running."""

    def __init__(self, page: Page, directory: Path, env: dict[str, str]) -> None:
        self.project, self.env = directory / page.project, env
        self.python = str(Path(env["PATH"].split(":")[0]) / "python")
        for command in page.commands:
            words = shlex.split(command)
            if words[0] == "django-admin":
                run(self.python, "-m", "django", *words[1:], cwd=directory, env=env)
            elif words[1:3] == ["manage.py", "startapp"]:
                run(self.python, *words[1:], cwd=self.project, env=env)
        for name, code in page.files.items():
            target = self.project / name
            if name.endswith("settings.py"):
                code = target.read_text() + code  # "Add to", says the page
            target.write_text(code)
        for command in page.commands:
            words = command.split()
            if words[1:3] in (["manage.py", "makemigrations"], ["manage.py", "migrate"]):
                run(self.python, *words[1:], cwd=self.project, env=env)
        (worker,) = [command.split() for command in page.commands if "horsies_worker" in command]
        self.worker = subprocess.Popen(
            [self.python, *worker[1:]],
            cwd=self.project,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=lambda: self.lines.extend(self.worker.stderr or ()), daemon=True).start()

    def shell(self, code: str) -> str:
        return run(self.python, "manage.py", "shell", "--command", code, cwd=self.project, env=self.env).strip()

    def run(self, *words: str) -> str:
        return run(self.python, *words[1:], cwd=self.project, env=self.env)

    def end(self) -> None:
        if self.worker.poll() is None:
            self.worker.kill()
        self.worker.wait()


class Shop(Project):
    """The project of the tutorial, with its site running, too."""

    def __init__(self, directory: Path, env: dict[str, str]) -> None:
        super().__init__(SHOP, directory, env)
        (site,) = [command.split() for command in SHOP.commands if "runserver" in command]
        self.site = subprocess.Popen(
            [self.python, *site[1:], "--noreload", "127.0.0.1:0"], cwd=self.project, env=env,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        output: list[str] = []
        threading.Thread(target=lambda: output.extend(self.site.stdout or ()), daemon=True).start()
        self.port = 0

        def bound() -> bool:
            ports = [
                item.laddr.port for item in psutil.Process(self.site.pid).net_connections() if item.status == "LISTEN"
            ]
            self.port = ports[0] if ports else 0
            return bool(ports)

        wait_until(bound, "the site listens")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return json.load(answer)

    def end(self) -> None:
        super().end()
        if self.site.poll() is None:
            self.site.kill()
        self.site.wait()


@pytest.fixture
def shop(transactional_db: None, tmp_path: Path) -> Iterator[Shop]:
    with installed(SHOP, tmp_path) as environment:
        made = Shop(tmp_path, environment)
        yield made
        made.end()


def test_the_readme_works_as_it_is_printed(transactional_db: None, tmp_path: Path) -> None:
    with installed(README, tmp_path) as environment:
        made = Project(README, tmp_path, environment)
        (ordered,) = [shlex.split(line) for line in README.commands if "orders.sending" in line]
        try:
            assert made.run(*ordered).split()[-1] == "15"
        finally:
            made.end()


def test_the_tutorial_works_as_it_is_printed(shop: Shop) -> None:
    assert shop.env["PATH"].split(":")[0][:-4] in shop.shell(
        "import horsies_django; print(horsies_django.__file__)"
    )  # what was installed

    # the view: a send inside its transaction, and the result by id in another request
    task = shop.get("/place/?address=ada@example.org")["task"]
    assert shop.get(f"/outcome/{task}/") == {"value": "order 1 confirmed to ada@example.org"}
    unusable = shop.get("/place/?address=nowhere")["task"]
    assert shop.get(f"/outcome/{unusable}/")["error"] == "NO_ADDRESS"

    # the rollback: neither the order, nor its task, nor the one that the signal sent
    count = (
        "from horsies_django.models import Task; from orders.models import Order; "
        "print(Task.objects.count(), Order.objects.count())"
    )
    before = shop.shell(count)
    with pytest.raises(urllib.error.HTTPError):
        shop.get("/place/?address=ada@example.org&fail=1")
    assert shop.shell(count).split()[-2:] == before.split()[-2:]

    # the async task, from an async view; the signal's tasks ran too
    assert shop.get("/rates/") == {"EUR": 3, "TRY": 3}
    rates = (
        "from horsies_django.models import Task; print(Task.objects.filter(task_name__endswith='fetch_rates').count())"
    )
    assert shop.shell(rates).split()[-1] == "3"

    # the killed child
    crash = "from orders.tasks import crash; result = crash.send().get(); print(result.err_value.error_code)"
    assert shop.shell(crash).split()[-1] == "WORKER_CRASHED"
    again = shop.get("/place/?address=ada@example.org")["task"]
    assert "value" in shop.get(f"/outcome/{again}/")

    # the admin
    shop.shell("from django.contrib.auth.models import User; User.objects.create_superuser('ada', password='lovelace')")
    page = (
        "from django.conf import settings; settings.ALLOWED_HOSTS = ['*']\n"
        "from django.test import Client; client = Client(); client.login(username='ada', password='lovelace')\n"
        "text = client.get('/admin/horsies/task/').content.decode(); print('orders' in text, 'FAILED' in text.upper())"
    )
    assert shop.shell(page).split()[-2:] == ["True", "True"]

    # the cap: shown, overridden for two hours, and a task explained
    listed, overridden, explained = [
        shlex.split(line, comments=True) for line in SHOP.commands if "horsies_queue" in line or "explain" in line
    ]
    assert re.search(r"mail +.*\b3\b", shop.run(*listed))
    assert '"max_concurrency": 1' in shop.run(*overridden)
    assert re.search(r"mail +.*\b1\b", shop.run(*listed))
    assert re.match(rf"Task {UUID} is [A-Z]+\.", shop.run(*explained))
    assert "COMPLETED" in shop.run(*explained, again)

    # the schedule: listed, sent now, switched off
    listed, disabled = [shlex.split(line) for line in SHOP.commands if "horsies_schedule" in line]
    assert re.search(r"orders\.tasks\.count_orders +Every 15 minutes .* on ", shop.run(*listed))
    now = (
        "from horsies_django import get_handle, schedules; "
        "print(get_handle(schedules.run_now('orders.tasks.count_orders', actor='ada')).get().unwrap())"
    )
    assert shop.shell(now).split()[-1] == "3"
    assert "is disabled" in shop.run(*disabled)

    # the workflow: a result, a map and its value
    (quoted,) = [shlex.split(line) for line in SHOP.commands if "orders.workflows" in line]
    assert shop.run(*quoted).splitlines()[-1] == "[300, 300]"

    # the project's own tests, with drain()
    run(shop.python, "manage.py", "test", cwd=shop.project, env=shop.env)

    # SIGTERM
    shop.worker.send_signal(signal.SIGTERM)
    assert shop.worker.wait(60) == 0, "".join(shop.lines)
