"""What the demo says, each line with the time since the start."""

from __future__ import annotations

import time
from typing import TextIO


class Narrator:
    """Writes lines as they happen."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self.began

    def step(self, text: str) -> None:
        """Say what has just been done."""
        print(f"{self.seconds:6.1f} s  {text}", file=self.out, flush=True)

    def detail(self, text: str = "") -> None:
        """Say more about it."""
        print(f"          {text}".rstrip(), file=self.out, flush=True)
