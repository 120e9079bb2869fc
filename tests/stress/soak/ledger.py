"""The ledger: compares sent, run and finished tasks every few seconds, before rows are pruned.

A task is read once its row has been final for a while, with its attempts and the notes of its runs.
The ledger keeps only the number of the task, so it grows little in a long soak.
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

LAG_SECONDS = 10.0  # after so long, a final row is committed, and its runs have noted their ends
OVERLAP_SECONDS = 30.0  # rows are read again for so long, so a second end of a task is found
FINISHED = "finished_at > to_timestamp(%s) AND finished_at <= to_timestamp(%s)"
OF_THESE = "task_id = ANY (%s::uuid[])"


class Ledger:
    """``read`` judges the tasks that finished since the last call; ``violations`` are sentences."""

    def __init__(self, notes: Path, sender: Sender, max_crashes: int) -> None:
        self.notes = notes
        self.sender = sender
        self.max_crashes = max_crashes

        self.until = clock()
        self.offsets: dict[Path, int] = {}
        # Notes of tasks that are not judged yet.
        self.lines: defaultdict[str, list[str]] = defaultdict(list)

        self.recent: dict[str, float | None] = {}  # finish times of the tasks that were read lately
        self.done: set[int] = set()  # by number
        self.endings: Counter[str] = Counter()
        self.fired: dict[str, int] = {}  # the last fire time of each schedule
        self.ticks = 0
        self.violations: list[str] = []

    def read(self, lag: float = LAG_SECONDS) -> None:
        """Check the tasks that finished until ``lag`` seconds ago."""
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
        """Compare the rows with their attempts, the notes of runs, and the sender's memory."""
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
        """Mark numbers as finished; yield an error for each finished before or never sent."""
        for number in numbers:
            if number >= self.sender.sent:
                yield f"task {number} is there, and nobody sent it"
            elif number in self.done:
                yield f"task {number} finished twice"
            self.done.add(number)

    def collect(self) -> None:
        """Read the new notes, and remove the files of ended processes."""
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
        """Check the rest when all tasks have finished, and return all violations."""
        self.read(lag=0.0)
        lost = list(absent(self.sender.dispatches, self.done.__contains__, "did not finish"))
        late = [f"task {id_} ran, and is not among those that finished" for id_ in self.lines]
        return self.violations + lost + late
