"""The pages and the picture of runs work in a real browser: light, dark, narrow and by keyboard.

They also work while a run goes on, and for large runs.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
import re
from typing import Any

import pytest
from django.urls import reverse

from horsies_django import Workflow
from horsies_django.models import Task
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.browser.test_admin import (
    CONTRASTS,
    LUMINANCE,
    WIDE,
    Look,
    assert_all_readable,
    assert_readable,
    look,
    playwright,
    pytestmark,
)

__all__ = ["look", "pytestmark"]

NARROW = 390
CANVAS = ".horsies-canvas"
SHIP = 9  # the number of the node "ship" in the order

# Texts of boxes that reach out of their box or overlap with another text in it.
UNFIT = """boxes => boxes.flatMap(box => {
  const inside = box.querySelector(".horsies-outline").getBBox();
  const texts = [...box.querySelectorAll("text")].map(text => text.getBBox());
  const [right, bottom] = [inside.x + inside.width, inside.y + inside.height];
  const out = texts.filter(text => text.x + text.width > right || text.y + text.height > bottom);
  const upon = texts.filter((text, n) =>
    texts.some((other, m) => m < n && text.y + 3 < other.y + other.height));
  return out.length || upon.length ? [box.id] : [];
})"""
# Ratios of the luminance of each line, outline and icon to its background: WCAG demands 3 for
# graphics.
SHAPES = f"""shapes => shapes.map(shape => {{
  {LUMINANCE}
  const behind = getComputedStyle(document.querySelector(".horsies-canvas")).backgroundColor;
  const probe = document.createElement("i");
  document.body.append(probe);
  probe.style.setProperty("color", getComputedStyle(shape).getPropertyValue("--horsies-status"));
  const [low, high] = [getComputedStyle(probe).color, behind].map(luminance).sort((a, b) => a - b);
  probe.remove();
  return (high + 0.05) / (low + 0.05);
}})"""


def address(handle: Any) -> str:
    return reverse("admin:horsies_workflowrun_picture", args=(handle.workflow_id,))


@pytest.fixture
def order(transactional_db: None) -> Any:
    """Send a run with nodes of all kinds: done, failed, running, waiting and still to come.

    Return its handle.
    """
    partners = Workflow("notify partners")
    partners.add(flows.number, 1)

    flow = Workflow("order", key="order 4711")
    reserved = flow.add(flows.page, "en", 3, name="reserve the stock")
    charged = flow.add(flows.number, 4, name="charge the card of the customer", after=reserved)
    parcels = flow.add(flows.numbers, 9, name="split into parcels", after=reserved)
    packed = flow.map(flows.odd_fails, n=parcels, name="pack")

    approved = flow.gate(
        "approve the shipping", after=[charged], permission="horsies.configure_queue"
    )
    paid = flow.signal("paid", name="wait for the payment", after=charged)
    tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(hours=20)
    night = flow.until(tomorrow, name="a night to revoke it", after=charged)

    flow.add(partners, name="notify partners", after=charged)
    flow.add(flows.skips, name="wrap as a gift", when=reserved.matches('$.language == "de"'))
    shipped = flow.add(flows.number, 5, name="ship", after=[approved, paid, night])
    flow.add(
        flows.number,
        6,
        name="shop.warehouse.tasks.send_the_receipt_with_all_parcels",
        after=[shipped, charged],
    )
    flow.add(flows.number, 7, name="report", after=packed)

    handle = flow.send()
    drain(raise_errors=False)
    return handle


def test_a_picture_is_readable_at_any_width(look: Look, order: Any) -> None:
    """A picture is readable at any width, and only its frame scrolls sideways."""
    page = look(address(order))

    for scheme, width in itertools.product(("light", "dark"), (1_280, NARROW)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.reload()

        canvas = page.locator(CANVAS)
        assert canvas.evaluate("canvas => canvas.scrollWidth > canvas.clientWidth") == (
            width == NARROW
        )

        boxes = page.locator(".horsies-box")
        assert boxes.count() == 12
        assert boxes.evaluate_all(UNFIT) == []
        assert min(page.locator(".horsies-drawing .horsies-icon").evaluate_all(SHAPES)) >= 3

        texts = page.locator(".horsies-badge, .horsies-legend li, .horsies-zoom button")
        assert min(texts.evaluate_all(CONTRASTS)) >= 4.5

        first = page.locator("#horsies-node-0")
        assert first.evaluate(
            "(box, canvas) => { const [a, b] = [box, canvas].map(each => "
            "each.getBoundingClientRect());"
            " return a.left >= b.left && a.right <= b.right }",
            canvas.element_handle(),
        ), "the first box is in sight"


def test_the_picture_of_an_undone_import_is_readable(look: Look, transactional_db: None) -> None:
    """The picture of an import is readable while the import waits and after it was undone."""
    flow = Workflow("import file")
    read = flow.add(flows.numbers, 12, name="read_file", undo=flows.note_undo)
    split = flow.add(flows.numbers, 12, name="split_document", after=read)
    measured = flow.map(flows.number, n=split, name="measure_chapter")
    indexed = flow.add(flows.number, 1, name="index_chapters", after=[measured, read])
    review = flow.gate("review", after=indexed)
    cooled = flow.sleep(dt.timedelta(hours=2), name="cooling off", after=review)
    flow.add(flows.number, 2, name="publish", after=[cooled, read])

    handle = flow.send()
    drain()

    assert_readable(look(address(handle)), "workflow", 1)

    handle.reject("review", actor="ada")
    drain(raise_errors=False)

    assert_readable(look(address(handle)), "workflow-undone", 1)


def test_the_keyboard_walks_through_the_boxes_and_opens_one(look: Look, order: Any) -> None:
    """The Tab key walks through the boxes from layer to layer, and Enter opens one."""
    focused = "document.activeElement.id"
    top = "document.activeElement.closest('g[transform]').transform.baseVal[0].matrix.f"
    outline = (
        "getComputedStyle(document.activeElement.querySelector('.horsies-outline')).strokeWidth"
    )

    page = look(address(order))
    link = page.get_by_role("link", name="approve the shipping, gate, waiting, needs a decision")
    playwright.expect(link).to_have_count(1)

    page.locator(CANVAS).focus()
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "horsies-node-0"
    assert page.evaluate(outline) == "4px"

    seen = []
    for _ in range(12):
        seen.append(page.evaluate(top))
        page.keyboard.press("Tab")
    assert seen == sorted(seen), "from layer to layer"

    page.locator(".horsies-skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate(focused) == "horsies-after-picture"

    page.locator("#horsies-node-1").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/nodes/1/")
    playwright.expect(
        page.get_by_role("heading", name="charge the card of the customer")
    ).to_be_visible()

    page.get_by_role("link", name="Picture").click()
    playwright.expect(page.locator("#horsies-node-1")).to_be_in_viewport()


def test_a_picture_follows_its_run_and_keeps_the_focus(look: Look, order: Any) -> None:
    """A picture follows its run and keeps the focus, the scroll position and the size."""
    page = look(address(order))
    page.set_viewport_size({"width": NARROW, "height": 900})
    page.reload()

    charged = page.locator("#horsies-node-1")
    shipped = page.locator(f"#horsies-node-{SHIP}")
    page.get_by_role("button", name="Larger").click()
    width = page.locator(".horsies-drawing").get_attribute("width")

    shipped.focus()
    charged.evaluate("box => { box.mine = 'untouched' }")
    place = page.locator(CANVAS).evaluate("canvas => canvas.scrollLeft")
    playwright.expect(shipped).to_have_attribute("aria-label", "ship, task, pending")

    order.signal("paid")
    order.approve("approve the shipping", actor="ada")
    drain(raise_errors=False, until=dt.timedelta(days=2))

    playwright.expect(shipped).to_have_attribute(
        "aria-label", re.compile("ship, task, completed, took .*"), timeout=20_000
    )
    assert page.evaluate("document.activeElement.id") == f"horsies-node-{SHIP}"
    assert page.locator(CANVAS).evaluate("canvas => canvas.scrollLeft") == place
    assert page.locator(".horsies-drawing").get_attribute("width") == width
    assert charged.evaluate("box => box.mine") == "untouched", "what is the same is not replaced"

    playwright.expect(page.locator("[role=status]")).to_have_text("✕ Failed")
    playwright.expect(page.get_by_text("Waiting for a decision")).to_have_count(0)
    playwright.expect(page.get_by_text("The picture is refreshed")).to_have_count(0)


def test_a_picture_of_a_thousand_nodes_fits_on_request(look: Look, transactional_db: None) -> None:
    """A picture of a thousand nodes is drawn, and its buttons fit it into the frame."""
    chance = random.Random(3)
    flow = Workflow("large")
    rows: list[list[Any]] = []
    for layer in range(25):
        after = [chance.sample(rows[-1], 3) if rows else [] for _ in range(40)]
        rows.append(
            [flow.add(flows.number, n, name=f"step {layer}.{n}", after=after[n]) for n in range(40)]
        )

    handle = flow.send()
    page = look(address(handle))

    assert page.locator(".horsies-box").count() == 1_000
    assert page.evaluate(WIDE) <= 0

    page.get_by_role("button", name="Fit width").click()
    assert page.locator(CANVAS).evaluate("canvas => canvas.scrollWidth <= canvas.clientWidth")

    page.get_by_role("button", name="Fit all").click()
    fits = (
        "canvas => canvas.scrollWidth <= canvas.clientWidth && canvas.scrollHeight <= "
        "canvas.clientHeight"
    )
    assert page.locator(CANVAS).evaluate(fits)

    page.get_by_role("button", name="100 %").click()
    assert not page.locator(CANVAS).evaluate(fits)

    assert Task.objects.filter(workflow_id=handle.workflow_id).count() == 40


def test_without_script_the_picture_is_all_there(look: Look, order: Any) -> None:
    page = look(address(order))
    page.route(
        "**/picture.js",
        lambda route: route.fulfill(status=200, body="", content_type="text/javascript"),
    )
    page.reload()

    assert page.locator(".horsies-box").count() == 12
    playwright.expect(page.get_by_role("button", name="Fit all")).to_have_count(0)

    page.get_by_role("link", name="Reload").click()
    playwright.expect(page.locator(".horsies-box")).to_have_count(12)


# The other pages of runs


def test_pages_of_workflows_are_readable_under_a_strict_policy(look: Look, order: Any) -> None:
    """All pages of workflows are readable and comply with a strict content security policy."""
    order.pause(actor="grace", reason="Look at parcel 3 first.")
    id_ = order.workflow_id
    task = Task.objects.filter(workflow_id=id_, node__isnull=False)[0]

    addresses = {
        "workflow-list": reverse("admin:horsies_workflowrun_changelist"),
        "workflow-run": reverse("admin:horsies_workflowrun_change", args=(id_,)),
        "workflow-node": reverse("admin:horsies_workflowrun_node", args=(id_, SHIP)),
        "workflow-skip": f"{reverse('admin:horsies_workflowrun_skip', args=(id_,))}?node={SHIP}",
        "workflow-task": reverse("admin:horsies_task_change", args=(task.pk,)),
        "workflow-tasks": f"{reverse('admin:horsies_task_changelist')}?workflow={id_}:3",
    }
    badges = {"workflow-list": 2, "workflow-run": 12, "workflow-node": 4, "workflow-tasks": 9}

    assert_all_readable(look, addresses, **badges)
