"""Draws a run: ``python -m benchmarks plot FILE [--into DIR]``.

It writes a picture per scenario, and a page with all figures. A bar is a median, its whisker
reaches from the least to the greatest value, and a line across it is its goal. The same file gives
the same pictures, byte for byte: they do not depend on the time and place of drawing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks import results, saved, tables
from benchmarks.figures import Figures, Goal

DOCS = Path(__file__).parents[1] / "docs" / "benchmarks"
LOOK = {
    "svg.hashsalt": "horsies",  # names inside the picture follow from its content
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
}
BAR = "#7d9ec0"
REACHED = "#2f6b3a"
MISSED = "#b03a2e"
# In inches.
WIDTH = 9.0
BAR_HEIGHT = 0.34
FRAME_HEIGHT = 0.7
CAPTION_HEIGHT = 0.7


def main(arguments: Sequence[str]) -> None:
    """Draw the runs of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks plot", description="Draw a file that --json wrote."
    )
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--into", type=Path, default=DOCS, metavar="DIR", help="where to write (docs/benchmarks)"
    )

    chosen = parser.parse_args(arguments)
    try:
        run = saved.load(chosen.file)
    except (OSError, ValueError) as error:
        parser.error(str(error))

    chosen.into.mkdir(parents=True, exist_ok=True)
    for scenario, names in saved.scenarios(run.figures).items():
        draw(run, names, chosen.into / f"{scenario}.svg")
    (chosen.into / "results.md").write_text(results.page(run))


def draw(run: saved.Run, names: Sequence[str], path: Path) -> None:
    """Draw one scenario: bars of the same unit share their axes."""
    units: dict[str, list[str]] = {}
    for name in names:
        units.setdefault(run.figures.readings[name][0].unit, []).append(name)
    heights = [FRAME_HEIGHT + BAR_HEIGHT * len(found) for found in units.values()]

    with rc_context(LOOK):
        figure = Figure(figsize=(WIDTH, sum(heights) + CAPTION_HEIGHT), layout="constrained")
        axes = figure.subplots(len(units), squeeze=False, height_ratios=heights)

        for axis, (unit, found) in zip(axes[:, 0], units.items(), strict=True):
            bars(axis, run.figures, found, unit)
            for place, name in enumerate(found):
                for goal in run.goals:
                    if goal.of == name:
                        mark(axis, run.figures, goal, place)

        figure.supxlabel(caption(run), fontsize=7, color="#555555", x=0.01, ha="left")
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def bars(axis: Any, figures: Figures, names: Sequence[str], unit: str) -> None:
    """Draw a bar and a whisker for each reading, the first at the top."""
    spreads = [tables.spread(figures, name) for name in names]
    medians = [median for median, _, _ in spreads]
    whiskers = [
        [median - least for median, least, _ in spreads],
        [most - median for median, _, most in spreads],
    ]

    places = range(len(names))
    axis.barh(places, medians, xerr=whiskers, height=0.62, color=BAR, ecolor="#333333", capsize=2.5)

    for place, (median, _, most) in enumerate(spreads):
        axis.annotate(
            tables.number(median),
            (most, place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )

    axis.set_yticks(places, [name.partition(" ")[2] or name for name in names])
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_xlim(0, max([most for _, _, most in spreads] or [0]) * 1.15 or 1)
    axis.xaxis.set_major_formatter("{x:,g}")
    axis.set_title(unit, loc="right", fontsize=8, color="#555555")


def mark(axis: Any, figures: Figures, goal: Goal, place: int) -> None:
    """Draw a goal across its bar, green if it is reached.

    It is a bound, or a share of another reading's median.
    """
    for verdict in tables.verdicts(figures, [goal]):
        bound = goal.bound * (figures.median(goal.over) if goal.over else 1.0)
        color = REACHED if verdict.reached else MISSED
        axis.plot([bound, bound], [place - 0.45, place + 0.45], color=color, linewidth=1.6)

        sign = "\N{LESS-THAN OR EQUAL TO}" if goal.at_most else "\N{GREATER-THAN OR EQUAL TO}"
        text = f"{goal.name} {sign} {tables.number(bound)}"
        axis.annotate(
            text,
            (bound, place - 0.45),
            (2, 0),
            textcoords="offset points",
            va="bottom",
            fontsize=6,
            color=color,
        )

        axis.set_xlim(0, max(axis.get_xlim()[1], bound * 1.15))


def caption(run: saved.Run) -> str:
    """Return the machine and the number of repeats of the figures."""
    versions = run.versions
    repeats = max((len(found) for found in run.figures.readings.values()), default=0)
    return (
        f"medians of up to {repeats}, whiskers from least to greatest; {versions['machine']}\n"
        f"horsies_django {versions['horsies_django']}, Python {versions['python']}, Django "
        f"{versions['django']}, "
        f"psycopg {versions['psycopg']}, PostgreSQL {versions['postgresql']}"
    )
