"""The facts that a run of the demo has found, and the check whether they are as promised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from example_project.library.searching import NearDuplicate
from example_project.library.workflows import COOLING_OFF

CRASHED = "WORKER_CRASHED"


@dataclass(frozen=True)
class Failure:
    """A file that was not imported, and its error."""

    path: str
    code: str | None
    message: str


@dataclass(frozen=True)
class Largest:
    """The import of the file with the most chapters."""

    path: str
    chapters: int
    completed: int
    tasks: int


@dataclass(frozen=True)
class Crash:
    """The end of the task whose process was killed, and the process that replaced it."""

    pid: int
    code: str | None
    message: str
    replacement: int | None = None


@dataclass(frozen=True)
class Fall:
    """The tasks of a whole worker that was killed.

    ``seconds`` is the time until the last of them ran on another worker.
    """

    held: int
    back: int
    seconds: float


@dataclass(frozen=True)
class Approved:
    """The import that a person approved.

    ``seconds`` is the time from the decision to the announcement of its document.
    """

    path: str
    status: str
    is_published: bool
    announced: int
    seconds: float


@dataclass(frozen=True)
class Rejected:
    """The import that a person rejected, and whether its undo removed the document."""

    path: str
    status: str
    code: str | None
    is_removed: bool


@dataclass(frozen=True)
class Search:
    """A search for a phrase of an imported file."""

    phrase: str
    path: str
    is_found: bool


@dataclass
class Facts:
    """All facts that the report contains."""

    sent: int = 0
    completed: int = 0
    failures: list[Failure] = field(default_factory=list)
    largest: Largest | None = None  # None if the library had all files already
    documents: int = 0
    indexed: int = 0
    verified: int = 0
    reindexed: int = 0
    tasks: int = 0
    busy_seconds: float = 0.0
    crash: Crash | None = None
    fall: Fall | None = None
    approved: Approved | None = None
    rejected: Rejected | None = None
    search: Search | None = None
    pairs: list[NearDuplicate] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The finished tasks per second, from the first one sent to the last one finished."""
        return self.tasks / self.busy_seconds if self.busy_seconds else 0.0


def untrue(facts: Facts) -> Iterator[str]:
    """Yield a reason for each promise of the demo that a run did not keep."""
    failed = len(facts.failures)
    if not facts.sent or facts.sent != facts.completed + failed:
        yield (
            f"{facts.sent} files were sent to be imported, but {facts.completed} COMPLETED and "
            f"{failed} FAILED"
        )

    for failure in facts.failures:
        if not failure.code:
            yield f"{failure.path} FAILED without an error code"

    if facts.largest is not None and facts.largest.completed != facts.largest.tasks:
        yield (
            f"the import of {facts.largest.path} has {facts.largest.tasks} tasks, "
            f"{facts.largest.completed} COMPLETED"
        )

    if facts.indexed != facts.documents:
        yield f"{facts.documents} documents were imported, but {facts.indexed} are indexed"
    if facts.verified != facts.documents:
        yield (
            f"{facts.documents} documents were imported, but {facts.verified} came back from the "
            "site as they were stored"
        )
    if not facts.reindexed:
        yield "no document was indexed anew by schedule"

    if facts.search is None:
        yield "no imported file had a phrase to search for"
    elif not facts.search.is_found:
        yield f'the search for "{facts.search.phrase}" does not find {facts.search.path}'

    if facts.crash is None or facts.crash.code != CRASHED:
        yield (
            f"the task of the killed process ended with {facts.crash and facts.crash.code}, not "
            f"with {CRASHED}"
        )
    elif facts.crash.replacement is None:
        yield f"no process took the place of process {facts.crash.pid}"

    if facts.fall is None or not facts.fall.held:
        yield "the worker that was killed had no tasks"
    elif facts.fall.back != facts.fall.held:
        yield f"the worker that was killed had {facts.fall.held} tasks, {facts.fall.back} came back"

    yield from untrue_of_reviews(facts.approved, facts.rejected)


def untrue_of_reviews(approved: Approved | None, rejected: Rejected | None) -> Iterator[str]:
    """Yield a reason for each promise about reviews that a run did not keep."""
    if approved is None or approved.status != "COMPLETED" or not approved.is_published:
        yield f"the import that was approved has published nothing: {approved}"
    elif approved.announced != 1:
        yield f"{approved.path} was announced {approved.announced} times"
    elif approved.seconds < COOLING_OFF.total_seconds():
        yield (
            f"{approved.path} was announced {approved.seconds:.1f} s after its approval, before "
            "its cooling-off time was over"
        )

    if rejected is None or (rejected.status, rejected.code) != ("FAILED", "GATE_REJECTED"):
        yield f"the import that was rejected did not fail with GATE_REJECTED: {rejected}"
    elif not rejected.is_removed:
        yield f"{rejected.path} was rejected, but its document is still there"


def disjoint(pairs: list[NearDuplicate]) -> list[NearDuplicate]:
    """Return the pairs without those that share a document with an earlier pair.

    Ten copies of a license are thus one pair.
    """
    seen: set[int] = set()
    chosen = []
    for pair in pairs:
        if not seen & {pair.one_id, pair.other_id}:
            seen |= {pair.one_id, pair.other_id}
            chosen.append(pair)

    return chosen
