"""The search for a phrase of a document.

A phrase is a few plain words next to each other in one line.
"""

from __future__ import annotations

import re

from django.db.models import QuerySet
from django.urls import reverse

from example_project.demo.browser import Browser
from example_project.demo.facts import Search
from example_project.library.models import Document

SOURCES = 60
MOST_HITS = 3
PLAIN_WORDS = re.compile(
    r"(?:^|(?<=\s))[A-Za-z]{3,15}(?: [A-Za-z]{3,15}){4,6}(?=\s|$)", re.MULTILINE
)


def first_phrase(text: str) -> str | None:
    """Return the first phrase of a text, or None."""
    found = PLAIN_WORDS.search(text)
    return found.group() if found else None


def search(browser: Browser, documents: QuerySet[Document]) -> Search | None:
    """Search the site for a phrase that few documents contain, and return the result.

    It contains whether the document of the phrase is among the hits. None is returned if no
    document has such a phrase.
    """
    for pk, text in documents.order_by("pk").values_list("pk", "text")[:SOURCES]:
        phrase = first_phrase(text)
        if phrase and Document.objects.filter(text__contains=phrase).count() <= MOST_HITS:
            document = Document.objects.only("folder", "name").get(pk=pk)
            page = browser.get(reverse("library:search"), q=f'"{phrase}"')
            return Search(phrase, document.path, f'href="{document.get_absolute_url()}"' in page)

    return None
