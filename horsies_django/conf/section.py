"""A reader for one dict of the settings, which checks its values and collects the problems."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, TypeVar

from django.utils.module_loading import import_string

from horsies_django.core.texts import short_repr

T = TypeVar("T")
Keys = Iterable[str] | None  # the known keys, or None if any key is allowed

CHECK_TAG = "horsies"  # of the system checks; their ids begin with it
# The unit of a number by the suffix of its key. A timedelta is converted to that unit.
SUFFIX_UNITS = {
    "_MS": ("milliseconds", timedelta(milliseconds=1)),
    "_S": ("seconds", timedelta(seconds=1)),
    "_HOURS": ("hours", timedelta(hours=1)),
}


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """A problem in the settings.

    ``id`` is the id of the system check, ``hint`` the remedy, and ``where`` the place of the
    setting.
    """

    id: str
    message: str
    hint: str
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message} {self.hint} ({CHECK_TAG}.{self.id})"


class Section:
    """A dict of the settings.

    Unknown keys are reported when the object is created, and invalid values when they are read.
    """

    def __init__(
        self, raw: object, where: str, known: Keys, problems: list[SettingProblem], example: str
    ) -> None:
        self.where = where
        self.problems = problems
        self.values: Mapping[Any, Any] = raw if isinstance(raw, Mapping) else {}
        self.known = self.values if known is None else known

        if not isinstance(raw, Mapping):
            problems.append(
                SettingProblem(
                    "E001", must_be(raw, "a dict"), f"Use a dict such as {example}.", where
                )
            )

        for key in self.values:
            if key not in self.known:
                self.report("E002", key, "Unknown setting.", did_you_mean(key, self.known))

    def inner(self, key: str, known: Keys, example: str) -> Section:
        """Return the section under a key, which is empty if the key is missing."""
        return Section(self.values.get(key, {}), self.place(key), known, self.problems, example)

    def report(self, id_: str, key: object, message: str, hint: str) -> None:
        self.problems.append(SettingProblem(id_, message, hint, self.place(key)))

    def place(self, key: object) -> str:
        return f"{self.where}[{short_repr(key)}]"

    def sound(self, *keys: str) -> bool:
        """Return whether the values of these keys have no problems so far.

        Invalid values are not compared with others, because this would report them again.
        """
        broken = {problem.where for problem in self.problems}
        return broken.isdisjoint({self.where, *map(self.place, keys)})

    def filled(self, default: T, **others: Any) -> T:
        """Return a copy of a dataclass of settings with the values of this section.

        Numbers and booleans are read by the types of the fields. ``others`` are the values of the
        other fields.
        """
        made: Any = default
        keys = {key.lower(): key for key in self.known}

        for one in fields(made):
            if one.type in ("int", "int | None"):
                span = one.metadata["range"]
                nullable = one.type != "int"
                others[one.name] = self.number(
                    keys[one.name], getattr(made, one.name), span, nullable=nullable
                )
            elif one.type == "bool":
                others[one.name] = self.boolean(keys[one.name], getattr(made, one.name))

        filled: T = replace(made, **others)
        return filled

    def boolean(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if isinstance(value, bool):
            return value
        self.report(
            "E001",
            key,
            must_be(value, "True or False"),
            f"Remove it to use the default, {default}.",
        )
        return default

    def number(
        self,
        key: str,
        default: int | None,
        span: tuple[int, int | None],
        *,
        nullable: bool,
        unit_of: str = "",
    ) -> int | None:
        """Return a number in a range, or the default if the value is invalid.

        A timedelta is allowed if the key, or ``unit_of``, has a suffix in ``SUFFIX_UNITS``. None is
        allowed if ``nullable`` is true.
        """
        value = self.values.get(key, default)
        if value is None and nullable:
            return None

        was = short_repr(value)
        expected = "an int"
        for unit, span_of_one in (
            SUFFIX_UNITS[end] for end in SUFFIX_UNITS if (unit_of or key).endswith(end)
        ):
            expected = f"an int ({unit}) or a timedelta"
            if isinstance(value, timedelta):
                value, rest = divmod(value, span_of_one)
                if rest:
                    self.report(
                        "E003",
                        key,
                        f"{was} is not a whole number of {unit}.",
                        f"Round it to whole {unit}.",
                    )
                    return default

        low, high = span
        within = f"at least {low:_}" if high is None else f"from {low:_} to {high:_}"
        within += ", or None" if nullable else ""
        usual = "None" if default is None else f"{default:_}"
        hint = f"Use {expected} {within}, or remove it to use the default, {usual}."

        if isinstance(value, bool) or not isinstance(value, int):
            self.report(
                "E001", key, must_be(value, f"{expected}, or None" if nullable else expected), hint
            )
            return default
        if value < low or (high is not None and value > high):
            self.report("E003", key, f"{was} is out of range.", hint)
            return default

        return value


def must_be(value: object, expected: str) -> str:
    return f"{short_repr(value)} is of type {type(value).__name__}, but must be {expected}."


def did_you_mean(key: object, known: Iterable[str]) -> str:
    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(str(key).casefold(), by_folded, n=1)
    if close:
        return f"Did you mean {by_folded[close[0]]!r}?"
    return f"Known settings: {', '.join(by_folded.values())}."


def path_problems(paths: Iterable[str]) -> list[str]:
    """Import dotted paths, and return a problem for each that is not a function or a class."""
    problems = []
    for path in paths:
        try:
            found = import_string(path)
        except Exception as error:
            problems.append(f"{path!r} cannot be imported: {type(error).__name__}: {error}")
        else:
            if not callable(found):
                problems.append(
                    f"{path!r} is not a function or a class, but of type {type(found).__name__}"
                )

    return problems
