"""A pytest plugin that says at the end how long each layer of the tests took (a layer is a directory of tests/)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: defaultdict[str, float] = defaultdict(float)
    tests: defaultdict[str, int] = defaultdict(int)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                layer = PurePosixPath(report.nodeid.partition("::")[0]).parent.name
                seconds[layer] += report.duration
                tests[layer] += report.when == "call"
    for layer in sorted(seconds):
        terminalreporter.write_line(f"layer {layer}: {tests[layer]} tests, {seconds[layer]:.1f} s")
