"""A worker or a scheduler that cannot work refuses to start.

It exits with code 1 and one message with the cause and the remedy.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from horsies_django.models import Worker
from tests.apps.project import tasks
from tests.conftest import sql
from tests.support.server import Server
from tests.support.sites import fresh_database
from tests.support.workers import Start, WorkerProcess, apps, given

pytestmark = pytest.mark.django_db(transaction=True)


def refused(process: WorkerProcess, *words: str) -> None:
    assert process.wait() == 1
    for word in words:
        assert word in process.log
    assert "Traceback" not in process.log


@pytest.fixture(params=["worker", "scheduler"])
def start(request: pytest.FixtureRequest) -> Start:
    """Return a function that starts a worker, and one that starts a scheduler."""
    made: Start = request.getfixturevalue(request.param)
    return made


@pytest.mark.promise("S2.23")
def test_without_its_migrations(start: Start) -> None:
    with fresh_database("empty") as url:
        process = start(DATABASE_URL=url)
        refused(process, "unapplied migrations of horsies: 0001_initial", "manage.py migrate")


@pytest.mark.promise("S2.5")
def test_wrong_settings_are_reported_before_the_database_is_read(start: Start) -> None:
    """All wrong settings are reported before the database is read."""
    nobody = "postgresql://app:secret@127.0.0.1:1/horsies"
    process = start(DATABASE_URL=nobody, **given(QUEUS={"mail": {}}, MAX_PAYLOAD_BYTES="many"))

    refused(process, "QUEUS", "QUEUES", "MAX_PAYLOAD_BYTES")
    assert "cannot be reached" not in process.log


@pytest.mark.parametrize(
    ("start", "names", "words"),
    [
        ("worker", [], ["no task is registered", "tasks.py"]),
        (
            "scheduler",
            ["project", "broken"],
            ["tests.apps.broken.tasks", "a mistake in a task module"],
        ),
    ],
    indirect=["start"],
)
def test_a_start_without_tasks_that_can_be_imported_is_refused(
    start: Start, names: list[str], words: list[str]
) -> None:
    """A start without any tasks, or with a module of tasks that cannot be imported, is refused."""
    refused(start(**apps(*names)), *words)


def test_with_a_queue_that_is_not_declared(worker: Start) -> None:
    refused(worker("--queues=mial"), "'mial'", "bulk, default, mail, twin")


def test_with_a_date_style_that_django_cannot_read(start: Start, server: Server) -> None:
    """A start with a DateStyle that Django cannot read is refused.

    Django reads the table of migrations, and every model, on its own connections, so no code of the
    project would work.
    """
    server.superuser("ALTER ROLE app SET DateStyle = 'German, DMY'")
    process = start(**server.environment)

    refused(
        process,
        "the DateStyle of the database 'default' is 'German, DMY', which Django cannot read",
    )


def test_with_a_receiver_of_new_connections_that_raises(worker: Start, tmp_path: Path) -> None:
    order = tmp_path / "order"
    order.write_text("raise")
    process = worker(**apps("project", "cutting"), HORSIES_TEST_ORDER=str(order))

    refused(
        process,
        "the receiver tests.apps.cutting.apps.obey of connection_created raised LookupError: the "
        "project's",
    )


@pytest.mark.promise("S2.5")
@pytest.mark.boundary
def test_a_worker_claims_only_after_it_listens(worker: Start) -> None:
    """A worker connects, has its slots ready and listens before it claims."""
    handle = tasks.add.send(1)
    process = worker("--processes=1").ready()

    assert handle.get().ok_value == 1
    lines = ["Concurrency config", "Slots: 1 sync", "Worker started"]
    assert sorted(lines, key=process.log.index) == lines

    began = dict(
        sql(
            "SELECT application_name, backend_start FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'horsies %%'"
        )
    )

    row = Worker.objects.get()
    assert (
        began["horsies engine"]
        < row.started_at
        < began["horsies listener"]
        < handle.info().started_at
    )


def test_a_project_with_a_thread_at_import_is_not_forked(
    worker: Start,
) -> None:
    """A project that opens a connection or a thread at import gets fresh interpreters.

    The log names both.
    """
    process = worker("--processes=2", **apps("project", "hasty")).ready()

    assert "a connection to the database 'default'" in process.log
    assert "the thread 'hasty-thread'" in process.log
    assert "fresh interpreters" in process.log
    assert tasks.add.send(1).get().ok_value == 1
    assert process.stop() == 0


def test_a_worker_that_cannot_be_forked_loads_one_fresh_template(
    worker: Start,
) -> None:
    """A worker that cannot be forked loads the project once more, in a template that can be forked.

    Fails if: each child imports the project because a URLconf starts a thread.
    """
    process = worker("--processes=2", **apps("project", "hasty"), HASTY_WORKER="1").ready()

    assert (
        "because it holds a connection to the database 'default' and the thread 'hasty-thread'"
        in process.log
    )
    assert "fresh interpreters" not in process.log
    assert tasks.add.send(1).get().ok_value == 1
    assert process.stop() == 0


def test_children_draw_different_random_numbers(worker: Start, tmp_path: Path) -> None:
    """Children draw different random numbers, and share what forks may share.

    Fails if: numpy's generator is copied, so that all children draw the same numbers.
    """
    left = tmp_path / "left"
    one_thread = {"OPENBLAS_NUM_THREADS": "1"}  # numpy's library starts threads when it is loaded
    process = worker(
        "--processes=3", **apps("project", "forked"), LEFT=str(left), **one_thread
    ).ready()

    assert "cannot be forked" not in process.log
    from tests.apps.forked.tasks import look  # this module opens files

    found = [handle.get().ok_value for handle in look.send_many([{}] * 60)]

    assert len({each["pid"] for each in found}) > 1
    for place in (0, 1):
        assert len({each["drawn"][place] for each in found}) == 60

    for each in found:
        assert (each["told"], each["answer"], each["signals"], each["main"]) == (
            [each["pid"]],
            42,
            True,
            None,
        )

    assert "a line of" in process.log
    assert process.stop() == 0
    # Exit handlers run in the worker only.
    assert left.read_text() == f"{process.process.pid} left\n"
