"""The wheel and the source archive as users get them, and environments with the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# The variables and files that make and an interpreter would use from the checkout.
INHERITED = ("MAKE", "MFLAGS", "PYTHONPATH", "DJANGO", "HORSIES")


class Distributions(NamedTuple):
    """The files that a release uploads.

    The wheel is built from the archive, so the archive has all that it needs.
    """

    sdist: Path
    wheel: Path


def run(
    *command: str | Path, cwd: Path, timeout: float = 100, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command outside of the checkout, without the checkout in its environment."""
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
    """Build both from this checkout, without the network, with this environment's backend."""
    done = run(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, ROOT, cwd=directory
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = directory.glob("*.tar.gz")
    (wheel,) = directory.glob("*.whl")
    return Distributions(sdist, wheel)


def environment_of(wheel: Path, directory: Path, *, beside: bool) -> Path:
    """Install a wheel into an environment of its own and return its interpreter.

    With ``beside`` it also finds the installed packages of this environment, except editable ones:
    a .pth file adds a directory, but not the .pth files in it.
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
