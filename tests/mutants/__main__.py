"""``make mutants``: makes each edit in a copy of the tree; the tests named for it must fail.

Arguments are numbers of edits; without any, all are made. The exit code is 1 unless every edit is
caught: its anchor exists, its tests pass in the unchanged tree, and each of them fails by an
assertion in the edited copy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.edits import EDITS, Edit
from tests.mutants.verdicts import ASSERTED, PASSED

ROOT = Path(__file__).parents[2]
LONGEST_SECONDS = 600
Verdicts = dict[str, list[str]]  # how each test ended: once for each of its cases


def main(arguments: Sequence[str]) -> int:
    chosen = [edit for edit in EDITS if not arguments or str(edit.number) in arguments]
    if lost := [problem for edit in chosen if (problem := edit.problem(ROOT))]:
        print("\n".join(lost))
        return 1

    began = time.monotonic()
    with (
        TemporaryDirectory(prefix="horsies-mutants-") as folder,
        ThreadPoolExecutor(os.cpu_count() or 1) as threads,
    ):
        tests = sorted({test for edit in chosen for test in edit.tests})
        unedited = threads.submit(run, Path(folder) / "unedited", tests)
        edited = [
            threads.submit(run, Path(folder) / f"edit-{edit.number}", edit.tests, edit)
            for edit in chosen
        ]
        try:
            told = [
                tell(edit, unedited.result(), found.result())
                for edit, found in zip(chosen, edited, strict=True)
            ]
        except BaseException:
            threads.shutdown(cancel_futures=True)  # no further run begins
            raise

    print(f"{sum(told)} of {len(told)} caught, in {time.monotonic() - began:.0f} s")
    return 0 if told and all(told) else 1


def tell(edit: Edit, unedited: Verdicts, edited: Verdicts) -> bool:
    """Print the result of an edit, and return whether it was caught."""
    faults = list(problems(edit, unedited, edited))
    print(f"{edit.number:>3}  {'NOT caught' if faults else 'caught    '}  {edit.what}", flush=True)
    for line in faults or edit.tests:
        print(f"{'':17}{line}", flush=True)
    return not faults


def problems(edit: Edit, unedited: Verdicts, edited: Verdicts) -> Iterable[str]:
    """Yield the reasons why an edit does not count as caught."""
    if not edit.tests:
        yield "no test named yet"
    for test in edit.tests:
        before = unedited.get(test, ["did not run"])
        after = edited.get(test, ["did not run"])
        if set(before) != {PASSED}:
            yield f"{test}: does not pass without the edit: {', '.join(before)}"
        elif ASSERTED not in after:
            yield f"{test}: no assertion failed: {', '.join(sorted(set(after)))}"


def run(copy: Path, tests: Sequence[str], edit: Edit | None = None) -> Verdicts:
    """Return how ``tests`` end in a new copy of the tree, in which ``edit`` was made."""
    if not tests:
        return {}

    shutil.copytree(ROOT, copy, ignore=what_is_no_source)
    if edit is not None:
        edit.apply(copy)

    verdicts = copy / "verdicts.json"
    command = [
        sys.executable,
        "-m",
        "pytest",
        *tests,
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.mutants.verdicts",
        f"--verdicts={verdicts}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(copy)}

    done = subprocess.run(
        command,
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )

    if not verdicts.exists():
        return dict.fromkeys(tests, [f"did not run: {done.stdout[-2_000:]}{done.stderr[-2_000:]}"])
    found: Verdicts = json.loads(verdicts.read_text())
    return found


def what_is_no_source(folder: str, names: list[str]) -> set[str]:
    """Return the names that a copy of the tree leaves out.

    They are caches, virtual environments, and all hidden files.
    """
    return {
        name
        for name in names
        if name.startswith(".")
        or name == "__pycache__"
        or (Path(folder) / name / "pyvenv.cfg").exists()
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
