"""The README's tutorial, done literally: the checkout, ``startproject``, the files and the commands as they are printed."""

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
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
FILES = {code.splitlines()[0].removeprefix("# "): code for language, code in BLOCKS if language == "python"}
# What has to be in a checkout for it to be installed, and the commands that do it, up to those that need a server.
CHECKOUT = ("horsies_django", "pyproject.toml", "README.md", "LICENSE")
INSTALLS = next(code for language, code in BLOCKS if language == "sh").partition("createdb")[0].splitlines()
COMMANDS = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()]


def run(*command: str, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@pytest.fixture
def environment(transactional_db: None, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Give an environment in which the README's first commands have installed a checkout, and a fresh database."""
    checkout, name, url = tmp_path / "checkout", f"shop_{uuid.uuid4().hex[:8]}", database_url()
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
    typed = [line + f"; {beside}" * line.startswith(". ") for line in INSTALLS]
    run("bash", "-ec", "\n".join(typed), cwd=checkout, env=variables)
    venv = tmp_path / "shop-env"
    assert list((venv / "lib").glob("python*/site-packages/horsies_django/__init__.py")), "the README installs it"
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


class Shop:
    """The tutorial's project, with its site and its worker running."""

    def __init__(self, directory: Path, env: dict[str, str]) -> None:
        self.project, self.env = directory / "shop", env
        python = str(Path(env["PATH"].split(":")[0]) / "python")
        for command in COMMANDS:
            words = shlex.split(command)
            if words[0] == "django-admin":
                run(python, "-m", "django", *words[1:], cwd=directory, env=env)
            elif words[1:3] == ["manage.py", "startapp"]:
                run(python, *words[1:], cwd=self.project, env=env)
        for name, code in FILES.items():
            target = self.project / name
            if name.endswith("settings.py"):
                code = target.read_text() + code  # "Add to", says the README
            target.write_text(code)
        self.python = python
        for command in COMMANDS:
            words = command.split()
            if words[1:3] in (["manage.py", "makemigrations"], ["manage.py", "migrate"]):
                run(python, *words[1:], cwd=self.project, env=env)
        (worker,) = [command.split() for command in COMMANDS if "horsies_worker" in command]
        (site,) = [command.split() for command in COMMANDS if "runserver" in command]
        self.worker = subprocess.Popen(
            [python, *worker[1:]],
            cwd=self.project,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=lambda: self.lines.extend(self.worker.stderr or ()), daemon=True).start()
        self.site = subprocess.Popen(
            [python, *site[1:], "--noreload", "127.0.0.1:0"], cwd=self.project, env=env,
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

    def shell(self, code: str) -> str:
        return run(self.python, "manage.py", "shell", "--command", code, cwd=self.project, env=self.env).strip()

    def run(self, *words: str) -> str:
        return run(self.python, *words[1:], cwd=self.project, env=self.env)

    def end(self) -> None:
        for process in (self.site, self.worker):
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def shop(environment: dict[str, str], tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, environment)
    yield made
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
        shlex.split(line, comments=True) for line in COMMANDS if "horsies_queue" in line or "explain" in line
    ]
    assert re.search(r"mail +.*\b3\b", shop.run(*listed))
    assert '"max_concurrency": 1' in shop.run(*overridden)
    assert re.search(r"mail +.*\b1\b", shop.run(*listed))
    assert re.match(rf"Task {UUID} is [A-Z]+\.", shop.run(*explained))
    assert "COMPLETED" in shop.run(*explained, again)

    # the schedule: listed, sent now, switched off
    listed, disabled = [shlex.split(line) for line in COMMANDS if "horsies_schedule" in line]
    assert re.search(r"orders\.tasks\.count_orders +Every 15 minutes .* on ", shop.run(*listed))
    now = (
        "from horsies_django import get_handle, schedules; "
        "print(get_handle(schedules.run_now('orders.tasks.count_orders', actor='ada')).get().unwrap())"
    )
    assert shop.shell(now).split()[-1] == "3"
    assert "is disabled" in shop.run(*disabled)

    # the workflow: a result, a map and its value
    (quoted,) = [shlex.split(line) for line in COMMANDS if "orders.workflows" in line]
    assert shop.run(*quoted).splitlines()[-1] == "[300, 300]"

    # the project's own tests, with drain()
    run(shop.python, "manage.py", "test", cwd=shop.project, env=shop.env)

    # SIGTERM
    shop.worker.send_signal(signal.SIGTERM)
    assert shop.worker.wait(60) == 0, "".join(shop.lines)
