"""A search for error codes in retry policies that the project never produces.

Such codes are probably misspelt. The search reads source files, and reports nothing in case of
doubt. A code counts as produced if it is a word in a string or a name anywhere in the project's
code outside of ``auto_retry_for=``. It also counts if such a word is the beginning or the end of
the code up to an underscore, as in ``f"HTTP_{status}"``.
"""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
import tokenize
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path

from horsies_django.tasks import registry
from horsies_django.tasks.definition import TaskDefinition

WORD = re.compile(r"\b[A-Z_][A-Z0-9_]*\b")
PLACEHOLDER = re.compile(r"%[a-z]|\{[^}]*\}")
INSTALLED_ROOTS = tuple(
    sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def never_produced(known: Collection[str]) -> list[tuple[TaskDefinition, str]]:
    """Return pairs of a task and a code in its retry policy that is never produced.

    Such a code is neither ``known`` nor in the code of the project.
    """
    listed = [
        (task, code)
        for task in registry.registered_tasks()
        if task.retry_policy is not None
        for code in task.retry_policy.codes
        if code not in known
    ]

    missing = {code for _, code in listed}
    for path in sources({task.function.__module__ for task, _ in listed}):
        if not missing:
            break
        missing -= codes_in_file(path, missing)

    return [(task, code) for task, code in listed if code in missing]


def sources(modules: Collection[str]) -> Iterator[Path]:
    """Yield the source files of the project.

    The files of ``modules`` come first, then those of other loaded modules, and then the remaining
    files in the packages of ``modules``.
    """
    packages = {name.partition(".")[0] for name in modules}
    loaded = sorted(
        sys.modules.items(),
        key=lambda item: (item[0] not in modules, item[0].partition(".")[0] not in packages),
    )

    seen = set()
    for name, module in loaded:
        package = name.partition(".")[0]
        file = getattr(module, "__dict__", {}).get("__file__")

        if (
            not isinstance(file, str)
            or not file.endswith(".py")
            or package == "horsies_django"
            or file in seen
        ):
            continue

        seen.add(file)
        if (
            package in packages
            or not file.startswith(INSTALLED_ROOTS)
            or "horsies_django" in file_text(Path(file))
        ):
            yield Path(file)

    for package in packages:
        for directory in getattr(sys.modules.get(package), "__path__", ()):
            yield from (path for path in Path(directory).rglob("*.py") if str(path) not in seen)


def codes_in_file(path: Path, codes: Collection[str]) -> set[str]:
    text = file_text(path)
    if not any(
        part in text for code in codes for part in (code.partition("_")[0], code.rpartition("_")[2])
    ):
        return set()

    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about invalid escapes in strings
            found = set(words(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return set(codes)  # a file that cannot be parsed may produce all of them

    begin = tuple(word for word in found if word.endswith("_") and word.strip("_"))
    end = tuple(word for word in found if word.startswith("_") and word.strip("_"))
    return {code for code in codes if code in found or code.startswith(begin) or code.endswith(end)}


def words(tree: ast.AST) -> Iterator[str]:
    """Yield the upper-case words in strings and names, except in ``auto_retry_for=``."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.keyword) and node.arg == "auto_retry_for":
            continue

        text = None
        if isinstance(node, ast.Name):
            text = node.id
        elif isinstance(node, ast.Attribute):
            text = node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = PLACEHOLDER.sub(" ", node.value)
        if text is not None:
            yield from WORD.findall(text)

        nodes += ast.iter_child_nodes(node)


def file_text(path: Path) -> str:
    """Return the text of a file, or "" if it cannot be read."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (OSError, SyntaxError, ValueError):
        return ""
