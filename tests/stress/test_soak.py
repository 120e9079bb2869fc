"""The soak runs, judges and draws, and its judge finds the errors in handmade evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.stress.conftest import verdict_of
from tests.stress.soak.flat import BOUNDS, LEAST, grown, thirds
from tests.support.sizes import sized

pytestmark = [pytest.mark.stress, pytest.mark.timeout(600)]


DRAIN = "--drain=200"
LOAD = "--load=0.3"


def test_a_short_soak_loses_no_task(
    tmp_path: Path,
) -> None:
    """A soak of a few seconds loses no task and writes its samples and pictures."""
    verdict = verdict_of(
        "soak", DRAIN, LOAD, f"--into={tmp_path}", f"--minutes={sized(12, 60) / 60}", "--every=2"
    )
    saved = json.loads((tmp_path / "soak.json").read_text())

    assert saved["verdict"] == verdict
    assert saved["samples"][-1].keys() >= BOUNDS.keys()
    assert "start p99 ms" in (tmp_path / "soak.svg").read_text()

    # All events did happen.
    assert verdict["weather"].keys() >= {"deploy", "kill child"}
    assert verdict["tasks"] > 200
    assert sum(verdict["endings"].values()) >= verdict["tasks"]
    assert min(verdict["workflows"], verdict["fire times"]) > 0


def test_replacing_workers_is_not_reported_as_a_problem(tmp_path: Path) -> None:
    """The status reports no problem while workers are only replaced.

    Fails if: each deploy alerts the person on call.
    """
    verdict = verdict_of(
        "soak",
        DRAIN,
        LOAD,
        f"--into={tmp_path}",
        f"--minutes={sized(12, 120) / 60}",
        "--every=1",
        "--calm",
    )

    assert verdict["weather"].keys() == {"deploy", "examined"}


def test_only_a_figure_that_keeps_growing_is_reported() -> None:
    """A figure that keeps growing is reported, and one that grew only at first is not."""
    flat = [
        {**dict.fromkeys(BOUNDS, 50.0), "seconds": 20.0 * number} for number in range(3 * LEAST)
    ]
    early = [
        {**sample, "tables MB": 50.0 * min(number, LEAST)} for number, sample in enumerate(flat)
    ]
    leaking = [{**sample, "parent MB": 50.0 + number} for number, sample in enumerate(flat)]

    for samples, words in ((flat, []), (early, []), (leaking, ["parent MB grew"])):
        medians = thirds(samples)
        assert medians is not None
        assert [text.partition(" from")[0] for text in grown(medians)] == words

    assert thirds(flat[1:]) is None
    assert thirds([{**sample, "seconds": sample["seconds"] / 10} for sample in flat]) is None
