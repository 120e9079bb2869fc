"""Links to the pages of workflow runs and of their nodes."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.admin.utils import quote
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from horsies_django.models import WorkflowRun

NODE_PAGE = "horsies_workflowrun_node"


def node_link(page: Any, request: HttpRequest, run: uuid.UUID, number: int, text: str) -> SafeString | str:
    """Return ``text`` as a link to the page of a node, or as plain text if the site or user has no such page."""
    if not page.admin_site.is_registered(WorkflowRun) or not request.user.has_perm("horsies.view_workflowrun"):
        return text
    return format_html('<a href="{}">{}</a>', node_url(page, run, number), text)


def node_url(page: Any, run: uuid.UUID, number: int) -> str:
    """Return the address of the page of a node."""
    return reverse(f"admin:{NODE_PAGE}", args=(quote(run), number), current_app=page.admin_site.name)
