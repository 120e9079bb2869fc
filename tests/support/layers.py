"""A pytest plugin for whole runs: number of processes, order of tests, and time of each layer.

A layer is a directory of tests/. Files with real worker processes come first: they take longest,
most of it waiting, and quick tests fill the gaps that they leave at the end.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import PurePosixPath

import pytest

PROCESSES_PER_CPU = 3  # of three tests, one or two wait
FEWEST = 2
MOST = 12
ORDER = ("e2e", "db", "worker")
WHOLE = ("e2e", "moved")  # in these layers 'make test' runs only the tests that prove a boundary


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes ``-n auto`` means; the default of xdist is one for each CPU."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST, max(FEWEST, cpus * PROCESSES_PER_CPU))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        layer = layer_of(item.nodeid)
        return ORDER.index(layer) if layer in ORDER else len(ORDER)

    items.sort(key=place)
    for item in items:
        if layer_of(item.nodeid) in WHOLE and item.get_closest_marker("boundary") is None:
            item.add_marker("e2e")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Escape the bytes in a test's output and log that are not text.

    They could not be sent from process to process.
    """
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode("utf-8"))
        for name, text in report.sections
    ]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: defaultdict[str, float] = defaultdict(float)
    tests: defaultdict[str, int] = defaultdict(int)

    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                layer = layer_of(report.nodeid)
                seconds[layer] += report.duration
                tests[layer] += report.when == "call"

    for layer in sorted(seconds):
        terminalreporter.write_line(f"layer {layer}: {tests[layer]} tests, {seconds[layer]:.1f} s")


def layer_of(nodeid: str) -> str:
    """Return the layer of a test."""
    return PurePosixPath(nodeid.partition("::")[0]).parent.name
