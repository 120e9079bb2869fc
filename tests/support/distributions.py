"""The wheel and the archive of sources as their users get them, and environments in which the wheel
is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# What make and an interpreter would take from the checkout.
INHERITED = ("MAKE", "MFLAGS", "PYTHONPATH", "DJANGO", "HORSIES")


class Distributions(NamedTuple):
    """What a release uploads.

    The wheel is made of the archive, so whatever it needs is in there.
    """

    sdist: Path
    wheel: Path


def run(
    *command: str | Path, cwd: Path, timeout: float = 100, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command outside of the checkout, with nothing of it in its environment."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(INHERITED)}
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def built(directory: Path) -> Distributions:
    """Build both from this checkout with the build backend of this environment, so without the
    network.
    """
    done = run(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, ROOT, cwd=directory
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = directory.glob("*.tar.gz")
    (wheel,) = directory.glob("*.whl")
    return Distributions(sdist, wheel)


def environment_of(wheel: Path, directory: Path, *, beside: bool) -> Path:
    """Install a wheel into an environment of its own and return its interpreter; ``beside``: next
    to all that is installed here.

    Editable packages of this environment are not there: a .pth file adds a directory, but not the
    .pth files in it.
    """
    made = run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory.parent)
    assert made.returncode == 0, made.stderr

    python = directory / "bin" / "python"
    install = ("--quiet", "--no-deps", "--no-index", wheel)
    done = run(sys.executable, "-m", "pip", "--python", python, "install", *install, cwd=directory)
    assert done.returncode == 0, done.stderr

    if beside:
        (packages,) = directory.glob("lib/python*/site-packages")
        (packages / "beside.pth").write_text(sysconfig.get_path("purelib"))

    return python
