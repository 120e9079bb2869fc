"""Management commands, run in the process of the test."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command


def ran(name: str, *words: Any) -> tuple[int, str, str]:
    """Run a command; return its exit code and its output on both streams."""
    out = io.StringIO()
    err = io.StringIO()
    code = 0

    try:
        call_command(name, *map(str, words), stdout=out, stderr=err)
    except SystemExit as end:
        code = int(end.code or 0)

    return code, out.getvalue(), err.getvalue()


def command(name: str) -> tuple[Callable[..., str], Callable[..., Any], Callable[..., str]]:
    """Return functions that run a command and return its output, its JSON, or its refusal."""

    def run(*words: Any) -> str:
        return "".join(ran(name, *words)[1:])

    def machine(*words: Any) -> Any:
        return json.loads(ran(name, *words, "--json")[1])

    def refusal(*words: Any) -> str:
        with pytest.raises(CommandError) as caught:
            ran(name, *words)
        return str(caught.value)

    return run, machine, refusal


def lines(text: str) -> list[str]:
    """Return the lines of a text, with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines()]
