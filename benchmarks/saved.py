"""A run in a file: ``--json`` writes it, and ``--against`` and ``plot`` read it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.figures import Figures, Goal, Reading


@dataclass(frozen=True)
class Run:
    """The readings, the versions and the machine of a run, and its goals at that time."""

    versions: Mapping[str, str]
    figures: Figures
    goals: tuple[Goal, ...]


def save(path: Path, run: Run) -> None:
    """Write a run: each reading of each repeat."""
    readings = [asdict(reading) for found in run.figures.readings.values() for reading in found]
    text = json.dumps(
        {
            "versions": run.versions,
            "readings": readings,
            "goals": [asdict(goal) for goal in run.goals],
        },
        indent=1,
    )
    path.write_text(text + "\n")


def load(path: Path) -> Run:
    """Read a run. Raises OSError, and ValueError for a file that is no run."""
    try:
        found = json.loads(path.read_text())
        figures = Figures()
        for reading in found["readings"]:
            figures.keep(Reading(**reading))

        return Run(
            found["versions"], figures, tuple(Goal(**goal) for goal in found.get("goals", ()))
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} was not written by 'python -m benchmarks --json FILE'") from error


def scenarios(figures: Figures) -> Mapping[str, Sequence[str]]:
    """Return the names of the readings by scenario, which is the first word of each."""
    found: dict[str, list[str]] = {}
    for name in figures.readings:
        found.setdefault(name.split()[0], []).append(name)
    return found
