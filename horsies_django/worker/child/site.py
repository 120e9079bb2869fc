"""Names the place in the project's own code where a task failed, by which failures can be grouped."""

from __future__ import annotations

import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

import horsies_django

# Where code is that is not the project's: the standard library, installed packages, this package
ELSEWHERE = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(horsies_django.__file__).parent)}
)


def site_of(error: BaseException) -> tuple[str, int] | None:
    """Return the last place of a traceback in the project's code, as ``shop/tasks.py in charge``, and its line, or None."""
    found, entry = None, error.__traceback__
    while entry is not None:
        if (path := project_path(entry.tb_frame.f_code.co_filename)) is not None:
            found = f"{path} in {entry.tb_frame.f_code.co_name}", entry.tb_lineno
        entry = entry.tb_next
    return found


@lru_cache(maxsize=1_000)
def project_path(filename: str) -> str | None:
    """Return the path of a file of the project below the folder from which it is imported, None for other files."""
    path = Path(filename)
    if filename.startswith("<") or any(path.is_relative_to(folder) for folder in ELSEWHERE):
        return None
    roots = [root for root in sys.path if root and path.is_relative_to(root)]
    return str(path.relative_to(max(roots, key=len))) if roots else filename
