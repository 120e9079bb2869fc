"""``horsies_dev`` and ``horsies_worker --reload`` where they cannot work."""

from __future__ import annotations

import sys

import pytest
from django.core.management import CommandError, call_command


def test_the_command_refuses_to_run_on_windows_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if: the import of the worker fails there with an AttributeError about a signal."""
    monkeypatch.setattr(sys, "platform", "win32")

    with pytest.raises(
        CommandError, match="the worker does not run on Windows: use WSL or a container"
    ):
        call_command("horsies_dev")


@pytest.mark.parametrize("words", [["horsies_dev"], ["horsies_worker", "--reload"]], ids=" ".join)
def test_from_code_there_is_no_command_line_to_run_again(words: list[str]) -> None:
    """Fails if: the command runs the script that called it, which calls it again."""
    with pytest.raises(CommandError, match="Start it from the command line"):
        call_command(*words)
