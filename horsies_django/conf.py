"""``settings.HORSIES`` as one frozen value, or all its problems at once.

One parser serves the running code (``config``), the system checks (``read``) and the tests (``parse``, which is pure).
The ids of problems are those of the system checks; ``checks.IDS`` lists them all.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections
from django.dispatch import receiver

from horsies_django.core.errors import OperationalErrorCode, code_problem

DEFAULT_QUEUE = "default"
MODES = ("DEFAULT", "CUSTOM")

# key of a setting -> the least and the greatest value (None: no limit)
RANGES: Mapping[str, tuple[int, int | None]] = MappingProxyType(
    {
        "priority": (1, 100),
        "DB_RETRY_INITIAL_MS": (100, 60_000),
        "DB_RETRY_MAX_MS": (500, 300_000),
        "DB_RETRY_MAX_ATTEMPTS": (0, 10_000),
        "NOTIFY_POLL_INTERVAL_MS": (1_000, 300_000),
        "MAX_PAYLOAD_BYTES": (1_024, None),
    }
)


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """A declared queue; priority 1 is served first, 100 last (S1.33)."""

    name: str
    priority: int = 100


@dataclass(frozen=True, slots=True)
class Resilience:
    """How the worker behaves while the database is away (S2.16 to S2.19)."""

    db_retry_initial_ms: int = 500
    db_retry_max_ms: int = 30_000
    db_retry_max_attempts: int = 0
    notify_poll_interval_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class Config:
    """The settings; each key of ``settings.HORSIES`` is the upper-case name of a field. ``queues`` is read-only."""

    database: str = "default"
    listen_database: str | None = None
    queue_mode: str = "DEFAULT"
    queues: Mapping[str, QueueConfig] = field(
        default_factory=lambda: MappingProxyType({DEFAULT_QUEUE: QueueConfig(DEFAULT_QUEUE)})
    )
    resilience: Resilience = field(default_factory=Resilience)
    max_payload_bytes: int = 16 * 2**20
    default_unhandled_error_code: str = OperationalErrorCode.UNHANDLED_ERROR.value


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the settings that cannot work: the check's id, where it stands, what is wrong and what to do."""

    id: str
    message: str
    hint: str
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message} {self.hint} (horsies.{self.id})"


@functools.cache
def config() -> Config:
    """Return the settings. Raises ImproperlyConfigured, which names every problem at once."""
    found, problems = read()
    if problems:
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ImproperlyConfigured("\n".join([f"settings.HORSIES has {count}:", *(f"- {p}" for p in problems)]))
    return found


@receiver(setting_changed, dispatch_uid="horsies_config")
def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting in {"HORSIES", "DATABASES"}:
        config.cache_clear()


def read() -> tuple[Config, list[Problem]]:
    """Read the settings as they are now, and see what their databases are; connects to none of them."""
    found, problems = parse(getattr(settings, "HORSIES", {}), databases=settings.DATABASES)
    return found, problems + _backend_problems(found, {problem.where for problem in problems})


def _backend_problems(found: Config, broken: Collection[str]) -> list[Problem]:
    """Return what is wrong with the engines of the aliases, but for those in ``broken``: they name no alias at all."""
    problems = []
    for key, alias in (("DATABASE", found.database), ("LISTEN_DATABASE", found.listen_database)):
        where = f"HORSIES['{key}']"
        if alias is None or where in broken:
            continue
        if connections[alias].vendor != "postgresql":
            engine = connections.settings[alias]["ENGINE"]
            message = f"The database {alias!r} is not PostgreSQL but {engine}."
            problems.append(Problem("E008", message, "Name an alias whose ENGINE is PostgreSQL's.", where))
            continue
        # Imported late: without any psycopg this module of Django's raises, and only an alias of PostgreSQL needs one.
        from django.db.backends.postgresql import psycopg_any

        if not psycopg_any.is_psycopg3:
            message = f"Django runs the database {alias!r} on psycopg2, because it could not import psycopg 3."
            hint = "Install it with its library: pip install 'psycopg[binary]'."
            problems.append(Problem("E009", message, hint, where))
    return problems


