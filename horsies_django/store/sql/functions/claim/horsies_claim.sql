-- Claims due tasks for the free slots of each lane, and starts them. In soft mode, it also
-- prefetches tasks, which wait as CLAIMED. Each claim has a new generation; the first one follows
-- the highest number.
-- Late tasks expire, and tasks of a partition that is full for every worker are parked. Both leave
-- the index of claimable tasks.
-- Queues come in order of their priority; the tasks of queues with the same priority share one
-- order. Each priority is read in rounds, because refused candidates may hide others beyond the end
-- of a scan.
-- Args:
--   p_wanted: the numbers of tasks that the worker can take.
--   p_limits: the limits in force of the queues, in the order of their priority.
--   p_rooms: for each queue in p_limits, how many more of its tasks may run.
-- Returns:
--   claims: of the kinds 'start', 'prefetch' and 'late'.
--   late: whether there are late ones.
--   due: when the next task becomes due.
--   limited: tasks may wait because of a cap or the total.
--   again: the pass became long and another one should follow, or the arguments of the claimed
--     tasks have more characters than a pass takes, or more equal tasks wait than a pass merges.
--   firsts: see horsies_candidates.
-- Moves: PENDING -> RUNNING, CLAIMED; late tasks: see horsies_expire; equal tasks: see
-- horsies_fold.
-- Locks: the task rows, skipping locked ones; the caller holds the advisory locks.
-- Index: horsies_tasks_claim, then the primary key.
CREATE OR REPLACE FUNCTION horsies_claim(
  p_wanted horsies_wanted, p_limits horsies_limits[], p_rooms int[],
  OUT claims horsies_passed[], OUT late boolean, OUT due timestamptz, OUT limited boolean,
  OUT again boolean, OUT firsts jsonb
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  c_folds CONSTANT int := 1000;  -- in a pass
  v_first int := 1;
  v_last int;
  v_partitioned boolean;
  v_folding boolean;
  v_extra int;
  v_met int := 0;
  v_but jsonb;
  v_found record;
  v_candidates horsies_candidate[];
  v_allotted record;
  v_ids uuid[];
  v_ahead uuid[] := '{}';  -- the prefetched ones
  v_unparked int;
  v_fold record;
  v_folded int := 0;
  v_taken uuid[];
  v_room bigint := 8388608;  -- characters of arguments, as in horsies_pass
BEGIN
  late := false;
  limited := false;
  again := false;
  firsts := '{}';

  WHILE v_first <= cardinality(p_limits)
    AND p_wanted.total > 0
    AND (p_wanted.sync > 0 OR p_wanted.async > 0 OR p_wanted.prefetch > 0)
  LOOP
    v_last := v_first;
    v_partitioned := false;
    v_folding := false;
    FOR i IN v_first .. cardinality(p_limits) LOOP
      EXIT WHEN p_limits[i].priority <> p_limits[v_first].priority;

      v_last := i;
      v_partitioned := v_partitioned
        OR p_limits[i].partition_max_concurrency IS NOT NULL
        OR p_limits[i].partition_local_limit IS NOT NULL;
      v_folding := v_folding OR p_limits[i].partition_policy IS NOT DISTINCT FROM 'coalesce';
    END LOOP;

    v_but := '{}';
    v_extra := 0;
    LOOP
      v_found := horsies_candidates(
        p_wanted, p_limits, p_rooms, v_first, v_last, v_but, v_extra);
      firsts := firsts || v_found.firsts;
      due := least(due, v_found.due);
      v_candidates := v_found.candidates;
      EXIT WHEN v_candidates IS NULL;

      v_met := v_met + cardinality(v_candidates);
      IF v_partitioned AND v_found.stale THEN
        UPDATE horsies_tasks t
        SET
          partition_key = c.key,
          partition_version = p_limits[c.queue].partition_version,
          ordered = CASE WHEN p_limits[c.queue].partition_policy IS NOT NULL THEN true END
        FROM unnest(v_candidates) AS c
        WHERE c.stale AND t.id = c.id;
      END IF;

      v_allotted := horsies_allot(p_limits, v_found.cuts, p_wanted, p_rooms, v_candidates);
      v_candidates := v_allotted.p_candidates;
      p_wanted := v_allotted.p_wanted;
      p_rooms := v_allotted.p_rooms;

      v_taken := ARRAY(
        SELECT c.id FROM unnest(v_candidates) AS c WHERE c.verdict IN ('start', 'prefetch'));
      IF v_found.size <= v_room THEN
        v_room := v_room - v_found.size;
      ELSIF v_taken <> '{}' THEN
        SELECT w.ids, w.room INTO v_ids, v_room FROM horsies_within(v_taken, v_room) AS w;
        again := v_ids <> v_taken OR v_room <= 0;
        v_taken := v_ids;
      END IF;
      IF again THEN
        v_candidates := ARRAY(
          SELECT ROW(
            c.id, c.queue, c.lane, c.priority, c.enqueued_at, c.key, c.stale, c.late,
            CASE WHEN c.id = ANY (v_taken) OR c.verdict NOT IN ('start', 'prefetch')
              THEN c.verdict
              ELSE ''
            END
          )::horsies_candidate
          FROM unnest(v_candidates) WITH ORDINALITY AS c
          ORDER BY c.ordinality);
      END IF;

      IF v_folding THEN
        v_fold := horsies_fold(
          p_limits, p_wanted.now, c_folds - v_folded, p_wanted.channel, v_candidates);
        v_folded := v_folded + v_fold.many;
        IF v_fold.more THEN
          again := true;
          v_candidates := v_fold.p_candidates;
          v_taken := ARRAY(
            SELECT c.id FROM unnest(v_candidates) AS c WHERE c.verdict IN ('start', 'prefetch'));
        END IF;
      END IF;

      IF p_wanted.lease IS NOT NULL THEN
        v_ahead := ARRAY(
          SELECT c.id FROM unnest(v_candidates) AS c WHERE c.verdict = 'prefetch');
      END IF;

      WITH taken AS (
        UPDATE horsies_tasks t
        SET
          status = CASE WHEN t.id = ANY (v_ahead) THEN 'CLAIMED' ELSE 'RUNNING' END,
          claimed_by = p_wanted.worker,
          claimed_at = p_wanted.now,
          started_at = CASE WHEN t.id <> ALL (v_ahead) THEN p_wanted.now END,
          claim_expires_at = CASE WHEN t.id = ANY (v_ahead) THEN p_wanted.now + p_wanted.lease END,
          claim_generation = t.claim_generation % 2147483647 + 1
        WHERE t.id = ANY (v_taken) AND t.claimed_by IS NULL AND t.finished_at IS NULL
        RETURNING
          t.priority, t.enqueued_at,
          horsies_claimed(CASE t.status WHEN 'RUNNING' THEN 'start' ELSE 'prefetch' END, t) AS claim
      )
      SELECT claims || array_agg(c.claim ORDER BY c.priority, c.enqueued_at, (c.claim).id)
      INTO claims
      FROM taken c;

      IF v_allotted.refused THEN
        UPDATE horsies_tasks t
        SET parked = true
        WHERE t.id = ANY (ARRAY(
            SELECT c.id FROM unnest(v_candidates) AS c WHERE c.verdict = 'park'
          ))
          AND t.claimed_by IS NULL
          AND t.finished_at IS NULL;

        limited := limited OR FOUND;

        v_ids := ARRAY(SELECT c.id FROM unnest(v_candidates) AS c WHERE c.verdict = 'late');
        IF v_ids <> '{}' THEN
          late := true;

          SELECT claims || array_agg(horsies_claimed('late', t))
          INTO claims
          FROM unnest(horsies_expire(v_ids, p_wanted.now, p_wanted.channel)) AS e (id)
          JOIN horsies_tasks t ON t.id = e.id;

          -- an expired task may have been unparked for a free permit
          SELECT horsies_unpark(
            p_limits, array_agg(p_limits[c.queue].queue_name::text), array_agg(c.key))
          INTO v_unparked
          FROM unnest(v_candidates) AS c
          WHERE c.verdict = 'late';

          v_allotted.stopped := v_allotted.stopped OR v_unparked > 0;
        END IF;

        SELECT
          coalesce(
            v_but || jsonb_object_agg(
              h.queue, coalesce(v_but -> h.queue::text, '[]') || h.keys),
            v_but),
          limited OR count(*) > 0
        INTO v_but, limited
        FROM (
          SELECT c.queue, jsonb_agg(DISTINCT c.key) AS keys
          FROM unnest(v_candidates) AS c
          WHERE c.verdict = 'here'
          GROUP BY c.queue
        ) AS h;
      END IF;

      IF again THEN
        p_wanted.total := 0;
        EXIT;
      END IF;
      EXIT WHEN NOT v_allotted.stopped OR p_wanted.total <= 0;

      IF v_met >= 2000 THEN  -- keeps the pass short; the engine runs another one
        again := true;
        p_wanted.total := 0;
        EXIT;
      END IF;
      v_extra := least(greatest(v_extra * 5, 20), 500);
    END LOOP;
    v_first := v_last + 1;
  END LOOP;
  limited := limited OR p_wanted.total <= 0 OR 0 = ANY (p_rooms);
END
$$;
