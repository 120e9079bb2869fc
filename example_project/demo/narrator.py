"""The printed lines of the demo, with the time since its start."""

from __future__ import annotations

import time
from typing import TextIO


class Narrator:
    """The writer of the lines, each of which is printed at once."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self.began

    def step(self, text: str) -> None:
        """Print a line about a step that was done, with the time."""
        print(f"{self.seconds:6.1f} s  {text}", file=self.out, flush=True)

    def detail(self, text: str = "") -> None:
        """Print another line about the same step, without a time."""
        print(f"          {text}".rstrip(), file=self.out, flush=True)
