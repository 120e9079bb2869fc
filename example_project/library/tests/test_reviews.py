"""Tests of files that are reviewed.

The document is published after an approval and a cooling-off time, and removed after a rejection.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.test import TestCase
from django.urls import reverse

from example_project.library import tasks
from example_project.library.models import Announcement, Document, Upload
from example_project.library.tests.visitors import logged_in, make_document, upload
from example_project.library.workflows import COOLING_OFF, REVIEW
from horsies_django import RetryPolicy, WorkflowHandle, get_workflow
from horsies_django.models import WorkflowNode, WorkflowRun
from horsies_django.testing import drain, open_gate

AFTERWARDS = COOLING_OFF + dt.timedelta(minutes=1)


class ReviewTests(TestCase):
    """Tests of reviews in which ``drain(until=...)`` makes the time pass.

    The decisions are made by ``approve``, ``reject`` and ``open_gate``.
    """

    def sent(self, content: bytes = b"fox") -> WorkflowHandle:
        """Upload a file that is to be reviewed, and return its import."""
        upload(logged_in(self.client), ("fox.txt", content), review=True)
        return get_workflow(Upload.objects.latest("pk").import_run)

    def statuses(self, run: WorkflowHandle) -> dict[str, str]:
        """Return the status of each node."""
        return dict(
            WorkflowNode.objects.filter(workflow_id=run.workflow_id).values_list("name", "status")
        )

    def test_only_what_is_to_be_reviewed_waits_for_a_person(self) -> None:
        upload(logged_in(self.client), ("owl.txt", b"owl"))
        unreviewed = get_workflow(Upload.objects.get().import_run)
        reviewed = self.sent()

        drain()

        assert REVIEW not in self.statuses(unreviewed)
        assert self.statuses(reviewed)[REVIEW] == "WAITING"
        assert [one.name for one in Document.objects.filter(is_published=True)] == ["owl.txt"]

    def test_an_approved_document_is_published_and_announced_after_its_cooling_off_time(
        self,
    ) -> None:
        run = self.sent()
        drain(until=dt.timedelta(days=30))

        assert not Document.objects.get().is_published

        run.approve(REVIEW, user=get_user_model().objects.get(), reason="fine")
        drain(until=AFTERWARDS)

        timer = WorkflowNode.objects.get(workflow_id=run.workflow_id, kind="timer")
        assert timer.delay == COOLING_OFF
        assert (run.status(), Document.objects.get().is_published) == ("COMPLETED", True)

        page = self.client.get(reverse("library:documents"))
        self.assertContains(page, "New in the library: shelf/fox.txt", count=1)

    def test_a_rejected_document_is_removed_and_the_page_says_who_rejected_it(self) -> None:
        run = self.sent()
        drain()

        assert Document.objects.exists()

        run.reject(REVIEW, user=get_user_model().objects.get(), reason="not ready")
        drain()

        assert WorkflowRun.objects.values_list("status", "error_code").get() == (
            "FAILED",
            "GATE_REJECTED",
        )
        assert self.statuses(run)["undo read_file"] == "COMPLETED"
        assert not Document.objects.exists()
        assert not Announcement.objects.exists()

        page = self.client.get(reverse("library:import", args=[run.workflow_id]))
        self.assertContains(page, "rejected by librarian: not ready")

    def test_a_document_that_nobody_reviews_in_time_is_removed(self) -> None:
        run = self.sent()
        drain(until=dt.timedelta(days=32))

        assert run.results()[REVIEW].err_value.error_code == "WAIT_TIMED_OUT"
        assert not Document.objects.exists()

    def test_an_import_that_is_cancelled_in_its_cooling_off_time_publishes_nothing(self) -> None:
        run = self.sent()
        drain()
        open_gate(run, REVIEW)
        drain(queues=["imports"])

        run.cancel(actor="a test")
        drain(until=AFTERWARDS)

        assert run.status() == "CANCELLED"
        assert not Document.objects.exists()

    def test_a_visitor_who_may_not_change_documents_cannot_approve(self) -> None:
        run = self.sent()

        with pytest.raises(PermissionDenied):
            run.approve(REVIEW, user=get_user_model().objects.create_user("visitor"))

    def test_the_page_says_that_an_import_waits_and_leads_staff_to_the_decision(self) -> None:
        run = self.sent()
        drain()
        address = reverse("library:import", args=[run.workflow_id])

        page = self.client.get(address)
        self.assertContains(page, '<span class="status waiting">waiting</span>')

        number = WorkflowNode.objects.get(name=REVIEW).number
        gate = reverse("admin:horsies_workflowrun_node", args=[run.workflow_id, number])
        self.assertContains(page, gate)
        self.assertContains(self.client.get(gate), "Approve")

        self.client.logout()
        self.assertNotContains(self.client.get(address), gate)

    def test_the_same_form_with_another_tick_gives_the_run_that_there_is(self) -> None:
        form = uuid.uuid4()
        first = upload(logged_in(self.client), ("fox.txt", b"fox"), submission=form, review=True)

        assert upload(self.client, ("fox.txt", b"fox"), submission=form).url == first.url
        assert WorkflowRun.objects.count() == 1
        assert Upload.objects.get().review

    def test_a_rejection_keeps_a_document_that_another_upload_has(self) -> None:
        first = self.sent()
        second = self.sent()
        drain()

        first.reject(REVIEW, actor="a test")
        drain()

        assert Document.objects.count() == 1

        open_gate(second, REVIEW)
        drain(until=AFTERWARDS)

        assert Document.objects.get().is_published

    def test_the_last_of_several_rejections_removes_the_document(self) -> None:
        for run in (self.sent(), self.sent()):
            drain()
            run.reject(REVIEW, actor="a test")
            drain()

        assert not Document.objects.exists()

    def test_a_rejection_keeps_what_was_published_meanwhile(self) -> None:
        run = self.sent()
        drain()
        Document.objects.update(is_published=True)

        run.reject(REVIEW, actor="a test")
        drain()

        assert Document.objects.exists()


class RepeatTests(TestCase):
    """Tests of tasks that are tried again."""

    def test_a_publication_that_is_tried_again_is_announced_once(self) -> None:
        document = make_document()
        patient = tasks.publish.with_options(retry_policy=RetryPolicy.fixed([60]))

        upload(logged_in(self.client), ("fox.txt", document.text.encode()), folder="")
        drain()
        imported = get_workflow(Upload.objects.get().import_run).results()["read_file"].ok_value
        calls = []

        def cut_once(*args: Any, **kwargs: Any) -> str:
            calls.append(args)
            if len(calls) == 1:
                raise ConnectionError("cut")
            return reverse(*args, **kwargs)

        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(tasks, "reverse", cut_once)
            handle = patient.send(imported)
            drain(until=dt.timedelta(hours=1))

        assert handle.get(timeout_ms=0).ok_value == document.get_absolute_url()
        assert handle.info().retry_count == 1
        assert Announcement.objects.filter(document=document).count() == 1

    def test_the_undo_finds_the_document_by_its_upload_and_may_run_twice(self) -> None:
        upload(logged_in(self.client), ("fox.txt", b"fox"), review=True)
        drain()

        undos = [tasks.remove_document.send(Upload.objects.get().pk, None) for _ in range(2)]
        drain()

        assert [undo.get(timeout_ms=0).ok_value for undo in undos] == [True, False]
        assert not Document.objects.exists()
