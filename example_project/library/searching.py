"""The search for documents by their words, and for pairs of documents that are nearly the same."""

from __future__ import annotations

from typing import NamedTuple

from django.contrib.postgres.search import SearchHeadline, SearchQuery, SearchRank
from django.db import connection
from django.db.models import F, QuerySet
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from example_project.library.models import Document

CONFIG = "english"
HITS = 20
# PostgreSQL puts these characters around the words that it found. No text of the library contains
# them by accident.
START = "\x02"
STOP = "\x03"

# The fingerprints that two samples share are counted by a join on their values, which uses the
# index of the primary key.
NEAR_DUPLICATES = """
WITH kept AS (
  SELECT document_id, count(*) AS number FROM library_fingerprint GROUP BY document_id
), pair AS (
  SELECT one.document_id AS one_id, other.document_id AS other_id, count(*) AS shared
  FROM library_fingerprint one
  JOIN library_fingerprint other ON other.value = one.value AND other.document_id > one.document_id
  GROUP BY one.document_id, other.document_id
  HAVING count(*) >= %(least)s
)
SELECT one.id, concat_ws('/', nullif(one.folder, ''), one.name), other.id,
       concat_ws('/', nullif(other.folder, ''), other.name),
       (shared::float8 / (kept_one.number + kept_other.number - shared)) AS similarity
FROM pair
JOIN kept kept_one ON kept_one.document_id = one_id
JOIN kept kept_other ON kept_other.document_id = other_id
JOIN library_document one ON one.id = one_id
JOIN library_document other ON other.id = other_id
WHERE one.is_published AND other.is_published AND one.digest <> other.digest
  AND shared::float8 / (kept_one.number + kept_other.number - shared) >= %(similarity)s
ORDER BY similarity DESC, one.id, other.id
LIMIT %(limit)s
"""
LEAST_SHARED = 15
LEAST_SIMILARITY = 0.3


class NearDuplicate(NamedTuple):
    """Two documents and the estimated share of their text that is common, from 0 to 1."""

    one_id: int
    one_path: str
    other_id: int
    other_path: str
    similarity: float

    @property
    def percent(self) -> int:
        """The similarity in whole percent, at most 99, because the texts are not equal."""
        return min(99, round(self.similarity * 100))


def near_duplicates(limit: int) -> list[NearDuplicate]:
    """Return the pairs of documents that are most alike, without pairs of equal bytes."""
    params = {"least": LEAST_SHARED, "similarity": LEAST_SIMILARITY, "limit": limit}
    with connection.cursor() as cursor:
        cursor.execute(NEAR_DUPLICATES, params)
        return [NearDuplicate(*row) for row in cursor.fetchall()]


def search(words: str) -> QuerySet[Document]:
    """Return the best hits for the words that a person typed.

    A phrase can be in quotes, ``or`` can be between words, and ``-`` before a word excludes it.
    """
    query = SearchQuery(words, config=CONFIG, search_type="websearch")
    headline = SearchHeadline(
        "text",
        query,
        config=CONFIG,
        start_sel=START,
        stop_sel=STOP,
        max_words=30,
        min_words=15,
        max_fragments=1,
    )
    return (
        Document.objects.filter(search=query, is_published=True)
        .defer("text", "search")
        .annotate(rank=SearchRank(F("search"), query), headline=headline)
        .order_by("-rank", "pk")[:HITS]
    )


def marked(headline: str) -> SafeString:
    """Return a headline as escaped HTML, with the words that were found in <mark>."""
    text = escape(headline).replace(START, "<mark>").replace(STOP, "</mark>")
    return mark_safe(text)  # noqa: S308 - escaped above
