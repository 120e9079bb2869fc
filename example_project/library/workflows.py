"""The workflow of the library, by which an uploaded file becomes a document for visitors."""

from __future__ import annotations

import datetime as dt

from example_project.library import tasks
from horsies_django import Workflow

IMPORT = "import file"
REVIEW = "review"
REVIEW_TIME = dt.timedelta(days=31)
# The time in which a reviewer can still cancel the import. A real library would have a day, but a
# demo does not run for a day.
COOLING_OFF = dt.timedelta(seconds=2)


def import_file(upload_id: int, review: bool = False) -> Workflow:
    """Return the workflow that imports an upload.

    It reads the file, measures its chapters at the same time, indexes the document and publishes
    it. With ``review``, the document is published only after a person has approved it and the
    cooling-off time has passed.

    If the workflow is sent again for the same upload, the existing run is returned. If the library
    has published the same file before, the file is read and the other nodes are skipped.

    If a node fails, the nodes after it are skipped and the run is FAILED. This is
    ``on_error="fail"``, the default. The run does not wait for a remedy, because a file that is not
    text stays so. A run removes its document if it fails, is rejected, or is cancelled before it
    has published the document.
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
