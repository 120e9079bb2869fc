"""Nobody says that anything is wrong: a LISTEN connection that brings nothing, rows that stay locked."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.conftest import wait_until
from tests.support.forwarder import Forwarder
from tests.support.server import Lingering, Server
from tests.support.workers import WorkerProcess

Start = Callable[..., WorkerProcess]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Hold a process still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.promise("S2.14")
def test_a_silent_listener_is_found_out_and_replaced_while_the_poll_carries_on(worker: Start, server: Server) -> None:
    process = worker("--processes=1", **server.environment).ready()
    (silent,) = wait_until(lambda: server.backends("horsies listener"), "it listens")
    with stopped(silent):
        for number in range(3):  # the looks at the start are over before the last of them
            server.becomes(server.send("add", a=number), "COMPLETED")
        assert "is silent" not in process.log, "the poll found them, and no look after another LISTEN"
        wait_until(lambda: "the LISTEN connection is silent" in process.log, "the silence is noticed")
        wait_until(lambda: "] notifications arrive again" in process.log, "another connection brings news")
        assert len(server.backends("horsies listener")) == 2  # the old one does not know its end yet
    wait_until(
        lambda: server.backends("horsies listener") and silent not in server.backends("horsies listener"), "it goes"
    )
    server.becomes(server.send("add", a=1), "COMPLETED")
    assert process.stop() == 0


@pytest.fixture
def forwarder(server: Server) -> Iterator[Forwarder]:
    made = Forwarder(server.port)
    yield made
    made.close()


def test_links_that_went_silent_are_given_up_and_no_outcome_with_them(
    worker: Start, server: Server, forwarder: Forwarder, tmp_path: Path
) -> None:
    process = worker("--processes=1", **{**server.environment, **forwarder.way(server.url)}).ready()
    task = Lingering(server, tmp_path / "one")
    task.runs()
    wait_until(lambda: len(server.backends("horsies maintenance")) == 1, "its heart beats")
    forwarder.freeze()
    task.end()
    row = server.becomes(task.id, "COMPLETED")
    assert (row["attempts"], row["claim_generation"]) == (1, 1)
    assert task.ran_once()
    for name in ("engine", "maintenance"):
        wait_until(lambda name=name: f"the {name} thread got no answer" in process.log, f"the {name} was freed")
    server.becomes(server.send("add", a=1), "COMPLETED")
    assert "declared dead" not in process.log
    assert process.stop() == 0


def test_outcomes_beyond_the_bound_stop_claiming_until_they_are_written(worker: Start, server: Server) -> None:
    few = {"HORSIES_TEST_RESILIENCE": json.dumps({"MAX_UNWRITTEN_OUTCOMES": 100})}
    process = worker("--processes=1", "--async-concurrency=150", **server.environment, **few).ready()
    held = [server.send("ahold", lane="async", name="held") for _ in range(100)]
    running = "SELECT count(*) FROM auth_group WHERE name LIKE 'held:%'"
    wait_until(lambda: server.superuser(running) == [(100,)], "all of them run")
    with psycopg.connect(server.url) as somebody:
        somebody.execute("SELECT id FROM horsies_tasks WHERE status = 'RUNNING' FOR UPDATE")
        server.superuser("DELETE FROM auth_group")
        wait_until(lambda: "100 outcomes could not be written yet" in process.log, "it says so")
        later = server.send("add", a=1)
        looks = "SELECT coalesce(max(seen_at), now() - interval '1 day') FROM horsies_workers"
        ((seen,),) = server.superuser(looks)
        wait_until(lambda: server.superuser(looks)[0][0] > seen, "the worker lives on")
        assert server.status(later) == "PENDING"
    server.becomes(later, "COMPLETED")
    for id_ in held:
        assert server.becomes(id_, "COMPLETED")["attempts"] == 1
    assert process.log.count("outcomes could not be written yet") == 1
    assert "enough outcomes are written" in process.log
    assert process.stop() == 0
