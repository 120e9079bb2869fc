"""The tag that shows the overview on the page of the app, whose view belongs to the site."""

from __future__ import annotations

from typing import Any

from django import template

register = template.Library()


@register.inclusion_tag("admin/horsies/overview.html", takes_context=True)
def horsies_overview(context: dict[str, Any]) -> dict[str, Any]:
    """Return what the overview shows to the user of the request, on the site whose page it is."""
    # Projects without the admin load this module, too.
    from horsies_django.admin.overview import overview

    return overview(context["request"], context["app_list"])
