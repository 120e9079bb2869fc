"""The check of layout finds what breaks each of its rules."""

from __future__ import annotations

import pytest

from tests.meta.style import LONG, WIDTH, names_with_two_meanings, problems

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


def test_a_name_that_two_modules_define_is_a_problem() -> None:
    texts = {
        "a.py": "def find(): ...\ndef _own(): ...\nlogger = 1\nMANY: int = 3\n",
        "b.py": "class find: ...\ndef _own(): ...\nlogger = 2\nif 1:\n    MANY = 5\n",
        "c.py": "def other():\n    find = 1\n",
    }

    assert list(names_with_two_meanings(texts)) == [
        "MANY is defined in a.py, b.py: give each its own name",
        "find is defined in a.py, b.py: give each its own name",
    ]
