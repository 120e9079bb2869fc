"""Rules of layout that ruff does not have: ``python -m tests.meta.style`` prints violations.

``make lint`` runs it. The rules:

- One assignment to a statement: no ``a, b = x, y``, unless it swaps values.
- No conditional expression inside another one.
- A function of 15 statements or more has an empty line between its paragraphs.
- A line of SQL, or of prose in Markdown, has 100 characters at most, as ruff demands of Python.
- A docstring stands alone, and does not begin with a verb that is only true of people.
- A public name of a module of horsies_django is the name of nothing else in another one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "example_project", "horsies_django", "tests")
LONG = 15  # statements
WIDTH = 100
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
UNCLEAR = re.compile(r"(Do so|Do the same|As above|Tell|Say|Know|Hear|Owe|Look|Judge|Let|Leave)\b")

# Names that several modules may define, with the reason
SHARED = {
    "logger": "each module has its own",
    "Command": "Django finds the class of a command by this name",
    "register": "Django finds the tags and filters of a module by this name",
    "task": "the decorator of horsies_django, and that of django.tasks",
    "HorsiesBackend": "for django.tasks and for its backport, of which one is installed",
    "HorsiesTask": "as HorsiesBackend",
    "HorsiesTaskResult": "as HorsiesBackend",
    "change": "an operation on a queue or a schedule; callers name the module",
    "declared": "the queues or the schedules in the code; callers name the module",
    "retry": "an operation on a task or a run; callers name the module",
    "signal": "an operation on a run, also in the test kit",
    "skip": "an operation on a queue, a task or a run; callers name the module",
}


def problems(name: str, text: str) -> Iterator[str]:
    """Yield a line for each part of the text of a file that breaks a rule."""
    if name.endswith(".sql"):
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > WIDTH:
                yield f"{name}:{number}: {len(line)} characters: break the line before {WIDTH}"
        return

    if name.endswith(".md"):
        for number, line in prose(text):
            if len(line) > WIDTH and can_be_broken(line):
                yield f"{name}:{number}: {len(line)} characters: break the line before {WIDTH}"
        return

    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and assigns_several(node):
            yield f"{name}:{node.lineno}: several assignments in one: make each a statement"
        elif isinstance(node, ast.IfExp) and is_nested(node):
            yield (
                f"{name}:{node.lineno}: a conditional expression in another one: use if statements"
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_solid(node, lines):
            yield f"{name}:{node.lineno}: {node.name} has no empty line between paragraphs"

        if isinstance(node, DOCUMENTED):
            found = UNCLEAR.match(ast.get_docstring(node) or "")
            if found is not None:
                line = getattr(node, "lineno", 1)
                yield f"{name}:{line}: a docstring begins with {found[0]!r}: name the action"


def names_with_two_meanings(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each public name that several modules define. ``texts`` are by file."""
    places = defaultdict(set)
    for file, text in texts.items():
        for node in ast.parse(text).body:
            for name in defined(node):
                places[name].add(file)

    for name, files in sorted(places.items()):
        if len(files) > 1 and name not in SHARED and not is_private(name):
            yield f"{name} is defined in {', '.join(sorted(files))}: give each its own name"


def defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.If | ast.Try):
        return [name for inner in node.body for name in defined(inner)]

    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def is_private(name: str) -> bool:
    """Whether a name is only used in its module: private names, and type variables."""
    return name.startswith("_") or len(name) == 1


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of Markdown that are neither code, nor in a table, nor HTML."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    ") and line.lstrip()[:1] not in ("|", "<"):
            yield number, line


def can_be_broken(line: str) -> bool:
    """Whether a line has a blank outside of inline code, after the mark of a list item."""
    return " " in re.sub(r"`[^`]*`", "code", re.sub(r"^\s*([-*]|\d+\.)\s+", "", line).strip())


def assigns_several(node: ast.Assign) -> bool:
    """Whether a statement gives several values to several targets and swaps none."""
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    if any(isinstance(one, ast.Starred) for one in (*target.elts, *node.value.elts)):
        return False

    targets = {ast.unparse(one) for one in target.elts}
    read = {
        ast.unparse(one)
        for value in node.value.elts
        for one in ast.walk(value)
        if isinstance(one, ast.expr)
    }

    return not targets & read


def is_nested(node: ast.IfExp) -> bool:
    return any(isinstance(one, ast.IfExp) for one in ast.walk(node) if one is not node)


def is_solid(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> bool:
    """Whether a long function has no empty line after its docstring."""
    if sum(isinstance(one, ast.stmt) for one in ast.walk(node) if one is not node) < LONG:
        return False
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return bool(body) and all(lines[body[0].lineno - 1 : node.end_lineno])


def files() -> list[Path]:
    """Return all files of Python, SQL and Markdown to which the rules apply."""
    found = [
        path
        for folder in FOLDERS
        for suffix in ("py", "sql")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
    ]
    found += [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    # The type checkers' project has each mistake on a line of its own.
    return sorted(path for path in found if not {"upgrades", "typed"} & set(path.parts))


def is_module(name: str) -> bool:
    return name.startswith("horsies_django/") and name.endswith(".py") and "migrations" not in name


def main() -> int:
    """Print all problems; return the exit code."""
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in files()}
    modules = {name: text for name, text in texts.items() if is_module(name)}
    found = [line for name, text in texts.items() for line in problems(name, text)]
    found += names_with_two_meanings(modules)
    print("\n".join(found) or "Layout: no problems", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
