-- Describes a row that a pass returns. A row of the kind 'start', 'prefetch' or 'late' is a task,
-- from id to due_in. The last row, of the kind 'short' or 'whole', is about the pass itself, from
-- due_in to report.
-- The columns from id to due_in are those of a claim. Only horsies_claimed fills them, and Python
-- reads them by name into a Claim (core/records.py).
CREATE TYPE horsies_passed AS (
  kind text,  -- of a task: claimed to 'start' or to 'prefetch', or found 'late'
  id uuid,
  generation int,
  lane text,
  task_name text,
  kwargs text,
  attempt int,
  options text,
  queue_name text,
  sent_at float8,  -- an epoch
  in_run boolean,  -- it is a task of a workflow, and no element of a map, except perhaps the first
  due_in float8,  -- seconds from the claim until the task, or else until the next task, becomes due
  limited boolean,  -- a cap or the total left tasks behind
  again boolean,  -- another pass should follow
  dead boolean,  -- the worker was declared dead
  report text  -- of what is unusual
);
