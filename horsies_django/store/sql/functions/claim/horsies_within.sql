-- Returns the first of some tasks, as many as have p_room characters of arguments together; the one
-- that exceeds it is the last, so there is at least one. A pass that would claim a hundred tasks
-- with megabytes each would take longer than the worker waits for an answer.
-- Large arguments are read for this; so call it only if the tasks may have more than p_room, by
-- horsies_most_bytes.
-- Args: p_room: characters of arguments.
-- Returns: ids, and the room that they leave. If tasks are left out, the setting horsies.cut is
-- 'on' until the transaction ends or the caller resets it.
-- Index: primary key.
CREATE OR REPLACE FUNCTION horsies_within(
  p_ids uuid[], p_room bigint, OUT ids uuid[], OUT room bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  v_length bigint;
BEGIN
  room := p_room;

  FOR i IN 1 .. cardinality(p_ids) LOOP
    SELECT
      CASE WHEN pg_column_compression(t.kwargs) IS NULL
        THEN pg_column_size(t.kwargs)
        ELSE length(t.kwargs::text)
      END
    INTO v_length
    FROM horsies_tasks t
    WHERE t.id = p_ids[i];

    room := room - coalesce(v_length, 0);
    IF room <= 0 AND i < cardinality(p_ids) THEN
      ids := p_ids[1 : i];
      PERFORM set_config('horsies.cut', 'on', true);
      RETURN;
    END IF;
  END LOOP;
  ids := p_ids;
END
$$;
