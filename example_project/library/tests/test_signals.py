"""Tests of the receiver that sends a task for each document that is saved."""

from __future__ import annotations

from django.db import transaction
from django.db.models.signals import post_save
from django.test import TestCase

from example_project.library.models import Document, Fingerprint
from example_project.library.tasks import index_document
from example_project.library.tests.visitors import PROSE, make_document
from horsies_django.models import Task
from horsies_django.testing import drain


class IndexSavedDocumentTests(TestCase):
    """Tests of the receiver of ``post_save``."""

    def test_a_new_document_sends_one_task_and_knows_its_id(self) -> None:
        document = make_document()
        task = Task.objects.get()

        assert (task.task_name, task.kwargs) == (index_document.name, {"document_id": document.pk})
        assert Document.objects.get().index_task == task.pk

    def test_many_saves_are_one_run_and_the_document_knows_it(self) -> None:
        document = make_document()
        for name in ("other.txt", "another.txt"):
            document.name = name
            document.save()

        assert Task.objects.count() == 3
        assert drain() == 1
        assert Task.objects.filter(error_code="MERGED").count() == 2
        assert Document.objects.get().index_task == Task.objects.get(status="COMPLETED").pk

    def test_a_save_after_an_indexing_sends_another(self) -> None:
        document = make_document()
        drain()
        document.save()

        assert drain() == 1

    def test_a_fixture_sends_nothing(self) -> None:
        Document(name="fixture.txt", kind="text", size=0, digest="0" * 64).save_base(raw=True)
        assert (Document.objects.count(), Task.objects.count()) == (1, 0)

    def test_a_document_on_another_database_sends_nothing(self) -> None:
        with transaction.atomic():
            document = make_document()

        post_save.send(
            Document,
            instance=document,
            created=True,
            raw=False,
            using="archive",
            update_fields=None,
        )

        assert Task.objects.count() == 1

    def test_a_document_that_is_rolled_back_takes_its_task_along(self) -> None:
        with transaction.atomic():
            make_document()
            assert Task.objects.count() == 1
            transaction.set_rollback(True)

        assert not Task.objects.exists()

    def test_indexing_twice_changes_nothing(self) -> None:
        document = make_document(PROSE * 3)
        drain()
        before = sorted(Fingerprint.objects.values_list("value", flat=True))

        index_document.send(document.pk)
        drain()

        assert sorted(Fingerprint.objects.values_list("value", flat=True)) == before
        assert len(before) > 10

    def test_a_document_that_was_deleted_before_it_was_indexed_fails_with_a_code(self) -> None:
        document = make_document()
        handle = index_document.handle(Task.objects.get().pk)

        document.delete()
        drain(raise_errors=False)

        assert handle.get(timeout_ms=0).err_value.error_code == "DOCUMENT_GONE"
