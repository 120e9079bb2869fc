"""The admin's pages about schedules work in a real browser, light, dark, narrow and wide.

They comply with a strict content security policy.
"""

from __future__ import annotations

import datetime as dt

import pytest
from django.urls import reverse

from horsies_django import schedules
from horsies_django.models import AuditEntry
from tests.browser.test_admin import CONTRASTS, SETTLED, Look, assert_readable, look, pytestmark
from tests.desk.test_admin_schedules import ADD, LIST, declare, fired, force, make, url
from tests.support.factories import now

__all__ = ["look", "pytestmark"]

INDEX = "documents.tasks.index_documents"
TIDY = "documents.tasks.tidy"
DIGEST = "mail.tasks.send_digest"
BOARD = "report for the board"
OLD = "old report"
LONG = "documents.importer.tasks.import_everything_that_the_supplier_has_sent_since_we_looked"
# The ratio of the luminances of each block, or of its border, and of its background.
BLOCKS = CONTRASTS.replace(
    "getComputedStyle(badge).color,",
    "getComputedStyle(badge).backgroundColor.endsWith(', 0)') ? "
    "getComputedStyle(badge).borderTopColor"
    " : getComputedStyle(badge).backgroundColor,",
).replace("let behind = badge;", "let behind = badge.parentElement;")


@pytest.fixture
def timetable(transactional_db: None) -> None:
    """Create the schedules of a document library.

    Some are declared by its code, some were made in the admin, and one of them is broken.
    """
    patterns = {
        INDEX: "30 4 * * mon-fri",
        TIDY: "every 15 minutes",
        DIGEST: "weekly on mon, thu at 09:00",
        OLD: "monthly on day 15 at 09:00",
    }

    for name, pattern in patterns.items():
        declare(name, pattern=pattern)
        ends = ["FAILED", "EXPIRED", "CANCELLED", "FAILED", "COMPLETED", "COMPLETED", "RUNNING"]
        fired(name, [*["COMPLETED"] * 13, *ends])

    for name in (BOARD, LONG):
        make(name, pattern="monthly on the last day at 18:00", catch_up="all")

    changes = {"pattern": "0 5 * * mon-fri", "queue": "bulk"}
    schedules.change(INDEX, changes, actor="grace", reason="The backup runs until five.")
    schedules.disable(DIGEST, actor="ada", reason="The provider is down.")

    force(OLD, gone_at=now(), next_at=None)
    force(
        TIDY, next_at=now() + dt.timedelta(minutes=7), next_fire_at=now() + dt.timedelta(minutes=7)
    )
    force(BOARD, error="shop.tasks.mail: argument 'to': expected str, got int", error_at=now())


def test_pages_of_schedules_are_readable_under_a_strict_policy(look: Look, timetable: None) -> None:
    """All pages about schedules are readable and comply with a strict content security policy."""
    pages = {
        "schedule": ("change", INDEX),
        "schedule-broken": ("change", BOARD),
        "schedule-off": ("change", DIGEST),
        "schedule-edit": ("edit", INDEX),
        "schedule-run": ("run_now", INDEX),
        "schedule-revert": ("revert", INDEX),
        "schedule-long": ("change", LONG),
        "schedule-long-edit": ("edit", LONG),
    }

    addresses = {
        **{name: url(page, row) for name, (page, row) in pages.items()},
        "schedules": reverse(LIST),
        "schedule-add": reverse(ADD),
        "schedule-audit": reverse("admin:horsies_auditentry_changelist"),
        "schedule-entry": reverse(
            "admin:horsies_auditentry_change", args=(AuditEntry.objects.latest("pk").pk,)
        ),
    }
    badges = {"schedules": 7, "schedule": 14, "schedule-off": 5}

    for name, address in addresses.items():
        page = look(address)
        assert_readable(page, name, badges.get(name, 0))

        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            page.evaluate(SETTLED)
            blocks = page.locator(".horsies-run").evaluate_all(BLOCKS)
            assert all(ratio >= 3 for ratio in blocks), (name, scheme, blocks)
        assert bool(blocks) == (name in badges), name
