"""The ledger: what was sent, what ran and what finished, judged every few seconds, before the rows
are pruned.

A task is read once its row has been final for a while, with its attempts and the notes of its runs.
What is kept of it is its number, so the ledger does not grow much, however long the soak is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import psutil

from tests.stress.chaos import evidence
from tests.stress.chaos.evidence import clock
from tests.stress.chaos.judge import (
    Attempt,
    Row,
    absent,
    accounts,
    broken_words,
    continuous,
    histories,
    twice,
)
from tests.stress.chaos.notes import paired
from tests.stress.chaos.sending import Sender

LAG_SECONDS = 10.0  # a final row was committed by then, and its runs have noted their ends
OVERLAP_SECONDS = 30.0  # rows are read again for so long: one that finished once more would be seen
FINISHED = "finished_at > to_timestamp(%s) AND finished_at <= to_timestamp(%s)"
OF_THESE = "task_id = ANY (%s::uuid[])"


class Ledger:
    """``read`` judges what finished since it was last called; ``violations`` are in words."""

    def __init__(self, notes: Path, sender: Sender, max_crashes: int) -> None:
        self.notes = notes
        self.sender = sender
        self.max_crashes = max_crashes

        self.until = clock()
        self.offsets: dict[Path, int] = {}
        # Notes of tasks that have not been judged.
        self.lines: defaultdict[str, list[str]] = defaultdict(list)

        self.recent: dict[str, float | None] = {}  # when the tasks finished that were read lately
        self.done: set[int] = set()  # by number
        self.endings: Counter[str] = Counter()
        self.fired: dict[str, int] = {}  # the last fire time of each schedule
        self.ticks = 0
        self.violations: list[str] = []

    def read(self, lag: float = LAG_SECONDS) -> None:
        """Judge the tasks that finished until ``lag`` seconds ago."""
        after, self.until = self.until, clock() - lag
        found = evidence.task_rows(FINISHED, after - OVERLAP_SECONDS, self.until)

        new = self.unseen(found)
        ids = [row.id for row in new]
        self.judge(new, evidence.attempts(OF_THESE, ids))

        self.violations += continuous(self.fired, ticks := evidence.ticks(after, self.until))
        self.ticks += len(ticks)

    def unseen(self, found: Sequence[Row]) -> list[Row]:
        """Return the tasks that were not read before."""
        again = [row for row in found if row.id in self.recent]
        self.violations += [
            f"task {row.id} finished twice"
            for row in again
            if row.finished_at != self.recent[row.id]
        ]
        new = [row for row in found if row.id not in self.recent]
        self.recent = {row.id: row.finished_at for row in found}
        return new

    def judge(self, new: Sequence[Row], attempts: dict[str, list[Attempt]]) -> None:
        """Hold the rows against their attempts, the notes of runs, and what the sender knows."""
        self.collect()
        by_id = {row.id: row for row in new}
        runs = paired(line for id_ in by_id for line in self.lines.pop(id_, ()))

        self.violations += histories(new, attempts, self.max_crashes)
        self.violations += accounts(by_id, attempts, runs)
        self.violations += twice(by_id, runs)
        self.violations += broken_words(new, self.sender.verdicts, {})
        self.violations += self.mark(row.number for row in new if row.number >= 0)

        self.endings.update(row.ending for row in new)

    def mark(self, numbers: Iterable[int]) -> Iterator[str]:
        """Mark numbers as finished; gives those that were or that nobody sent, in words."""
        for number in numbers:
            if number >= self.sender.sent:
                yield f"task {number} is there, and nobody sent it"
            elif number in self.done:
                yield f"task {number} finished twice"
            self.done.add(number)

    def collect(self) -> None:
        """Read what was noted since the last time; remove the files of processes that are gone."""
        for path in list(self.notes.iterdir()):
            gone = not psutil.pid_exists(int(path.name))
            with path.open("rb") as file:
                file.seek(self.offsets.get(path, 0))
                text = file.read()

            whole = text[: text.rfind(b"\n") + 1]
            self.offsets[path] = self.offsets.get(path, 0) + len(whole)
            for line in whole.decode().splitlines():
                self.lines[line.split()[1]].append(line)

            if gone:
                path.unlink()
                self.offsets.pop(path)

    def close(self) -> list[str]:
        """Judge what is left when all tasks have finished, and return all violations."""
        self.read(lag=0.0)
        lost = list(absent(self.sender.dispatches, self.done.__contains__, "did not finish"))
        late = [f"task {id_} ran, and is not among those that finished" for id_ in self.lines]
        return self.violations + lost + late
