"""The check of layout finds what breaks each of its rules."""

from __future__ import annotations

import pytest

from tests.meta.style import LONG, WIDTH, problems

SOLID = "def long():\n" + "    x = 1\n" * LONG
PARTED = SOLID.replace("    x = 1\n", "    x = 1\n\n", 1)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.py", "a, b = 1, 2\n", "several assignments in one"),
        ("a.py", "a = 1 if b else 2 if c else 3\n", "a conditional expression in another one"),
        ("a.py", SOLID, "long has no empty line"),
        ("a.py", 'def say():\n    """Tell the worker."""\n', "a docstring begins with 'Tell'"),
        ("a.py", '"""Do the same for others."""\n', "a docstring begins with 'Do the same'"),
        ("a.sql", "-" * (WIDTH + 1), "101 characters"),
        ("a.md", "- word" + " word" * 20, "106 characters"),
    ],
)
def test_a_text_that_breaks_a_rule_is_a_problem(name: str, text: str, problem: str) -> None:
    (found,) = problems(name, text)

    assert problem in found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "a, b = b, a\n"),
        ("a.py", "a, b = pair()\n"),
        ("a.py", "a = 1 if b else 2\n"),
        ("a.py", PARTED),
        ("a.py", 'def send():\n    """Send a letter."""\n'),
        ("a.sql", "-" * WIDTH),
        ("a.md", "    $ code" + " word" * 20),
        ("a.md", "```\ncode" + " word" * 20 + "\n```\n"),
        ("a.md", "| cell" + " word" * 20),
        ("a.md", "`code" + " word" * 20 + "`."),
        ("a.md", "https://example.org/" + "long" * 30),
    ],
)
def test_a_text_that_keeps_the_rules_is_no_problem(name: str, text: str) -> None:
    assert list(problems(name, text)) == []
