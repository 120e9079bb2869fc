"""A primary is killed under load and its synchronous standby promoted: nothing confirmed is lost, and everybody goes on."""

from __future__ import annotations

import pytest

from tests.stress.test_chaos import chaos
from tests.support.sizes import sized

pytestmark = [pytest.mark.stress, pytest.mark.timeout(600)]


def test_a_failover_loses_nothing_finishes_nothing_twice_and_everybody_goes_on() -> None:
    failovers, workers = sized(1, 5), 3
    verdict = chaos(f"--tasks={sized(800, 6_000)}", f"--failovers={failovers}", f"--workers={workers}")
    assert verdict["faults"] == failovers == len(verdict["failovers"])
    assert (verdict["lost"], verdict["finished twice"]) == (0, 0)
    # that it came under load: tasks were left for the new primary, and caps were used to the full
    assert verdict["sender"]["send broken by an outage"] > 0
    assert "queue tight" in verdict["full"]
    assert "replaced" not in verdict["weather"]  # no worker ended
    for one in verdict["failovers"]:
        assert one["workers"] == workers  # each of them went on
        assert one["answered"] == one["waited across"] > 0
