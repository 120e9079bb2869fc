"""The template tag of the overview, which is shown on the page of the app.

The view of that page belongs to the site, so only a tag can add the overview to it.
"""

from __future__ import annotations

from typing import Any

from django import template

register = template.Library()


@register.inclusion_tag("admin/horsies/overview.html", takes_context=True)
def horsies_overview(context: dict[str, Any]) -> dict[str, Any]:
    """Return the context of the overview for the user and the site of the request."""
    # Projects without the admin also import this module.
    from horsies_django.admin.overview import overview

    return overview(context["request"], context["app_list"])