def parse(raw: object, *, databases: Collection[str]) -> tuple[Config, list[Problem]]:
    """Turn the setting into a Config and the list of all its problems; what has a problem keeps its default. Pure."""
    problems: list[Problem] = []
    top = _Section(raw, "HORSIES", _keys(Config), problems, "{'DATABASE': 'default'}")
    default = Config()
    mode, queues = _queues(top)
    return Config(
        database=_alias(top, "DATABASE", databases) or default.database,
        listen_database=_alias(top, "LISTEN_DATABASE", databases),
        queue_mode=mode,
        queues=queues,
        resilience=_resilience(top),
        max_payload_bytes=top.integer("MAX_PAYLOAD_BYTES", default.max_payload_bytes),
        default_unhandled_error_code=_error_code(top, default.default_unhandled_error_code),
    ), problems


class _Section:
    """A dict of the settings: refuses unknown keys when it is made, and values as they are read."""

    def __init__(self, raw: object, where: str, known: Iterable[str], problems: list[Problem], example: str) -> None:
        self.where = where
        self.problems = problems
        self.values: Mapping[Any, Any] = raw if isinstance(raw, Mapping) else {}
        if not isinstance(raw, Mapping):
            problems.append(Problem("E001", _must_be(raw, "a dict"), f"Write it as in {example}.", where))
        for key in self.values:
            if key not in known:
                self.report("E002", key, "There is no such setting.", _did_you_mean(key, known))

    def report(self, id_: str, key: object, message: str, hint: str) -> None:
        self.problems.append(Problem(id_, message, hint, self.place(key)))

    def place(self, key: object) -> str:
        return f"{self.where}[{_shown(key)}]"

    def integer(self, key: str, default: int) -> int:
        """Return the number in its range; a key that ends in ``_MS`` also takes a timedelta."""
        value = self.values.get(key, default)
        shown = _shown(value)
        expected = "an int"
        if key.endswith("_MS"):
            expected = "an int (milliseconds) or a timedelta"
            if isinstance(value, timedelta):
                value, rest = divmod(value, timedelta(milliseconds=1))
                if rest:
                    self.report("E003", key, f"{shown} is not a whole number of milliseconds.", "Round it.")
                    return default
        low, high = RANGES[key]
        span = f"at least {low:_}" if high is None else f"from {low:_} to {high:_}"
        hint = f"Write {expected} {span}, or leave it out: the default is {default:_}."
        if isinstance(value, bool) or not isinstance(value, int):
            self.report("E001", key, _must_be(value, expected), hint)
            return default
        if value < low or (high is not None and value > high):
            self.report("E003", key, f"{shown} is out of range.", hint)
            return default
        return value


def _keys(owner: type[Config] | type[Resilience]) -> list[str]:
    return [one.name.upper() for one in fields(owner)]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:80]}... ({len(text):,} characters)"


def _must_be(value: object, expected: str) -> str:
    return f"{_shown(value)} is of type {type(value).__name__}, but must be {expected}."


def _did_you_mean(key: object, known: Iterable[str]) -> str:
    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(str(key).casefold(), by_folded, n=1)
    if close:
        return f"Did you mean {by_folded[close[0]]!r}?"
    return f"Known here: {', '.join(by_folded.values())}."


def _alias(top: _Section, key: str, databases: Collection[str]) -> str | None:
    """Return the alias, or None when it is not given or wrong."""
    value = top.values.get(key, getattr(Config(), key.lower()))
    if value is None and key == "LISTEN_DATABASE":
        return None
    aliases = ", ".join(sorted(databases)) or "(none)"
    if not isinstance(value, str):
        top.report("E001", key, _must_be(value, "a str"), f"Write an alias of DATABASES: {aliases}.")
    elif value not in databases:
        top.report("E004", key, f"DATABASES has no alias {_shown(value)}.", f"It has: {aliases}.")
    else:
        return value
    return None


