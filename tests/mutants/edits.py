"""The edits that an audit of the tests found nobody to notice, and for each the test that notices
it now. Data only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """Replace ``old``, which stands exactly once in the file ``path``, by ``new``; each of
    ``tests`` has to fail then.
    """

    number: int
    what: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...] = ()

    def problem(self, root: Path) -> str | None:
        """Return why the edit cannot be made in the tree under ``root``; None: it can."""
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
        (
            "tests/e2e/test_probes.py::test_replaced_children_are_counted_by_the_limit_that_they_reached_first",
        ),
    ),
    Edit(
        2,
        "--processes=0 becomes one child",
        "horsies_django/worker/pool/pool.py",
        "self._add(InProcess(self.options))",
        "self._add_child()",
        (
            "tests/e2e/test_worker.py::test_results_of_sync_and_async_tasks_come_back_in_every_shape_of_worker",
        ),
    ),
    Edit(
        3,
        "the default of --max-tasks-per-child becomes 1000",
        "horsies_django/worker/process/options.py",
        "MAX_TASKS_PER_CHILD = 100 ",
        "MAX_TASKS_PER_CHILD = 1000 ",
        (
            "tests/worker/test_capacity.py"
            "::test_a_child_is_replaced_after_a_hundred_tasks_and_a_minute_or_after_exactly_so_many_as_were_chosen",
        ),
    ),
    Edit(
        4,
        "the default of --processes becomes 1",
        "horsies_django/worker/main.py",
        "processes=usable_cpus() if processes is None",
        "processes=1 if processes is None",
        (
            "tests/e2e/test_scripts.py::test_a_worker_without_options_has_as_many_children_as_it_may_use_cpus",
        ),
    ),
    Edit(
        5,
        "TASK_TIMEOUT_MS beats a task's own timeout_ms",
        "horsies_django/worker/pool/timeouts.py",
        "        if options is not None and (found :=",
        "        if self.default is None and options is not None and (found :=",
        (
            "tests/e2e/test_timeouts.py::test_the_timeout_of_the_settings_holds_for_tasks_without_their_own",
        ),
    ),
    Edit(
        6,
        "the engine never resets its backoff after an outage",
        "horsies_django/worker/engine/outage.py",
        "        self.backoff.succeeded()\n",
        "",
        (
            "tests/e2e/test_outages.py::test_outages_that_are_over_do_not_count_towards_those_that_resilience_allows",
        ),
    ),
    Edit(
        7,
        "a waiting get() ignores all notifications of finished tasks",
        "horsies_django/tasks/result_listener.py",
        "            self.arrived |= announced & self.callers.keys()\n",
        "            self.arrived |= set()\n",
        (
            "tests/db/test_waiting.py::test_what_ends_after_the_second_look_is_heard_of_and_not_polled_for",
        ),
    ),
    Edit(
        8,
        "the poll of the result listener does nothing",
        "horsies_django/tasks/result_listener.py",
        "look_at = now + self.poll_seconds\n                arrived = wanted\n",
        "look_at = now + self.poll_seconds\n",
        (
            "tests/db/test_waiting.py::test_what_nobody_announced_is_found_by_the_poll_and_not_by_a_renewal",
        ),
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
        (
            "tests/worker/test_outbox.py::test_a_time_limit_amid_a_poisoned_batch_makes_no_completed_task_a_failure",
        ),
    ),
    Edit(
        10,
        "outcomes are forgotten when the look at why they did not land fails",
        "horsies_django/worker/engine/outbox.py",
        "            self.locked += missing  # asked again when the connection is back\n",
        "",
        (
            "tests/worker/test_outbox.py::test_an_outcome_that_did_not_land_survives_a_connection_that_is_cut_before_the_look_why",
        ),
    ),
    Edit(
        11,
        "values of more than 20,000 characters are not escaped in the admin",
        "horsies_django/admin/base/html.py",
        "        text[:LONGEST],\n",
        "        SafeString(text[:LONGEST]),\n",
        (
            "tests/desk/test_admin.py::test_a_hostile_value_longer_than_the_shown_part_is_text_all_the_same",
        ),
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
        (
            "tests/worker/test_logs.py::test_a_task_that_runs_long_is_reported_once_however_many_beats_follow",
        ),
    ),
    Edit(
        15,
        "a delay counts from the start of the transaction",
        f"{FUNCTIONS}/tasks/horsies_send.sql",
        "v_now + p_delay",
        "now() + p_delay",
        (
            "tests/db/test_send.py::test_a_delay_and_a_good_until_count_from_the_send_and_not_from_the_start_of_its_transaction",
        ),
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
        (
            "tests/db/test_pass.py::test_a_cancel_that_waits_ends_the_task_after_it_got_the_row_and_not_when_it_asked_for_it",
        ),
    ),
    Edit(
        17,
        "a worker claims beyond the time it may trust its heartbeat",
        "horsies_django/worker/engine/engine.py",
        "return now <= self.trusted_until and not self.outbox.overfull",
        "return not self.outbox.overfull",
        (
            "tests/worker/test_engine.py::test_nothing_is_claimed_after_the_moment_up_to_which_the_last_beat_is_trusted",
        ),
    ),
    Edit(
        18,
        "what a pass took ahead is not counted in its next round",
        f"{FUNCTIONS}/partitions/horsies_partition_rooms.sql",
        " - load.ahead,",
        ",",
        (
            "tests/db/test_caps.py::test_what_waits_in_a_buffer_keeps_no_permit_of_its_partition_from_another_worker",
        ),
    ),
)
