"""Unchanged apps from PyPI that send by ``django.tasks`` work in a project with ``HorsiesBackend``.

``make thirdparty`` runs these tests.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.sites import Site, new_databases

pytestmark = pytest.mark.django_db(transaction=True)
pytest.importorskip("wagtail", reason="make thirdparty installs it")
PROJECT = Path(__file__).with_name("project")

SETUP = """
import json
import django; django.setup()
from django.core.files.base import ContentFile
from django.db import transaction
from horsies_django.models import Task

def rows():
    return [
        [row.task_name, row.queue_name, row.status]
        for row in Task.objects.order_by("sent_at", "id")
    ]
"""


class Project(Site):
    """A copy of the project, whose worker runs until no task is left."""

    def work(self) -> None:
        self.manage("horsies_worker", "--processes=1", "--until-empty")

    def tell(self, script: str) -> Any:
        return json.loads(self.run("-c", SETUP + script))


@pytest.fixture
def project(transactional_db: None, tmp_path: Path) -> Iterator[Project]:
    directory = tmp_path / "project"
    shutil.copytree(PROJECT, directory)

    with new_databases("thirdparty") as new_database:
        made = Project(
            directory, "essays.settings", new_database(), MEDIA_ROOT=str(tmp_path / "media")
        )

        made.manage("check")
        made.manage(
            "makemigrations",
            "essays",
            *(["portraits"] if find_spec("pictures") else []),
            "--verbosity=0",
        )
        made.manage("migrate", "--verbosity=0")
        made.work()

        yield made


WRITE = """
from essays.models import Essay
from wagtail.models import Page
Task.objects.all().delete()
root = Page.objects.get(depth=1)
try:
    with transaction.atomic():
        root.add_child(
            instance=Essay(title="Withdrawn", slug="withdrawn", body="nothing but a canter")
        )
        raise LookupError
except LookupError:
    pass
assert not Task.objects.exists()
root.refresh_from_db()
muse = root.add_child(instance=Essay(title="Muse", slug="muse", body="a walk"))
root.add_child(instance=Essay(title="On horses", slug="horses", body="they gallop", about=muse))
print(json.dumps(rows()))
"""
READ = """
from essays.models import Essay
from wagtail.models import ReferenceIndex
muse = Essay.objects.get(slug="muse")
words = ("gallop", "canter", "trot")
found = {word: [essay.slug for essay in Essay.objects.search(word)] for word in words}
about = ReferenceIndex.get_references_to(muse).filter(model_path="about").count()
statuses = sorted({status for _, _, status in rows()})
print(json.dumps({"found": found, "about": about, "statuses": statuses}))
"""
EDIT = """
from essays.models import Essay
essay = Essay.objects.get(slug="horses")
essay.body, essay.about = "they trot", None
essay.save_revision().publish()
print(json.dumps(len(rows())))
"""


def test_wagtail_indexes_its_pages_in_a_worker(project: Project) -> None:
    """Wagtail sends its index tasks with the page's commit, and a worker updates the index.

    Fails if: a task of Wagtail is refused, not found by the worker, or sent although its page was
    rolled back.
    """
    sent = project.tell(WRITE)
    names = {
        "modelsearch.tasks.insert_or_update_object_task",
        "wagtail.tasks.update_reference_index_task",
    }

    assert {name for name, _, _ in sent} == names
    assert {(queue, status) for _, queue, status in sent} == {("default", "PENDING")}
    nothing = {"gallop": [], "canter": [], "trot": []}
    assert project.tell(READ) == {"found": nothing, "about": 0, "statuses": ["PENDING"]}

    project.work()
    assert project.tell(READ) == {
        "found": nothing | {"gallop": ["horses"]},
        "about": 1,
        "statuses": ["COMPLETED"],
    }

    assert project.tell(EDIT) > len(sent)
    project.work()
    assert project.tell(READ) == {
        "found": nothing | {"trot": ["horses"]},
        "about": 0,
        "statuses": ["COMPLETED"],
    }


SAVE = """
from io import BytesIO
from PIL import Image
from portraits.models import Portrait
Task.objects.all().delete()
stream = BytesIO()
Image.new("RGB", (200, 200), "navy").save(stream, "PNG")
with transaction.atomic():
    portrait = Portrait(picture=ContentFile(stream.getvalue(), name="ada.png"))
    portrait.save()
    assert not Task.objects.exists()
print(json.dumps(rows()))
"""
LOOK = """
from portraits.models import Portrait
pictures = [
    picture
    for portrait in Portrait.objects.all()
    for picture in portrait.picture.get_picture_files_list()
]
print(json.dumps({picture.name: picture.path.exists() for picture in pictures}))
"""
DELETE = """
from portraits.models import Portrait
portrait = Portrait.objects.get()
paths = [str(picture.path) for picture in portrait.picture.get_picture_files_list()]
portrait.picture.delete()
print(json.dumps(paths))
"""


@pytest.mark.skipif(
    not find_spec("pictures"), reason="django-pictures sends by Django's own tasks, since 6.0"
)
def test_pictures_are_made_in_a_worker(project: Project) -> None:
    """A worker of the app's own queue makes and deletes the smaller pictures.

    Fails if: nested tuples and lists are refused as arguments, or the queue that the app names is
    not served.
    """
    assert project.tell(SAVE) == [
        ["pictures.tasks.process_picture_with_django_tasks", "pictures", "PENDING"]
    ]

    waiting = project.tell(LOOK)
    assert len(waiting) == 4
    assert not any(waiting.values())

    project.work()
    assert all(project.tell(LOOK).values())

    paths = project.tell(DELETE)
    project.work()

    assert not any(Path(path).exists() for path in paths)
    assert [status for _, _, status in project.tell("print(json.dumps(rows()))")] == [
        "COMPLETED"
    ] * 2
