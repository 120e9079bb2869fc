"""``manage.py horsies_explain``: what it prints, what it refuses, and what real workers give it to say."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import pytest

from horsies_django import explain, queues
from horsies_django.models import Worker
from tests.apps.project import tasks
from tests.conftest import limit, put, wait_until
from tests.support.commands import command
from tests.support.workers import Start, held_by, let_go

pytestmark = pytest.mark.django_db(transaction=True)
run, machine, refusal = command("horsies_explain")


def test_it_prints_every_reason_on_a_line_with_its_code() -> None:
    (id_,) = put()
    queues.pause("default", actor="ann", reason="a full\x1b[2J disk")
    first, *reasons = run(str(id_)).splitlines()
    assert first == f"Task {id_} is PENDING."
    assert [line.split(":")[0] for line in reasons] == ["  QUEUE_PAUSED", "  NO_LIVE_WORKER"]
    assert "by ann: a full?[2J disk." in reasons[0], "what would move the cursor is no text"


def test_without_an_id_it_explains_the_task_that_was_sent_last_also_in_json_for_machines() -> None:
    assert "horsies_explain: no task has been sent yet" in refusal()
    ids = put(3)
    assert run().startswith(f"Task {ids[-1]} is PENDING.")
    (last,) = put()
    found: dict[str, Any] = json.loads(run("--json"))
    assert found == json.loads(run(str(last), "--json"))
    assert (found["task_id"], found["status"]) == (str(last), "PENDING")
    reason = next(one for one in found["reasons"] if one["code"] == "NO_LIVE_WORKER")
    assert set(reason) == {"code", "text", "details"}
    assert reason["details"]["queue"] == "default"


@pytest.mark.parametrize(("id_", "words"), [(str(uuid.UUID(int=7)), "there is no task"), ("mail", "is not a task id")])
def test_a_mistake_is_a_sentence(id_: str, words: str) -> None:
    assert refusal(id_).startswith("horsies_explain: ")
    assert words in refusal(id_)


def test_it_names_who_holds_the_only_slot_of_a_real_worker_and_that_it_is_free_again(
    worker: Start,
) -> None:
    limit("default", max_concurrency=1)
    worker("--processes=2").ready()
    holding = tasks.hold.send("first")
    waiting = tasks.hold.send("second")
    child = held_by("first")
    row = Worker.objects.get()
    assert row.task_names is not None
    assert "tests.apps.project.tasks.hold" in row.task_names
    found = {reason.code: reason for reason in explain(waiting.task_id).reasons}
    assert set(found) == {"QUEUE_AT_CAP"}
    assert found["QUEUE_AT_CAP"].text.endswith(f"by task {holding.task_id} on {row.hostname}:{row.pid}.")
    beaten = wait_until(lambda: explain(holding.task_id).reasons[0].details.get("child_pid"), "a beat says who runs it")
    assert beaten == child
    (unknown,) = put(name="shop.tasks.gone", delay=dt.timedelta(hours=1))
    assert "UNKNOWN_TASK_NAME" in run(str(unknown))
    let_go("first")
    held_by("second")
    assert explain(waiting.task_id).reasons[0].code == "RUNNING"
    let_go("second")
    assert waiting.get(timeout_ms=30_000).is_ok()
    assert explain(waiting.task_id).reasons[0].code == "FINISHED"
