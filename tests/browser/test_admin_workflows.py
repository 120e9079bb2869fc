"""The pages of workflow runs in a real browser: light and dark, under a strict content security policy."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from horsies_django import Workflow
from horsies_django.models import Task, WorkflowNode
from horsies_django.testing import drain
from tests.apps.project import flows
from tests.browser.test_admin import CHROMIUM, CONTRASTS, PICTURES, WIDE, look
from tests.browser.test_admin import browser as browser

playwright = pytest.importorskip("playwright.sync_api", reason="no browser tests: playwright is not installed")
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not CHROMIUM, reason="no browser tests: chromium is not installed (apt-get install chromium)"),
]


@pytest.fixture
def imports(transactional_db: None) -> Any:
    """A finished run, a failed one and one at work, which this returns: its first node has run, a map is half done."""
    simple = Workflow("nightly report", key="2026-11-23")
    simple.add(flows.number, 1)
    simple.send()
    broken = Workflow("import book", key="book 6", on_error="stop")
    broken.add(flows.plus, broken.add(flows.broken, 6), name="publish")
    broken.send()
    drain(raise_errors=False)
    chapters = Workflow("index chapters")
    chapters.add(flows.number, 1)
    flow = Workflow("import book", key="book 7", max_in_flight=20)
    page = flow.add(flows.page, "en", 12, name="fetch the book with a rather long name")
    parts = flow.add(flows.numbers, 6, name="split")
    done = flow.map(flows.odd_fails, n=parts, name="index")
    flow.add(chapters, name="chapters")
    flow.add(flows.number, 1, after=done, when=page.matches('$.language == "en"'), name="publish")
    flow.add(flows.number, 1, when=page.matches('$.language == "de"'), name="translate")
    handle = flow.send()
    drain(raise_errors=False)
    handle.retry(actor="ada", reason="The disk of the index was full.")
    handle.pause(actor="grace", reason="Look at chapter 3 first.")
    handle.resume(actor="grace")
    return handle


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_of_workflows_is_readable_and_keeps_to_a_strict_policy(
    browser: Any, live_server: Any, imports: Any, scheme: str
) -> None:
    id_ = imports.workflow_id
    publish = WorkflowNode.objects.get(workflow_id=id_, name="publish")
    task = Task.objects.filter(workflow_id=id_, node__isnull=False).first()
    assert task is not None
    addresses = {
        "workflow-list": reverse("admin:horsies_workflowrun_changelist"),
        "workflow-run": reverse("admin:horsies_workflowrun_change", args=(id_,)),
        "workflow-node": reverse("admin:horsies_workflowrun_node", args=(id_, publish.number)),
        "workflow-skip": f"{reverse('admin:horsies_workflowrun_skip', args=(id_,))}?node={publish.number}",
        "workflow-task": reverse("admin:horsies_task_change", args=(task.pk,)),
        "workflow-tasks": f"{reverse('admin:horsies_task_changelist')}?workflow={id_}:2",
    }
    badges = {"workflow-list": 4, "workflow-run": 7, "workflow-node": 3}
    for name, page in look(browser, live_server, scheme, addresses):
        contrasts = page.locator(".horsies-badge").evaluate_all(CONTRASTS)
        assert all(ratio >= 4.5 for ratio in contrasts), (name, contrasts)
        assert len(contrasts) >= badges.get(name, 0), name
        assert page.evaluate(WIDE) <= 0, f"{name} has to be scrolled sideways"


def test_a_person_pauses_a_run_and_skips_a_node(browser: Any, live_server: Any, imports: Any) -> None:
    for _name, page in look(
        browser, live_server, "light", {"run": reverse("admin:horsies_workflowrun_change", args=(imports.workflow_id,))}
    ):
        page.get_by_role("link", name="Pause").click()
        page.get_by_label("Reason:").fill("Wait for the editor.")
        page.get_by_role("button", name="Pause").click()
        playwright.expect(page.get_by_text("Workflow paused; status: RUNNING → PAUSED")).to_be_visible()
        page.get_by_role("link", name="publish").click()
        playwright.expect(page.get_by_text("The run is paused since")).to_be_visible()
        page.get_by_role("link", name="Skip", exact=True).click()
        page.get_by_role("button", name="Skip the node").click()
        playwright.expect(page.get_by_text("Node skipped; node: 4")).to_be_visible()
        if PICTURES:
            page.screenshot(path=f"{PICTURES}/workflow-done-light.png", full_page=True)
    assert imports.status() == "PAUSED"
