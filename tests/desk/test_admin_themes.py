"""Each page and form of the admin in several themes and languages: numbers, forms and buttons."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from django.contrib import admin
from django.contrib.admin import helpers
from django.contrib.auth.models import User
from django.test import Client
from django.urls import include, path

from horsies_django import Workflow
from horsies_django import admin as pages
from horsies_django.admin.tasks.bulk import ActProgress
from horsies_django.models import (
    AuditEntry,
    Queue,
    Schedule,
    Task,
    Worker,
    WorkflowNode,
    WorkflowRun,
)
from horsies_django.tasks import selection
from horsies_django.testing import drain
from tests.apps.project import flows, tasks
from tests.desk.test_admin_users import FORM, Page, ask, everything, pages_of
from tests.support.factories import TaskFactory

pytestmark = pytest.mark.django_db

MIXINS: dict[type[Any], type[Any]] = {
    Task: pages.TaskAdminMixin,
    WorkflowRun: pages.WorkflowAdminMixin,
    Queue: pages.QueueAdminMixin,
    Schedule: pages.ScheduleAdminMixin,
    Worker: pages.WorkerAdminMixin,
    AuditEntry: pages.AuditAdminMixin,
}
NUMERIC = {
    "cols",
    "colspan",
    "cx",
    "cy",
    "data-live",
    "height",
    "max",
    "maxlength",
    "min",
    "r",
    "rows",
    "rx",
    "ry",
    "size",
    "tabindex",
    "width",
    "x",
    "x1",
    "x2",
    "y",
    "y1",
    "y2",
}
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(rem|px|%)?")
GIVEN = {  # the values that a user enters
    "override": {"max_concurrency": "1"},
    "skip": {"number": "2"},
    "edit": {"priority": "7"},
    "add": {"name": "new", "task": tasks.noop.name, "pattern": "0 3 * * *", "kwargs": "{}"},
}


class Form(NamedTuple):
    """A form of a page: its address, and what a browser posts if it is unchanged."""

    action: str
    values: dict[str, str]


class PageParser(HTMLParser):
    """Parses the forms of a page, and its attributes that should be numbers but are not."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.wrong: list[str] = []
        self.links: list[str] = []
        self.area = self.select = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.wrong += [
            f"<{tag} {name}={given[name]!r}>"
            for name in given
            if not self._fits(tag, name, given[name])
        ]

        self.area = given.get("name", "") if tag == "textarea" else ""
        if tag == "a":
            self.links.append(given.get("href", ""))
        if tag == "form":
            self.forms.append(Form(given.get("action", ""), {}))
        if tag == "select":
            self.select = given.get("name", "")
        if not self.forms:
            return

        values = self.forms[-1].values
        name = given.get("name", "")
        if tag == "option" and "selected" in given:
            values[self.select] = given["value"]
        ticked = given.get("type") not in ("checkbox", "radio") or "checked" in given
        if tag == "input" and name and ticked and given.get("type") not in ("submit", "button"):
            values[name] = given.get("value", "on" if "checked" in given else "")
        if tag == "textarea":
            values[name] = ""

    def handle_data(self, data: str) -> None:
        if self.area:
            self.forms[-1].values[self.area] += data

    @staticmethod
    def _fits(tag: str, name: str, value: str) -> bool:
        if name == "viewbox":
            return all(map(NUMBER.fullmatch, value.split()))
        numeric = name in NUMERIC or (tag == "progress" and name == "value")
        return not numeric or NUMBER.fullmatch(value) is not None

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)


def form_with(page: PageParser, field: str) -> Form:
    (form,) = [one for one in page.forms if field in one.values]
    return form


def site_of(theme: str) -> admin.AdminSite:
    """Return the admin site that a theme needs, with our pages."""
    if not theme.startswith("unfold"):
        return admin.site

    sites = pytest.importorskip("unfold.sites", reason="django-unfold is not installed")
    options = pytest.importorskip("unfold.admin")
    site: admin.AdminSite = sites.UnfoldAdminSite()

    if theme == "unfold, installed only":
        pages.register(site)
        return site

    for model, mixin in MIXINS.items():
        site.register(model, type(f"{model.__name__}Admin", (mixin, options.ModelAdmin), {}))
    return site


