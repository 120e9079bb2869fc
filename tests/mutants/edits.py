"""Edits of the code that once made no test fail, each with the tests that it makes fail now."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """Replace ``old``, which occurs exactly once in the file ``path``, by ``new``.

    Each of ``tests`` has to fail then.
    """

    number: int
    what: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...] = ()

    def problem(self, root: Path) -> str | None:
        """Return why the edit cannot be made in the tree under ``root``, or None if it can."""
        file = root / self.path
        found = file.read_text().count(self.old) if file.exists() else 0
        if found == 1:
            return None
        where = (
            f"stands {found} times in {self.path}"
            if file.exists()
            else f"cannot be looked for: no {self.path}"
        )
        return (
            f"edit {self.number} ({self.what}): its anchor {where}; correct "
            f"tests/mutants/edits.py:\n{self.old}"
        )

    def apply(self, root: Path) -> None:
        """Make the edit in the tree under ``root``."""
        file = root / self.path
        file.write_text(file.read_text().replace(self.old, self.new))


FUNCTIONS = "horsies_django/store/sql/functions"

EDITS = (
    Edit(
        1,
        "the memory limit is ignored whenever --max-tasks-per-child is not 0",
        "horsies_django/worker/child/main.py",
        "give_up, options.max_memory_per_child_mb)",
        "give_up, None if options.max_tasks_per_child else options.max_memory_per_child_mb)",
        ("tests/e2e/test_probes.py::test_replaced_children_are_counted_by_their_first_limit",),
    ),
    Edit(
        2,
        "--processes=0 becomes one child",
        "horsies_django/worker/pool/pool.py",
        "self._add(InProcess(self.options))",
        "self._add_child()",
        ("tests/e2e/test_worker.py::test_results_of_both_lanes_return_with_every_worker_layout",),
    ),
    Edit(
        3,
        "the default of --max-tasks-per-child becomes 1000",
        "horsies_django/worker/process/options.py",
        "MAX_TASKS_PER_CHILD = 100 ",
        "MAX_TASKS_PER_CHILD = 1000 ",
        ("tests/worker/test_capacity.py::test_a_child_is_replaced_after_its_number_of_tasks",),
    ),
    Edit(
        4,
        "the default of --processes becomes 1",
        "horsies_django/worker/main.py",
        "processes=usable_cpus() if processes is None",
        "processes=1 if processes is None",
        ("tests/e2e/test_scripts.py::test_a_worker_has_one_child_per_usable_cpu_by_default",),
    ),
    Edit(
        5,
        "TASK_TIMEOUT_MS beats a task's own timeout_ms",
        "horsies_django/worker/pool/timeouts.py",
        "        if options is not None and (found :=",
        "        if self.default is None and options is not None and (found :=",
        (
            "tests/e2e/test_timeouts.py::test_the_timeout_of_the_settings_holds_for_tasks_without_one",
        ),
    ),
    Edit(
        6,
        "the engine never resets its backoff after an outage",
        "horsies_django/worker/engine/outage.py",
        "        self.backoff.succeeded()\n",
        "",
        ("tests/e2e/test_outages.py::test_past_outages_do_not_count_towards_the_limit_of_tries",),
    ),
    Edit(
        7,
        "a waiting get() ignores all notifications of finished tasks",
        "horsies_django/tasks/result_listener.py",
        "            self.arrived |= announced & self.callers.keys()\n",
        "            self.arrived |= set()\n",
        ("tests/db/test_waiting.py::test_a_task_that_ends_after_the_second_check_is_not_polled",),
    ),
    Edit(
        8,
        "the poll of the result listener does nothing",
        "horsies_django/tasks/result_listener.py",
        "poll_at = now + self.poll_seconds\n                arrived = expected\n",
        "poll_at = now + self.poll_seconds\n",
        ("tests/db/test_waiting.py::test_a_result_that_is_not_announced_is_found_by_the_poll",),
    ),
    Edit(
        9,
        "a passing error amid a poisoned batch makes a completed task FAILED",
        "horsies_django/worker/engine/outbox.py",
        """\
            if (error.sqlstate or "")[:2] not in POISON:
                raise
            return error
