"""The parser of ``settings.HORSIES``.

Each value is checked first, and then the values that depend on each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from django.utils.module_loading import import_string

from horsies_django.conf.queues import read_queues
from horsies_django.conf.section import Section, SettingProblem, must_be
from horsies_django.conf.values import (
    CUT_OFF,
    RANGES,
    Config,
    QueueConfig,
    Recovery,
    Resilience,
    Retention,
)
from horsies_django.core.errors import code_problem
from horsies_django.core.retry import EMPTY_MAPPER, Mapper, mapper_problems
from horsies_django.core.texts import is_name, short_repr


def parse_settings(
    raw: object, *, databases: Collection[str]
) -> tuple[Config, list[SettingProblem]]:
    """Return a Config and the list of all problems.

    An invalid value is replaced by its default. The function has no side effects, except that it
    imports the classes that EXCEPTION_MAPPER names by dotted path.
    """
    problems: list[SettingProblem] = []
    default = Config()

    top = Section(raw, "HORSIES", _keys(Config), problems, "{'DATABASE': 'default'}")
    recovery = top.inner("RECOVERY", _keys(Recovery), "{'CHECK_INTERVAL_MS': 1_000}")
    resilience = top.inner("RESILIENCE", _keys(Resilience), "{'DB_RETRY_INITIAL_MS': 500}")
    retention = top.inner("RETENTION", _keys(Retention), "{'TERMINAL_RECORD_RETENTION_HOURS': 720}")
    mode, queues = read_queues(top)

    found = top.filled(
        default,
        database=_alias(top, "DATABASE", databases) or default.database,
        listen_database=_alias(top, "LISTEN_DATABASE", databases),
        queue_mode=mode,
        queues=queues,
        exception_mapper=_exception_mapper(top),
        recovery=recovery.filled(
            default.recovery, on_cut_off=_on_cut_off(recovery, default.recovery)
        ),
        resilience=resilience.filled(default.resilience),
        retention=retention.filled(
            default.retention, queue_retention_hours=_queue_retention(retention, queues)
        ),
        schedules=_schedules(top),
        middleware=_paths(top, "MIDDLEWARE", "['shop.tracing.middleware']"),
        metadata=_paths(top, "METADATA", "['shop.tracing.carrier']"),
        monitoring_token=_token(top, "MONITORING_TOKEN"),
        default_unhandled_error_code=_error_code(top, default.default_unhandled_error_code),
    )

    _refuse_unfit_buffer(found, top)
    _refuse_unfit_times(found, top, recovery, resilience)
    return found, problems


def _keys(owner: type[Config] | type[Recovery] | type[Resilience] | type[Retention]) -> list[str]:
    return [one.name.upper() for one in fields(owner)]


def _queue_retention(
    section: Section, queues: Mapping[str, QueueConfig]
) -> Mapping[str, int | None]:
    """Return the retention in hours by queue, with None for ever.

    Queues that are not declared are reported, because a misspelt name would have no effect.
    """
    key = "QUEUE_RETENTION_HOURS"
    default = Retention().terminal_record_retention_hours
    inner = section.inner(key, None, "{'mail': 24, 'payments': None}")

    found = {}
    for name in inner.values:
        if name in queues:
            found[name] = inner.number(name, default, RANGES[key], nullable=True, unit_of=key)
        else:
            hint = f"Declare it in HORSIES['QUEUES'], or use one of: {', '.join(sorted(queues))}."
            inner.report("E019", name, f"There is no queue {short_repr(name)}.", hint)

    return MappingProxyType(found)


def _schedules(top: Section) -> Mapping[str, Mapping[str, Any]]:
    """Return the schedules by name.

    Their definitions are checked by ``schedules.definition_problems``, after the tasks are
    imported.
    """
    example = (
        "{'nightly': {'task': 'shop.tasks.tidy', 'pattern': 'daily at 04:30', 'zone': "
        "'Europe/Istanbul'}}"
    )
    inner = top.inner("SCHEDULES", None, example)

    found = {}
    for name, definition in inner.values.items():
        if not is_name(name):
            inner.report(
                "E021",
                name,
                "This cannot be the name of a schedule.",
                "Write 1 to 255 printable characters.",
            )
        elif not isinstance(definition, Mapping):
            inner.report("E001", name, must_be(definition, "a dict"), f"Write it as in {example}.")
        else:
            found[name] = MappingProxyType(dict(definition))

    return MappingProxyType(found)


def _paths(top: Section, key: str, example: str) -> tuple[str, ...]:
    """Return dotted paths, or none if one of them is invalid.

    They are not imported here, because web processes read the settings too and may not need them.
    """
    value = top.values.get(key, ())
    if not isinstance(value, list | tuple):
        top.report(
            "E001", key, must_be(value, "a list of dotted paths"), f"Write it as in {example}."
        )
        return ()

    for path in value:
        if (
            not isinstance(path, str)
            or not all(part.isidentifier() for part in path.split("."))
            or "." not in path
        ):
            top.report(
                "E001",
                key,
                f"{short_repr(path)} is not a dotted path.",
                f"Write it as in {example}.",
            )
            return ()

    return tuple(value)


def _token(top: Section, key: str) -> str:
    """Return a secret that a header can contain, or "" if it is missing or invalid.

    No message contains the value.
    """
    value = top.values.get(key, "")
    hint = (
        "Generate one, as by 'python -c \"import secrets; print(secrets.token_urlsafe(32))\"', or "
        "remove it."
    )

    if not isinstance(value, str):
        top.report(
            "E001", key, f"Its value is of type {type(value).__name__}, but must be a str.", hint
        )
    elif not value.isascii() or not value.isprintable() or " " in value:
        message = (
            "It contains a space, a line break or another character that a header cannot contain."
        )
        top.report("E003", key, message, hint)
    else:
        return value

    return ""


def _alias(top: Section, key: str, databases: Collection[str]) -> str | None:
    """Return the alias under a key, or None if it is missing or invalid."""
    value = top.values.get(key, getattr(Config(), key.lower()))
    if value is None and key == "LISTEN_DATABASE":
        return None

    aliases = ", ".join(sorted(databases)) or "(none)"
    if not isinstance(value, str):
        top.report("E001", key, must_be(value, "a str"), f"Use an alias of DATABASES: {aliases}.")
    elif value not in databases:
        top.report(
            "E004", key, f"DATABASES has no alias {short_repr(value)}.", f"Use one of: {aliases}."
        )
    else:
        return value

    return None


def _on_cut_off(recovery: Section, default: Recovery) -> str:
    value = recovery.values.get("ON_CUT_OFF", default.on_cut_off)
    if value in CUT_OFF:
        return str(value)

    hint = (
        "Use 'wait' (tasks continue while the database cannot be reached) or 'kill' (they are "
        "killed before other workers may run them)."
    )
    id_ = "E003" if isinstance(value, str) else "E001"
    recovery.report(id_, "ON_CUT_OFF", f"{short_repr(value)} is not a valid choice.", hint)
    return default.on_cut_off


def _error_code(top: Section, default: str) -> str:
    code = top.values.get("DEFAULT_UNHANDLED_ERROR_CODE", default)
    if isinstance(code, str) and code == default:
        return default

    if problem := code_problem(code):
        hint = (
            "Use a code of your own, such as 'MY_ERROR', or remove it to use the default, "
            f"{default!r}."
        )
        top.report(
            "E007", "DEFAULT_UNHANDLED_ERROR_CODE", f"{problem[0].upper()}{problem[1:]}.", hint
        )
        return default

    return str.__str__(code)  # the code may be a member of a str enum of the project


def _exception_mapper(top: Section) -> Mapper:
    """Return the mapper, whose dotted paths are replaced by classes.

    Paths that cannot be imported are reported.
    """
    raw = top.values.get("EXCEPTION_MAPPER", EMPTY_MAPPER)
    hint = "Use {SomeError or 'package.module.SomeError': 'MY_CODE'}."
    if not isinstance(raw, Mapping):
        top.report("E001", "EXCEPTION_MAPPER", must_be(raw, "a dict"), hint)
        return EMPTY_MAPPER

    found = {}
    for key, code in raw.items():
        try:
            resolved = import_string(key) if isinstance(key, str) else key
        except ImportError as error:
            top.report(
                "E020", "EXCEPTION_MAPPER", f"{short_repr(key)} cannot be imported: {error}.", hint
            )
            continue

        if problems := mapper_problems({resolved: code}):
            top.report(
                "E020", "EXCEPTION_MAPPER", f"{problems[0][0].upper()}{problems[0][1:]}.", hint
            )
        else:
            found[resolved] = str.__str__(code)

    return MappingProxyType(found)


def _refuse_unfit_buffer(found: Config, top: Section) -> None:
    """Report settings that cannot be combined with PREFETCH_BUFFER, and those that it requires."""
    if not found.prefetch_buffer:
        return

    if found.cluster_wide_cap is not None:
        top.report(
            "E014",
            "PREFETCH_BUFFER",
            f"PREFETCH_BUFFER is {found.prefetch_buffer:_}, but workers that prefetch tasks cannot "
            "enforce CLUSTER_WIDE_CAP, "
            f"which is {found.cluster_wide_cap:_}.",
            "Remove one of the two. Limits of queues work with either.",
        )

    if names := [repr(name) for name, queue in found.queues.items() if queue.policy is not None]:
        top.report(
            "E018",
            "PREFETCH_BUFFER",
            f"PREFETCH_BUFFER is {found.prefetch_buffer:_}, but tasks that workers prefetch can be "
            "neither ordered nor "
            f"coalesced, and HORSIES['QUEUES'] has such queues: {', '.join(names)}.",
            f"Remove PREFETCH_BUFFER, or 'ordered' and 'coalesce' of {', '.join(names)}.",
        )

    if top.sound("CLAIM_LEASE_MS") and found.claim_lease_ms is None:
        top.report(
            "E015",
            "CLAIM_LEASE_MS",
            f"PREFETCH_BUFFER is {found.prefetch_buffer:_}, but CLAIM_LEASE_MS is not set. It is "
            "how long a prefetched task may wait before another worker may claim it.",
            "Set it, as in 'CLAIM_LEASE_MS': 60_000, or remove PREFETCH_BUFFER.",
        )


def _refuse_unfit_times(
    found: Config, top: Section, recovery: Section, resilience: Section
) -> None:
    """Report times that do not fit each other.

    A lease and a threshold must be long enough for one late heartbeat, and the longest pause
    between two attempts to reach the database must not be shorter than the first.
    """
    beat = found.recovery.claimer_heartbeat_interval_ms
    lease = found.claim_lease_ms
    stale = found.recovery.running_stale_threshold_ms
    first = found.resilience.db_retry_initial_ms
    longest = found.resilience.db_retry_max_ms

    beaten = recovery.sound("CLAIMER_HEARTBEAT_INTERVAL_MS")
    twice = f"is less than twice CLAIMER_HEARTBEAT_INTERVAL_MS, which is {beat:_}."
    hint = f"Set it to at least {2 * beat:_}, or shorten RECOVERY['CLAIMER_HEARTBEAT_INTERVAL_MS']."

    if beaten and lease is not None and lease < 2 * beat:
        top.report("E016", "CLAIM_LEASE_MS", f"{lease:_} {twice}", hint)
    if beaten and recovery.sound("RUNNING_STALE_THRESHOLD_MS") and stale < 2 * beat:
        recovery.report("E017", "RUNNING_STALE_THRESHOLD_MS", f"{stale:_} {twice}", hint)

    if resilience.sound("DB_RETRY_INITIAL_MS", "DB_RETRY_MAX_MS") and longest < first:
        message = f"{longest:_} is less than DB_RETRY_INITIAL_MS, which is {first:_}."
        resilience.report("E003", "DB_RETRY_MAX_MS", message, f"Set it to at least {first:_}.")