@pytest.fixture
def site(
    request: pytest.FixtureRequest, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> admin.AdminSite:
    """Return the admin in the theme and the language of the test, with thousands separators."""
    theme, settings.LANGUAGE_CODE = request.param
    settings.USE_THOUSAND_SEPARATOR = True
    app = theme.partition(",")[0]
    urls = ModuleType("urls_of_a_theme")

    if app != "django":
        pytest.importorskip(app, reason=f"the theme {app} is not installed")
        # Its own configuration would replace the site of the whole process.
        settings.INSTALLED_APPS = [
            "unfold.apps.BasicAppConfig" if app == "unfold" else app,
            *settings.INSTALLED_APPS,
        ]

    for name in ("AdminForm", "Fieldset", "Fieldline"):
        # A theme replaces them for the whole process.
        monkeypatch.setattr(helpers, name, getattr(helpers, name))

    found = site_of(theme)
    more = [path("grappelli/", include("grappelli.urls"))] if app == "grappelli" else []
    monitoring = path("horsies/", include("horsies_django.urls"))
    urls.urlpatterns = [path("admin/", found.urls), monitoring, *more]  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = urls

    return found


THEMES = [
    ("django", "de"),
    ("django", "fa"),
    ("unfold", "fr"),
    ("unfold, installed only", "en"),
    ("jazzmin", "de"),
    ("grappelli", "fr"),
]
each_theme = pytest.mark.parametrize("site", THEMES, indirect=True, ids=" in ".join)


def grown_gate() -> WorkflowNode:
    """Return an open gate that a running task added, whose number is therefore above a million."""
    flow = Workflow("grows")
    flow.add(flows.adds_a_gate, "later")
    flow.send()
    drain()
    return WorkflowNode.objects.get(signal="later")


def posted(page: Page, found: PageParser) -> dict[str, str]:
    """Return what a user posts who gives a reason."""
    return {**form_with(found, "seen").values, **GIVEN.get(page.verb, {}), "reason": "why"}


@each_theme
def test_each_page_and_each_form_works_in_each_theme(site: admin.AdminSite, boss: Client) -> None:
    """Each page and each form works, and attributes that programs read are plain numbers.

    Fails if: a page or a form lacks what the templates of a theme read, or such a number has
    separators.
    """
    grown_gate()
    TaskFactory(node_index=1_234)
    all_pages = pages_of(site)
    before = everything()
    wrong = []

    for page in all_pages:
        if page.needs is None or page.verb in ("approve", "reject"):
            continue
        shown, _changed = ask(boss, "get", page.url, {}, before)
        if shown.status_code == 302:
            continue
        found = PageParser(shown.content.decode())
        wrong += [(page.url, shown.status_code)] * (shown.status_code != 200)
        wrong += [(page.url, one) for one in found.wrong]

        if page.verb and page.statuses == FORM and shown.status_code == 200:
            answer, changed = ask(boss, "post", page.url, posted(page, found), before)
            wrong += [(page.url, answer.status_code)] * (answer.status_code != 302 or not changed)

    assert wrong == []


@each_theme
def test_the_page_of_a_row_offers_its_acts_in_each_theme(
    site: admin.AdminSite, boss: Client
) -> None:
    task = TaskFactory(status="FAILED")

    page = PageParser(boss.get(f"/admin/horsies/task/{task.pk}/change/").content.decode())

    offered = {link.split("/")[-2] for link in page.links if f"{task.pk}" in link}
    assert {"retry", "copy", "redact"} <= offered


@each_theme
def test_a_grown_gate_is_decided_in_each_theme(site: admin.AdminSite, boss: Client) -> None:
    gate = grown_gate()
    html = boss.get(
        f"/admin/horsies/workflowrun/{gate.workflow_id}/nodes/{gate.number}/"
    ).content.decode()
    form = form_with(PageParser(html), "opening")

    boss.post(form.action, {**form.values, "reason": "fine"})

    gate.refresh_from_db()
    assert (gate.status, gate.decided_by) == ("COMPLETED", "boss")
    assert 'maxlength="10000"' in html
    assert f'<th scope="row">{gate.number}</th>' not in html, "it is a value, not a heading"
    assert f"<td>{gate.number}</td>" in html, "it can be typed as it is shown"


@each_theme
def test_the_progress_of_an_act_is_a_number(site: admin.AdminSite, boss: Client) -> None:
    chosen = selection.matching("FAILED")
    act = ActProgress(
        User.objects.get().username,
        chosen,
        3_003,
        False,
        "x",
        "retry",
        done=1_500,
        verdicts={"RETRIED": 1_500},
    )

    page = boss.post(
        "/admin/horsies/task/all/", {"act": act.signed(), "stop": "x"}
    ).content.decode()

    found = PageParser(page)
    assert found.wrong == []
    assert re.findall(r"<progress ([^>]*?) class", page) == ['value="1500" max="3003"']


def test_breadcrumbs_are_written_as_django_writes_them(boss: Client) -> None:
    """Fails if: the list of Django 6.1 and later contains the markup of earlier versions."""
    flow = Workflow("order")
    flow.add(flows.number, 1)
    run = flow.send().workflow_id
    of_run = f"/admin/horsies/workflowrun/{run}/change/"
    markup = re.compile(r'<(ol|div) class="breadcrumbs">(.*?)</\1>', re.DOTALL)
    links = ["/admin/", "/admin/horsies/", "/admin/horsies/workflowrun/"]

    own = markup.search(boss.get(of_run).content.decode())
    node = markup.search(boss.get(of_run.replace("change", "nodes/0")).content.decode())
    picture = markup.search(boss.get(of_run.replace("change", "picture")).content.decode())

    assert own is not None
    assert re.findall('href="([^"]*)"', own[2]) == links
    for found, here in ((node, "Node number"), (picture, "Picture of order")):
        assert found is not None
        assert found[1] == own[1]
        assert found[2].count("<li") == (5 if own[1] == "ol" else 0)
        assert re.findall('href="([^"]*)"', found[2]) == [*links, of_run]
        assert re.sub("<[^>]+>", "", found[2]).rstrip().endswith(here)
