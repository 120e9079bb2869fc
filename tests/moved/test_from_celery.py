"""The code of the page "Come from Celery" works.

Its blocks form a project before and after the move.

Both projects do the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import DOCS, files
from tests.support.sites import Site, new_databases

pytestmark = pytest.mark.django_db(transaction=True)
pytest.importorskip("celery")

PAGE = DOCS / "howto" / "from-celery.md"
SKELETON = Path(__file__).parent / "skeleton"


HANDED_OVER = """
import django; django.setup()
from shop.celery import app
from shop.celery_tasks import hand_over_confirm
from shop.models import Mail, Order
from horsies_django.testing import drain
app.finalize()
order = Order.objects.create(number=9, address="ada@example.org")
app.tasks["shop.tasks.confirm"].delay(order.pk)
assert not Mail.objects.exists()
assert drain() == 1
print(Mail.objects.get().text)
"""


class Project(Site):
    """The project before or after the move."""

    def __init__(self, directory: Path, kind: str, url: str) -> None:
        super().__init__(directory, "shop.settings", url)
        shutil.copytree(SKELETON, directory)

        for name, code in files(PAGE, kind).items():
            target = directory / name
            target.write_text((target.read_text() + "\n" if target.exists() else "") + code)

        shutil.copy(SKELETON / f"outcomes_{kind}.py", directory / "shop" / "outcomes.py")
        self.manage("migrate", "--run-syncdb", "--verbosity=0")

    def tell(self, **environment: str) -> Any:
        return json.loads(self.run("-m", "shop.story", **environment))


@pytest.fixture
def project(transactional_db: None, tmp_path: Path) -> Iterator[Callable[[str], Project]]:
    """Return a function that builds the project before or after the move."""
    with new_databases("moved") as new_database:
        number = count()
        yield lambda kind: Project(tmp_path / f"{kind}-{next(number)}", kind, new_database())


def test_the_moved_project_does_the_same_as_celery_in_eager_mode(
    project: Callable[[str], Project],
) -> None:
    """The project behaves the same before and after the move.

    Fails if: an idiom of the page retries once more or less, passes another argument, or runs a
    task that was rolled back.
    """
    before = project("before").tell()

    assert before["outcomes"]["bill"] == ["ok", "payment for 7"]
    assert before["outcomes"]["ship"] == ["error", "ConnectionError"]
    assert [number for _, number in before["calls"]] == [7] * 6
    assert before["orders"] == [[7, "ada@example.org", 840]]
    assert len(before["mails"]) == 3

    for runner in ("drain", "worker"):
        assert project("after").tell(RUNNER=runner) == before, runner


def test_schedules_and_messages_of_celery_are_taken_over(project: Callable[[str], Project]) -> None:
    """Schedules and waiting messages of Celery are taken over.

    Fails if: a crontab loses its zone, a positional argument its name, or both systems refuse the
    same name of a task.
    """
    moved = project("after")
    settings = moved.directory / "shop" / "settings.py"
    before = files(PAGE, "before")["shop/settings.py"]
    shown: dict[str, Any] = {"INSTALLED_APPS": []}
    exec(files(PAGE, "after")["shop/settings.py"], shown)
    settings.write_text(f"{settings.read_text()}\ndel HORSIES['SCHEDULES']\n{before}")

    printed: dict[str, Any] = {"HORSIES": {}}
    exec(moved.manage("horsies_import_beat", "--print"), printed)

    assert printed["HORSIES"]["SCHEDULES"] == shown["HORSIES"]["SCHEDULES"]

    moved.manage("horsies_import_beat")
    listed = json.loads(moved.manage("horsies_schedule", "list", "--json"))

    assert {one["name"]: one["task"] for one in listed} == {
        "report": "shop.tasks.render",
        "tick": "shop.tasks.label",
    }

    # A Celery task of the old name hands over messages of the old system that are still in the
    # broker.
    assert moved.run("-c", HANDED_OVER) == "order 9 is confirmed\n"
