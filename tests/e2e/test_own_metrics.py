"""Metrics that the project counts in its tasks.

Those of all children are added up through the folder of prometheus-client.
"""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.apps.counting.tasks import send_letters
from tests.conftest import wait_until
from tests.support.sites import printed
from tests.support.workers import Start, apps

READ = """
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


@pytest.mark.parametrize(
    "options",
    [
        ("--processes=2", "--max-tasks-per-child=3"),
        ("--processes=1", "--max-tasks-per-child=3", "--start-method=spawn"),
        ("--processes=0",),
    ],
    ids=["fork", "spawn", "no children"],
)
def test_counters_of_tasks_are_those_of_all_children(
    worker: Start, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Fails if: counts of a child stay in its memory, or are lost when the child is replaced."""
    folder = tmp_path / "metrics"
    folder.mkdir()
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(folder), **apps("project", "counting")}
    process = worker(*options, "--health-port=0", **environment).ready()

    pids = {send_letters.send(5).get(60_000).unwrap() for _ in range(8)}

    assert len(pids) > 1 or options == ("--processes=0",)
    text = printed("-c", READ, PROMETHEUS_MULTIPROC_DIR=str(folder))
    assert 'shop_letters_total{kind="invoice"} 40.0' in text

    port = wait_until(
        lambda: process.log.partition("http://")[2].partition("/")[0], "the port is in the log"
    )
    with urlopen(f"http://{port}/metrics") as answer:
        assert "horsies_tasks_total" in answer.read().decode()
    assert process.stop() == 0
