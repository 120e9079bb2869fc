"""Real workers: ``manage.py horsies_worker`` as a process of its own, on the test database."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit

import psutil
import pytest
from django.contrib.auth.models import Group
from django.db import connection
from psycopg.conninfo import conninfo_to_dict

from example_project.postgres_binaries import PostgresError
from horsies_django.models import Task
from tests.conftest import KEPT, wait_until
from tests.support.forwarder import Forwarder
from tests.support.server import Lingering, Server, private_server
from tests.support.starter import Started, Starter

DEVELOPMENT = ["-X", "dev"] if os.environ.get("HORSIES_TEST_DEV") else []  # slower by a quarter
FLAGS = (*DEVELOPMENT, "-W", "ignore::ResourceWarning")
ROOT = Path(__file__).parents[2]
SHORT = {"HORSIES_TEST_STALE_MS": "2500"}  # a worker without a heartbeat for so long is dead


def database_url() -> str:
    """Return the URL of the test database for a separate process."""
    params = conninfo_to_dict(
        "",
        **{k: v for k, v in connection.get_connection_params().items() if isinstance(v, str | int)},
    )

    host = params.get("host", "localhost")
    port = params.get("port", 5432)
    user = quote(str(params.get("user", "")))
    password = quote(str(params.get("password", "")))

    return f"postgresql://{user}:{password}@{host}:{port}/{quote(str(params['dbname']))}"


NOTE = """
import os
with open(os.environ["RUNS"], "a") as runs:
    runs.write(f"{os.getpid()}\\n")
"""


@functools.cache
def starter() -> Starter:
    """Return the process that starts the workers and schedulers of the tests."""
    with as_a_service_manager_does():
        made = Starter(FLAGS)
    atexit.register(made.close)
    return made


@contextmanager
def as_a_service_manager_does(*, ignoring_hangups: bool = False) -> Iterator[None]:
    """Reset signals to their defaults for processes that start in the block.

    nohup and ``&`` ignore some of them.
    """
    wanted = dict.fromkeys((signal.SIGINT, signal.SIGQUIT, signal.SIGHUP), signal.SIG_DFL)
    if ignoring_hangups:
        wanted[signal.SIGHUP] = signal.SIG_IGN

    ignored = [
        number
        for number in wanted
        if signal.getsignal(number) == signal.SIG_IGN or wanted[number] == signal.SIG_IGN
    ]
    before = {number: signal.signal(number, wanted[number]) for number in ignored}

    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_over(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def gone(processes: Iterable[psutil.Process]) -> None:
    """Wait until these processes have ended."""
    wait_until(lambda: all(is_over(one.pid) for one in processes), "nothing is left of them")


class WorkerProcess:
    """A running ``horsies_worker`` and its log.

    ``prefix`` is a command that runs it, ``program`` another program for Python to run.
    """

    command = "horsies_worker"
    greeting = "Worker started"

    def __init__(
        self,
        log: Path,
        *options: str,
        prefix: Sequence[str] = (),
        program: Sequence[str] = (),
        ignoring_hangups: bool = False,
        **environment: str,
    ) -> None:
        self.log_path = log
        self.log_begins = 0

        variables = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DATABASE_URL": database_url(),
            "HORSIES_TEST_SITE": "0",
            **environment,
        }

        cwd = Path(environment.get("CWD", ROOT))
        self.process: subprocess.Popen[bytes] | Started
        if not (
            prefix or program or ignoring_hangups or environment.keys() & {"CWD", "PYTHONPATH"}
        ):
            with log.open("wb") as output:
                self.process = starter().start(
                    (self.command, *options), variables, cwd, output.fileno()
                )
            return

        command = [
            *prefix,
            sys.executable,
            *FLAGS,
            *(program or ("-m", "django", self.command)),
            *options,
        ]

        with log.open("wb") as output, as_a_service_manager_does(ignoring_hangups=ignoring_hangups):
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_bytes()[self.log_begins :].decode(errors="replace")

    def ready(self) -> Self:
        """Wait until the worker has logged its start."""
        wait_until(
            lambda: self.greeting in self.log or self.process.poll() is not None,
            f"{self.command} starts",
        )
        assert self.process.poll() is None, self.log
        return self

    def family(self) -> list[psutil.Process]:
        """Return the processes below it: children, fork server, and helpers of multiprocessing."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(60)

    def stop(self) -> int:
        """End the worker as a service manager would and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def end(self) -> None:
        """End the worker if it still runs, and print the end of its log.

        pytest shows it when the test failed.
        """
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

        if not self.log_path.is_file():
            return  # a pipe: it has no writer any more, and opening it would block

        print(f"the end of {self.log_path.name}:", *self.log.splitlines()[-100:], sep="\n")


Start = Callable[..., WorkerProcess]  # the type of the fixture ``worker``


def apps(*names: str) -> dict[str, str]:
    """Return the environment of a process whose project has these apps of ``tests/apps``.

    Most tests need "project" alone.
    """
    return {"HORSIES_TEST_APPS": " ".join(f"tests.apps.{name}" for name in names)}


def given(**settings: Any) -> dict[str, str]:
    """Return the environment of a process with these values in HORSIES.

    RESILIENCE and RECOVERY keep their other values.
    """
    return {"HORSIES_TEST_GIVEN": json.dumps(settings)}


class SchedulerProcess(WorkerProcess):
    """A running ``horsies_scheduler`` and its log."""

    command = "horsies_scheduler"
    greeting = "Scheduler started"


@contextmanager
def all_ended(kind: type[WorkerProcess], directory: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that starts processes of a kind; end all of them afterwards.

    Their logs are in the directory.
    """
    started: list[WorkerProcess] = []

    def start(*options: str, **how: Any) -> WorkerProcess:
        log = directory / f"{kind.command.rpartition('_')[2]}-{len(started)}.log"
        started.append(kind(log, *options, **how))
        return started[-1]

    yield start

    for item in started:
        item.end()


