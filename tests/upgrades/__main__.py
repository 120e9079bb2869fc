"""Write the dump and the wheel of this release into this directory: ``python -m tests.upgrades``.

The dump has the schema, with tasks and runs of all kinds, as a worker left them that was killed. It
replaces a dump of the same version, and the wheel of the last one.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from example_project.postgres import private_postgres
from example_project.postgres_binaries import binaries_directory
from tests.support.distributions import built

HOUR = dt.timedelta(hours=1)
HERE = Path(__file__).parent
# What other servers or drivers do not know.
FOREIGN = re.compile(r"^(\\(un)?restrict .*|SET transaction_timeout = 0;)\n", re.MULTILINE)


def fill() -> None:
    """Send tasks and runs of all kinds, have a worker begin with them, and kill it."""
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from horsies_django.models import Task, WorkflowNode
    from tests.support.deadlines import wait_until
    from tests.upgrades.site import tasks

    def until(name: str, status: str, **more: object) -> None:
        wait_until(
            Task.objects.filter(
                task_name=f"tests.upgrades.site.tasks.{name}", status=status, **more
            ).exists,
            name,
        )

    worker = subprocess.Popen(
        [sys.executable, "-m", "django", "horsies_worker", "--processes=2"],
        start_new_session=True,
        env=dict(os.environ),
    )
    try:
        assert tasks.add.send(1, 2).get(timeout_ms=30_000).unwrap() == 3
        assert tasks.rally(1).send().get(timeout_ms=30_000).unwrap() == 12
        tasks.fails.send(1).get(timeout_ms=30_000)

        tasks.add.schedule(HOUR, 5, 5).cancel()
        tasks.asking("asked").send()
        paused = tasks.asking("paused").send()
        wait_until(
            lambda: WorkflowNode.objects.filter(kind="signal", status="WAITING").count() == 2,
            "the runs wait",
        )
        paused.pause()

        tasks.steps.send()
        until("steps", "PENDING", next_retry_at__isnull=False)
        tasks.hangs.send_many([{"number": number} for number in range(5)])
        until("hangs", "RUNNING")
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    tasks.add.with_options(good_until=dt.timedelta(milliseconds=1)).send(7, 7)
    tasks.of_tenant.send_many([{"tenant": "a"}, {"tenant": "a"}, {"tenant": "b"}])
    tasks.rally(2).send()
    tasks.asking("begun").send()


def main() -> None:
    from horsies_django import __version__

    with private_postgres(durable=False) as url:
        os.environ |= {
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "tests.upgrades.site.settings",
        }
        import django

        django.setup()
        fill()

        options = (
            "--inserts",
            "--rows-per-insert=100",
            "--no-owner",
            "--no-privileges",
            f"--dbname={url}",
        )
        done = subprocess.run(
            [binaries_directory() / "pg_dump", *options], capture_output=True, text=True, check=True
        )

    text = FOREIGN.sub("", done.stdout).replace(str(HERE.parents[1]), "/srv/site")  # in tracebacks
    (HERE / f"{__version__}.sql").write_text(text.replace(f"'{socket.gethostname()}'", "'web-1'"))

    for old in HERE.glob("*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory() as directory:
        wheel = built(Path(directory)).wheel
        (HERE / wheel.name).write_bytes(wheel.read_bytes())


if __name__ == "__main__":
    main()
