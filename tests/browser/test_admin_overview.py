"""The overview works in a real browser: light, dark and narrow.

It refreshes itself while it is visible, and shows an error when it cannot.
"""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import pytest
from django.urls import reverse

from horsies_django.admin.overview import summaries
from horsies_django.models import Schedule, Worker
from tests.browser.test_admin import (
    CONTRASTS,
    SETTLED,
    Look,
    assert_readable,
    crowded,
    library,
    look,
    playwright,
    pytestmark,
)
from tests.conftest import put, wait_until
from tests.desk.test_admin_overview import anew, counted
from tests.support.factories import now

__all__ = ["anew", "crowded", "library", "look", "pytestmark"]

PERIOD = 10_000  # ms
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""

# The script waits longer after a slow answer, and it measures that with the clock of the test.
COUNT = """() => {
  const ask = window.fetch;
  [window.asked, window.shown, performance.now] = [[], 0, () => 0];
  window.fetch = (...given) => { window.asked.push(given[0]); return ask(...given); };
  document.querySelector("[data-lost]").addEventListener(
    "horsies:shown", () => { window.shown += 1; });
}"""


def overview(query: str = "") -> str:
    return reverse("admin:app_list", args=("horsies",)) + query


def held(page: Any) -> None:
    """Load the page again with a stopped clock, and count the script's requests and updates."""
    page.clock.install(time=0)
    page.reload()
    page.clock.pause_at(PERIOD / 2_000)
    page.evaluate(COUNT)


def asked(page: Any) -> list[str]:
    return list(page.evaluate("asked"))


def again(page: Any) -> None:
    """Advance the clock by one period, and wait until the script has shown the answer."""
    before = len(asked(page))
    page.clock.run_for(PERIOD)
    assert len(asked(page)) == before + 1
    wait_until(lambda: page.evaluate("shown") > before, "it is shown")


@pytest.fixture
def busy(crowded: Any) -> None:
    """Create a day of work, and a few problems."""
    for minutes in range(0, 60, 2):
        rows = [
            ("mail", "mail.tasks.send_newsletter", "COMPLETED", 40 + 30 * (minutes % 7)),
            ("mail", "mail.tasks.send_newsletter", "PROVIDER_REFUSED", 9 * (minutes % 3)),
            ("mail", "", "CLAIMED", 80),
            ("default", "documents.tasks.import_file", "COMPLETED", 300 - 4 * minutes),
            ("default", "documents.tasks.import_file", "NOT_TEXT", 2),
        ]
        counted(*rows, ago=dt.timedelta(minutes=minutes), seconds=minutes % 9)
    Worker.objects.exclude(stopped_at=None).delete()  # the workers of the counts

    night = {"task": "documents.tasks.reindex", "pattern": "0 3 * * *", "zone": "UTC"}
    Schedule.objects.bulk_create(
        [Schedule(name="reindex", changes=night, next_at=now() - dt.timedelta(hours=2))]
    )


def test_it_is_readable_at_any_width(look: Look, busy: None) -> None:
    page = look(overview())

    assert_readable(page, "overview", 3)

    for scheme, width in itertools.product(("dark", "light"), (390, 768, 1_400)):
        page.emulate_media(color_scheme=scheme)
        page.evaluate(SETTLED)
        page.set_viewport_size({"width": width, "height": 900})

        quiet = page.locator(".horsies-overview :is(.horsies-quiet, td, th, a)")
        assert min(quiet.evaluate_all(CONTRASTS)) >= 4.5

        chart = page.get_by_role("img", name="mail, Last hour: least")
        playwright.expect(chart).to_be_visible()
        playwright.expect(page.get_by_role("heading", name="Problems")).to_be_in_viewport()
        assert (
            chart.evaluate("chart => chart.getBoundingClientRect().right < innerWidth")
            or width == 768
        )

        label = page.locator("td", has=chart).evaluate(
            "cell => getComputedStyle(cell, '::before').content"
        )
        assert label == ('"Finished"' if width < 600 else "none"), (
            "a column has its name in a card, too"
        )


def test_a_refresh_shows_a_new_failure_and_keeps_the_focus(look: Look, busy: None) -> None:
    """A refresh shows a new failure without a reload and keeps the focus."""
    page = look(overview("?span=day"))
    held(page)

    failures = page.get_by_role("heading", name="Most failures").locator("xpath=..")
    queue = page.get_by_role("rowheader", name="mail").get_by_role("link")
    queue.focus()
    queue.evaluate("link => { link.mine = 'untouched' }")
    playwright.expect(failures).not_to_contain_text("charge")

    counted(("default", "shop.tasks.charge", "CARD_DECLINED", 4_000))
    put(2, queue="mail")
    summaries.kept.clear()
    assert asked(page) == []

    page.clock.run_for(PERIOD)

    playwright.expect(failures).to_contain_text("4,000 × shop.tasks.charge CARD_DECLINED")
    assert asked(page) == [page.url]
    assert queue.evaluate("link => link.mine") == "untouched", "what is the same is not replaced"
    assert page.evaluate("document.activeElement.textContent") == "mail"


def test_the_overview_refreshes_itself_only_while_it_is_visible(look: Look, busy: None) -> None:
    page = look(overview())
    held(page)

    again(page)
    again(page)
    assert len(asked(page)) == 2

    page.evaluate(HIDE, True)
    page.clock.run_for(20 * PERIOD)
    assert len(asked(page)) == 2

    page.evaluate(HIDE, False)
    page.clock.run_for(1)
    assert len(asked(page)) == 3, "at once"
    wait_until(lambda: page.evaluate("shown") == 3, "it is shown")


def test_the_overview_reports_a_failed_refresh_and_recovers(look: Look, busy: None) -> None:
    page = look(overview())
    held(page)

    page.route(
        "**/admin/horsies/",
        lambda route: route.fulfill(status=200, body="<p>Log in</p>", content_type="text/html"),
    )
    page.clock.run_for(PERIOD)

    playwright.expect(page.get_by_text("The overview could not be refreshed.")).to_be_visible()
    playwright.expect(page.get_by_role("heading", name="Queues")).to_be_visible()

    page.unroute("**/admin/horsies/")
    page.clock.run_for(2 * PERIOD)

    playwright.expect(page.get_by_text("Read at")).to_be_visible()
