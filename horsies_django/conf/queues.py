"""The parser of the queues in the settings, with their limits and partition rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType

from horsies_django.conf.section import Section, SettingProblem, must_be
from horsies_django.conf.values import (
    DEFAULT_QUEUE,
    MODES,
    ON_FAILURE,
    PartitionConfig,
    QueueConfig,
)
from horsies_django.core.queues import CLUSTER
from horsies_django.core.texts import short_repr

QUEUE_KEYS = tuple(one.name for one in fields(QueueConfig) if one.name != "name")
PARTITION_KEYS = tuple(one.name for one in fields(PartitionConfig))
PARTITION_EXAMPLE = "{'by_args': ['customer_id'], 'max_concurrency': 2}"


def read_queues(top: Section) -> tuple[str, Mapping[str, QueueConfig]]:
    """Return the mode and the queues by name.

    The queue ``default`` is always among them.
    """
    declared = "QUEUES" in top.values
    mode = top.values.get("QUEUE_MODE", "CUSTOM" if declared else "DEFAULT")

    if mode not in MODES:
        hint = "Use 'DEFAULT' or 'CUSTOM', or remove QUEUE_MODE: QUEUES alone means 'CUSTOM'."
        top.report("E005", "QUEUE_MODE", f"{short_repr(mode)} is not a valid mode.", hint)
    elif mode == "DEFAULT" and declared:
        hint = "Remove QUEUES or QUEUE_MODE."
        top.report(
            "E005", "QUEUE_MODE", "The mode 'DEFAULT' has a single queue, but QUEUES is set.", hint
        )
    elif mode == "CUSTOM" and not declared:
        hint = "Declare queues, as in 'QUEUES': {'mail': {'priority': 1}}, or remove QUEUE_MODE."
        top.report("E005", "QUEUE_MODE", "The mode 'CUSTOM' requires QUEUES.", hint)

    queues = _declared_queues(top) if declared else {}
    queues.setdefault(DEFAULT_QUEUE, QueueConfig(DEFAULT_QUEUE))
    return ("CUSTOM" if declared else "DEFAULT"), MappingProxyType(queues)


def _declared_queues(top: Section) -> dict[str, QueueConfig]:
    raw = top.values["QUEUES"]
    if not isinstance(raw, Mapping):
        top.report(
            "E001",
            "QUEUES",
            must_be(raw, "a dict"),
            "Use a dict by name, such as {'mail': {'priority': 1}}.",
        )
        return {}

    if not raw:
        top.report(
            "E005", "QUEUES", "QUEUES is empty.", "Declare at least one queue, or remove QUEUES."
        )

    queues = {}
    for name, options in raw.items():
        where = f"{top.place('QUEUES')}[{short_repr(name)}]"
        message = _name_problem(name)
        if message:
            hint = "Use 1 to 100 printable characters without spaces and commas, such as 'mail'."
            top.problems.append(SettingProblem("E006", message, hint, where))

        section = Section(options, where, QUEUE_KEYS, top.problems, "{'priority': 50}")
        queue = section.filled(QueueConfig(name), partition=_partition(section))
        if not message:
            queues[name] = queue

    return queues


def _name_problem(name: object) -> str | None:
    if not isinstance(name, str):
        return must_be(name, "a str")
    if not name:
        return "The name of a queue cannot be empty."
    if name == CLUSTER:
        return (
            f"The name {CLUSTER!r} is reserved for the whole cluster, whose limit is "
            "CLUSTER_WIDE_CAP."
        )
    if len(name) > 100:
        return f"The name of this queue has {len(name)} characters; at most 100 are allowed."

    # A comma separates queues on the command line, as in `--queues=mail,bulk`.
    if not name.isprintable() or " " in name or "," in name:
        return "The name of this queue contains a space, a comma or an unprintable character."

    return None


def _partition(options: Section) -> PartitionConfig | None:
    """Return the partition rule, or None if there is none.

    A rule that does not divide tasks, and a rule without a limit or a policy, are reported.
    """
    if options.values.get("partition") is None:
        return None

    part = options.inner("partition", PARTITION_KEYS, PARTITION_EXAMPLE)
    found = part.filled(PartitionConfig(), by_args=_by_args(part), on_failure=_on_failure(part))
    rule_is_sound = part.sound("by_args", "by_task")
    limits_are_sound = part.sound("max_concurrency", "local_limit")

    if rule_is_sound and found.by_args is None and not found.by_task:
        hint = "Add 'by_args': [names of arguments], or 'by_task': True, or both."
        options.report("E018", "partition", "A partition rule requires by_args or by_task.", hint)

    if (
        limits_are_sound
        and found.policy is None
        and found.max_concurrency is None
        and found.local_limit is None
    ):
        hint = (
            "Add 'max_concurrency' (over all workers) or 'local_limit' (per worker); both apply to "
            "each partition separately."
        )
        options.report("E018", "partition", "A partition rule requires a limit.", hint)

    for key, message, hint in _policy_problems(found, part):
        part.report("E018", key, message, hint)

    return found


def _on_failure(part: Section) -> str:
    value = part.values.get("on_failure", "stop")
    if value in ON_FAILURE:
        return str(value)

    choices = (
        "Use 'stop' (the later tasks of the key wait until the failed task is retried or skipped), "
        "'continue' (they run), or 'cancel' (they are cancelled)."
    )
    part.report(
        "E018",
        "on_failure",
        f"{short_repr(value)} is not a valid choice.",
        choices,
    )
    return "stop"


def _policy_problems(found: PartitionConfig, part: Section) -> Iterator[tuple[str, str, str]]:
    """Yield a key, a message and a hint if the policy of a partition rule does not fit the rest."""
    if not part.sound(*PARTITION_KEYS):
        return

    if "on_failure" in part.values and not found.ordered:
        message = "on_failure applies only to ordered queues."
        yield "on_failure", message, "Add 'ordered': True, or remove it."

    if found.policy is None:
        return

    if found.ordered and found.coalesce:
        yield (
            "coalesce",
            "A queue cannot be both ordered and coalesced, because merged tasks have no order.",
            "Remove 'ordered' or 'coalesce'.",
        )

    if found.coalesce and not (found.by_task and found.by_args == ()):
        message = "coalesce merges only equal tasks, so a partition must not contain others."
        hint = (
            "Use 'by_task': True and 'by_args': 'all', and remove arguments that make tasks differ."
        )
        yield "coalesce", message, hint

    if found.max_concurrency not in (None, 1) or found.local_limit is not None:
        key = "local_limit" if found.local_limit is not None else "max_concurrency"
        yield (
            key,
            "The tasks of a partition of an ordered or coalesced queue run one at a time.",
            "Remove it, or limit the queue instead.",
        )


def _by_args(part: Section) -> tuple[str, ...] | None:
    """Return the names of the arguments by which tasks are divided into partitions.

    They are empty if partitions depend on all arguments ("all"). Return None if partitions do not
    depend on arguments, or the value is invalid.
    """
    names = part.values.get("by_args")
    if names is None:
        return None
    if names == "all":
        return ()

    example = "Use a list of names, such as ['customer_id'], or 'all'."
    if isinstance(names, str):
        message = f"{short_repr(names)} is a str, but must be a list of str."
        part.report("E001", "by_args", message, f"Put it into a list: [{short_repr(names)}].")
    elif not isinstance(names, list | tuple):
        part.report("E001", "by_args", must_be(names, "a list or a tuple of str"), example)
    elif strange := [name for name in names if not isinstance(name, str)]:
        part.report("E001", "by_args", f"Invalid entry: {must_be(strange[0], 'a str')}", example)
    elif unusable := [name for name in names if not name or not name.isprintable()]:
        message = f"{short_repr(unusable[0])} is not a valid argument name."
        part.report(
            "E018", "by_args", message, "Use at least one character, and printable characters only."
        )
    elif twice := [name for place, name in enumerate(names) if name in names[:place]]:
        part.report(
            "E018",
            "by_args",
            f"{short_repr(twice[0])} is listed twice.",
            "List each argument once.",
        )
    else:
        # The names may be members of a str enum of the project.
        return tuple(str.__str__(name) for name in names)

    return None
