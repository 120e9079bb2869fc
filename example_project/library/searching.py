"""Find documents by their words, and pairs of documents that are nearly the same."""

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
# Characters that no text of the library contains by accident; PostgreSQL puts them around what it
# found.
START = "\x02"
STOP = "\x03"

# Counting what two samples share is a join on the fingerprint's value, which its primary key
# serves.
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
    """Two documents and the share of their text, from 0 to 1, that is estimated to be common."""

    one_id: int
    one_path: str
    other_id: int
    other_path: str
    similarity: float

    @property
    def percent(self) -> int:
        """The similarity in whole percent; only equal texts have all of it."""
        return min(99, round(self.similarity * 100))


def near_duplicates(limit: int) -> list[NearDuplicate]:
    """Return the pairs that are most alike, without those that are the same to the byte."""
    params = {"least": LEAST_SHARED, "similarity": LEAST_SIMILARITY, "limit": limit}
    with connection.cursor() as cursor:
        cursor.execute(NEAR_DUPLICATES, params)
        return [NearDuplicate(*row) for row in cursor.fetchall()]


def search(words: str) -> QuerySet[Document]:
    """Return the best hits for what a person typed: words, "a phrase" in quotes, or, -without."""
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
    """Return a headline as HTML: the text escaped, what was found in <mark>."""
    text = escape(headline).replace(START, "<mark>").replace(STOP, "</mark>")
    return mark_safe(text)  # noqa: S308 - escaped above
