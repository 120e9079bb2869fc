"""Draws the samples of a soak over time, in the style of the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks.plots import BAR, LOOK, MISSED, REACHED, WIDTH

PANELS = {
    "memory, MB": ("parent MB", "child MB"),
    "disk, MB": ("tables MB", "indexes MB"),
    "rows": ("live rows", "dead rows"),
    "from due to start, ms": ("start p50 ms", "start p99 ms"),
    "tasks": ("backlog", "finished/s"),
}
COLORS = (BAR, REACHED)
PANEL_HEIGHT = 1.5  # inches


def draw(saved: Mapping[str, Any], path: Path) -> None:
    """Draw all samples; a vertical line is a deploy, and the grey part is not compared."""
    samples = saved["samples"]
    versions = saved["verdict"]["versions"]
    minutes = [sample["seconds"] / 60 for sample in samples]

    with rc_context({**LOOK, "axes.grid.axis": "both"}):
        figure = Figure(figsize=(WIDTH, PANEL_HEIGHT * len(PANELS) + 0.5), layout="constrained")

        for axis, (title, names) in zip(
            figure.subplots(len(PANELS), sharex=True), PANELS.items(), strict=True
        ):
            for name, color in zip(names, COLORS, strict=True):
                axis.plot(
                    minutes,
                    [sample[name] for sample in samples],
                    color=color,
                    linewidth=1.2,
                    label=name,
                )

            for deploy in saved["deploys"]:
                axis.axvline(deploy / 60, color=MISSED, linewidth=0.5, alpha=0.5)

            axis.axvspan(0, max(minutes, default=1) / 3, color="#f4f4f4")
            axis.set_ylim(0)
            axis.set_title(title, loc="left", fontsize=8)
            axis.legend(
                loc="lower right",
                bbox_to_anchor=(1, 1),
                ncols=2,
                borderpad=0,
                fontsize=7,
                frameon=False,
            )

        axis.set_xlabel("minutes")
        text = (
            f"red: deploys; {versions['machine']}, PostgreSQL {versions['postgresql']}, Python "
            f"{versions['python']}"
        )
        figure.supxlabel(text, fontsize=7, color="#555555", x=0.01, ha="left")
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
