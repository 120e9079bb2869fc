"""Two incidents in a real browser, with live workers: a night's failures are mended, and a queue that is late is explained."""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from horsies_django import queues
from horsies_django.models import Task
from tests.apps.project import tasks
from tests.browser import test_admin as shared
from tests.browser.test_admin import browser as browser
from tests.browser.test_admin import look, playwright
from tests.conftest import wait_until
from tests.desk.test_admin_overview import anew as anew
from tests.support.workers import Start, held_by, let_go
from tests.support.workers import worker as worker

pytestmark = shared.pytestmark
OVERVIEW = {"overview": reverse("admin:app_list", args=("horsies",))}
MANY, ATTEMPTS = 6, 3


def statuses() -> set[str]:
    return set(Task.objects.values_list("status", flat=True))


def test_a_nights_failures_run_again_after_four_clicks(browser: Any, live_server: Any, worker: Start) -> None:
    night = worker("--processes=1").ready()
    for _ in range(MANY):
        tasks.mails.send(MANY * ATTEMPTS)  # fail so often, all of them together
    wait_until(lambda: statuses() == {"FAILED"}, "all have failed")
    assert night.stop() == 0  # it writes what it counted
    worker("--processes=1").ready()
    for _name, page in look(browser, live_server, OVERVIEW):
        failures = page.get_by_role("heading", name="Most failures").locator("xpath=..")
        playwright.expect(failures).to_contain_text(f"{MANY} × {tasks.mails.name} MAIL_DOWN")
        failures.get_by_role("link", name=str(MANY)).click()
        playwright.expect(page.locator("#result_list tbody tr")).to_have_count(MANY)
        page.get_by_role("link", name="Act on all that match").click()
        page.get_by_role("button", name="Count them").click()
        page.get_by_role("button", name="Retry all").click()
        playwright.expect(page.get_by_text(f"RETRIED: {MANY}")).to_be_visible()
        wait_until(lambda: statuses() == {"COMPLETED"}, "all have completed")
        page.goto(live_server.url + OVERVIEW["overview"], wait_until="load")
        failures.get_by_role("link", name=str(MANY)).click()
        playwright.expect(page.get_by_text("Nothing to show.")).to_be_visible()


def test_a_late_queue_is_explained_after_two_clicks(browser: Any, live_server: Any, worker: Start) -> None:
    queues.change("default", {"max_concurrency": 1}, actor="ada")
    worker("--processes=2").ready()
    tasks.hold.send("late")
    held_by("late")
    for _ in range(MANY):
        tasks.echo.send("late")
    for _name, page in look(browser, live_server, OVERVIEW):
        row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="default"))
        playwright.expect(row).to_contain_text("1 of 1")
        row.get_by_role("link", name=str(MANY), exact=True).click()
        page.locator("#result_list tbody a").last.click()
        headline = page.locator(".horsies-headline")
        playwright.expect(headline).to_contain_text("default is at its cap 1 of 1")
        let_go("late")
        wait_until(lambda: statuses() == {"COMPLETED"}, "all have completed")
        page.reload()
        playwright.expect(headline).to_contain_text("Completed")
