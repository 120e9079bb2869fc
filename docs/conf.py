"""Builds the pages as a site: ``make docs``. What is public is documented from its docstrings, in
reference/api.md.
"""

from __future__ import annotations

import re
from typing import Any

import django
from django.conf import settings
from pygments.lexers.sql import PostgresLexer
from sphinx.highlighting import lexers

import horsies_django

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "horsies"}},
    INSTALLED_APPS=[
        *(
            f"django.contrib.{name}"
            for name in ("admin", "auth", "contenttypes", "messages", "sessions")
        ),
        "horsies_django",
    ],
    USE_TZ=True,
)
django.setup()

project = "horsies_django"
author = copyright = "The horsies_django authors"
release = version = horsies_django.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"horsies_django {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]

lexers["sql"] = PostgresLexer()  # that of standard SQL does not know $$

smartquotes = False  # quotes in docstrings are those of code

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
add_module_names = False
# Types of other libraries have no page here, and those of ours are public or not worth one.
nitpick_ignore_regex = [("py:.*", r".*")]


def add_toctrees(app: Any, page: str, source: list[str]) -> None:
    """Make the lists of pages in index.md the table of contents: a page is linked there, and
    nowhere else.
    """
    if page != "index":
        return

    for caption, part in re.findall(
        r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", source[0], re.MULTILINE | re.DOTALL
    ):
        pages = dict.fromkeys(re.findall(r"\]\(([\w/-]+)\.md\)", part))
        source[0] += "\n".join(
            ["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""]
        )


def setup(app: Any) -> None:
    app.connect("source-read", add_toctrees)
