"""The report at the end of the demo, and the addresses of its pages."""

from __future__ import annotations

from django.contrib import admin
from django.urls import reverse

from example_project.demo.facts import Facts
from example_project.demo.narrator import Narrator
from horsies_django.models import Schedule, Task, WorkflowRun


def report(say: Narrator, facts: Facts) -> None:
    """Print the results of the run."""
    say.detail()
    say.detail(
        f"{facts.sent} files sent: {facts.completed} COMPLETED, {len(facts.failures)} FAILED"
    )

    if facts.largest:
        one = facts.largest
        say.detail(
            f"  largest: {one.path}, {one.chapters} chapters, {one.completed} of {one.tasks} tasks "
            "completed"
        )

    for failure in facts.failures:
        say.detail(f"  FAILED {failure.code}: {failure.message}")

    say.detail(
        f"{facts.documents} documents, {facts.indexed} indexed, {facts.verified} fetched back and "
        "equal"
    )

    if facts.approved and facts.rejected:
        shown = f"published and announced {facts.approved.announced} time" + "s" * (
            facts.approved.announced != 1
        )
        undone = "removed by the undo" if facts.rejected.is_removed else "not removed"
        say.detail(
            f"Reviews: {facts.approved.path} approved, {shown}; {facts.rejected.path} rejected, "
            f"{undone}"
        )

    say.detail(f"{facts.reindexed} documents indexed anew by schedule, without anybody who sends")
    say.detail(
        f"{facts.tasks} tasks in {facts.busy_seconds:.1f} s: {facts.rate:.0f} tasks/s, uploading "
        "and killing included"
    )

    say.detail("Near-duplicates:" if facts.pairs else "Near-duplicates: none")
    for pair in facts.pairs:
        say.detail(f"  {pair.percent:3} %  {pair.one_path}  {pair.other_path}")

    if facts.search:
        verb = "finds" if facts.search.is_found else "does not find"
        say.detail(f'Search: "{facts.search.phrase}" {verb} {facts.search.path}')


def invitation(say: Narrator, address: str, username: str, password: str) -> None:
    """Print the addresses and the login of the site."""
    say.detail()
    say.detail(f"Site     {address}/")

    shown = [model for model in (Task, WorkflowRun, Schedule) if admin.site.is_registered(model)]
    for label, model in zip(("Admin", *[""] * len(shown)), shown, strict=False):
        say.detail(
            f"{label:8} {address}{reverse(f'admin:horsies_{model._meta.model_name}_changelist')}"
        )

    say.detail(f"Login    {username}  {password}")
