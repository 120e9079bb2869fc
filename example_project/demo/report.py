"""The report at the end: what was done, what was found, where to look."""

from __future__ import annotations

from example_project.demo.facts import Facts
from example_project.demo.narrator import Narrator

ADMIN_TASKS = "/admin/horsies/task/"
ADMIN_SCHEDULES = "/admin/horsies/schedule/"


def report(say: Narrator, facts: Facts) -> None:
    """Say what came of the run."""
    say.detail()
    say.detail(f"{facts.sent} files sent: {facts.completed} COMPLETED, {len(facts.failures)} FAILED")
    for failure in facts.failures:
        say.detail(f"  FAILED {failure.code}: {failure.message}")
    say.detail(f"{facts.documents} documents, {facts.indexed} indexed, {facts.verified} fetched back and equal")
    say.detail(f"{facts.reindexed} documents indexed anew by schedule, without anybody who sends")
    say.detail(
        f"{facts.tasks} tasks in {facts.busy_seconds:.1f} s: {facts.rate:.0f} tasks/s, uploading and killing included"
    )
    say.detail("Near-duplicates:" if facts.pairs else "Near-duplicates: none")
    for pair in facts.pairs:
        say.detail(f"  {pair.percent:3} %  {pair.one_path}  {pair.other_path}")
    if facts.search:
        verb = "finds" if facts.search.is_found else "does not find"
        say.detail(f'Search: "{facts.search.phrase}" {verb} {facts.search.path}')


def invitation(say: Narrator, address: str, username: str, password: str) -> None:
    """Say where to look."""
    say.detail()
    say.detail(f"Site     {address}/")
    say.detail(f"Admin    {address}{ADMIN_TASKS}")
    say.detail(f"         {address}{ADMIN_SCHEDULES}")
    say.detail(f"Login    {username}  {password}")
