-- A row that a pass returns: a task that it claimed, of the kind 'start' or 'prefetch', or found 'late'; and last, of the kind 'short' or
-- 'whole', what the pass says of itself: seconds until the next task becomes due, whether a cap or the total left tasks behind, whether
-- another pass should follow, whether the worker was declared dead, and the report of what is unusual.
-- id to in_run are the columns of a claim. horsies_claimed alone fills them, and Python reads them by name into a Claim (core/records.py).
-- sent_at is an epoch; in_run: it is a task of a workflow, and no element of a map, except perhaps the first.
CREATE TYPE horsies_passed AS (
  kind text, id uuid, generation int, lane text, task_name text, kwargs text, attempt int, options text, queue_name text, sent_at float8,
  in_run boolean, due_in float8, limited boolean, again boolean, dead boolean, report text);
