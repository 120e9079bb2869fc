"""A person runs tasks again in a real browser, is asked about copies, and edits an override without touching its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from horsies_django.models import Queue, Task
from horsies_django.tasks import operations
from tests.browser import test_admin as shared
from tests.browser.test_admin import CONTRASTS, PICTURES, WIDE, look, playwright
from tests.browser.test_admin import browser as browser
from tests.browser.test_admin import crowded as crowded
from tests.browser.test_admin import library as library

pytestmark = shared.pytestmark
LIST = "admin:horsies_task_changelist"


def picture(page: Any, name: str) -> None:
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name}.png", full_page=True)


def readable(page: Any) -> None:
    contrasts = page.locator(".horsies-badge").evaluate_all(CONTRASTS)
    assert all(ratio >= 4.5 for ratio in contrasts), contrasts
    assert page.evaluate(WIDE) <= 0, "it has to be scrolled sideways"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_person_is_asked_before_a_task_is_run_again_once_more(
    browser: Any, live_server: Any, library: Task, scheme: str
) -> None:
    copy = operations.retry(library.pk, actor="ada")
    for _name, page in look(browser, live_server, scheme, {"again-list": reverse(LIST) + "?status=FAILED"}):
        page.locator("#action-toggle").click()
        page.locator("select[name=action]").select_option("retry_tasks")
        page.locator("button[name=index]").click()
        playwright.expect(page.get_by_text("1 of the selected tasks has already been run again.")).to_be_visible()
        playwright.expect(page.get_by_role("link", name=str(copy))).to_be_visible()
        readable(page)
        picture(page, f"again-question-{scheme}")
        page.get_by_role("button", name="Run 2 tasks again").click()
        playwright.expect(page.get_by_text("2 tasks will run again.")).to_be_visible()
        picture(page, f"again-done-{scheme}")
        page.goto(live_server.url + reverse("admin:horsies_task_change", args=(library.pk,)), wait_until="load")
        readable(page)
        picture(page, f"again-original-{scheme}")
        page.get_by_role("link", name=str(copy)).click()
        playwright.expect(page.get_by_text("Copy of")).to_be_visible()
        readable(page)
        picture(page, f"again-copy-{scheme}")
    assert Task.objects.filter(copy_of=library.pk).count() == 2


def test_a_person_who_does_not_touch_the_end_of_an_override_keeps_it(
    browser: Any, live_server: Any, crowded: Queue
) -> None:
    address = {"override-form": reverse("admin:horsies_queue_override", args=("mail",))}
    for _name, page in look(browser, live_server, "light", address):
        page.get_by_label("Concurrency:", exact=True).fill("6")
        page.get_by_label("Reason:").fill("Friday came early.")
        page.get_by_role("button", name="Override").click()
        playwright.expect(page.get_by_text("Queue mail: Overridden")).to_be_visible()
    queue = Queue.objects.get(name="mail")
    assert queue.override == {"max_concurrency": 6, "local_limit": None}
    assert queue.override_until == crowded.override_until
    assert f"{crowded.override_until:%f}" != "000000"
