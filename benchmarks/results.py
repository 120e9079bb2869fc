"""The page of a run as Markdown: its goals, its figures and their costs, with the pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks import tables
from benchmarks.saved import Run, scenarios

HEAD = """# Results

Written by `python -m benchmarks plot FILE`. [Benchmarks](index.md) explains the names, and
what not to compare.
"""


def page(run: Run) -> str:
    """Return the page."""
    return "\n".join([HEAD, *machine(run), *goals(run), *readings(run)])


def machine(run: Run) -> Iterator[str]:
    """Yield the versions and the machine."""
    yield from rows(["", ""], [[name, value] for name, value in run.versions.items()])


def goals(run: Run) -> Iterator[str]:
    """Yield the goals and their verdicts."""
    found = list(tables.verdicts(run.figures, run.goals))
    if found:
        yield "## Goals\n"
        yield from rows(
            ["", "reading", "goal", "measured", ""],
            [
                [each.goal.name, each.subject, each.bound, each.measured, each.word]
                for each in found
            ],
        )


def readings(run: Run) -> Iterator[str]:
    """Yield each scenario: its picture, its readings, and their details."""
    for scenario, names in scenarios(run.figures).items():
        yield f"## {scenario}\n\n![{scenario}]({scenario}.svg)\n"
        yield from rows(
            ["reading", "unit", "median", "least", "greatest", "repeats"],
            [
                [
                    name,
                    found[0].unit,
                    *map(tables.number, tables.spread(run.figures, name)),
                    str(len(found)),
                ]
                for name in names
                for found in [run.figures.readings[name]]
            ],
        )
        yield from details(run, names)


def details(run: Run, names: Sequence[str]) -> Iterator[str]:
    """Yield the medians of the details, a column for each that any reading of the scenario has."""
    found = {name: medians for name in names if (medians := tables.details(run.figures, name))}
    columns = list(dict.fromkeys(column for medians in found.values() for column in medians))
    if columns:
        yield from rows(
            ["medians of", *columns],
            [
                [
                    name,
                    *(
                        tables.number(medians[column]) if column in medians else ""
                        for column in columns
                    ),
                ]
                for name, medians in found.items()
            ],
        )


def rows(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table, and an empty line after it."""
    for line in (head, ["---"] * len(head), *lines):
        yield f"| {' | '.join(line)} |"
    yield ""
