"""The library's workflow: how an uploaded file becomes a document that visitors find."""

from __future__ import annotations

from example_project.library.tasks import index_chapters, measure_chapter, publish, read_file, split_document
from horsies_django import Workflow

IMPORT = "import file"


def import_file(upload_id: int) -> Workflow:
    """Return the workflow that imports an upload: read it, measure its chapters at the same time, index it, publish it.

    Sending it for the same upload again returns the run that there is. A file that the library has published before is read, and
    the other nodes are skipped. Whatever a node fails with, the nodes after it are skipped and the run is FAILED, which is
    ``on_error="fail"``: a file that is not text stays one, so there is nothing to wait for.
    """
    flow = Workflow(IMPORT, key=f"upload {upload_id}")
    imported = flow.add(read_file, upload_id)
    chapters = flow.add(split_document, imported, when=imported.matches("$.is_new == true"))
    measured = flow.map(measure_chapter, chapter=chapters)
    indexed = flow.add(index_chapters, imported, measured)
    flow.add(publish, imported, after=indexed)
    flow.returns(imported)
    return flow
