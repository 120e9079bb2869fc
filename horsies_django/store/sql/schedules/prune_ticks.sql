-- Deletes a batch of the oldest fire times of schedules. These are not sent again, because the
-- column last_fire_at of horsies_schedules is kept.
-- The last fire time of each schedule that exists stays: it names the task that has to finish
-- before one is sent that must not overlap.
-- Locks: the deleted rows, skipping locked ones.
-- Index: horsies_schedule_ticks_sent, primary key.
WITH old AS MATERIALIZED (
  SELECT tick.schedule_name, tick.fire_at
  FROM horsies_schedule_ticks tick
  WHERE tick.sent_at < clock_timestamp() - %(age)s::interval
    AND (
      EXISTS (
        SELECT
        FROM horsies_schedule_ticks later
        WHERE later.schedule_name = tick.schedule_name AND later.fire_at > tick.fire_at
      )
      OR NOT EXISTS (SELECT FROM horsies_schedules s WHERE s.name = tick.schedule_name)
    )
  ORDER BY tick.sent_at
  LIMIT %(many)s::int
  FOR UPDATE SKIP LOCKED
)
DELETE FROM horsies_schedule_ticks tick
USING old
WHERE tick.schedule_name = old.schedule_name AND tick.fire_at = old.fire_at
