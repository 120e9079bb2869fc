"""Fetches the suite and runs it: ``python -m tests.conformance``."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import django

ROOT = Path(__file__).parents[2]
HAS_OWN = django.VERSION >= (6, 0)
# The backport, under whose names Django's suite runs; it pickles no tasks. Its own suite is not in
# its source distribution.
SUITE_OF_BACKPORT = "6.0.10"


def fetched(version: str, into: Path) -> Path:
    """Return the directory ``tests`` of Django's source distribution."""
    command = [
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary=:all:",
        "--ignore-requires-python",
    ]
    subprocess.run([sys.executable, *command, f"--dest={into}", f"django=={version}"], check=True)

    (archive,) = into.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        wanted = [
            member for member in tar.getmembers() if re.match(r"[^/]+/tests/tasks/", member.name)
        ]
        tar.extractall(into, wanted, filter="data")

    archive.unlink()
    (found,) = into.glob("*/tests")
    return found


def renamed(suite: Path) -> Path:
    """Rewrite the suite to the names of the backport."""
    from horsies_django.backends.backport import HorsiesBackend

    names = {
        "InvalidTask": HorsiesBackend.api.invalid_task,
        "InvalidTaskBackend": HorsiesBackend.api.invalid_backend,
    }

    for path in (suite / "tasks").glob("*.py"):
        text = path.read_text().replace("django.tasks", "django_tasks")
        for name, kind in names.items():
            text = re.sub(rf"\b{name}\b", kind.__name__, text)
        path.write_text(text)

    return suite


def suites(work: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield the package of the tested backend, the name of the suite, and its directory.

    The directory is added to the path.
    """
    if HAS_OWN:
        yield (
            "django.tasks",
            f"the suite of Django {django.get_version()}",
            fetched(django.get_version(), work / "own"),
        )
    if importlib.util.find_spec("django_tasks"):
        suite = renamed(fetched(SUITE_OF_BACKPORT, work / "backport"))
        yield (
            "django_tasks",
            f"the suite of Django {SUITE_OF_BACKPORT} under the names of the backport",
            suite,
        )


def main() -> int:
    """Run each suite in a process of its own; return the exit code.

    The suites use a private server unless DATABASE_URL is set.
    """
    work = Path(tempfile.mkdtemp(prefix="horsies-conformance-"))
    codes = []
    try:
        for place in ("own", "backport"):
            (work / place).mkdir()

        for package, name, suite in suites(work):
            print(f"== {name}", flush=True)
            paths = [str(suite), str(ROOT / "tests"), str(ROOT)]
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "DJANGO_SETTINGS_MODULE": "conformance.settings",
                "CONFORMANCE_PACKAGE": package,
            }

            command = [
                sys.executable,
                "-m",
                "django",
                "test",
                "--noinput",
                "-v1",
                "conformance.suite",
            ]

            if not os.environ.get("DATABASE_URL"):
                command = [sys.executable, "-m", "example_project.postgres", *command]
            codes.append(subprocess.run(command, cwd=work, env=environment, check=False).returncode)
    finally:
        shutil.rmtree(work, ignore_errors=True)

    return max(codes, default=1)


if __name__ == "__main__":
    sys.exit(main())
