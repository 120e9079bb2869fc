"""Metrics as Prometheus reads them: by the official parser, and by promtool if installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "metrics.md"


class Metrics:
    """The metrics of a text, each sample once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.types: dict[str, str] = {}
        self.labels: dict[str, set[str]] = {}
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

        for family in text_string_to_metric_families(text):
            name = family.name + "_total" * (family.type == "counter")
            assert family.documentation, name
            assert name not in self.types, f"{name} is there twice"

            self.types[name] = family.type
            self.labels[name] = {label for sample in family.samples for label in sample.labels} - {
                "le"
            }

            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self.samples, f"{sample} is there twice"
                self.samples[key] = sample.value

    def get(self, name: str, **labels: str) -> float | None:
        """Return a value, or None if there is none."""
        return self.samples.get((name, frozenset(labels.items())))

    def of(self, name: str, label: str) -> dict[str, float]:
        """Return the values of a metric with one label, by the label's values."""
        return {
            dict(labels)[label]: value
            for (found, labels), value in self.samples.items()
            if found == name
        }


def of_the_page(heading: str) -> dict[str, tuple[str, set[str]]]:
    """Return the types and labels of the metrics that the page lists below a heading."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(horsies_\w+)` \| (\w+) \| ([^|]*)\|", section, re.MULTILINE)
    return {name: (type_, set(re.findall(r"`(\w+)`", labels))) for name, type_, labels in rows}


def agree(metrics: Metrics, heading: str) -> None:
    """Fail if the metrics differ from those of the page in name, type or labels.

    Each metric needs a sample.
    """
    assert {
        name: (metrics.types[name], metrics.labels[name]) for name in metrics.types
    } == of_the_page(heading)


def promtool(*arguments: str | Path, given: str = "") -> str:
    """Run promtool and return its output; skip the test if it is not installed."""
    if (program := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed; Debian has it in the package prometheus")

    command = [program, *map(str, arguments)]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
