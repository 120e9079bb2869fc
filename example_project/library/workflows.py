"""The library's workflow: how an uploaded file becomes a document that visitors find."""

from __future__ import annotations

import datetime as dt

from example_project.library import tasks
from horsies_django import Workflow

IMPORT = "import file"
REVIEW = "review"
REVIEW_TIME = dt.timedelta(days=31)
# Time to change one's mind and cancel the import; in earnest a day, and so short because nobody
# watches a demo for a day.
COOLING_OFF = dt.timedelta(seconds=2)


def import_file(upload_id: int, review: bool = False) -> Workflow:
    """Return the workflow that imports an upload: read it, measure its chapters at the same time,
    index it, publish it.

    With ``review``, it is published only after somebody has approved it and the cooling-off time
    has passed.

    Sending it for the same upload again returns the run that there is. A file that the library has
    published before is read, and the other nodes are skipped. Whatever a node fails with, the nodes
    after it are skipped and the run is FAILED, which is ``on_error="fail"``: a file that is not
    text stays one, so there is nothing to wait for. A run that fails, is rejected, or is cancelled
    before it has published its document removes it.
    """
    flow = Workflow(IMPORT, key=f"upload {upload_id}")
    imported = flow.add(tasks.read_file, upload_id, undo=tasks.remove_document)
    chapters = flow.add(tasks.split_document, imported, when=imported.matches("$.is_new == true"))
    measured = flow.map(tasks.measure_chapter, chapter=chapters)
    ready = flow.add(tasks.index_chapters, imported, measured)

    if review:
        ready = flow.gate(
            REVIEW, permission="library.change_document", timeout=REVIEW_TIME, after=ready
        )
        ready = flow.sleep(COOLING_OFF, name="cooling off", after=ready)

    flow.add(tasks.publish, imported, after=ready)
    flow.returns(imported)
    return flow
