"""Commands in advice, messages and pages have verbs and options that exist."""

from __future__ import annotations

import re
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from tests.support.pages import PAGES, ROOT

OURS = sorted(name for name, app in get_commands().items() if app == "horsies_django")
WRITTEN = [*ROOT.glob("horsies_django/**/*.py"), *ROOT.glob("horsies_django/**/*.html"), *PAGES]
# After "manage.py", or at the beginning of code; up to the end of the quotation or of the line.
CODE = r"(?:manage\.py |(?<![\w`])['`](?=(?:{})\b))".format("|".join(OURS))
NAMED = re.compile(CODE + r"(horsies_[a-z_]+)((?: [^\s'`\"|]+)*)")
OPTION = re.compile(r"--[a-z][a-z-]*")


def parsers(name: str) -> dict[str, ArgumentParser]:
    """Return the parsers of a command by verb; for one without verbs the key is ""."""
    parser = load_command_class("horsies_django", name).create_parser("manage.py", name)
    found = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
    return {"": parser} if not found else {"": parser, **found[0].choices}


def wrong(name: str, words: list[str]) -> Iterator[str]:
    """Yield the words that are no verb or option of a command."""
    if name not in OURS:
        yield f"there is no command {name}"
        return

    known = parsers(name)
    verb = next((word for word in words if re.fullmatch(r"[a-z]+(-[a-z]+)*", word)), "")
    at = words.index(verb) if verb else 0

    if len(known) > 1 and verb and not words[:at] and verb not in known:
        yield f"{name} has no {verb}"
        return

    parser = known.get(verb, known[""])
    allowed = {*parser._option_string_actions, *known[""]._option_string_actions}
    for option in OPTION.findall(" ".join(words)):
        if option not in allowed:
            yield f"{name} {verb} has no {option}"


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_command_that_is_named_exists(path: Path) -> None:
    """Fails if: advice names a verb that does not exist."""
    found: list[str] = []

    for name, rest in NAMED.findall(path.read_text()):
        found += wrong(name, re.sub(r"[.,;:)]+( |$)", r"\1", rest).split())

    assert found == []


def test_a_wrong_verb_and_a_wrong_option_are_seen() -> None:
    assert [*wrong("horsies_schedule", ["run", "nightly"])] == ["horsies_schedule has no run"]
    assert [*wrong("horsies_task", ["retry", "--names=a"])] == ["horsies_task retry has no --names"]
    assert [*wrong("horsies_worker", ["--queues=mail"])] == []
