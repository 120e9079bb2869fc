"""The reviews of the demo: one import is approved, another one is rejected and undone."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from example_project.demo.browser import Browser, Part
from example_project.demo.facts import Approved, Rejected
from example_project.demo.narrator import Narrator
from example_project.demo.processes import Services
from example_project.library.models import Announcement, Document, Upload
from example_project.library.workflows import REVIEW
from horsies_django import WorkflowHandle, explain_node, get_workflow
from horsies_django.models import WorkflowNode

REVIEW_SECONDS = 60
APPROVED = "letter.txt"
REJECTED = "draft.txt"
FOLDER = "reviewed"


@dataclass
class Reviews:
    """Two files of one form, each with an import that waits for the user ``reviewer``."""

    say: Narrator
    services: Services
    browser: Browser
    reviewer: Any

    def upload(self) -> None:
        """Upload two files to be reviewed, which no run of the demo has sent before."""
        self.submission = uuid.uuid4()
        parts = [
            Part(
                "files",
                name,
                f"{name} of demo {self.submission} is read by a person first.\n".encode(),
            )
            for name in (APPROVED, REJECTED)
        ]

        fields = {"submission": str(self.submission), "folder": FOLDER, "review": "on"}
        self.browser.post(reverse("library:upload"), fields, parts)
        self.say.step(f"{len(parts)} files uploaded that somebody has to review")

    def decide(self) -> tuple[Approved, Rejected]:
        """Approve one import, reject the other one, and return how they ended.

        The decisions are made when both imports wait for a person.
        """
        runs = dict(
            Upload.objects.filter(submission=self.submission)
            .order_by("pk")
            .values_list("name", "import_run")
        )
        gates = WorkflowNode.objects.filter(
            workflow_id__in=runs.values(), kind="gate", status="WAITING"
        )

        self.services.until(
            lambda: gates.count() == len(runs), "both imports wait for a review", REVIEW_SECONDS
        )

        self.say.step(f"{len(runs)} imports wait for a person; no worker is busy with them:")
        for name, run in runs.items():
            self.say.detail(f"{FOLDER}/{name}: {explain_node(run, REVIEW).reasons[0].text}")

        document = Document.objects.get(folder=FOLDER, upload__import_run=runs[REJECTED])
        approved = get_workflow(runs[APPROVED])
        rejected = get_workflow(runs[REJECTED])
        approved.approve(REVIEW, user=self.reviewer, reason="well written")
        rejected.reject(REVIEW, user=self.reviewer, reason="not ready")

        return self.published(approved), self.removed(rejected, document)

    def published(self, run: WorkflowHandle) -> Approved:
        """Wait for the end of the approved import, and return the facts about its document."""
        self.ended(run)
        upload = (
            Upload.objects.defer("content")
            .select_related("document")
            .get(import_run=run.workflow_id)
        )

        announced = Announcement.objects.filter(document=upload.document)
        decided = WorkflowNode.objects.get(workflow_id=run.workflow_id, name=REVIEW).finished_at
        seconds = min(((one.at - decided).total_seconds() for one in announced), default=0.0)
        is_published = upload.document is not None and upload.document.is_published

        self.say.step(
            f"{upload.path}: approved by {self.reviewer}, announced {seconds:.1f} s later, once it "
            "had cooled off"
        )
        return Approved(upload.path, run.status(), is_published, announced.count(), seconds)

    def removed(self, run: WorkflowHandle, document: Document) -> Rejected:
        """Wait for the end of the rejected import, and return whether its document is gone."""
        self.ended(run)
        decided = run.results()[REVIEW]
        error = decided.err if decided is not None else None
        is_there = Document.objects.filter(pk=document.pk).exists()
        undone = list(
            WorkflowNode.objects.filter(workflow_id=run.workflow_id, kind="undo").values_list(
                "name", "status"
            )
        )

        self.say.step(f"{document.path}: {error.message if error else 'no error'}")
        for name, status in undone:
            self.say.detail(
                f"{name}: {status}; the document is {'still there' if is_there else 'gone'}"
            )

        return Rejected(
            document.path, run.status(), error.error_code if error else None, not is_there
        )

    def ended(self, run: WorkflowHandle) -> None:
        """Wait for the end of a run and its undos."""
        self.services.until(
            lambda: run.status() in ("COMPLETED", "FAILED", "CANCELLED"),
            f"{run!r} ends",
            REVIEW_SECONDS,
        )
