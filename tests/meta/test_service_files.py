"""The service files that the documentation shows are right, and give the worker the time that they tell it to take."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "run-a-worker.md").read_text()
OPTION = re.compile(r"--shutdown-timeout=(\d+)")
MARGIN_SECONDS = 30


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def unit() -> str:
    (text,) = blocks("ini")
    return text


def test_the_unit_leaves_a_margin_above_the_workers_own_timeout() -> None:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(unit())
    service = parsed["Service"]
    own = OPTION.search(service["ExecStart"])
    assert own is not None
    assert int(service["TimeoutStopSec"]) >= int(own[1]) + MARGIN_SECONDS
    assert (service["KillMode"], service["Restart"]) == ("mixed", "on-failure")


def test_systemd_finds_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    path = tmp_path / "shop-worker.service"
    path.write_text(unit().replace("/srv/shop/.venv/bin/python", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False
    )
    about_it = [line for line in (done.stdout + done.stderr).splitlines() if "shop-worker" in line]
    assert about_it == []


@pytest.mark.parametrize(
    ("key", "pattern"),
    [("Compose", r"stop_grace_period: (\d+)s"), ("Kubernetes", r"terminationGracePeriodSeconds: (\d+)")],
)
def test_a_container_gets_a_margin_above_the_workers_own_timeout(key: str, pattern: str) -> None:
    (text,) = [block for block in blocks("yaml") if re.search(pattern, block)]
    own, grace = OPTION.search(text), re.search(pattern, text)
    assert own is not None
    assert grace is not None
    assert int(grace[1]) >= int(own[1]) + MARGIN_SECONDS