""",
        """\
            return error
""",
        ("tests/worker/test_outbox.py::test_a_time_limit_in_a_poisoned_batch_fails_no_good_task",),
    ),
    Edit(
        10,
        "outcomes are forgotten when the look at why they did not land fails",
        "horsies_django/worker/engine/outbox.py",
        "            self.locked += missing  # tried again when the connection is back\n",
        "",
        ("tests/worker/test_outbox.py::test_an_unwritten_outcome_survives_a_cut_before_the_check",),
    ),
    Edit(
        11,
        "values of more than 20,000 characters are not escaped in the admin",
        "horsies_django/admin/base/html.py",
        "        text[:LONGEST_VALUE],\n",
        "        SafeString(text[:LONGEST_VALUE]),\n",
        ("tests/desk/test_admin.py::test_a_long_hostile_value_is_shown_as_text",),
    ),
    Edit(
        12,
        "the statement that looks for due schedules cannot use its index",
        "horsies_django/store/sql/schedules/due.sql",
        "WHERE s.next_at <= ",
        "WHERE s.next_at + interval '0' <= ",
        (
            "tests/worker/test_scheduler.py::test_ten_thousand_schedules_cost_nothing_while_none_is_due",
        ),
    ),
    Edit(
        13,
        "jitter differs from process to process",
        "horsies_django/core/schedules.py",
        'digest = hashlib.sha256(f"{self.name} {fire_time.timestamp():.0f}".encode()).digest()',
        'digest = hash(f"{self.name} {fire_time.timestamp():.0f}").to_bytes(8, signed=True)',
        ("tests/unit/test_patterns.py::test_jitter_is_the_same_in_every_process",),
    ),
    Edit(
        14,
        'that a task "runs long" is reported at every beat',
        "horsies_django/worker/pool/timeouts.py",
        "        self.reported = old\n",
        "        self.reported = set()\n",
        ("tests/worker/test_logs.py::test_a_long_running_task_is_reported_once",),
    ),
    Edit(
        15,
        "a delay counts from the start of the transaction",
        f"{FUNCTIONS}/tasks/horsies_send.sql",
        "v_now + p_delay",
        "now() + p_delay",
        ("tests/db/test_send.py::test_a_delay_and_a_good_until_count_from_the_send",),
    ),
    Edit(
        16,
        "cancel reads its clock before it has its locks",
        f"{FUNCTIONS}/settle/horsies_cancel.sql",
        """\
  PERFORM
  FROM horsies_tasks t
  WHERE t.id = ANY (p_ids)
  ORDER BY t.id
  FOR NO KEY UPDATE;

  -- after the locks: a pass that held the rows may have started the next attempt
  v_now := clock_timestamp();
""",
        """\
  v_now := clock_timestamp();

  PERFORM
  FROM horsies_tasks t
  WHERE t.id = ANY (p_ids)
  ORDER BY t.id
  FOR NO KEY UPDATE;
""",
        ("tests/db/test_pass.py::test_a_cancel_that_waited_for_a_row_ends_the_task_afterwards",),
    ),
    Edit(
        17,
        "a worker claims beyond the time it may trust its heartbeat",
        "horsies_django/worker/engine/engine.py",
        "return now <= self.trusted_until and not self.outbox.overfull",
        "return not self.outbox.overfull",
        ("tests/worker/test_engine.py::test_an_engine_claims_nothing_after_its_last_beat_expires",),
    ),
    Edit(
        18,
        "what a pass took ahead is not counted in its next round",
        f"{FUNCTIONS}/partitions/horsies_partition_rooms.sql",
        " - load.ahead,",
        ",",
        ("tests/db/test_caps.py::test_a_buffered_claim_takes_no_permit_from_another_worker",),
    ),
)