@pytest.fixture
def scheduler(transactional_db: None, tmp_path: Path) -> Iterator[Callable[..., SchedulerProcess]]:
    """Return a function that starts schedulers."""
    with all_ended(SchedulerProcess, tmp_path) as start:
        yield start


@pytest.fixture
def worker(transactional_db: None, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts workers."""
    with all_ended(WorkerProcess, tmp_path) as start:
        yield start
        Group.objects.all().delete()


class Standing:
    """The worker that one test leaves to the next.

    It ends before a test that starts workers of its own, whose tasks it would take.
    """

    worker: WorkerProcess | None = None
    stays = False  # the next test uses it, too: the hooks in conftest.py set this


standing = Standing()
OF_WORKERS = (
    "horsies_workers",
    "horsies_heartbeats",
    "horsies_worker_states",
    "horsies_queues",
    "horsies_limits",
)


def uses_shared_worker(item: pytest.Item | None) -> bool:
    return "shared_worker" in getattr(item, "fixturenames", ())


@pytest.fixture
def shared_worker(
    transactional_db: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    """Return a worker with one child process that all tests of a file share; they run first.

    It is for tests about the results of tasks. They may kill the child, and read the log lines that
    they caused in ``log``, which begins with the test. A test starts a worker of its own with
    ``worker`` if it kills, stops, freezes or starves the worker, gives it options or an
    environment, changes a queue, counts workers, connections or lines of the log, needs tasks that
    were sent before the worker began, or leaves a task that does not end. Queues and workers stay
    as the test before left them.
    """
    if standing.worker is None:
        log = tmp_path_factory.mktemp("shared") / "worker.log"
        standing.worker = WorkerProcess(log, "--processes=1").ready()

    shared = standing.worker
    shared.log_begins = shared.log_path.stat().st_size
    KEPT.update(OF_WORKERS)

    yield shared

    Group.objects.all().delete()
    try:
        running = Task.objects.filter(status="RUNNING")
        wait_until(
            lambda: not running.exists() or shared.process.poll() is not None,
            "the test leaves nothing running",
        )
        assert shared.process.poll() is None, "the test ended the worker of all"
    except BaseException:
        standing.stays = False
        raise
    finally:
        print(f"the log of the worker that tests share:\n{shared.log}")
        if not standing.stays:
            standing.worker = None
            KEPT.clear()
            shared.end()


@pytest.fixture
def script(worker: Start, tmp_path: Path) -> Start:
    """Return a function that runs a text as a script of the project.

    Each run of it appends a line to the file ``runs``.
    """

    def start(text: str, *options: str, **environment: str) -> WorkerProcess:
        path = tmp_path / "script.py"
        path.write_text(NOTE + text)
        environment = {
            "RUNS": str(tmp_path / "runs"),
            "PYTHONPATH": str(ROOT),
            "CWD": str(tmp_path),
            **environment,
        }
        return worker(*options, program=(str(path),), **environment)

    return start


@pytest.fixture
def link(transactional_db: None) -> Iterator[Forwarder]:
    """Return a link to the server of the test database."""
    made = Forwarder(int(urlsplit(database_url()).port or 5432))
    yield made
    made.close()


@pytest.fixture(scope="session")
def standing_server() -> Iterator[Server]:
    """Return a PostgreSQL server that tests may stop, kill and start."""
    try:
        with private_server() as server:
            yield server
    except PostgresError as error:
        pytest.skip(f"no PostgreSQL server can be started here: {error}")


@pytest.fixture
def server(standing_server: Server) -> Iterator[Server]:
    """Return that server with an empty, migrated database."""
    standing_server.refresh()
    yield standing_server
    standing_server.restore()


Busy = Callable[..., tuple[WorkerProcess, Lingering]]


@pytest.fixture
def busy(worker: Start, server: Server, tmp_path: Path) -> Busy:
    """Return a function that starts a worker of that server with a running ``linger`` task.

    The function returns both.
    """

    def start(*options: str, **environment: str) -> tuple[WorkerProcess, Lingering]:
        process = worker(
            *(options or ["--processes=1"]), **{**server.environment, **environment}
        ).ready()
        task = Lingering(server, tmp_path / "one")
        task.runs()
        return process, task

    return start


def held_by(name: str) -> int:
    """Wait until a ``hold`` task of that name runs, and return the id of its process."""
    group = wait_until(
        lambda: Group.objects.filter(name__startswith=f"{name}:").first(), f"{name} runs"
    )
    return int(group.name.rpartition(":")[2])


def let_go(name: str) -> None:
    """Signal the ``hold`` tasks of that name to finish."""
    Group.objects.filter(name__startswith=f"{name}:").delete()