def _queues(top: _Section) -> tuple[str, Mapping[str, QueueConfig]]:
    """Return the mode and the queues; the queue ``default`` is always among them (S0.12)."""
    declared = "QUEUES" in top.values
    mode = top.values.get("QUEUE_MODE", "CUSTOM" if declared else "DEFAULT")
    if mode not in MODES:
        hint = "Write 'DEFAULT' or 'CUSTOM', or leave it out: QUEUES alone means 'CUSTOM'."
        top.report("E005", "QUEUE_MODE", f"{_shown(mode)} is no mode.", hint)
    elif mode == "DEFAULT" and declared:
        hint = "Remove QUEUES, or leave QUEUE_MODE out."
        top.report("E005", "QUEUE_MODE", "Mode 'DEFAULT' has one queue, but QUEUES declares others.", hint)
    elif mode == "CUSTOM" and not declared:
        hint = "Declare queues, as in 'QUEUES': {'mail': {'priority': 1}}, or leave QUEUE_MODE out."
        top.report("E005", "QUEUE_MODE", "Mode 'CUSTOM' needs QUEUES.", hint)
    queues = _declared_queues(top) if declared else {}
    queues.setdefault(DEFAULT_QUEUE, QueueConfig(DEFAULT_QUEUE))
    return ("CUSTOM" if declared else "DEFAULT"), MappingProxyType(queues)


def _declared_queues(top: _Section) -> dict[str, QueueConfig]:
    raw = top.values["QUEUES"]
    if not isinstance(raw, Mapping):
        top.report("E001", "QUEUES", _must_be(raw, "a dict"), "Write it by name, as in {'mail': {'priority': 1}}.")
        return {}
    if not raw:
        top.report("E005", "QUEUES", "It declares no queue.", "Declare at least one, or leave QUEUES out.")
    queues = {}
    for name, options in raw.items():
        where = f"{top.place('QUEUES')}[{_shown(name)}]"
        message = _queue_name_problem(name)
        if message:
            hint = "A name has 1 to 100 printable characters, no space and no comma, as in 'mail'."
            top.problems.append(Problem("E006", message, hint, where))
        priority = _Section(options, where, ("priority",), top.problems, "{'priority': 50}").integer("priority", 100)
        if not message:
            queues[name] = QueueConfig(name, priority)
    return queues


def _queue_name_problem(name: object) -> str | None:
    if not isinstance(name, str):
        return _must_be(name, "a str")
    if not name:
        return "A queue needs a name."
    if len(name) > 100:
        return f"The name of this queue has {len(name)} characters."
    # A comma separates queues on the command line: `--queues=mail,bulk` could never name this one.
    if not name.isprintable() or " " in name or "," in name:
        return "The name of this queue has a space, a comma, or a character that cannot be printed."
    return None


def _resilience(top: _Section) -> Resilience:
    raw, where = top.values.get("RESILIENCE", {}), top.place("RESILIENCE")
    section = _Section(raw, where, _keys(Resilience), top.problems, "{'DB_RETRY_INITIAL_MS': 500}")
    default = Resilience()
    found = Resilience(
        **{key.lower(): section.integer(key, getattr(default, key.lower())) for key in _keys(Resilience)}
    )
    if found.db_retry_max_ms < found.db_retry_initial_ms:
        message = f"{found.db_retry_max_ms:_} is less than DB_RETRY_INITIAL_MS, which is {found.db_retry_initial_ms:_}."
        section.report("E003", "DB_RETRY_MAX_MS", message, "Make it at least as long as the first wait.")
    return found


def _error_code(top: _Section, default: str) -> str:
    code = top.values.get("DEFAULT_UNHANDLED_ERROR_CODE", default)
    if isinstance(code, str) and code == default:
        return default
    if problem := code_problem(code):
        hint = f"Write a code of your own, as in 'MY_ERROR', or leave it out: the default is {default!r}."
        top.report("E007", "DEFAULT_UNHANDLED_ERROR_CODE", f"{problem[0].upper()}{problem[1:]}.", hint)
        return default
    return str.__str__(code)  # the plain text of a member of the user's own str enum
