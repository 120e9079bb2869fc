--
-- PostgreSQL database dump
--


-- Dumped from database version 18.6
-- Dumped by pg_dump version 18.6

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: horsies_candidate; Type: TYPE; Schema: public; Owner: -
--

CREATE TYPE public.horsies_candidate AS (
	id uuid,
	queue integer,
	lane text,
	priority smallint,
	enqueued_at timestamp with time zone,
	key text,
	stale boolean,
	late boolean,
	verdict text
);


--
-- Name: horsies_json; Type: DOMAIN; Schema: public; Owner: -
--

CREATE DOMAIN public.horsies_json AS json
	CONSTRAINT horsies_json_check CHECK ((jsonb_typeof((VALUE)::jsonb) <> ''::text));


--
-- Name: horsies_passed; Type: TYPE; Schema: public; Owner: -
--

CREATE TYPE public.horsies_passed AS (
	kind text,
	id uuid,
	generation integer,
	lane text,
	task_name text,
	kwargs text,
	attempt integer,
	options text,
	queue_name text,
	sent_at double precision,
	in_run boolean,
	due_in double precision,
	limited boolean,
	again boolean,
	dead boolean,
	report text
);


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: horsies_workers; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_workers (
    id uuid NOT NULL,
    hostname character varying(255) NOT NULL,
    pid integer NOT NULL,
    version character varying(50) NOT NULL,
    queues jsonb NOT NULL,
    processes integer NOT NULL,
    threads integer NOT NULL,
    async_concurrency integer NOT NULL,
    started_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    seen_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    stopped_at timestamp with time zone,
    running_sync integer DEFAULT 0 NOT NULL,
    running_async integer DEFAULT 0 NOT NULL,
    memory_usage_mb double precision,
    children_memory_mb double precision,
    task_names jsonb,
    wire smallint
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='100', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='100');


--
-- Name: horsies_wanted; Type: TYPE; Schema: public; Owner: -
--

CREATE TYPE public.horsies_wanted AS (
	worker uuid,
	channel text,
	queues text[],
	news text,
	sync integer,
	async integer,
	prefetch integer,
	total integer,
	batch integer,
	lease interval,
	durable boolean,
	max_crashes integer,
	grace interval,
	taker public.horsies_workers,
	cursors jsonb,
	behind timestamp with time zone,
	now timestamp with time zone,
	max_bytes integer
);


--
-- Name: horsies_add_nodes(uuid, bigint, jsonb, jsonb, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_add_nodes(p_workflow uuid, p_added_by bigint, p_nodes jsonb, p_values jsonb, p_now timestamp with time zone) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_numbers bigint[];
BEGIN
  WITH node AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(p_nodes) AS n (
      number bigint, name text, kind text, task text, queue text, lane text, priority smallint, max_retries smallint, options jsonb,
      kwargs jsonb, inputs jsonb, "over" text, graph jsonb, value jsonb, rule text, needs int, allow_failed boolean,
      when_node bigint, when_path text, delay interval, good_until timestamptz, good_for interval, after jsonb, uncounted jsonb,
      signal text, signal_key text, signal_type text, due_at timestamptz, is_wait boolean, on_timeout text, permission text, undo jsonb, codec text)
  ), inserted AS (
    INSERT INTO horsies_workflow_nodes (
      workflow_id, number, added_by, name, kind, status, task_name, queue_name, lane, priority, max_retries, options, kwargs, inputs, over,
      graph, value, rule, needs, allow_failed, when_node, when_path, delay, good_until, branches, open, ok, bad, expanded, in_flight, items_ok, items_bad,
      signal, signal_key, signal_type, due_at, is_wait, on_timeout, permission, undo, codec, finished_at)
    SELECT p_workflow, n.number, p_added_by, n.name, n.kind,
           CASE WHEN p_added_by >= 0 THEN 'ADDED' WHEN n.kind = 'input' THEN 'COMPLETED'
                WHEN jsonb_array_length(n.after) > 0 THEN 'PENDING' WHEN n.rule = 'failed' THEN 'SKIPPED' ELSE 'READY' END,
           coalesce(n.task, ''), coalesce(n.queue, ''), coalesce(n.lane, ''), coalesce(n.priority, 100), coalesce(n.max_retries, 0),
           n.options, coalesce(n.kwargs, '{}'), n.inputs, n.over, n.graph,
           CASE WHEN n.kind = 'input' THEN coalesce(p_values -> n.name, n.value, 'null') ELSE n.value END,
           coalesce(n.rule, 'all'), n.needs, coalesce(n.allow_failed, false), n.when_node, n.when_path, n.delay,
           coalesce(n.good_until, v_now + n.good_for),
           coalesce(jsonb_array_length(n.after), 0) - coalesce(jsonb_array_length(n.uncounted), 0), coalesce(jsonb_array_length(n.after), 0), 0, 0, 0, 0, 0, 0,
           n.signal, n.signal_key, n.signal_type, n.due_at, coalesce(n.is_wait, false), n.on_timeout, n.permission, n.undo, n.codec,
           CASE WHEN p_added_by < 0 AND (n.kind = 'input' OR n.rule = 'failed' AND n.after IS NULL) THEN v_now END
    FROM node n
    ON CONFLICT (workflow_id, added_by, name) DO NOTHING
    RETURNING number
  ), connected AS (
    INSERT INTO horsies_workflow_edges (workflow_id, upstream, downstream, counts)
    SELECT p_workflow, e.upstream::bigint, n.number, n.uncounted IS NULL OR NOT n.uncounted @> to_jsonb(e.upstream::bigint)
    FROM node n JOIN inserted i ON i.number = n.number CROSS JOIN LATERAL jsonb_array_elements_text(n.after) AS e (upstream)
    ON CONFLICT DO NOTHING
  )
  SELECT coalesce(array_agg(i.number), '{}') INTO v_numbers FROM inserted i;
  RETURN v_numbers;
END
$$;


--
-- Name: horsies_advance(uuid, uuid[], uuid[], integer, integer, text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_advance(p_workflow uuid, p_tasks uuid[], p_children uuid[], p_limit integer, p_max_bytes integer, p_channel text, p_now timestamp with time zone, OUT busy boolean, OUT many integer, OUT more boolean, OUT finished boolean, OUT parent uuid, OUT halted text) RETURNS record
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_moved bigint[];
  v_children bigint[];
  v_own record;
  v_verb text;
  v_waits record;
  v_run record;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  SELECT w.status, w.parent_id, w.continued_as INTO v_own FROM horsies_workflows w WHERE w.id = p_workflow FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    busy := EXISTS (SELECT FROM horsies_workflows w WHERE w.id = p_workflow);
    IF NOT busy THEN  -- the run was deleted by hand
      UPDATE horsies_tasks t SET advanced_at = v_now WHERE t.id = ANY (p_tasks) AND t.workflow_id = p_workflow;
      DELETE FROM horsies_workflow_signals s WHERE s.workflow_id = p_workflow;
      UPDATE horsies_workflow_nodes n SET status = 'CANCELLED', finished_at = v_now
      WHERE n.workflow_id = p_workflow AND n.status = 'WAITING' AND n.is_wait AND n.finished_at IS NULL;
    END IF;
    RETURN;
  END IF;
  busy := false;
  IF v_own.parent_id IS NOT NULL AND v_own.status IN ('RUNNING', 'PAUSED') THEN
    SELECT CASE WHEN w.status IN ('CANCELLED', 'COMPENSATING') OR w.continued_as IS NOT NULL OR w.on_error = 'stop' AND w.error_code IS NOT NULL
                  THEN 'cancel'
                WHEN w.status = 'PAUSED' AND v_own.status = 'RUNNING' THEN 'pause' END
    INTO v_verb FROM horsies_workflows w WHERE w.id = v_own.parent_id;
    IF v_verb IS NOT NULL THEN
      PERFORM horsies_control_run(p_workflow, v_verb, p_max_bytes, p_channel, p_now);
    END IF;
  END IF;
  IF v_own.continued_as IS NOT NULL THEN
    UPDATE horsies_workflow_signals s SET workflow_id = v_own.continued_as WHERE s.workflow_id = p_workflow AND s.seen_at IS NULL;
    IF FOUND THEN
      PERFORM pg_notify(p_channel || '_new', 'advance ' || v_own.continued_as);
    END IF;
  END IF;
  v_moved := horsies_take_tasks(p_workflow, p_tasks, v_now);
  IF p_children <> '{}' THEN
    WITH ended AS (
      UPDATE horsies_workflow_nodes n
      SET status = CASE WHEN c.status = 'COMPLETED' AND c.result ? 'err' THEN 'SKIPPED' ELSE c.status END,  -- as its output
          finished_at = v_now, value = c.result -> 'ok', error = c.result #>> '{err,message}',
          error_code = CASE WHEN c.result #>> '{err,error_code}' IN ('WORKFLOW_FAILED', 'WORKFLOW_CANCELLED') THEN 'SUBWORKFLOW_FAILED'
                            ELSE c.result #>> '{err,error_code}' END
      FROM horsies_workflows c
      WHERE c.id = ANY (p_children) AND c.finished_at IS NOT NULL
        AND n.workflow_id = c.parent_id AND n.number = c.parent_node AND n.task_id = c.id AND n.status = 'ENQUEUED'
      RETURNING n.number
    )
    SELECT array_agg(e.number) INTO v_children FROM ended e;
    v_moved := v_moved || v_children;
  END IF;
  v_waits := horsies_take_waits(p_workflow, 200, v_now);
  v_moved := v_moved || v_waits.moved;
  SELECT m.* INTO v_run FROM horsies_move_run(p_workflow, v_moved, p_limit, p_max_bytes, p_channel, p_now) AS m;
  many := v_run.many;
  more := v_run.more OR v_waits.more;
  finished := v_run.finished;
  parent := v_run.parent;
  halted := CASE WHEN v_verb IS NULL THEN v_run.halted ELSE 'parent' END;
END
$$;


--
-- Name: horsies_advance_plain(uuid[], uuid[], bigint[], integer, text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_advance_plain(p_plain uuid[], p_runs uuid[], p_numbers bigint[], p_max_bytes integer, p_channel text, p_now timestamp with time zone) RETURNS text[]
    LANGUAGE plpgsql
    SET enable_nestloop TO 'on'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_runs uuid[];
  v_numbers bigint[];
  v_sent text[];
  v_last uuid[];
  v_run uuid;
BEGIN
  WITH ended AS (
    UPDATE horsies_workflow_nodes n
    SET status = 'COMPLETED', finished_at = v_now, value = CASE n.kind WHEN 'timer' THEN 'null' ELSE n.value END
    FROM unnest(p_runs, p_numbers) AS f (run, number)
    WHERE f.run = ANY (p_plain) AND n.workflow_id = f.run AND n.number = f.number
    RETURNING n.workflow_id, n.number
  ), below AS MATERIALIZED (
    SELECT n.workflow_id, e.downstream AS number, count(*)::int AS many
    FROM ended n LEFT JOIN horsies_workflow_edges e ON e.workflow_id = n.workflow_id AND e.upstream = n.number
    GROUP BY n.workflow_id, e.downstream
  ), judged AS MATERIALIZED (
    SELECT b.*, n.open = b.many AS ready, n.queue_name
    FROM below b JOIN horsies_workflow_nodes n ON n.workflow_id = b.workflow_id AND n.number = b.number
  ), waiting AS (
    UPDATE horsies_workflow_nodes n SET open = n.open - j.many, ok = n.ok + j.many
    FROM judged j WHERE n.workflow_id = j.workflow_id AND n.number = j.number AND NOT j.ready
  )
  SELECT coalesce(array_agg(j.workflow_id), '{}'), coalesce(array_agg(j.number), '{}'), coalesce(array_agg(j.queue_name::text), '{}'),
         ARRAY(SELECT b.workflow_id FROM below b WHERE b.number IS NULL)
  INTO v_runs, v_numbers, v_sent, v_last FROM judged j WHERE j.ready;
  IF v_numbers <> '{}' THEN
    PERFORM horsies_send_all(v_runs, v_numbers, p_max_bytes, p_now);
  END IF;
  FOREACH v_run IN ARRAY v_last LOOP
    PERFORM horsies_finish_run(v_run, p_channel, p_max_bytes, v_now);
  END LOOP;
  RETURN v_sent;
END
$$;


--
-- Name: horsies_limits; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_limits (
    priority smallint DEFAULT 100 NOT NULL,
    max_concurrency integer,
    local_limit integer,
    partition_by_args jsonb,
    partition_by_task boolean DEFAULT false NOT NULL,
    partition_version integer DEFAULT 0 NOT NULL,
    partition_max_concurrency integer,
    partition_local_limit integer,
    queue_name character varying(100) NOT NULL
);


--
-- Name: horsies_allot(public.horsies_limits[], text[], public.horsies_wanted, integer[], public.horsies_candidate[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_allot(p_limits public.horsies_limits[], p_cuts text[], INOUT p_wanted public.horsies_wanted, INOUT p_rooms integer[], INOUT p_candidates public.horsies_candidate[], OUT refused boolean, OUT stopped boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_stop int := cardinality(p_candidates);
  v_parts text[];
  v_part_rooms int[];
  v_everyone int[];  -- the room of a partition on all workers; prefetched tasks do not use it
  v_one horsies_candidate;
  v_decided horsies_candidate[] := '{}';
  v_part int;
  v_slot boolean;
BEGIN
  refused := false;
  stopped := false;
  FOREACH v_one IN ARRAY p_candidates LOOP
    IF v_one.key IS NOT NULL AND v_parts IS NULL THEN
      SELECT coalesce(array_agg(k.queue || r.key), '{}'), array_agg(r.room), array_agg(r.everyone) INTO v_parts, v_part_rooms, v_everyone
      FROM (
        SELECT c.queue, array_agg(DISTINCT c.key) AS keys FROM unnest(p_candidates) AS c
        WHERE c.key IS NOT NULL
          AND (p_limits[c.queue].partition_max_concurrency IS NOT NULL OR p_limits[c.queue].partition_local_limit IS NOT NULL)
        GROUP BY c.queue
      ) AS k
      CROSS JOIN LATERAL horsies_partition_rooms(p_limits[k.queue], k.keys, p_wanted.worker, p_wanted.lease IS NULL, p_wanted.now) AS r;
    END IF;
    v_part := array_position(v_parts, v_one.queue || v_one.key);
    v_slot := CASE v_one.lane WHEN 'sync' THEN p_wanted.sync ELSE p_wanted.async END > 0;
    v_one.verdict := CASE
      WHEN cardinality(v_decided) >= v_stop OR p_wanted.total <= 0 OR p_rooms[v_one.queue] <= 0
        OR NOT (v_slot OR (v_one.lane = 'sync' AND p_wanted.prefetch > 0)) THEN ''
      WHEN v_one.late THEN 'late'
      WHEN v_everyone[v_part] <= 0 THEN 'park'
      WHEN v_part_rooms[v_part] <= 0 THEN 'here'
      WHEN v_slot THEN 'start'
      ELSE 'prefetch' END;
    v_decided := v_decided || v_one;
    IF v_one.verdict IN ('start', 'prefetch') THEN
      p_wanted.total := p_wanted.total - 1;
      p_rooms[v_one.queue] := p_rooms[v_one.queue] - 1;
      IF v_part IS NOT NULL THEN
        v_part_rooms[v_part] := v_part_rooms[v_part] - 1;
        v_everyone[v_part] := v_everyone[v_part] - v_slot::int;
      END IF;
      IF NOT v_slot THEN
        p_wanted.prefetch := p_wanted.prefetch - 1;
      ELSIF v_one.lane = 'sync' THEN
        p_wanted.sync := p_wanted.sync - 1;
      ELSE
        p_wanted.async := p_wanted.async - 1;
      END IF;
    ELSIF v_one.verdict <> '' THEN
      refused := true;
      IF (v_one.queue || v_one.lane) = ANY (p_cuts) THEN
        stopped := true;
        p_cuts := array_remove(p_cuts, v_one.queue || v_one.lane);
        v_stop := least(v_stop, (SELECT max(c.ordinality)::int FROM unnest(p_candidates) WITH ORDINALITY AS c
                                 WHERE c.queue = v_one.queue AND c.lane = v_one.lane));
      END IF;
    END IF;
  END LOOP;
  p_candidates := v_decided;
END
$$;


--
-- Name: horsies_announce(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_announce() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
  PERFORM pg_notify(
    'horsies_' || left(md5(TG_TABLE_SCHEMA), 8) || '_new',
    extract(epoch FROM least(now(), q.earliest))
      || CASE WHEN q.latest <= clock_timestamp() AND q.lane = q.other_lane THEN '!' || q.lane ELSE '' END || ' ' || q.queue_name
  )
  FROM (SELECT added.queue_name, min(added.enqueued_at) AS earliest, max(added.enqueued_at) AS latest, min(added.lane) AS lane,
               max(added.lane) AS other_lane
        FROM added GROUP BY added.queue_name) AS q;
  RETURN NULL;
END
$$;


--
-- Name: horsies_argument(uuid, bigint, text, jsonb, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_argument(p_workflow uuid, p_number bigint, p_parameter text, p_spec jsonb, p_max_bytes integer) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
  v_found record;
  v_size bigint;
  v_redacted boolean;
  v_value jsonb;
BEGIN
  IF p_spec ->> 'as' = 'results' THEN
    RETURN jsonb_build_object('workflow', p_workflow, 'node', p_number, 'parameter', p_parameter);
  END IF;
  IF p_spec ->> 'as' = 'list' THEN
    SELECT max(i.size), bool_or(i.redacted),
           coalesce(jsonb_agg(i.result -> 'ok' ORDER BY i.place) FILTER (WHERE i.status = 'COMPLETED' AND i.size <= p_max_bytes), '[]')
    INTO v_size, v_redacted, v_value
    FROM (SELECT r.*, sum(CASE WHEN r.status = 'COMPLETED' THEN octet_length((r.result -> 'ok')::text) + 2 END) OVER (ORDER BY r.place) AS size
          FROM horsies_results(p_workflow, p_spec, 0, NULL) AS r) AS i;  -- never more in memory than is allowed, as JSON
    IF v_size > p_max_bytes THEN
      RAISE EXCEPTION USING ERRCODE = 'HW001', DETAIL = 'PAYLOAD_TOO_LARGE', MESSAGE = format(
        'the results for %s take more than the %s bytes that HORSIES[''MAX_PAYLOAD_BYTES''] allows: %s',
        p_parameter, p_max_bytes, CASE WHEN p_number IS NULL THEN 'handle.results() reads them one by one' ELSE 'annotate it Results[...]' END);
    END IF;
    IF v_redacted THEN
      RAISE EXCEPTION USING ERRCODE = 'HW001', DETAIL = 'RESULT_REDACTED', MESSAGE = format('a result for %s was redacted', p_parameter);
    END IF;
    RETURN v_value;
  END IF;
  v_found := horsies_node_result(p_workflow, (p_spec ->> 'node')::bigint);
  IF v_found.redacted THEN
    RAISE EXCEPTION USING ERRCODE = 'HW001', DETAIL = 'RESULT_REDACTED', MESSAGE = format('the result for %s was redacted', p_parameter);
  ELSIF p_spec ->> 'as' = 'result' THEN
    RETURN v_found.result;
  ELSIF v_found.status = 'COMPLETED' THEN
    RETURN v_found.result -> 'ok';
  END IF;
  RETURN NULL;  -- the parameter has a default
END
$$;


--
-- Name: horsies_beat(uuid, uuid[], integer[], text[], integer, integer, double precision, double precision, interval, boolean); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_beat(p_worker uuid, p_ids uuid[], p_pids integer[], p_holding text[], p_running_sync integer, p_running_async integer, p_memory_usage_mb double precision, p_children_memory_mb double precision, p_fresh interval, p_listens boolean, OUT alive boolean, OUT on_duty boolean, OUT place integer) RETURNS record
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_team bigint;
  v_commit text := set_config('synchronous_commit', 'off', true);
BEGIN
  UPDATE horsies_heartbeats b SET sent_at = v_now, listens = p_listens
  WHERE b.id = p_worker AND b.died_at IS NULL RETURNING b.team INTO v_team;
  alive := FOUND;
  on_duty := false;
  IF NOT alive THEN
    RETURN;
  END IF;
  IF p_ids IS NOT NULL THEN
    UPDATE horsies_workers w
    SET seen_at = v_now, running_sync = p_running_sync, running_async = p_running_async, memory_usage_mb = p_memory_usage_mb,
        children_memory_mb = p_children_memory_mb
    WHERE w.id = p_worker;
    DELETE FROM horsies_heartbeats b WHERE b.worker_id = p_worker AND b.role = 'runner' AND b.id <> ALL (p_ids);
    INSERT INTO horsies_heartbeats AS b (id, worker_id, role, pid, sent_at, holding)
    SELECT c.id, p_worker, 'runner', c.pid, v_now, c.holding::jsonb FROM unnest(p_ids, p_pids, p_holding) AS c (id, pid, holding)
    ON CONFLICT (id) DO UPDATE SET sent_at = excluded.sent_at, holding = excluded.holding;
  END IF;
  on_duty := p_worker IN (
    SELECT b.id FROM horsies_heartbeats b
    WHERE b.role = 'claimer' AND b.died_at IS NULL AND b.sent_at > v_now - p_fresh ORDER BY b.died_at, b.id LIMIT 3);
  IF p_listens THEN
    place := (SELECT count(*) FROM (
      SELECT FROM horsies_heartbeats b
      WHERE b.role = 'claimer' AND b.died_at IS NULL AND b.id < p_worker AND b.team = v_team AND b.listens
        AND b.sent_at > v_now - p_fresh LIMIT 2) AS older);
    IF place = 2 AND EXISTS (
      SELECT FROM horsies_heartbeats b
      WHERE b.role = 'claimer' AND b.died_at IS NULL AND b.id > p_worker AND b.team = v_team AND b.listens
        AND b.sent_at > v_now - p_fresh)
    THEN
      place := NULL;
    END IF;
  END IF;
END
$$;


--
-- Name: horsies_begin_retry(uuid[], timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_begin_retry(p_runs uuid[], p_now timestamp with time zone) RETURNS void
    LANGUAGE sql
    AS $$
  UPDATE horsies_workflows w
  SET status = 'RUNNING', resuming = true, retrying = 0, owed_at = p_now, finished_at = NULL, advanced_at = NULL,
      error_node = NULL, error_code = NULL, result = NULL
  WHERE w.id = ANY (p_runs)
$$;


--
-- Name: horsies_begin_run(uuid, integer, integer, text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_begin_run(p_workflow uuid, p_limit integer, p_max_bytes integer, p_channel text, p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_inputs bigint[];
BEGIN
  IF current_setting('transaction_isolation') = 'serializable' THEN
    PERFORM pg_notify(p_channel || '_new', 'advance ' || p_workflow);
    RETURN;
  END IF;
  v_inputs := ARRAY(SELECT n.number FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.kind = 'input');
  IF v_inputs <> '{}' THEN
    PERFORM horsies_propagate(p_workflow, v_inputs, false, false, horsies_part(), coalesce(p_now, clock_timestamp()));
  END IF;
  PERFORM horsies_move_run(p_workflow, '{}', p_limit, p_max_bytes, p_channel, p_now);
END
$$;


--
-- Name: horsies_begin_undo(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_begin_undo(p_workflow uuid) RETURNS integer
    LANGUAGE plpgsql
    SET enable_nestloop TO 'off'
    AS $$
DECLARE
  v_many int;
BEGIN
  WITH RECURSIVE begun AS MATERIALIZED (
    SELECT o.number, o.name, o.how, o.total, horsies_new_number(p_workflow) AS undo
    FROM (SELECT n.number, n.name, n.undo AS how, horsies_begun_total(p_workflow, n.number, n.undo -> 'begun') AS total
          FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.undo IS NOT NULL OFFSET 0) AS o
    WHERE o.total IS NOT NULL
  ), reached (ancestor, number, undo) AS (  -- undo: of a descendant that is undone itself, at which the search ends
    SELECT b.undo, b.number, NULL::bigint FROM begun b
    UNION
    SELECT r.ancestor, d.number, b.undo
    FROM reached r
    CROSS JOIN LATERAL (
      SELECT e.downstream AS number FROM horsies_workflow_edges e WHERE e.workflow_id = p_workflow AND e.upstream = r.number
      UNION ALL
      SELECT n.number FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.added_by = r.number AND n.added_by >= 0
    ) AS d
    LEFT JOIN begun b ON b.number = d.number
    WHERE r.undo IS NULL
  ), connected AS (
    INSERT INTO horsies_workflow_edges (workflow_id, upstream, downstream)
    SELECT p_workflow, r.undo, r.ancestor FROM reached r WHERE r.undo IS NOT NULL
  ), added AS (
    INSERT INTO horsies_workflow_nodes (
      workflow_id, number, added_by, name, kind, status, task_name, queue_name, lane, priority, max_retries, options, kwargs, rule,
      allow_failed, open, total, undoes, codec)
    SELECT p_workflow, b.undo, -2 - b.number, left('undo ' || b.name, 200), 'undo', 'ADDED',
           u.task, u.queue, u.lane, u.priority, u.max_retries, u.options, '{}', 'all', true, 0, b.total, b.number, u.codec
    FROM begun b CROSS JOIN LATERAL jsonb_to_record(b.how) AS u (task text, queue text, lane text, priority smallint, max_retries int, options jsonb, codec text)
    RETURNING number
  )
  SELECT count(*) INTO v_many FROM added;
  RETURN v_many;
END
$$;


--
-- Name: horsies_begin_waits(uuid, integer, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_begin_waits(p_workflow uuid, p_many integer, p_now timestamp with time zone, OUT moved bigint[], OUT more boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_ready bigint[];
  v_number bigint;
  v_node record;
  v_signal uuid;
BEGIN
  moved := '{}';
  v_ready := ARRAY(
    SELECT n.number FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.status = 'READY' AND n.is_wait AND n.finished_at IS NULL LIMIT p_many);
  more := cardinality(v_ready) = p_many;
  FOR v_number IN SELECT unnest(v_ready) ORDER BY 1 LOOP
    UPDATE horsies_workflow_nodes n
    SET status = 'WAITING', due_at = coalesce(n.due_at, p_now + n.delay), opening = n.opening + 1, decided_by = NULL
    WHERE n.workflow_id = p_workflow AND n.number = v_number
    RETURNING n.kind, n.signal, n.signal_key INTO v_node;
    IF v_node.kind = 'signal' THEN
      v_signal := (SELECT s.id FROM horsies_next_signal(p_workflow, v_node.signal, v_node.signal_key, false) AS s);
      IF v_signal IS NOT NULL THEN
        PERFORM horsies_take_signal(p_workflow, v_number, v_signal, p_now);
        moved := moved || v_number;
      END IF;
    END IF;
  END LOOP;
END
$$;


--
-- Name: horsies_begun(uuid, bigint, jsonb, integer, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_begun(p_workflow uuid, p_number bigint, p_replaced jsonb, p_from integer, p_until integer) RETURNS TABLE(place integer, kwargs jsonb, value jsonb, redacted boolean)
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
  RETURN QUERY
  SELECT t.node_index, CASE t.codec WHEN 'plain' THEN horsies_named_arguments(t.kwargs::jsonb) ELSE t.kwargs::jsonb END,
         CASE WHEN t.status = 'COMPLETED' THEN t.result::jsonb -> 'ok' END, t.redacted_at IS NOT NULL
  FROM horsies_tasks t
  WHERE t.workflow_id = p_workflow AND t.node = p_number AND t.node_index >= p_from AND t.node_index < p_until
    AND horsies_has_begun(t.id, t.status, t.error_code);
  IF p_replaced IS NOT NULL THEN
    RETURN QUERY
    SELECT r.key::int, CASE t.codec WHEN 'plain' THEN horsies_named_arguments(t.kwargs::jsonb) ELSE t.kwargs::jsonb END, NULL::jsonb, t.redacted_at IS NOT NULL
    FROM jsonb_each_text(p_replaced) AS r CROSS JOIN LATERAL (SELECT x.* FROM horsies_tasks x WHERE x.id = r.value::uuid OFFSET 0) AS t
    WHERE r.key::int >= p_from AND r.key::int < p_until AND NOT EXISTS (
      SELECT FROM horsies_tasks n
      WHERE n.workflow_id = p_workflow AND n.node = p_number AND n.node_index = r.key::int AND horsies_has_begun(n.id, n.status, n.error_code));
  END IF;
END
$$;


--
-- Name: horsies_begun_total(uuid, bigint, jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_begun_total(p_workflow uuid, p_number bigint, p_replaced jsonb) RETURNS integer
    LANGUAGE sql STABLE
    AS $$
  SELECT greatest(
    (SELECT t.node_index FROM horsies_tasks t
     WHERE t.workflow_id = p_workflow AND t.node = p_number AND horsies_has_begun(t.id, t.status, t.error_code)
     ORDER BY t.node_index DESC LIMIT 1),
    (SELECT max(r.key::int) FROM jsonb_object_keys(p_replaced) AS r (key))) + 1
$$;


--
-- Name: horsies_cancel(uuid[], boolean, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_cancel(p_ids uuid[], p_terminate boolean, p_channel text) RETURNS TABLE(id uuid, verdict text)
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_now timestamptz;
  v_ended uuid[];
BEGIN
  PERFORM FROM horsies_tasks t WHERE t.id = ANY (p_ids) ORDER BY t.id FOR NO KEY UPDATE;
  v_now := clock_timestamp();  -- after the locks: a pass that held the rows may have started the next attempt
  WITH ended AS (
    UPDATE horsies_tasks t
    SET status = 'CANCELLED', finished_at = v_now, cancel_requested_at = v_now, error_code = 'TASK_CANCELLED', parked = false,
        result = horsies_error_result('TASK_CANCELLED', 'the task was cancelled before it started')
    WHERE t.id = ANY (p_ids) AND t.status IN ('PENDING', 'CLAIMED') RETURNING t.id
  )
  SELECT coalesce(array_agg(e.id), '{}') INTO v_ended FROM ended e;
  PERFORM horsies_notify_finished(p_channel, v_ended);
  UPDATE horsies_tasks t
  SET cancel_requested_at = coalesce(t.cancel_requested_at, v_now), terminate = t.terminate OR p_terminate
  WHERE t.id = ANY (p_ids) AND t.status = 'RUNNING';
  PERFORM pg_notify(p_channel || '_' || t.claimed_by, 'cancel')
  FROM horsies_tasks t WHERE t.id = ANY (p_ids) AND t.status = 'RUNNING' GROUP BY t.claimed_by;
  RETURN QUERY
  SELECT t.id, CASE WHEN e.id IS NOT NULL THEN 'CANCELLED' WHEN t.status = 'RUNNING' THEN 'REQUESTED' ELSE 'FINISHED' END
  FROM horsies_tasks t LEFT JOIN unnest(v_ended) AS e (id) ON e.id = t.id WHERE t.id = ANY (p_ids);
END
$$;


--
-- Name: horsies_candidates(public.horsies_wanted, public.horsies_limits[], integer[], integer, integer, jsonb, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_candidates(p_wanted public.horsies_wanted, p_limits public.horsies_limits[], p_rooms integer[], p_first integer, p_last integer, p_but jsonb, p_extra integer, OUT candidates public.horsies_candidate[], OUT cuts text[], OUT stale boolean, OUT due timestamp with time zone, OUT firsts jsonb) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_limits horsies_limits;
  v_but text[];
  v_lane text;
  v_want int;
  v_left int;
  v_first record;
  v_firsts jsonb;
  v_some record;
  v_next timestamptz;
  v_scans int := 0;
BEGIN
  stale := false;
  firsts := '{}';
  FOR v_queue IN p_first .. p_last LOOP
    CONTINUE WHEN p_rooms[v_queue] <= 0;
    v_limits := p_limits[v_queue];
    v_but := '{}';
    IF p_but ? v_queue::text THEN
      v_but := ARRAY(SELECT jsonb_array_elements_text(p_but -> v_queue::text));
    END IF;
    FOREACH v_lane IN ARRAY '{sync,async}'::text[] LOOP
      v_want := least(p_wanted.total, p_rooms[v_queue], CASE v_lane WHEN 'sync' THEN p_wanted.sync + p_wanted.prefetch ELSE p_wanted.async END);
      CONTINUE WHEN v_want <= 0;
      v_left := v_want + p_extra;
      v_firsts := '{}';
      v_first := horsies_first_waiting(v_limits.queue_name, v_lane, 0::smallint, p_wanted.cursors, p_wanted.behind);
      WHILE v_first.priority IS NOT NULL LOOP
        IF p_wanted.cursors ? v_limits.queue_name THEN
          v_firsts := v_firsts || jsonb_build_object(v_first.priority, extract(epoch FROM least(v_first.moment, p_wanted.now)));
        END IF;
        IF v_first.moment > p_wanted.now THEN  -- none of this priority is due
          due := least(due, v_first.moment);
        ELSE
          SELECT array_agg(ROW(c.id, v_queue, v_lane, v_first.priority, c.enqueued_at, CASE WHEN c.stale
                   THEN horsies_partition_key(v_limits.partition_by_args, v_limits.partition_by_task, c.kwargs, c.task_name, c.codec)
                   ELSE c.partition_key END, c.stale, c.late, '')::horsies_candidate) AS rows, count(*)::int AS many, bool_or(c.stale) AS stale
          INTO v_some
          FROM (
            SELECT t.id, t.enqueued_at, t.partition_key, t.kwargs, t.codec, t.task_name,
                   t.partition_version IS DISTINCT FROM v_limits.partition_version AS stale, coalesce(t.good_until <= p_wanted.now, false) AS late
            FROM horsies_tasks t
            WHERE t.queue_name = v_limits.queue_name AND t.lane = v_lane AND t.priority = v_first.priority
              AND t.enqueued_at >= v_first.moment AND t.enqueued_at <= p_wanted.now
              AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
              AND (t.partition_version IS DISTINCT FROM v_limits.partition_version OR coalesce(t.partition_key <> ALL (v_but), true))
              AND (p_wanted.grace IS NULL OR t.enqueued_at <= p_wanted.now - p_wanted.grace OR t.good_until <= p_wanted.now
                   OR horsies_worker_knows(t.task_name, t.options, p_wanted.taker))
              AND (t.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)))
            ORDER BY t.enqueued_at, t.id LIMIT v_left FOR NO KEY UPDATE SKIP LOCKED
          ) AS c;
          IF v_some.many > 0 THEN
            candidates := candidates || v_some.rows;
            stale := stale OR v_some.stale;
            v_left := v_left - v_some.many;
            EXIT WHEN v_left <= 0;
          END IF;
          SELECT t.enqueued_at INTO v_next FROM horsies_tasks t
          WHERE t.queue_name = v_limits.queue_name AND t.lane = v_lane AND t.priority = v_first.priority AND t.enqueued_at > p_wanted.now
            AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
          ORDER BY t.enqueued_at LIMIT 1;
          due := least(due, v_next);
        END IF;
        v_first := horsies_first_waiting(v_limits.queue_name, v_lane, v_first.priority, p_wanted.cursors, p_wanted.behind);
      END LOOP;
      IF v_left < v_want + p_extra THEN
        v_scans := v_scans + 1;
      END IF;
      IF v_left <= 0 THEN
        cuts := cuts || (v_queue || v_lane);
      END IF;
      IF p_wanted.cursors ? v_limits.queue_name THEN
        IF v_left > 0 THEN
          v_firsts := v_firsts || '{"end": true}';
        END IF;
        firsts := firsts || jsonb_build_object(
          v_limits.queue_name, coalesce(firsts -> v_limits.queue_name, '{}') || jsonb_build_object(v_lane, v_firsts));
      END IF;
    END LOOP;
  END LOOP;
  IF v_scans > 1 THEN
    candidates := ARRAY(SELECT c FROM unnest(candidates) AS c ORDER BY c.priority, c.enqueued_at, c.id);
  END IF;
END
$$;


--
-- Name: horsies_change_schedule(text, jsonb, text, jsonb, text[], boolean, text, text, text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_change_schedule(p_name text, p_declared jsonb, p_declared_in text, p_changes jsonb, p_drop text[], p_create boolean, p_action text, p_actor text, p_reason text, p_channel text, OUT changed text[], OUT lost text) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_old horsies_schedules;
  v_new horsies_schedules;
  v_before jsonb;
  v_after jsonb;
  v_on boolean;
  v_back boolean;
  v_anew boolean;
BEGIN
  IF p_create THEN
    INSERT INTO horsies_schedules (name) VALUES (p_name) ON CONFLICT DO NOTHING;
  END IF;
  SELECT s.* INTO v_old FROM horsies_schedules s WHERE s.name = p_name FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  UPDATE horsies_schedules s
  SET declared = coalesce(p_declared, s.declared), declared_in = coalesce(p_declared_in, s.declared_in),
      declared_at = CASE WHEN p_declared IS NULL THEN s.declared_at ELSE v_now END,
      gone_at = CASE WHEN p_declared IS NULL THEN s.gone_at END,
      changes = (s.changes || coalesce(p_changes, '{}')) - coalesce(p_drop, '{}')
  WHERE s.name = p_name RETURNING s.* INTO v_new;
  v_before := v_old.declared || v_old.changes;
  v_after := v_new.declared || v_new.changes;
  changed := ARRAY(SELECT k.key FROM jsonb_object_keys(v_before || v_after) AS k (key)
                   WHERE v_before -> k.key IS DISTINCT FROM v_after -> k.key ORDER BY k.key);
  v_on := v_new.gone_at IS NULL AND coalesce((v_after ->> 'enabled')::boolean, true);
  v_back := v_old.gone_at IS NOT NULL AND v_new.gone_at IS NULL;
  v_anew := changed && '{pattern,zone,enabled}' OR v_back;
  IF changed = '{}' AND NOT v_anew THEN
    RETURN;
  END IF;
  UPDATE horsies_schedules s
  SET since = CASE WHEN v_anew THEN v_now ELSE s.since END,
      last_fire_at = CASE WHEN v_anew AND s.last_fire_at > v_now THEN v_now ELSE s.last_fire_at END,
      next_fire_at = CASE WHEN v_on AND NOT v_anew THEN s.next_fire_at END,
      next_at = CASE WHEN v_on THEN v_now END,
      error = NULL, error_at = NULL, updated_at = v_now
  WHERE s.name = p_name;
  SELECT horsies_note(p_action, p_actor, p_name, p_reason, o.before || CASE WHEN v_back THEN '{"gone": true}' ELSE '{}' END::jsonb,
                      o.after || CASE WHEN v_back THEN '{"gone": false}' ELSE '{}' END::jsonb)
  INTO lost
  FROM (SELECT coalesce(jsonb_object_agg(c.key, v_before -> c.key), '{}') AS before,
               coalesce(jsonb_object_agg(c.key, v_after -> c.key), '{}') AS after FROM unnest(changed) AS c (key)) o;
  PERFORM pg_notify(p_channel || '_schedules', p_name);
END
$$;


--
-- Name: horsies_channel(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_channel() RETURNS text
    LANGUAGE sql STABLE
    AS $$
  SELECT 'horsies_' || left(md5(n.nspname), 8) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.oid = 'horsies_tasks'::regclass
$$;


--
-- Name: horsies_claim(public.horsies_wanted, public.horsies_limits[], integer[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_claim(p_wanted public.horsies_wanted, p_limits public.horsies_limits[], p_rooms integer[], OUT claims public.horsies_passed[], OUT late boolean, OUT due timestamp with time zone, OUT limited boolean, OUT again boolean, OUT firsts jsonb) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_first int := 1;
  v_last int;
  v_partitioned boolean;
  v_extra int;
  v_met int := 0;
  v_but jsonb;
  v_found record;
  v_candidates horsies_candidate[];
  v_allotted record;
  v_ids uuid[];
  v_unparked int;
BEGIN
  late := false;
  limited := false;
  again := false;
  firsts := '{}';
  WHILE v_first <= cardinality(p_limits) AND p_wanted.total > 0
    AND (p_wanted.sync > 0 OR p_wanted.async > 0 OR p_wanted.prefetch > 0)
  LOOP
    v_last := v_first;
    v_partitioned := false;
    FOR i IN v_first .. cardinality(p_limits) LOOP
      EXIT WHEN p_limits[i].priority <> p_limits[v_first].priority;
      v_last := i;
      v_partitioned := v_partitioned OR p_limits[i].partition_max_concurrency IS NOT NULL OR p_limits[i].partition_local_limit IS NOT NULL;
    END LOOP;
    v_but := '{}';
    v_extra := 0;
    LOOP
      v_found := horsies_candidates(p_wanted, p_limits, p_rooms, v_first, v_last, v_but, v_extra);
      firsts := firsts || v_found.firsts;
      due := least(due, v_found.due);
      v_candidates := v_found.candidates;
      EXIT WHEN v_candidates IS NULL;
      v_met := v_met + cardinality(v_candidates);
      IF v_partitioned AND v_found.stale THEN
        UPDATE horsies_tasks t SET partition_key = c.key, partition_version = p_limits[c.queue].partition_version
        FROM unnest(v_candidates) AS c WHERE c.stale AND t.id = c.id;
      END IF;
      v_allotted := horsies_allot(p_limits, v_found.cuts, p_wanted, p_rooms, v_candidates);
      v_candidates := v_allotted.p_candidates;
      p_wanted := v_allotted.p_wanted;
      p_rooms := v_allotted.p_rooms;

      WITH taken AS (
        UPDATE horsies_tasks t
        SET status = CASE v.verdict WHEN 'start' THEN 'RUNNING' ELSE 'CLAIMED' END, claimed_by = p_wanted.worker, claimed_at = p_wanted.now,
            started_at = CASE v.verdict WHEN 'start' THEN p_wanted.now END,
            claim_expires_at = CASE v.verdict WHEN 'prefetch' THEN p_wanted.now + p_wanted.lease END,
            claim_generation = t.claim_generation % 2147483647 + 1
        FROM unnest(v_candidates) AS v WHERE t.id = v.id AND v.verdict IN ('start', 'prefetch') AND t.status = 'PENDING'
        RETURNING t.*
      )
      SELECT claims || array_agg(r ORDER BY c.priority, c.enqueued_at, c.id) INTO claims
      FROM taken c CROSS JOIN LATERAL horsies_claimed(CASE c.status WHEN 'RUNNING' THEN 'start' ELSE 'prefetch' END, c) AS r;

      IF v_allotted.refused THEN
        v_ids := ARRAY(SELECT c.id FROM unnest(v_candidates) AS c WHERE c.verdict = 'late');
        IF v_ids <> '{}' THEN
          late := true;
          SELECT claims || array_agg(r) INTO claims
          FROM unnest(horsies_expire(v_ids, p_wanted.now, p_wanted.channel)) AS e (id) JOIN horsies_tasks t ON t.id = e.id
          CROSS JOIN LATERAL horsies_claimed('late', t) AS r;
          -- an expired task may have been unparked for a free permit
          SELECT horsies_unpark(p_limits, array_agg(p_limits[c.queue].queue_name::text), array_agg(c.key)) INTO v_unparked
          FROM unnest(v_candidates) AS c WHERE c.verdict = 'late';
          v_allotted.stopped := v_allotted.stopped OR v_unparked > 0;
        END IF;
        UPDATE horsies_tasks t SET parked = true
        WHERE t.id = ANY (ARRAY(SELECT c.id FROM unnest(v_candidates) AS c WHERE c.verdict = 'park'));
        limited := limited OR FOUND;
        SELECT coalesce(v_but || jsonb_object_agg(h.queue, coalesce(v_but -> h.queue::text, '[]') || h.keys), v_but), limited OR count(*) > 0
        INTO v_but, limited
        FROM (SELECT c.queue, jsonb_agg(DISTINCT c.key) AS keys FROM unnest(v_candidates) AS c WHERE c.verdict = 'here' GROUP BY c.queue) AS h;
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


--
-- Name: horsies_fits(character varying, uuid, timestamp with time zone, character varying, smallint, character varying, json, jsonb, text, integer, smallint, smallint, timestamp with time zone, timestamp with time zone, timestamp with time zone, timestamp with time zone, timestamp with time zone, timestamp with time zone, timestamp with time zone, timestamp with time zone, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_fits(p_status character varying, p_claimed_by uuid, p_finished_at timestamp with time zone, p_error_code character varying, p_priority smallint, p_lane character varying, p_kwargs json, p_options jsonb, p_partition_key text, p_claim_generation integer, p_retry_count smallint, p_max_retries smallint, p_sent_at timestamp with time zone, p_enqueued_at timestamp with time zone, p_good_until timestamp with time zone, p_claimed_at timestamp with time zone, p_claim_expires_at timestamp with time zone, p_started_at timestamp with time zone, p_cancel_requested_at timestamp with time zone, p_next_retry_at timestamp with time zone, p_redacted_at timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
DECLARE
  v_rule text := CASE  -- the rule that the row violates; NULL values violate none
    WHEN p_priority NOT BETWEEN 1 AND 201 THEN 'priority: it is from 1 to 201'
    WHEN p_lane NOT IN ('sync', 'async') THEN 'lane: it is sync or async'
    WHEN json_typeof(p_kwargs) <> 'object' THEN 'kwargs: they are an object of arguments by name'
    WHEN jsonb_typeof(p_options) <> 'object' THEN 'options: they are an object, or NULL'
    WHEN length(p_partition_key) > 200 THEN 'partition_key: it has 200 characters at most'
    WHEN p_claim_generation < 0 OR p_retry_count NOT BETWEEN 0 AND 32766 OR p_max_retries NOT BETWEEN 0 AND 32766 THEN
      'numbers: claim_generation, retry_count and max_retries are not negative, the latter two below 32767'
    WHEN least(p_sent_at, p_enqueued_at, p_good_until, p_claimed_at, p_claim_expires_at, p_started_at, p_cancel_requested_at,
               p_next_retry_at, p_redacted_at, p_finished_at) <= to_timestamp(-62100000000)
      OR greatest(p_sent_at, p_enqueued_at, p_good_until, p_claimed_at, p_claim_expires_at, p_started_at, p_cancel_requested_at,
                  p_next_retry_at, p_redacted_at, p_finished_at) >= to_timestamp(253400000000) THEN
      'moments: each lies between the years 2 and 9999'
    WHEN CASE p_status
           WHEN 'PENDING' THEN p_claimed_by IS NOT NULL OR p_finished_at IS NOT NULL
           WHEN 'RUNNING' THEN p_claimed_by IS NULL OR p_finished_at IS NOT NULL
           WHEN 'CLAIMED' THEN p_claimed_by IS NULL OR p_finished_at IS NOT NULL
           WHEN 'COMPLETED' THEN p_finished_at IS NULL
           WHEN 'FAILED' THEN p_finished_at IS NULL
           WHEN 'CANCELLED' THEN p_finished_at IS NULL
           WHEN 'EXPIRED' THEN p_finished_at IS NULL
           ELSE true END THEN
      'status: it contradicts who holds the task and whether it has finished'
    WHEN (p_error_code IS NULL) = (p_status IN ('FAILED', 'CANCELLED', 'EXPIRED')) THEN
      'error_code: a task that is FAILED, CANCELLED or EXPIRED has one, and no other has' END;
BEGIN
  IF v_rule IS NULL THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'check_violation', TABLE = 'horsies_tasks', CONSTRAINT = 'horsies_tasks_' || split_part(v_rule, ':', 1),
    MESSAGE = 'a row of horsies_tasks violates "horsies_tasks_' || split_part(v_rule, ':', 1) || '"' || substr(v_rule, strpos(v_rule, ':'));
END
$$;


--
-- Name: horsies_tasks; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_tasks (
    id uuid NOT NULL,
    task_name character varying(255) NOT NULL,
    queue_name character varying(100) NOT NULL,
    lane character varying(5) NOT NULL,
    priority smallint DEFAULT 100 NOT NULL,
    kwargs public.horsies_json NOT NULL,
    codec character varying(10),
    options jsonb,
    status character varying(10) DEFAULT 'PENDING'::character varying NOT NULL,
    partition_key text,
    partition_version integer,
    parked boolean DEFAULT false NOT NULL,
    sent_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    enqueued_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    good_until timestamp with time zone,
    claimed_at timestamp with time zone,
    claimed_by uuid,
    claim_generation integer DEFAULT 0 NOT NULL,
    claim_expires_at timestamp with time zone,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    cancel_requested_at timestamp with time zone,
    retry_count smallint DEFAULT 0 NOT NULL,
    max_retries smallint DEFAULT 0 NOT NULL,
    next_retry_at timestamp with time zone,
    result public.horsies_json,
    error_code character varying(100),
    terminate boolean DEFAULT false NOT NULL,
    redacted_at timestamp with time zone,
    copy_of uuid,
    workflow_id uuid,
    node bigint,
    node_index integer,
    advanced_at timestamp with time zone,
    CONSTRAINT horsies_tasks_fits CHECK (public.horsies_fits(status, claimed_by, finished_at, error_code, priority, lane, (kwargs)::json, options, partition_key, claim_generation, retry_count, max_retries, sent_at, enqueued_at, good_until, claimed_at, claim_expires_at, started_at, cancel_requested_at, next_retry_at, redacted_at))
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000');


--
-- Name: horsies_claimed(text, public.horsies_tasks); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_claimed(p_kind text, p_task public.horsies_tasks) RETURNS SETOF public.horsies_passed
    LANGUAGE sql STABLE ROWS 1
    AS $$
  SELECT p_kind, p_task.id, p_task.claim_generation, p_task.lane::text, p_task.task_name::text,
         CASE p_kind WHEN 'late' THEN '{}' ELSE p_task.kwargs::text END, p_task.retry_count + 1, p_task.options::text,
         p_task.queue_name::text, extract(epoch FROM p_task.sent_at)::float8, p_task.workflow_id IS NOT NULL AND p_task.node_index = 0, NULL::float8, NULL::boolean, NULL::boolean,
         NULL::boolean, NULL::text
$$;


--
-- Name: horsies_close_maps(uuid, bigint[], timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_close_maps(p_workflow uuid, p_numbers bigint[], p_now timestamp with time zone) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_moved bigint[];
BEGIN
  WITH maps AS MATERIALIZED (
    SELECT p_workflow AS workflow_id, unnest(p_numbers) AS number
  ), closed AS (
    UPDATE horsies_workflow_nodes n
    SET status = CASE WHEN n.in_flight > 0 THEN 'ENQUEUED' WHEN n.items_bad = 0 THEN 'COMPLETED'
                      WHEN n.error_code IN ('WORKFLOW_CANCELLED', 'WORKFLOW_CONTINUED') THEN 'CANCELLED'
                      WHEN n.kind = 'map' AND n.items_ok = 0 AND n.error IS NULL THEN 'CANCELLED' ELSE 'FAILED' END,
        finished_at = CASE WHEN n.in_flight = 0 THEN p_now END,
        error_code = CASE WHEN n.in_flight > 0 OR n.items_bad = 0 OR n.error_code IS NOT NULL THEN n.error_code
                       WHEN n.kind = 'map' THEN CASE WHEN n.items_ok = 0 AND n.error IS NULL THEN 'TASK_CANCELLED' ELSE 'MAP_FAILED' END ELSE (
          SELECT t.error_code FROM horsies_tasks t
          WHERE t.workflow_id = p_workflow AND t.node = n.number AND t.status <> 'COMPLETED' AND t.error_code <> 'TASK_SKIPPED'
          ORDER BY t.node_index LIMIT 1) END,
        error = CASE WHEN n.in_flight > 0 OR n.items_bad = 0 OR n.error_code IS NOT NULL THEN n.error
                  WHEN n.task_id IS NOT NULL THEN (SELECT t.result #>> '{err,message}' FROM horsies_tasks t WHERE t.id = n.task_id)
                  ELSE concat(n.items_bad, ' of ', CASE n.kind WHEN 'map' THEN n.total ELSE n.items_ok + n.items_bad END,
                              ' tasks did not complete', '; one of them: ' || n.error) END,
        total = CASE WHEN n.kind = 'undo' AND n.in_flight = 0 THEN n.items_ok + n.items_bad ELSE n.total END  -- some did not begin
    FROM maps m
    WHERE n.workflow_id = m.workflow_id AND n.number = m.number AND n.kind IN ('map', 'undo')
      AND (n.status = 'READY' AND n.expanded >= n.total OR n.status = 'ENQUEUED' AND n.in_flight = 0)
    RETURNING n.number, n.finished_at
  )
  SELECT array_agg(c.number) FILTER (WHERE c.finished_at IS NOT NULL) INTO v_moved FROM closed c;
  RETURN coalesce(v_moved, '{}');
END
$$;


--
-- Name: horsies_condition(uuid, bigint, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_condition(p_workflow uuid, p_number bigint, p_path text) RETURNS boolean
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
  v_found record;
BEGIN
  v_found := horsies_node_result(p_workflow, p_number);
  IF v_found.status IN ('ADDED', 'PENDING', 'READY', 'WAITING', 'ENQUEUED') THEN
    RETURN NULL;
  ELSIF v_found.status <> 'COMPLETED' OR v_found.redacted THEN
    RETURN false;
  END IF;
  BEGIN
    RETURN coalesce(jsonb_path_match(v_found.result -> 'ok', p_path::jsonpath, silent => true), false);
  EXCEPTION WHEN OTHERS THEN  -- not a cancel of the statement
    RETURN false;
  END;
END
$$;


--
-- Name: horsies_configure_queue(text, jsonb, boolean, text, text, text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_configure_queue(p_name text, p_changes jsonb, p_create boolean, p_action text, p_actor text, p_reason text, p_channel text, OUT changed text[], OUT lost text) RETURNS record
    LANGUAGE plpgsql
    SET lock_timeout TO '500ms'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
DECLARE
  v_old horsies_queues;
  v_new horsies_queues;
  v_rule boolean;
BEGIN
  SELECT q.* INTO v_old FROM horsies_queues q WHERE q.name = p_name;
  IF v_old.name IS NULL AND NOT p_create THEN
    RETURN;
  END IF;
  v_new := jsonb_populate_record(v_old, p_changes);
  IF v_old.name IS NOT NULL AND v_new IS NOT DISTINCT FROM v_old THEN
    changed := '{}';
    RETURN;
  END IF;

  LOCK TABLE horsies_limits IN ACCESS EXCLUSIVE MODE;
  INSERT INTO horsies_queues (name) VALUES (p_name) ON CONFLICT DO NOTHING;
  SELECT q.* INTO v_old FROM horsies_queues q WHERE q.name = p_name FOR UPDATE;
  v_new := jsonb_populate_record(v_old, p_changes);
  v_rule := (v_new.partition_by_args, v_new.partition_by_task) IS DISTINCT FROM (v_old.partition_by_args, v_old.partition_by_task);
  v_new.partition_version := v_old.partition_version + v_rule::int;
  SELECT coalesce(array_agg(c.key ORDER BY c.key), '{}') INTO changed
  FROM jsonb_object_keys(p_changes) AS c (key) WHERE to_jsonb(v_new) -> c.key IS DISTINCT FROM to_jsonb(v_old) -> c.key;

  UPDATE horsies_queues q
  SET priority = v_new.priority, max_concurrency = v_new.max_concurrency, local_limit = v_new.local_limit,
      partition_by_args = v_new.partition_by_args, partition_by_task = v_new.partition_by_task,
      partition_version = v_new.partition_version, partition_max_concurrency = v_new.partition_max_concurrency,
      partition_local_limit = v_new.partition_local_limit, override = v_new.override, override_by = v_new.override_by,
      override_reason = v_new.override_reason, override_at = v_new.override_at, override_until = v_new.override_until,
      paused_at = v_new.paused_at, paused_by = v_new.paused_by, paused_reason = v_new.paused_reason,
      sweep = '{}', updated_at = clock_timestamp()
  WHERE q.name = p_name;
  DELETE FROM horsies_limits l WHERE l.queue_name = p_name;
  INSERT INTO horsies_limits SELECT e.* FROM horsies_queues q CROSS JOIN LATERAL horsies_effective_limits(q) AS e WHERE q.name = p_name;
  IF v_rule THEN
    UPDATE horsies_tasks t
    SET partition_key = horsies_partition_key(v_new.partition_by_args, v_new.partition_by_task, t.kwargs, t.task_name, t.codec),
        partition_version = v_new.partition_version
    WHERE t.id = ANY (ARRAY(
      SELECT h.id FROM horsies_tasks h
      WHERE h.queue_name = p_name AND h.claimed_by IS NOT NULL AND h.finished_at IS NULL FOR NO KEY UPDATE SKIP LOCKED));
  END IF;
  SELECT horsies_note(p_action, p_actor, p_name, p_reason, jsonb_object_agg(c.name, to_jsonb(v_old) -> c.name),
                      jsonb_object_agg(c.name, to_jsonb(v_new) -> c.name))
  INTO lost FROM unnest(changed) AS c (name);
  PERFORM pg_notify(p_channel || '_new', '0 ' || p_name);
END
$$;


--
-- Name: horsies_workflow_nodes; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_workflow_nodes (
    workflow_id uuid NOT NULL,
    number bigint NOT NULL,
    added_by bigint DEFAULT '-1'::integer NOT NULL,
    name character varying(200) NOT NULL,
    kind character varying(8) NOT NULL,
    status character varying(10) NOT NULL,
    task_name character varying(255) NOT NULL,
    queue_name character varying(100) NOT NULL,
    lane character varying(5) NOT NULL,
    priority smallint NOT NULL,
    max_retries smallint DEFAULT 0 NOT NULL,
    options jsonb,
    kwargs jsonb,
    codec character varying(10),
    inputs jsonb,
    over text,
    graph jsonb,
    value jsonb,
    rule character varying(10) DEFAULT 'all'::character varying NOT NULL,
    needs integer,
    allow_failed boolean DEFAULT false NOT NULL,
    is_wait boolean DEFAULT false NOT NULL,
    when_node bigint,
    when_path text,
    delay interval,
    good_until timestamp with time zone,
    branches integer DEFAULT 0 NOT NULL,
    open integer DEFAULT 0 NOT NULL,
    ok integer DEFAULT 0 NOT NULL,
    bad integer DEFAULT 0 NOT NULL,
    total integer,
    expanded integer DEFAULT 0 NOT NULL,
    in_flight integer DEFAULT 0 NOT NULL,
    items_ok integer DEFAULT 0 NOT NULL,
    items_bad integer DEFAULT 0 NOT NULL,
    signal character varying(200),
    signal_key character varying(255),
    signal_type text,
    due_at timestamp with time zone,
    on_timeout character varying(8),
    permission character varying(255),
    opening integer DEFAULT 0 NOT NULL,
    decided_by text,
    undo jsonb,
    undoes bigint,
    task_id uuid,
    finished_at timestamp with time zone,
    error_code character varying(100),
    error text
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000');


--
-- Name: horsies_workflows; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_workflows (
    id uuid NOT NULL,
    name character varying(255) NOT NULL,
    key character varying(255),
    graph_hash character varying(64),
    status character varying(12) DEFAULT 'RUNNING'::character varying NOT NULL,
    on_error character varying(5) NOT NULL,
    output bigint,
    max_in_flight integer,
    good_until timestamp with time zone,
    parent_id uuid,
    parent_node bigint,
    continues uuid,
    continued_as uuid,
    sent_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    owed_at timestamp with time zone,
    retrying bigint,
    resuming boolean DEFAULT false NOT NULL,
    finished_at timestamp with time zone,
    advanced_at timestamp with time zone,
    error_node bigint,
    error_code character varying(100),
    result jsonb
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='1000');


--
-- Name: horsies_continue_run(public.horsies_workflows, public.horsies_workflow_nodes, integer, text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_continue_run(p_run public.horsies_workflows, p_node public.horsies_workflow_nodes, p_max_bytes integer, p_channel text, p_now timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_values jsonb := horsies_node_kwargs(p_node, p_max_bytes);
  v_id uuid := horsies_uuid7(0);
BEGIN
  UPDATE horsies_workflow_nodes n SET status = 'COMPLETED', finished_at = v_now, task_id = v_id
  WHERE n.workflow_id = p_run.id AND n.number = p_node.number;
  UPDATE horsies_workflows w
  SET status = 'COMPLETED', finished_at = v_now, owed_at = v_now, error_node = NULL, error_code = NULL,
      result = jsonb_build_object('ok', NULL, 'continued_as', v_id), key = NULL, graph_hash = NULL, continued_as = v_id
  WHERE w.id = p_run.id;
  IF NOT (SELECT c.created FROM horsies_send_run(
    v_id, p_node.graph || jsonb_build_object('key', p_run.key, 'hash', p_run.graph_hash), p_node.graph -> 'nodes', v_values, NULL, NULL, p_run.id,
    NULL, p_max_bytes, p_channel, p_now) AS c) THEN
    RAISE EXCEPTION USING ERRCODE = 'HW001', DETAIL = 'NODE_NOT_SENT', MESSAGE = format(
      'there is another run of %s with the key %s', p_node.graph ->> 'name', p_run.key);
  END IF;
  UPDATE horsies_workflow_signals s SET workflow_id = v_id WHERE s.workflow_id = p_run.id AND s.used_at IS NULL;
  PERFORM horsies_begin_run(v_id, 1000, p_max_bytes, p_channel, p_now);
  PERFORM horsies_notify_finished(p_channel, ARRAY[p_run.id]);
END
$$;


--
-- Name: horsies_control_run(uuid, text, integer, text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_control_run(p_workflow uuid, p_verb text, p_max_bytes integer, p_channel text, p_now timestamp with time zone, OUT before text, OUT after text) RETURNS record
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_now timestamptz;
BEGIN
  SELECT w.status INTO before FROM horsies_workflows w WHERE w.id = p_workflow FOR NO KEY UPDATE;
  v_now := coalesce(p_now, clock_timestamp());
  after := before;
  IF p_verb = 'pause' AND before = 'RUNNING' THEN
    after := 'PAUSED';
    UPDATE horsies_workflows w SET status = after, owed_at = v_now WHERE w.id = p_workflow;
    PERFORM horsies_move_run(p_workflow, '{}', 1000, p_max_bytes, p_channel, p_now);
  ELSIF p_verb = 'resume' AND before = 'PAUSED' THEN
    after := 'RUNNING';
    UPDATE horsies_workflows w SET status = after, resuming = true, error_code = CASE WHEN w.on_error = 'stop' THEN w.error_code END
    WHERE w.id = p_workflow;
    PERFORM horsies_move_run(p_workflow, horsies_take_tasks(p_workflow, NULL, v_now), 1000, p_max_bytes, p_channel, p_now);
  ELSIF p_verb = 'cancel' AND before IN ('RUNNING', 'PAUSED') THEN
    after := CASE WHEN EXISTS (
      SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.undo IS NOT NULL AND (
        n.undo ? 'begun' OR EXISTS (SELECT FROM horsies_tasks t WHERE t.workflow_id = p_workflow AND t.node = n.number)))
      THEN 'COMPENSATING' ELSE 'CANCELLED' END;
    UPDATE horsies_workflows w
    SET status = after, finished_at = CASE WHEN after = 'CANCELLED' THEN v_now END, owed_at = v_now, error_code = 'WORKFLOW_CANCELLED',
        result = horsies_error_result('WORKFLOW_CANCELLED', 'the workflow was cancelled')
    WHERE w.id = p_workflow;
    PERFORM horsies_move_run(p_workflow, '{}', 1000, p_max_bytes, p_channel, p_now);
    IF after = 'CANCELLED' THEN
      PERFORM horsies_notify_finished(p_channel, ARRAY[p_workflow]);
    ELSE
      SELECT w.status INTO after FROM horsies_workflows w WHERE w.id = p_workflow;
    END IF;
  END IF;
END
$$;


--
-- Name: horsies_count_due(text[], text[], integer, jsonb, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_count_due(p_queues text[], p_lanes text[], p_most integer, p_cursors jsonb, p_behind timestamp with time zone) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_queue text;
  v_lane text;
  v_first record;
  v_due int := 0;
BEGIN
  FOREACH v_queue IN ARRAY (horsies_waiting_queues(p_queues, p_lanes, p_cursors, p_behind)).names LOOP
    FOREACH v_lane IN ARRAY p_lanes LOOP
      v_first := horsies_first_waiting(v_queue, v_lane, 0::smallint, p_cursors, p_behind);
      WHILE v_first.priority IS NOT NULL LOOP
        IF v_first.moment <= v_now THEN
          v_due := v_due + (SELECT count(*) FROM (
            SELECT FROM horsies_tasks t
            WHERE t.queue_name = v_queue AND t.lane = v_lane AND t.priority = v_first.priority
              AND t.enqueued_at >= v_first.moment AND t.enqueued_at <= v_now
              AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
              AND (t.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node))) LIMIT p_most - v_due) AS w);
          IF v_due >= p_most THEN
            RETURN v_due;
          END IF;
        END IF;
        v_first := horsies_first_waiting(v_queue, v_lane, v_first.priority, p_cursors, p_behind);
      END LOOP;
    END LOOP;
  END LOOP;
  RETURN v_due;
END
$$;


--
-- Name: horsies_count_pending(text[], integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_count_pending(p_names text[], p_bound integer) RETURNS TABLE(queue_name text, many integer)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_now timestamptz := clock_timestamp();  -- a volatile call cannot be an index condition
BEGIN
  RETURN QUERY
  SELECT q.name::text, waiting.many::int
  FROM horsies_queues q
  CROSS JOIN LATERAL (
    SELECT count(*) AS many
    FROM (
      SELECT FROM horsies_queues counted
      CROSS JOIN LATERAL (
        WITH RECURSIVE step (lane, priority) AS (
          (SELECT t.lane, t.priority FROM horsies_tasks t
           WHERE t.queue_name = counted.name AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
           ORDER BY t.lane, t.priority LIMIT 1)
          UNION ALL
          SELECT next.lane, next.priority
          FROM step CROSS JOIN LATERAL (
            SELECT t.lane, t.priority FROM horsies_tasks t
            WHERE t.queue_name = counted.name AND (t.lane, t.priority) > (step.lane, step.priority)
              AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
            ORDER BY t.lane, t.priority LIMIT 1
          ) AS next
        )
        SELECT due.id
        FROM step CROSS JOIN LATERAL (
          SELECT t.id FROM horsies_tasks t
          WHERE t.queue_name = counted.name AND t.lane = step.lane AND t.priority = step.priority
            AND t.enqueued_at <= v_now AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
          ORDER BY t.enqueued_at, t.id LIMIT p_bound + 1
        ) AS due
        UNION ALL
        (SELECT t.id FROM horsies_tasks t
         WHERE t.queue_name = counted.name AND t.claimed_by IS NULL AND t.finished_at IS NULL AND t.parked
         ORDER BY t.partition_key LIMIT p_bound + 1)
      ) AS task
      WHERE q.name IN (counted.name, '*')
      LIMIT p_bound + 1
    ) AS bounded
  ) AS waiting
  WHERE q.name = ANY (p_names);
END
$$;


--
-- Name: horsies_decide(uuid, bigint, integer, text, boolean, text, text, integer, text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_decide(p_workflow uuid, p_number bigint, p_opening integer, p_permission text, p_approved boolean, p_by text, p_reason text, p_max_bytes integer, p_channel text, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_now timestamptz;
BEGIN
  PERFORM FROM horsies_workflows w WHERE w.id = p_workflow FOR NO KEY UPDATE;
  v_now := coalesce(p_now, clock_timestamp());
  UPDATE horsies_workflow_nodes n
  SET finished_at = v_now, decided_by = p_by, status = CASE WHEN p_approved THEN 'COMPLETED' ELSE 'FAILED' END,
      value = CASE WHEN p_approved THEN jsonb_build_object('by', p_by, 'reason', p_reason) END,
      error_code = CASE WHEN NOT p_approved THEN 'GATE_REJECTED' END,
      error = CASE WHEN NOT p_approved THEN concat_ws(': ', 'rejected by ' || p_by, p_reason) END
  WHERE n.workflow_id = p_workflow AND n.number = p_number AND n.kind = 'gate' AND n.status = 'WAITING' AND n.opening = p_opening
    AND n.permission IS NOT DISTINCT FROM p_permission AND (n.due_at IS NULL OR n.due_at > v_now);
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM horsies_move_run(p_workflow, ARRAY[p_number], 1000, p_max_bytes, p_channel, p_now);
  RETURN true;
END
$$;


--
-- Name: horsies_delete_finished(uuid[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_delete_finished(p_ids uuid[]) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_ids uuid[];
BEGIN
  v_ids := ARRAY(
    SELECT t.id FROM horsies_tasks t
    WHERE t.id = ANY (p_ids) AND t.workflow_id IS NULL
      AND t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')  -- "finished_at IS NOT NULL" may read all finished tasks there are
    FOR UPDATE SKIP LOCKED);
  PERFORM horsies_delete_tasks(v_ids);
  RETURN cardinality(v_ids);
END
$$;


--
-- Name: horsies_delete_tasks(uuid[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_delete_tasks(p_ids uuid[]) RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_attempts int;
BEGIN
  DELETE FROM horsies_task_attempts a WHERE a.task_id = ANY (p_ids);
  GET DIAGNOSTICS v_attempts = ROW_COUNT;
  DELETE FROM horsies_task_steps s WHERE s.task_id = ANY (p_ids);
  DELETE FROM horsies_tasks t WHERE t.id = ANY (p_ids);
  RETURN v_attempts;
END
$$;


--
-- Name: horsies_queues; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_queues (
    name character varying(100) NOT NULL,
    priority smallint DEFAULT 100 NOT NULL,
    created_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    updated_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    local_limit integer,
    max_concurrency integer,
    override jsonb,
    override_at timestamp with time zone,
    override_by text,
    override_reason text,
    override_until timestamp with time zone,
    partition_by_args jsonb,
    partition_by_task boolean DEFAULT false NOT NULL,
    partition_local_limit integer,
    partition_max_concurrency integer,
    partition_version integer DEFAULT 0 NOT NULL,
    paused_at timestamp with time zone,
    paused_by text,
    paused_reason text,
    served_at timestamp with time zone,
    sweep jsonb,
    CONSTRAINT horsies_queues_override CHECK ((((override IS NULL) AND (override_at IS NULL) AND (override_until IS NULL)) OR ((override IS NOT NULL) AND (override_at IS NOT NULL) AND (override_reason IS NOT NULL)))),
    CONSTRAINT horsies_queues_priority CHECK (((priority >= 1) AND (priority <= 100)))
);


--
-- Name: horsies_effective_limits(public.horsies_queues); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_effective_limits(p_queue public.horsies_queues) RETURNS public.horsies_limits
    LANGUAGE sql STABLE
    AS $$
  SELECT jsonb_populate_record(
    NULL::horsies_limits,
    to_jsonb(p_queue) || coalesce(p_queue.override, '{}') || jsonb_build_object('queue_name', p_queue.name)
      || CASE WHEN p_queue.paused_at IS NULL THEN '{}' ELSE '{"max_concurrency": 0}' END::jsonb)
$$;


--
-- Name: horsies_eligible_workers(public.horsies_tasks, public.horsies_limits, text, boolean, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_eligible_workers(p_task public.horsies_tasks, p_limits public.horsies_limits, p_key text, p_claimed boolean, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_local horsies_limits := p_limits;
BEGIN
  v_local.max_concurrency := NULL;
  RETURN (
    WITH busy AS MATERIALIZED (
      SELECT t.claimed_by AS worker, count(*) AS many FROM horsies_tasks t
      WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL AND t.lane = p_task.lane
        AND horsies_holds_permit(t.status, t.claim_expires_at, false, p_now)
      GROUP BY t.claimed_by
    )
    SELECT coalesce(jsonb_agg(jsonb_build_object(
      'worker_id', w.id, 'hostname', w.hostname, 'pid', w.pid, 'beat_at', b.sent_at,
      'slots', greatest(w.processes, 1) * CASE p_task.lane WHEN 'sync' THEN w.threads ELSE w.async_concurrency END,
      'busy', coalesce(busy.many, 0),
      'room', (horsies_remaining_capacity(ARRAY[v_local], w.id, p_claimed, p_now, NULL)).rooms[1],
      'partition_room', CASE WHEN p_key IS NOT NULL THEN (
        SELECT r.room FROM horsies_partition_rooms(p_limits, ARRAY[p_key], w.id, p_claimed, p_now) AS r) END,
      'wire', coalesce(w.wire, 1), 'knows', horsies_worker_knows(p_task.task_name, p_task.options, w)) ORDER BY w.started_at, w.id), '[]')
    FROM horsies_workers w JOIN horsies_heartbeats b ON b.id = w.id LEFT JOIN busy ON busy.worker = w.id
    WHERE w.id IN (SELECT horsies_workers_serving(p_task.queue_name)) AND (p_task.claimed_by IS NULL OR w.id = p_task.claimed_by));
END
$$;


--
-- Name: horsies_end_nodes(public.horsies_workflows, integer, text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_end_nodes(p_run public.horsies_workflows, p_many integer, p_channel text, p_now timestamp with time zone, OUT moved bigint[], OUT more boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_spared text[] := CASE WHEN p_run.finished_at IS NULL AND p_run.status <> 'COMPENSATING' THEN '{failed,finished}' ELSE '{}' END;
  v_tasks uuid[];
  v_left int;
  v_map record;
BEGIN
  WITH open AS MATERIALIZED (
    SELECT n.workflow_id, n.number FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_run.id AND n.finished_at IS NULL AND n.status IN ('PENDING', 'READY', 'WAITING')
      AND n.kind <> 'undo' AND n.rule <> ALL (v_spared)
    LIMIT p_many
  ), ended AS (
    UPDATE horsies_workflow_nodes n
    SET status = CASE WHEN n.in_flight > 0 THEN 'ENQUEUED' ELSE 'CANCELLED' END, finished_at = CASE WHEN n.in_flight = 0 THEN p_now END,
        expanded = CASE WHEN n.in_flight > 0 THEN n.total ELSE n.expanded END,
        items_bad = CASE WHEN n.in_flight > 0 THEN n.total - n.items_ok - n.in_flight ELSE n.items_bad END,
        error_code = CASE WHEN p_run.continued_as IS NULL THEN 'WORKFLOW_CANCELLED' ELSE 'WORKFLOW_CONTINUED' END,
        error = CASE WHEN p_run.continued_as IS NOT NULL THEN 'the run continued as another one'
                  WHEN v_spared = '{}' THEN 'the workflow was cancelled' ELSE 'the run stopped because a node failed' END
    FROM open o WHERE n.workflow_id = o.workflow_id AND n.number = o.number
    RETURNING n.number, n.finished_at
  )
  SELECT coalesce(array_agg(e.number) FILTER (WHERE e.finished_at IS NOT NULL), '{}'), count(*) = p_many INTO moved, more FROM ended e;
  v_tasks := ARRAY(
    SELECT t.id FROM horsies_workflow_nodes n JOIN horsies_tasks t ON t.id = n.task_id
    WHERE n.workflow_id = p_run.id AND n.finished_at IS NULL AND n.status = 'ENQUEUED' AND n.kind = 'task' AND n.rule <> ALL (v_spared)
      AND t.finished_at IS NULL AND (t.cancel_requested_at IS NULL OR t.status <> 'RUNNING')
    LIMIT p_many);
  v_left := p_many - cardinality(v_tasks);
  FOR v_map IN
    SELECT n.number, n.expanded FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_run.id AND n.finished_at IS NULL AND n.status = 'ENQUEUED' AND n.kind = 'map' AND n.rule <> ALL (v_spared)
      AND n.expanded > 0
  LOOP
    EXIT WHEN v_left = 0;
    v_tasks := v_tasks || ARRAY(
      SELECT t.id FROM horsies_tasks t
      WHERE t.workflow_id = p_run.id AND t.node = v_map.number AND t.node_index >= v_map.expanded - v_left AND t.node_index < v_map.expanded
        AND t.finished_at IS NULL);
    UPDATE horsies_workflow_nodes n SET expanded = greatest(v_map.expanded - v_left, 0)
    WHERE n.workflow_id = p_run.id AND n.number = v_map.number;
    v_left := greatest(v_left - v_map.expanded, 0);
  END LOOP;
  PERFORM horsies_cancel(v_tasks, false, p_channel);
  moved := moved || horsies_take_tasks(p_run.id, v_tasks, p_now);
  more := more OR v_left = 0;
END
$$;


--
-- Name: horsies_error_result(text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_error_result(p_code text, p_message text) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    AS $$
  SELECT jsonb_build_object('err', jsonb_build_object('error_code', p_code, 'message', p_message, 'data', NULL, 'exception', NULL))
$$;


--
-- Name: horsies_expand(public.horsies_workflows, public.horsies_workflow_nodes, integer, integer, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_expand(p_run public.horsies_workflows, p_node public.horsies_workflow_nodes, p_many integer, p_max_bytes integer, p_now timestamp with time zone, OUT many integer, OUT moved boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_start timestamptz := coalesce(p_now, now());
  v_source jsonb := p_node.inputs -> p_node.over;
  v_list jsonb;  -- NULL: the elements are the values of nodes, those of a map one by one
  v_parts record;
  v_undone horsies_workflow_nodes;
  v_takes text[];
  v_kwargs jsonb;
  v_total int;
  v_due timestamptz;
  v_until int;
  v_refused int;
  v_task uuid;
BEGIN
  IF p_node.kind = 'undo' THEN
    SELECT n.* INTO v_undone FROM horsies_workflow_nodes n WHERE n.workflow_id = p_run.id AND n.number = p_node.undoes;
    v_takes := ARRAY(SELECT jsonb_array_elements_text(v_undone.undo -> 'parameters'));
  ELSIF v_source IS NULL THEN
    v_list := p_node.value || '[]';  -- decompressed once, not for every element
  ELSIF NOT v_source ? 'nodes' AND NOT EXISTS (
    SELECT FROM horsies_workflow_nodes u WHERE u.workflow_id = p_run.id AND u.number = (v_source ->> 'node')::bigint AND u.kind = 'map') THEN
    v_list := horsies_argument(p_run.id, p_node.number, p_node.over, v_source || '{"as": "value"}', p_max_bytes);
    IF jsonb_typeof(v_list) IS DISTINCT FROM 'array' THEN
      RAISE EXCEPTION USING ERRCODE = 'HW001', DETAIL = 'MAP_WITHOUT_LIST', MESSAGE = format(
        'the value to map %s over is %s, not a list', p_node.over, coalesce(jsonb_typeof(v_list), 'missing'));
    END IF;
  END IF;
  SELECT array_agg(u.number) AS numbers, array_agg(u.first) AS firsts, array_agg(u.width) AS widths, sum(u.width)::int AS total INTO v_parts
  FROM (SELECT n.number, n.width, (sum(n.width) OVER (ORDER BY n.place) - n.width)::int AS first
        FROM (SELECT u.number, s.place, CASE u.kind WHEN 'map' THEN coalesce(u.total, 0) ELSE 1 END AS width
              FROM jsonb_array_elements_text(coalesce(v_source -> 'nodes', jsonb_build_array(v_source -> 'node')))
                WITH ORDINALITY AS s (number, place)
              JOIN horsies_workflow_nodes u ON u.workflow_id = p_run.id AND u.number = s.number::bigint
              WHERE v_list IS NULL AND v_source IS NOT NULL) AS n) AS u;
  v_total := coalesce(p_node.total, jsonb_array_length(v_list), v_parts.total);
  v_due := coalesce(p_node.due_at, v_start + p_node.delay);
  v_kwargs := horsies_node_kwargs(p_node, p_max_bytes);
  v_until := least(p_node.expanded + CASE p_node.kind WHEN 'undo' THEN greatest(p_many, 200) ELSE p_many END, v_total);  -- few may have begun
  WITH element AS MATERIALIZED (
    SELECT i.place, v_kwargs || jsonb_build_object(p_node.over, v_list -> i.place) AS kwargs, NULL AS refused
    FROM generate_series(p_node.expanded, v_until - 1) AS i (place) WHERE v_list IS NOT NULL
    UNION ALL
    SELECT (p.first + r.place)::int, v_kwargs || jsonb_build_object(p_node.over, r.result -> 'ok'), CASE WHEN r.redacted THEN 'RESULT_REDACTED' END
    FROM unnest(v_parts.numbers, v_parts.firsts, v_parts.widths) AS p (number, first, width)
    CROSS JOIN LATERAL horsies_results(
      p_run.id, jsonb_build_object('node', p.number), p_node.expanded - p.first, v_until - greatest(p_node.expanded, p.first)) AS r
    WHERE p.first < v_until AND p.first + p.width > p_node.expanded AND p.first + r.place < v_until
      AND r.status = 'COMPLETED'  -- an element that was skipped has no value, and is passed over
    UNION ALL
    (SELECT b.place, k.kwargs, CASE WHEN v_takes <> '{}' AND b.redacted THEN 'RESULT_REDACTED'
                                    WHEN octet_length(k.kwargs::text) > p_max_bytes THEN 'PAYLOAD_TOO_LARGE' END
     FROM horsies_begun(p_run.id, v_undone.number, v_undone.undo -> 'begun', p_node.expanded, v_until) AS b
     CROSS JOIN LATERAL (
       SELECT coalesce(jsonb_object_agg(g.key, g.value) FILTER (WHERE g.key = ANY (v_takes) AND g.key <> 'result'), '{}')
              || CASE WHEN 'result' = ANY (v_takes) THEN jsonb_build_object('result', b.value) ELSE '{}' END AS kwargs
       FROM jsonb_each(b.kwargs) AS g) AS k
     WHERE p_node.kind = 'undo' AND NOT EXISTS (
       SELECT FROM horsies_tasks x WHERE x.workflow_id = p_run.id AND x.node = p_node.number AND x.node_index = b.place)
     ORDER BY b.place LIMIT p_many)
  ), sent AS (
    INSERT INTO horsies_tasks (id, task_name, queue_name, lane, priority, kwargs, sent_at, enqueued_at, good_until,
                               partition_key, partition_version, max_retries, options, codec, workflow_id, node, node_index,
                               status, finished_at, advanced_at, error_code, result)
    SELECT horsies_uuid7(e.place), p_node.task_name, p_node.queue_name, p_node.lane, p_node.priority,
           horsies_stored_arguments(a.kwargs, p_node.codec), v_now, greatest(v_start, v_due),
           CASE p_node.kind WHEN 'map' THEN least(p_node.good_until, p_run.good_until) END,
           CASE WHEN q.partition_by_args IS NOT NULL OR q.partition_by_task
                THEN horsies_partition_key(q.partition_by_args, q.partition_by_task, a.kwargs::json, p_node.task_name, NULL) END,
           q.partition_version, p_node.max_retries, p_node.options, p_node.codec, p_run.id, p_node.number, e.place,
           r.status, r.at, r.at, e.refused,
           CASE e.refused WHEN 'RESULT_REDACTED' THEN horsies_error_result(e.refused, 'the arguments and the value to undo were redacted')
                          WHEN 'PAYLOAD_TOO_LARGE' THEN horsies_error_result(e.refused, format(
                            'the arguments take %s bytes of JSON; HORSIES[''MAX_PAYLOAD_BYTES''] allows %s', octet_length(e.kwargs::text), p_max_bytes)) END
    FROM element e
    CROSS JOIN LATERAL (SELECT CASE WHEN e.refused IS NULL THEN e.kwargs ELSE '{}' END AS kwargs) AS a
    CROSS JOIN LATERAL (SELECT CASE WHEN e.refused IS NULL THEN 'PENDING' ELSE 'FAILED' END AS status, CASE WHEN e.refused IS NOT NULL THEN v_now END AS at) AS r
    LEFT JOIN horsies_queues q ON q.name = p_node.queue_name
    ON CONFLICT (workflow_id, node, node_index) WHERE workflow_id IS NOT NULL DO NOTHING
    RETURNING id, status, node_index
  )
  SELECT count(*) FILTER (WHERE s.status = 'PENDING'), count(*) FILTER (WHERE s.status = 'FAILED'), (array_agg(s.id))[1],
         CASE WHEN p_node.kind = 'undo' AND count(*) = p_many THEN max(s.node_index) + 1 ELSE v_until END
  INTO many, v_refused, v_task, v_until FROM sent s;
  IF v_refused > 0 AND p_node.kind = 'map' THEN
    RAISE EXCEPTION USING ERRCODE = 'HW001', DETAIL = 'RESULT_REDACTED', MESSAGE = format('a result for %s was redacted', p_node.over);
  END IF;
  UPDATE horsies_workflow_nodes n
  SET total = v_total, due_at = v_due, expanded = v_until, in_flight = n.in_flight + many, items_bad = n.items_bad + v_refused,
      task_id = CASE WHEN v_undone.kind = 'task' THEN coalesce(v_task, n.task_id) END
  WHERE n.workflow_id = p_run.id AND n.number = p_node.number;
  moved := horsies_close_maps(p_run.id, ARRAY[p_node.number], v_now) <> '{}';
END
$$;


--
-- Name: horsies_expire(uuid[], timestamp with time zone, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_expire(p_ids uuid[], p_now timestamp with time zone, p_channel text) RETURNS uuid[]
    LANGUAGE plpgsql
    AS $$
BEGIN
  UPDATE horsies_tasks t
  SET status = 'EXPIRED', finished_at = p_now, error_code = 'TASK_EXPIRED', parked = false,
      result = horsies_error_result('TASK_EXPIRED', 'the task was not started before its good_until')
  WHERE t.id = ANY (p_ids) AND t.status IN ('PENDING', 'CLAIMED');
  PERFORM horsies_notify_finished(p_channel, p_ids);
  RETURN p_ids;
END
$$;


--
-- Name: horsies_explain(uuid, boolean, interval, integer, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_explain(p_id uuid, p_claimed boolean, p_threshold interval, p_many integer, p_bound integer) RETURNS jsonb
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  c_vast CONSTANT int := 2000000000;
  v_now timestamptz;
  v_task horsies_tasks;
  v_queue horsies_queues;
  v_whole horsies_queues;
  v_limits horsies_limits;
  v_cap horsies_limits;
  v_vast horsies_limits;
  v_rooms int[];
  v_key text;
  v_facts jsonb;
BEGIN
  SELECT t.* INTO v_task FROM horsies_tasks t WHERE t.id = p_id;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  v_now := clock_timestamp();
  v_task.enqueued_at := least(v_task.enqueued_at, v_task.next_retry_at);  -- a pause of its run postpones a retry
  v_facts := jsonb_build_object('now', v_now, 'bound', p_bound,
    'task', to_jsonb(v_task) - ARRAY['kwargs', 'options', 'result', 'partition_key', 'partition_version']
      || jsonb_build_object(
        'wire', CASE jsonb_typeof(v_task.options -> 'wire') WHEN 'number' THEN v_task.options -> 'wire' ELSE '1' END));
  IF v_task.finished_at IS NOT NULL THEN
    RETURN v_facts;
  END IF;
  IF v_task.claimed_by IS NOT NULL THEN
    v_facts := v_facts || jsonb_build_object('holder', (
      SELECT jsonb_build_object(
        'worker_id', v_task.claimed_by, 'hostname', w.hostname, 'pid', w.pid, 'beat_at', b.sent_at, 'died_at', b.died_at,
        'orphaned', horsies_is_orphaned(v_task.claimed_by, v_task.claimed_at, v_now - p_threshold),
        'heard_at', (SELECT max(h.sent_at) FROM horsies_workers_serving('*') AS s (id) JOIN horsies_heartbeats h ON h.id = s.id),
        'child_pid', (SELECT child.pid FROM horsies_heartbeats child
                      WHERE child.worker_id = v_task.claimed_by AND child.role = 'runner' AND child.holding ? p_id::text
                      ORDER BY child.sent_at DESC LIMIT 1))
      FROM (VALUES (v_task.claimed_by)) AS held (id)
      LEFT JOIN horsies_workers w ON w.id = held.id LEFT JOIN horsies_heartbeats b ON b.id = held.id));
    IF v_task.status = 'RUNNING' THEN
      RETURN v_facts;
    END IF;
    p_claimed := false;  -- a start counts running tasks only
  END IF;
  IF v_task.workflow_id IS NOT NULL AND EXISTS (SELECT FROM horsies_forbidding(v_task.workflow_id, v_task.node)) THEN
    v_facts := v_facts || jsonb_build_object('run', (
      SELECT jsonb_build_object('workflow_id', w.id, 'name', w.name, 'status', w.status, 'error_code', w.error_code)
      FROM horsies_workflows w WHERE w.id = v_task.workflow_id));
  END IF;

  SELECT q.* INTO v_queue FROM horsies_queues q WHERE q.name = v_task.queue_name;
  IF FOUND THEN
    v_limits := horsies_effective_limits(v_queue);
    v_cap := v_limits;
    v_cap.local_limit := NULL;
    v_vast := v_cap;
    v_vast.max_concurrency := c_vast;
    v_rooms := (horsies_remaining_capacity(ARRAY[v_cap, v_vast], NULL, p_claimed, v_now, NULL)).rooms;
    v_facts := v_facts || jsonb_build_object(
      'queue', to_jsonb(v_queue) || to_jsonb(v_limits) || jsonb_build_object(
        'room', v_rooms[1], 'taken', c_vast - v_rooms[2],
        'holders', CASE WHEN v_rooms[1] <= 0 THEN horsies_permit_holders(v_limits, NULL, p_claimed, v_now, p_many) END));
    IF v_limits.partition_max_concurrency IS NOT NULL OR v_limits.partition_local_limit IS NOT NULL THEN
      v_key := horsies_partition_key(v_limits.partition_by_args, v_limits.partition_by_task, v_task.kwargs, v_task.task_name, v_task.codec);
    END IF;
  END IF;
  SELECT q.* INTO v_whole FROM horsies_queues q WHERE q.name = '*';
  IF FOUND AND v_task.claimed_by IS NULL THEN  -- a claimed task already has a permit of the cluster
    v_cap := horsies_effective_limits(v_whole);
    IF v_cap.max_concurrency IS NOT NULL THEN
      v_vast := v_cap;
      v_vast.max_concurrency := c_vast;
      v_rooms := (horsies_remaining_capacity(ARRAY[v_cap, v_vast], NULL, true, v_now, NULL)).rooms;
      v_facts := v_facts || jsonb_build_object(
        'cluster', to_jsonb(v_whole) || to_jsonb(v_cap) || jsonb_build_object(
          'room', v_rooms[1], 'taken', c_vast - v_rooms[2],
          'holders', CASE WHEN v_rooms[1] <= 0 THEN horsies_permit_holders(v_cap, NULL, true, v_now, p_many) END));
    END IF;
  END IF;
  IF v_key IS NOT NULL THEN
    v_facts := v_facts || jsonb_build_object('partition', (
      SELECT jsonb_build_object('partition', r.key, 'room', r.everyone, 'taken', r.held,
                                'holders', horsies_permit_holders(v_limits, v_key, p_claimed, v_now, p_many))
      FROM horsies_partition_rooms(v_limits, ARRAY[v_key], NULL, p_claimed, v_now) AS r));
  END IF;

  v_facts := v_facts || jsonb_build_object('workers', horsies_eligible_workers(v_task, v_limits, v_key, p_claimed, v_now), 'former', (
    SELECT coalesce(jsonb_agg(to_jsonb(f) ORDER BY f.seen_at DESC), '[]')
    FROM (SELECT w.id AS worker_id, w.hostname, w.pid, w.seen_at, w.stopped_at FROM horsies_workers w
          WHERE w.queues ? v_task.queue_name ORDER BY w.seen_at DESC LIMIT p_many) AS f));
  IF v_task.claimed_by IS NULL AND v_task.enqueued_at <= v_now AND v_queue.name IS NOT NULL THEN
    v_facts := v_facts || jsonb_build_object('before', horsies_tasks_before(v_task, v_now, p_bound + 1));
  END IF;
  RETURN v_facts;
END
$$;


--
-- Name: horsies_explain_node(uuid, bigint, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_explain_node(p_workflow uuid, p_number bigint, p_many integer) RETURNS jsonb
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_run horsies_workflows;
  v_node horsies_workflow_nodes;
  v_facts jsonb;
BEGIN
  SELECT w.* INTO v_run FROM horsies_workflows w WHERE w.id = p_workflow;
  SELECT n.* INTO v_node FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.number = p_number;
  IF v_run.id IS NULL OR v_node.number IS NULL THEN
    RETURN NULL;
  END IF;
  v_facts := jsonb_build_object(
    'now', clock_timestamp(),
    'run', to_jsonb(v_run) - ARRAY['key', 'graph_hash', 'result'],
    'error_node', (SELECT e.name FROM horsies_workflow_nodes e WHERE e.workflow_id = p_workflow AND e.number = v_run.error_node),
    'node', to_jsonb(v_node) - ARRAY['options', 'kwargs', 'inputs', 'graph', 'value', 'error', 'undo']
      || jsonb_build_object('by_hand', v_node.status = 'SKIPPED' AND v_node.error_code IS NOT DISTINCT FROM 'SKIPPED_BY_HAND'),
    'added_by', (SELECT a.name FROM horsies_workflow_nodes a WHERE a.workflow_id = p_workflow AND a.number = v_node.added_by),
    'when_node', (SELECT u.name FROM horsies_workflow_nodes u WHERE u.workflow_id = p_workflow AND u.number = v_node.when_node),
    'undoes', (SELECT u.name FROM horsies_workflow_nodes u WHERE u.workflow_id = p_workflow AND u.number = v_node.undoes),
    'heard_at', (SELECT max(h.sent_at) FROM horsies_workers_serving('*') AS s (id) JOIN horsies_heartbeats h ON h.id = s.id),
    'task', (SELECT t.id FROM horsies_tasks t
             WHERE t.workflow_id = p_workflow AND t.node = p_number AND t.finished_at IS NULL ORDER BY t.node_index LIMIT 1),
    'child', (SELECT jsonb_build_object('id', c.id, 'name', c.name, 'status', c.status, 'finished_at', c.finished_at, 'error_code', c.error_code)
              FROM horsies_workflows c WHERE v_node.kind = 'workflow' AND c.id = v_node.task_id),
    'change', (SELECT jsonb_build_object('at', a.at, 'actor', a.actor, 'reason', a.reason)
               FROM horsies_audit a
               WHERE a.subject = p_workflow::text AND CASE v_node.status
                 WHEN 'SKIPPED' THEN a.action = 'workflow.skip' AND a.after ->> 'node' = p_number::text
                 ELSE a.action = 'workflow.pause' END
               ORDER BY a.at DESC LIMIT 1));
  IF v_node.status IN ('PENDING', 'SKIPPED') THEN
    v_facts := v_facts || jsonb_build_object(
      'waits', (SELECT coalesce(jsonb_agg(to_jsonb(u)), '[]') FROM (
        SELECT n.number, n.name, n.status FROM horsies_workflow_edges e
        JOIN horsies_workflow_nodes n ON n.workflow_id = p_workflow AND n.number = e.upstream
        WHERE e.workflow_id = p_workflow AND e.downstream = p_number AND n.finished_at IS NULL ORDER BY n.number LIMIT p_many) AS u),
      'bad', (SELECT coalesce(jsonb_agg(to_jsonb(u)), '[]') FROM (
        SELECT n.number, n.name, n.status, n.error_code FROM horsies_workflow_edges e
        JOIN horsies_workflow_nodes n ON n.workflow_id = p_workflow AND n.number = e.upstream
        WHERE e.workflow_id = p_workflow AND e.downstream = p_number AND n.finished_at IS NOT NULL AND n.status <> 'COMPLETED'
        ORDER BY n.finished_at, n.number LIMIT p_many) AS u));
  ELSIF v_node.status = 'READY' THEN
    v_facts := v_facts || jsonb_build_object('in_flight', (
      SELECT coalesce(sum(CASE WHEN n.kind IN ('map', 'undo') THEN n.in_flight ELSE 1 END), 0)
      FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow AND n.finished_at IS NULL AND (n.status = 'ENQUEUED' OR n.status = 'READY' AND n.kind IN ('map', 'undo'))));
  END IF;
  RETURN v_facts;
END
$$;


--
-- Name: horsies_finish_run(uuid, text, integer, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_finish_run(p_workflow uuid, p_channel text, p_max_bytes integer, p_now timestamp with time zone) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_run horsies_workflows;
  v_number bigint;
  v_name text;
  v_code text;
  v_message text;
  v_kind text;
  v_ended text;
  v_status text := 'COMPLETED';
  v_result jsonb;
  v_undoing boolean := false;
BEGIN
  SELECT w.* INTO v_run FROM horsies_workflows w WHERE w.id = p_workflow;
  IF v_run.finished_at IS NOT NULL THEN
    RETURN 'FINISHED';
  ELSIF v_run.status = 'PAUSED' OR v_run.retrying IS NOT NULL
    OR EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.finished_at IS NULL)
    OR EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.status = 'ADDED') THEN  -- a retry had reached them
    RETURN 'OPEN';
  END IF;
  IF v_run.status = 'COMPENSATING' THEN
    v_result := v_run.result;
    v_code := v_run.error_code;
    v_number := v_run.error_node;
  ELSIF v_run.error_node IS NOT NULL THEN
    SELECT n.number, n.name, n.code INTO v_number, v_name, v_code
    FROM (SELECT f.workflow_id, f.number, f.name, coalesce(f.error_code, f.status) AS code FROM horsies_workflow_nodes f  -- mostly this one
          WHERE f.workflow_id = p_workflow AND f.number = v_run.error_node AND f.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
          UNION ALL
          (SELECT f.workflow_id, f.number, f.name, coalesce(f.error_code, f.status) FROM horsies_workflow_nodes f
           WHERE f.workflow_id = p_workflow AND f.status IN ('FAILED', 'CANCELLED', 'EXPIRED') ORDER BY f.finished_at, f.number)) AS n
    WHERE NOT EXISTS (
      SELECT FROM horsies_workflow_edges e CROSS JOIN LATERAL (  -- see horsies_has_failed_upstream
        SELECT FROM horsies_workflow_nodes d WHERE d.workflow_id = e.workflow_id AND d.number = e.downstream
          AND (d.rule = 'quorum' OR d.rule = 'all' AND d.allow_failed) AND d.status <> 'SKIPPED' OFFSET 0) AS d
      WHERE e.workflow_id = n.workflow_id AND e.upstream = n.number)
    LIMIT 1;
    v_message := (SELECT r.result #>> '{err,message}' FROM horsies_node_result(p_workflow, v_number) AS r);
  END IF;
  IF v_run.status = 'COMPENSATING' THEN
    v_status := CASE v_result #>> '{err,error_code}' WHEN 'WORKFLOW_CANCELLED' THEN 'CANCELLED' ELSE 'FAILED' END;
  ELSIF v_number IS NOT NULL THEN
    v_status := 'FAILED';
    v_result := jsonb_build_object('err', jsonb_build_object(
      'error_code', 'WORKFLOW_FAILED', 'message', concat_ws(': ', 'node ' || v_name || ' failed', v_code, v_message),
      'data', jsonb_build_object('node', v_name, 'error_code', v_code), 'exception', NULL));
  END IF;
  IF v_status IN ('FAILED', 'CANCELLED') AND EXISTS (
    SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.undo IS NOT NULL) THEN
    IF EXISTS (SELECT FROM horsies_tasks t WHERE t.workflow_id = p_workflow AND t.finished_at IS NULL) THEN
      RETURN 'OPEN';  -- of a map that was ended, or could not be expanded
    ELSIF NOT EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.kind = 'undo') THEN
      v_undoing := horsies_begin_undo(p_workflow) > 0;
    ELSE
      v_result := horsies_undo_result(p_workflow, v_result);
      IF v_result #>> '{err,error_code}' = 'COMPENSATION_FAILED' THEN
        v_status := 'FAILED';
        v_code := 'COMPENSATION_FAILED';
      END IF;
    END IF;
  END IF;
  IF v_status = 'COMPLETED' AND v_run.output IS NULL THEN
    v_result := '{"ok": null}';
  ELSIF v_status = 'COMPLETED' THEN
    SELECT r.kind, r.status, r.result INTO v_kind, v_ended, v_result FROM horsies_node_result(p_workflow, v_run.output) AS r;
    IF v_kind = 'map' AND v_ended = 'COMPLETED' THEN
      BEGIN
        v_result := jsonb_build_object('ok', horsies_argument(
          p_workflow, NULL, 'the value of the run', jsonb_build_object('node', v_run.output, 'as', 'list'), p_max_bytes));
      EXCEPTION WHEN SQLSTATE 'HW001' THEN
        GET STACKED DIAGNOSTICS v_code = PG_EXCEPTION_DETAIL;
        v_result := horsies_error_result(v_code, SQLERRM);
      END;
    END IF;
    IF v_result ? 'err' AND v_ended <> 'SKIPPED' THEN
      v_status := 'FAILED';
      v_number := v_run.output;
      v_code := v_result #>> '{err,error_code}';
    END IF;
  END IF;
  UPDATE horsies_workflows w
  SET status = CASE WHEN v_undoing THEN 'COMPENSATING' ELSE v_status END, finished_at = CASE WHEN NOT v_undoing THEN p_now END,
      owed_at = CASE WHEN v_undoing THEN w.owed_at END, error_node = v_number, error_code = v_code, result = v_result
  WHERE w.id = p_workflow;
  IF v_undoing THEN
    RETURN 'UNDOING';
  END IF;
  PERFORM horsies_notify_finished(p_channel, ARRAY[p_workflow]);
  RETURN 'FINISHED';
END
$$;


--
-- Name: horsies_first_waiting(text, text, smallint, jsonb, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_first_waiting(p_queue text, p_lane text, p_beyond smallint, p_cursors jsonb, p_behind timestamp with time zone, OUT priority smallint, OUT moment timestamp with time zone) RETURNS record
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF p_cursors -> p_queue ? p_lane THEN
    SELECT f.priority, f.enqueued_at INTO priority, moment
    FROM jsonb_to_recordset(p_cursors -> p_queue -> p_lane) AS r (low smallint, high smallint, since float8)
    CROSS JOIN LATERAL (
      SELECT t.priority, t.enqueued_at FROM horsies_tasks t
      WHERE t.queue_name = p_queue AND t.lane = p_lane AND t.priority > p_beyond AND t.priority >= r.low AND t.priority <= r.high
        AND t.enqueued_at >= least(coalesce(to_timestamp(r.since), '-infinity'), p_behind)
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
        AND (t.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)))
      ORDER BY t.priority, t.enqueued_at LIMIT 1
    ) AS f LIMIT 1;
  ELSE
    SELECT t.priority, t.enqueued_at INTO priority, moment FROM horsies_tasks t
    WHERE t.queue_name = p_queue AND t.lane = p_lane AND t.priority > p_beyond
      AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    ORDER BY t.priority, t.enqueued_at LIMIT 1;
  END IF;
END
$$;


--
-- Name: horsies_forbidding(uuid, bigint); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_forbidding(p_workflow uuid, p_node bigint) RETURNS SETOF uuid
    LANGUAGE sql STABLE
    AS $$
  SELECT w.id FROM horsies_workflows w
  WHERE w.id = p_workflow AND CASE
    WHEN w.status IN ('PAUSED', 'CANCELLED') OR w.continued_as IS NOT NULL THEN true
    WHEN w.status = 'COMPENSATING' THEN NOT EXISTS (
      SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = w.id AND n.number = p_node AND n.kind = 'undo')
    WHEN w.on_error = 'stop' AND w.error_code IS NOT NULL THEN NOT EXISTS (
      SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = w.id AND n.number = p_node AND n.rule IN ('failed', 'finished'))
    ELSE false END
$$;


--
-- Name: horsies_has_begun(uuid, text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_has_begun(p_task uuid, p_status text, p_code text) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
  SELECT CASE WHEN p_status = 'COMPLETED' OR p_code = 'WORKER_CRASHED' THEN true ELSE EXISTS (
    SELECT FROM horsies_task_attempts a
    WHERE a.task_id = p_task AND (a.outcome = 'WORKER_FAILURE' OR a.error_code IN (
      'WORKER_CRASHED', 'TASK_TIMEOUT', 'TASK_CANCELLED', 'WORKER_SERIALIZATION_ERROR', 'RETURN_TYPE_MISMATCH', 'PAYLOAD_TOO_LARGE'))) END
$$;


--
-- Name: horsies_has_failed_upstream(uuid, bigint); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_has_failed_upstream(p_workflow uuid, p_number bigint) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
  SELECT EXISTS (
    SELECT FROM horsies_workflow_edges e CROSS JOIN LATERAL (
      SELECT FROM horsies_workflow_nodes u
      WHERE u.workflow_id = e.workflow_id AND u.number = e.upstream AND u.status IN ('FAILED', 'CANCELLED', 'EXPIRED') OFFSET 0) AS u
    WHERE e.workflow_id = p_workflow AND e.downstream = p_number AND e.counts)
$$;


--
-- Name: horsies_holds_permit(text, timestamp with time zone, boolean, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_holds_permit(p_status text, p_claim_expires_at timestamp with time zone, p_claimed boolean, p_now timestamp with time zone) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  SELECT p_status = 'RUNNING' OR (p_claimed AND p_status = 'CLAIMED' AND coalesce(p_claim_expires_at > p_now, true))
$$;


--
-- Name: horsies_is_orphaned(uuid, timestamp with time zone, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_is_orphaned(p_worker uuid, p_claimed_at timestamp with time zone, p_before timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
  v_died timestamptz;
BEGIN
  SELECT b.died_at INTO v_died FROM horsies_heartbeats b WHERE b.id = p_worker;
  RETURN CASE WHEN FOUND THEN v_died IS NOT NULL ELSE coalesce(p_claimed_at < p_before, true) END;
END
$$;


--
-- Name: horsies_join_verdict(uuid, bigint, text, integer, boolean, integer, integer, integer, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_join_verdict(p_workflow uuid, p_number bigint, p_rule text, p_needs integer, p_allow_failed boolean, p_branches integer, p_open integer, p_ok integer, p_bad integer) RETURNS text
    LANGUAGE sql STABLE
    AS $$
  SELECT CASE
    WHEN p_rule = 'quorum' THEN
      CASE WHEN p_branches - CASE WHEN p_allow_failed THEN 0 ELSE p_bad END < p_needs THEN 'SKIPPED'
           WHEN p_ok + CASE WHEN p_allow_failed THEN p_bad ELSE 0 END < p_needs OR p_open > p_branches - p_ok - p_bad THEN 'PENDING'
           ELSE 'READY' END
    WHEN p_rule = 'all' AND p_bad > 0 AND NOT p_allow_failed THEN 'SKIPPED'
    WHEN p_open > 0 THEN 'PENDING'
    WHEN p_rule = 'failed' THEN CASE WHEN horsies_has_failed_upstream(p_workflow, p_number) THEN 'READY' ELSE 'SKIPPED' END
    WHEN p_rule = 'succeeded' THEN CASE WHEN horsies_has_failed_upstream(p_workflow, p_number) THEN 'SKIPPED' ELSE 'READY' END
    ELSE 'READY' END
$$;


--
-- Name: horsies_lock_caps(public.horsies_limits[], integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_lock_caps(p_limits public.horsies_limits[], p_cluster integer) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_seed bigint := 'horsies_tasks'::regclass::oid::bigint;  -- each schema has its own locks
  v_keys bigint[] := '{}';
  v_limit horsies_limits;
  v_key bigint;
BEGIN
  IF p_cluster IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(hashtextextended('*', v_seed));
    RETURN;
  END IF;
  FOREACH v_limit IN ARRAY p_limits LOOP
    IF coalesce(v_limit.max_concurrency > 0, v_limit.partition_max_concurrency IS NOT NULL OR v_limit.partition_local_limit IS NOT NULL) THEN
      v_keys := v_keys || hashtextextended(v_limit.queue_name, v_seed);
    END IF;
  END LOOP;
  IF cardinality(v_keys) > 1 THEN
    v_keys := ARRAY(SELECT k.key FROM unnest(v_keys) AS k (key) ORDER BY k.key);
  END IF;
  FOREACH v_key IN ARRAY v_keys LOOP
    PERFORM pg_advisory_xact_lock(v_key);
  END LOOP;
END
$$;


--
-- Name: horsies_longest_waits(text[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_longest_waits(p_names text[]) RETURNS TABLE(queue_name text, seconds double precision)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
BEGIN
  RETURN QUERY
  SELECT q.name, extract(epoch FROM v_now - oldest.moment)::float8
  FROM unnest(p_names) AS q (name)
  CROSS JOIN LATERAL (
    WITH RECURSIVE step (lane, priority, moment) AS (
      (SELECT t.lane, t.priority, t.enqueued_at FROM horsies_tasks t
       WHERE t.queue_name = q.name AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
         AND (t.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)))
       ORDER BY t.lane, t.priority, t.enqueued_at LIMIT 1)
      UNION ALL
      SELECT next.lane, next.priority, next.enqueued_at
      FROM step CROSS JOIN LATERAL (
        SELECT t.lane, t.priority, t.enqueued_at FROM horsies_tasks t
        WHERE t.queue_name = q.name AND (t.lane, t.priority) > (step.lane, step.priority)
          AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
          AND (t.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)))
        ORDER BY t.lane, t.priority, t.enqueued_at LIMIT 1
      ) AS next
    )
    SELECT min(step.moment) AS moment FROM step WHERE step.moment <= v_now
  ) AS oldest
  WHERE oldest.moment IS NOT NULL;
END
$$;


--
-- Name: horsies_lost(text, text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_lost(p_kind text, p_what text, p_error text) RETURNS void
    LANGUAGE plpgsql
    SET lock_timeout TO '500ms'
    AS $$
BEGIN
  INSERT INTO horsies_lost_records (kind, at, what, error) VALUES (p_kind, clock_timestamp(), p_what, p_error)
  ON CONFLICT (kind) DO UPDATE SET at = excluded.at, what = excluded.what, error = excluded.error;
EXCEPTION WHEN OTHERS THEN
  NULL;  -- the log of the caller still tells it
END
$$;


--
-- Name: horsies_move_run(uuid, bigint[], integer, integer, text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_move_run(p_workflow uuid, p_moved bigint[], p_limit integer, p_max_bytes integer, p_channel text, p_now timestamp with time zone, OUT many integer, OUT more boolean, OUT finished boolean, OUT parent uuid, OUT halted text) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_until timestamptz;
  v_some boolean := false;
  v_run horsies_workflows;
  v_moved bigint[] := p_moved;
  v_part int := horsies_part();
  v_room int := v_part;  -- for nodes that are skipped, or admitted
  v_told record;
  v_retried record;
  v_ending boolean;
  v_owed boolean;
  v_held boolean;
  v_ended record;
  v_failed record;
  v_sent record;
  v_end text;
BEGIN
  many := 0;
  more := false;
  SELECT w.* INTO v_run FROM horsies_workflows w WHERE w.id = p_workflow;
  parent := v_run.parent_id;
  v_owed := v_run.owed_at IS NOT NULL;
  LOOP
    v_ending := v_run.finished_at IS NOT NULL OR v_run.status = 'COMPENSATING' OR v_run.on_error = 'stop' AND v_run.error_code IS NOT NULL;
    IF v_run.retrying IS NOT NULL AND v_ending THEN  -- it was cancelled
      v_run.retrying := NULL;
      UPDATE horsies_workflows w SET retrying = NULL WHERE w.id = p_workflow;
    ELSIF v_run.retrying IS NOT NULL THEN
      v_retried := horsies_retry_part(v_run, v_moved, v_part, v_now);
      v_run.retrying := v_retried.retrying;
      v_moved := '{}';
      IF v_retried.begun THEN
        halted := 'retry';
      END IF;
    END IF;
    IF v_moved <> '{}' OR v_run.retrying IS NULL THEN
      v_told := horsies_propagate(p_workflow, v_moved, v_ending, v_run.retrying IS NULL, v_room, v_now);
      v_room := greatest(v_room - v_told.many, 0);
      v_owed := v_owed OR v_ending AND v_told.many > 0;
      IF v_run.status IN ('RUNNING', 'PAUSED') AND v_run.error_code IS NULL AND (v_told.failed OR v_told.refused) THEN
        WITH final AS MATERIALIZED (SELECT p_workflow AS workflow_id, unnest(v_moved) AS number)
        SELECT min(n.number) AS number, min(coalesce(n.error_code, n.status)) AS code,
               bool_or(NOT EXISTS (
                 SELECT FROM horsies_workflow_edges e CROSS JOIN LATERAL (  -- see horsies_has_failed_upstream
                   SELECT FROM horsies_workflow_nodes d WHERE d.workflow_id = e.workflow_id AND d.number = e.downstream
                     AND (d.rule = 'quorum' OR d.rule = 'all' AND d.allow_failed) OFFSET 0) AS d
                 WHERE e.workflow_id = n.workflow_id AND e.upstream = n.number)) AS fatal
        INTO v_failed
        FROM final f JOIN horsies_workflow_nodes n ON n.workflow_id = f.workflow_id AND n.number = f.number
        WHERE n.status IN ('FAILED', 'CANCELLED', 'EXPIRED');
        v_moved := '{}';
        v_run.error_node := coalesce(v_run.error_node, v_failed.number);
        IF v_failed.fatal OR v_told.refused THEN
          v_run.error_code := coalesce(v_failed.code, 'QUORUM_NOT_MET');
          IF v_run.on_error = 'stop' THEN
            halted := 'stop';
            v_owed := true;
          ELSIF v_run.on_error = 'pause' AND v_run.status = 'RUNNING' THEN
            halted := 'pause';
            v_run.status := 'PAUSED';
            v_owed := true;
          END IF;
        END IF;
        UPDATE horsies_workflows w SET status = v_run.status, error_node = v_run.error_node, error_code = v_run.error_code
        WHERE w.id = p_workflow;
        CONTINUE;
      END IF;
    END IF;
    v_moved := '{}';
    IF v_ending AND v_owed THEN
      v_ended := horsies_end_nodes(v_run, v_part, p_channel, v_now);
      IF v_run.finished_at IS NULL THEN
        PERFORM horsies_propagate(p_workflow, v_ended.moved, v_ending, false, v_part, v_now);
      END IF;
      v_owed := v_ended.more;
    ELSIF v_run.status = 'PAUSED' AND v_owed THEN
      v_owed := horsies_withdraw(p_workflow, NULL, v_part) = v_part;
    END IF;
    v_held := v_run.resuming AND v_run.status = 'RUNNING' AND NOT v_ending;
    IF v_held THEN
      v_held := horsies_unhold(p_workflow, v_part, p_channel);
      v_run.resuming := v_held;
      UPDATE horsies_workflows w SET resuming = v_held WHERE w.id = p_workflow;
    END IF;
    more := v_held OR v_owed AND (v_ending OR v_run.status = 'PAUSED') OR v_run.retrying IS NOT NULL OR v_room = 0 AND EXISTS (
      SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.status = 'ADDED');
    IF v_run.status IN ('RUNNING', 'COMPENSATING') AND NOT more THEN
      v_sent := horsies_promote(
        v_run, CASE WHEN v_some AND clock_timestamp() > v_until THEN 0 ELSE p_limit - many END, p_max_bytes, p_channel, p_now);
      v_until := coalesce(v_until, clock_timestamp() + interval '20 ms');
      many := many + v_sent.many;
      more := v_sent.more;
      v_moved := v_sent.moved;
      v_some := v_some OR many > 0 OR v_moved <> '{}';
      IF v_sent.continued THEN
        halted := 'continued';
        SELECT w.* INTO v_run FROM horsies_workflows w WHERE w.id = p_workflow;
        v_owed := true;
      END IF;
    END IF;
    IF v_moved = '{}' THEN
      v_end := CASE WHEN many = 0 OR halted IS NOT NULL THEN horsies_finish_run(p_workflow, p_channel, p_max_bytes, v_now)
                    ELSE 'OPEN' END;  -- what was just sent
      EXIT WHEN v_end <> 'UNDOING';
      SELECT w.* INTO v_run FROM horsies_workflows w WHERE w.id = p_workflow;
    END IF;
  END LOOP;
  finished := v_end = 'FINISHED';
  IF more <> (v_run.owed_at IS NOT NULL) THEN
    UPDATE horsies_workflows w SET owed_at = CASE WHEN more THEN v_now END WHERE w.id = p_workflow;
  END IF;
END
$$;


--
-- Name: horsies_named_arguments(jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_named_arguments(p_kwargs jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  SELECT CASE jsonb_typeof(p_kwargs -> 'kwargs') WHEN 'object' THEN p_kwargs -> 'kwargs' ELSE '{}' END
    || coalesce(jsonb_object_agg(given.name, given.value) FILTER (WHERE given.name IS NOT NULL), '{}')
    || CASE WHEN bool_or(given.name IS NULL)
         THEN jsonb_build_object('*', jsonb_agg(given.value ORDER BY given.place) FILTER (WHERE given.name IS NULL)) ELSE '{}' END
  FROM (
    SELECT a.value, a.place, p_kwargs -> 'names' ->> (a.place - 1)::int AS name
    FROM jsonb_array_elements(CASE jsonb_typeof(p_kwargs -> 'args') WHEN 'array' THEN p_kwargs -> 'args' ELSE '[]' END)
      WITH ORDINALITY AS a (value, place)
  ) AS given
$$;


--
-- Name: horsies_new_number(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_new_number(p_workflow uuid) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_number bigint;
BEGIN
  LOOP
    v_number := nextval('horsies_workflow_node_numbers');
    EXIT WHEN NOT EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.number = v_number);
  END LOOP;
  RETURN v_number;
END
$$;


--
-- Name: horsies_next_signal(uuid, text, text, boolean); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_next_signal(p_workflow uuid, p_name text, p_key text, p_unseen boolean, OUT id uuid, OUT sent_at timestamp with time zone) RETURNS record
    LANGUAGE sql STABLE
    AS $$
  (SELECT s.id, s.sent_at FROM horsies_workflow_signals s
   WHERE p_key IS NULL AND s.workflow_id = p_workflow AND s.name = p_name AND s.used_at IS NULL AND (NOT p_unseen OR s.seen_at IS NULL)
   ORDER BY s.sent_at, s.id LIMIT 1)
  UNION ALL
  (SELECT s.id, s.sent_at FROM horsies_workflow_signals s
   WHERE s.key = p_key AND s.workflow_id = p_workflow AND s.name = p_name AND s.used_at IS NULL AND (NOT p_unseen OR s.seen_at IS NULL)
   ORDER BY s.sent_at, s.id LIMIT 1)
$$;


--
-- Name: horsies_node_kwargs(public.horsies_workflow_nodes, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_node_kwargs(p_node public.horsies_workflow_nodes, p_max_bytes integer) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
  v_kwargs jsonb := p_node.kwargs;
BEGIN
  IF p_node.inputs IS NULL THEN
    RETURN v_kwargs;
  END IF;
  SELECT v_kwargs || coalesce(jsonb_object_agg(i.key, a.value) FILTER (WHERE a.value IS NOT NULL), '{}') INTO v_kwargs
  FROM jsonb_each(p_node.inputs) AS i
  CROSS JOIN LATERAL (SELECT horsies_argument(p_node.workflow_id, p_node.number, i.key, i.value, p_max_bytes) AS value OFFSET 0) AS a  -- once
  WHERE i.key IS DISTINCT FROM p_node.over;
  IF octet_length(v_kwargs::text) > p_max_bytes THEN
    RAISE EXCEPTION USING ERRCODE = 'HW001', DETAIL = 'PAYLOAD_TOO_LARGE', MESSAGE = format(
      'the arguments take %s bytes of JSON; HORSIES[''MAX_PAYLOAD_BYTES''] allows %s', octet_length(v_kwargs::text), p_max_bytes);
  END IF;
  RETURN v_kwargs;
END
$$;


--
-- Name: horsies_node_result(uuid, bigint); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_node_result(p_workflow uuid, p_number bigint, OUT status text, OUT kind text, OUT result jsonb, OUT redacted boolean) RETURNS record
    LANGUAGE sql STABLE
    AS $$
  SELECT n.status, n.kind,
         CASE WHEN n.value IS NOT NULL AND n.kind <> 'map' THEN jsonb_build_object('ok', n.value)
              WHEN t.finished_at IS NOT NULL THEN t.result::jsonb
              WHEN n.status = 'SKIPPED' THEN horsies_error_result('UPSTREAM_SKIPPED', 'node ' || n.name || ' was skipped')
              WHEN n.status = 'COMPLETED' THEN '{"ok": null}'
              WHEN n.finished_at IS NULL THEN horsies_error_result('RESULT_NOT_READY', 'node ' || n.name || ' has not finished')
              ELSE horsies_error_result(coalesce(n.error_code, n.status), coalesce(n.error, 'node ' || n.name || ' is ' || n.status)) END,
         coalesce(t.redacted_at IS NOT NULL, false)
  FROM horsies_workflow_nodes n LEFT JOIN horsies_tasks t ON n.kind = 'task' AND t.id = n.task_id
  WHERE n.workflow_id = p_workflow AND n.number = p_number
$$;


--
-- Name: horsies_note(text, text, text, text, jsonb, jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_note(p_action text, p_actor text, p_subject text, p_reason text, p_before jsonb, p_after jsonb) RETURNS text
    LANGUAGE plpgsql
    SET lock_timeout TO '500ms'
    AS $$
BEGIN
  INSERT INTO horsies_audit (id, at, actor, action, subject, reason, before, after)
  VALUES (horsies_uuid7(0), clock_timestamp(), p_actor, p_action, p_subject, p_reason, p_before, p_after);
  RETURN NULL;
EXCEPTION WHEN insufficient_privilege THEN
  RAISE;
WHEN OTHERS THEN
  PERFORM horsies_lost('audit', p_action || ' ' || p_subject, SQLERRM);
  RETURN SQLERRM;
END
$$;


--
-- Name: horsies_notify_finished(text, uuid[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_notify_finished(p_channel text, p_ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF EXISTS (SELECT FROM horsies_waiters w WHERE w.expires_at > clock_timestamp()) THEN
    -- 200 ids of 36 characters fit into the 8,000 bytes of a payload
    PERFORM pg_notify(p_channel || '_done', string_agg(d.id::text, ' '))
    FROM unnest(p_ids) WITH ORDINALITY AS d (id, place) GROUP BY (d.place - 1) / 200;
  END IF;
END
$$;


--
-- Name: horsies_open_calls(uuid[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_open_calls(p_runs uuid[]) RETURNS TABLE(task text, queue text, undo boolean, codec text, given jsonb, nodes bigint, runs uuid[], node text[], first text, last text)
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
BEGIN
  RETURN QUERY
  WITH RECURSIVE open AS (
    SELECT n.workflow_id AS run, n.name::text, n.kind::text, n.task_name::text, n.queue_name::text, n.kwargs, n.inputs, n.over, n.value, n.undo,
           n.codec::text,
           CASE WHEN n.task_id IS NULL THEN n.graph -> 'nodes' END AS inside  -- a workflow that has started is a run of its own
    FROM horsies_workflow_nodes n WHERE n.workflow_id = ANY (p_runs) AND n.finished_at IS NULL
    UNION ALL
    SELECT o.run, concat_ws(' / ', o.name, i.name), i.kind, i.task, i.queue, i.kwargs, i.inputs, i."over", i.value, i.undo, i.codec,
           i.graph -> 'nodes'
    FROM open o CROSS JOIN LATERAL jsonb_to_recordset(o.inside) AS i (
      name text, kind text, task text, queue text, kwargs jsonb, inputs jsonb, "over" text, value jsonb, undo jsonb, codec text, graph jsonb)
  ), made AS (
    SELECT o.run, o.name, o.task_name AS task, o.queue_name AS queue, false AS undo, o.codec,
           coalesce((SELECT jsonb_object_agg(k.name, 'constant') FROM jsonb_object_keys(o.kwargs) AS k (name)), '{}')
           || coalesce((SELECT jsonb_object_agg(i.key, i.value ->> 'as') FROM jsonb_each(o.inputs) AS i), '{}')
           || CASE WHEN o.over IS NULL THEN '{}' ELSE jsonb_build_object(o.over, 'elements') END AS given,
           (CASE WHEN o.over IS NOT NULL AND o.value -> 0 IS NOT NULL
                 THEN o.kwargs || jsonb_build_object(o.over, o.value -> 0) ELSE o.kwargs END)::text AS constants
    FROM open o WHERE o.task_name <> '' AND o.kind <> 'undo'
    UNION ALL
    SELECT u.run, u.name, u.undo ->> 'task', u.undo ->> 'queue', true, u.undo ->> 'codec',
           coalesce((SELECT jsonb_object_agg(p.name, 'undo') FROM jsonb_array_elements_text(u.undo -> 'parameters') AS p (name)), '{}'), NULL
    FROM (SELECT o.run, o.name, o.undo FROM open o WHERE o.undo IS NOT NULL
          UNION ALL
          SELECT n.workflow_id, n.name, n.undo FROM horsies_workflow_nodes n
          WHERE n.workflow_id = ANY (p_runs) AND n.finished_at IS NOT NULL AND n.undo IS NOT NULL AND n.status <> 'SKIPPED') AS u
  ), counted AS (
    SELECT m.task, m.queue, m.undo, m.codec, m.given, m.run, count(*) AS nodes, min(m.name) AS name,
           min(m.constants COLLATE "C") AS first, max(m.constants COLLATE "C") AS last
    FROM made m GROUP BY m.task, m.queue, m.undo, m.codec, m.given, m.run
  )
  SELECT c.task, c.queue, c.undo, c.codec, c.given, sum(c.nodes)::bigint, array_agg(c.run), min(ARRAY[c.run::text, c.name]), min(c.first), max(c.last)
  FROM counted c GROUP BY c.task, c.queue, c.undo, c.codec, c.given ORDER BY 8;
END
$$;


--
-- Name: horsies_owed(interval, integer, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_owed(p_age interval, p_many integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(workflow uuid, task uuid, child uuid)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_since timestamptz := coalesce(clock_timestamp() - p_age, '-infinity');
  v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
  RETURN QUERY
  (SELECT t.workflow_id, t.id, NULL::uuid FROM horsies_tasks t
   WHERE t.workflow_id IS NOT NULL AND t.finished_at IS NOT NULL AND t.advanced_at IS NULL AND t.finished_at >= v_since
   ORDER BY t.finished_at LIMIT p_many)
  UNION ALL
  (SELECT w.parent_id, NULL, w.id FROM horsies_workflows w
   WHERE w.finished_at IS NOT NULL AND w.parent_id IS NOT NULL AND w.advanced_at IS NULL LIMIT p_many)
  UNION ALL
  (SELECT w.id, NULL, NULL FROM horsies_workflows w WHERE w.owed_at IS NOT NULL ORDER BY w.owed_at LIMIT p_many)
  UNION ALL
  (SELECT DISTINCT n.workflow_id, NULL::uuid, NULL::uuid FROM horsies_workflow_nodes n WHERE n.status = 'ADDED' LIMIT p_many)
  UNION ALL
  (SELECT DISTINCT s.workflow_id, NULL::uuid, NULL::uuid FROM horsies_workflow_signals s WHERE s.seen_at IS NULL LIMIT p_many)
  UNION ALL
  (SELECT n.workflow_id, NULL, NULL FROM horsies_workflow_nodes n
   WHERE n.status = 'WAITING' AND n.finished_at IS NULL AND n.due_at <= v_now ORDER BY n.due_at LIMIT p_many);
END
$$;


--
-- Name: horsies_part(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_part() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT 1000 $$;


--
-- Name: horsies_partition_key(jsonb, boolean, json, text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_partition_key(p_by_args jsonb, p_by_task boolean, p_kwargs json, p_task_name text, p_codec text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
DECLARE
  v_key text;
  v_kwargs jsonb;
BEGIN
  IF p_by_args IS NULL AND NOT p_by_task THEN
    RETURN NULL;
  END IF;
  IF p_by_args IS NOT NULL THEN
    v_kwargs := CASE p_codec WHEN 'plain' THEN horsies_named_arguments(p_kwargs::jsonb) ELSE p_kwargs::jsonb END;
  END IF;
  v_key := (CASE
      WHEN p_by_args IS NULL THEN '{}'
      WHEN p_by_args = '[]' THEN v_kwargs
      ELSE (SELECT jsonb_object_agg(a.name, coalesce(v_kwargs -> a.name, 'null')) FROM jsonb_array_elements_text(p_by_args) AS a (name))
    END || CASE WHEN p_by_task THEN jsonb_build_object('', p_task_name) ELSE '{}' END)::text;
  RETURN CASE WHEN length(v_key) <= 200 THEN v_key
              ELSE left(v_key, 130) || '...' || encode(sha256(convert_to(v_key, 'UTF8')), 'hex') END;
END
$$;


--
-- Name: horsies_partition_rooms(public.horsies_limits, text[], uuid, boolean, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_partition_rooms(p_limits public.horsies_limits, p_keys text[], p_worker uuid, p_claimed boolean, p_now timestamp with time zone) RETURNS TABLE(key text, held integer, room integer, everyone integer)
    LANGUAGE plpgsql ROWS 100
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_workers int;
BEGIN
  IF p_limits.partition_local_limit IS NOT NULL THEN
    v_workers := (SELECT greatest(count(*), 1) FROM horsies_workers_serving(p_limits.queue_name));
  END IF;
  IF p_keys IS NULL THEN
    p_keys := ARRAY(
      SELECT DISTINCT k.key
      FROM horsies_tasks t
      CROSS JOIN LATERAL (
        SELECT CASE WHEN t.partition_version = p_limits.partition_version THEN t.partition_key
                    ELSE horsies_partition_key(p_limits.partition_by_args, p_limits.partition_by_task, t.kwargs, t.task_name, t.codec) END AS key
      ) AS k
      WHERE t.queue_name = p_limits.queue_name AND t.claimed_by IS NOT NULL AND t.finished_at IS NULL AND k.key IS NOT NULL);
  END IF;
  RETURN QUERY
  SELECT asked.key, load.held,
         least(p_limits.partition_max_concurrency - load.held, p_limits.partition_local_limit - load.here) - load.ahead,
         least(p_limits.partition_max_concurrency, p_limits.partition_local_limit * v_workers) - load.held
  FROM unnest(p_keys) AS asked (key)
  CROSS JOIN LATERAL (
    SELECT (count(*) FILTER (WHERE h.holds))::int AS held,
           (count(*) FILTER (WHERE h.holds AND h.claimed_by = p_worker))::int AS here,
           (count(*) FILTER (WHERE NOT h.holds AND h.claimed_by = p_worker AND h.claimed_at = p_now))::int AS ahead
    FROM (
      SELECT t.claimed_by, t.claimed_at, horsies_holds_permit(t.status, t.claim_expires_at, p_claimed, p_now) AS holds
      FROM (
        SELECT n.* FROM horsies_tasks n
        WHERE n.queue_name = p_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
          AND n.partition_version = p_limits.partition_version AND n.partition_key = asked.key
        UNION ALL
        SELECT o.* FROM horsies_tasks o
        WHERE o.queue_name = p_limits.queue_name AND o.claimed_by IS NOT NULL AND o.finished_at IS NULL
          AND o.partition_version < p_limits.partition_version
          AND horsies_partition_key(p_limits.partition_by_args, p_limits.partition_by_task, o.kwargs, o.task_name, o.codec) = asked.key
        UNION ALL
        SELECT o.* FROM horsies_tasks o
        WHERE o.queue_name = p_limits.queue_name AND o.claimed_by IS NOT NULL AND o.finished_at IS NULL
          AND o.partition_version IS NULL
          AND horsies_partition_key(p_limits.partition_by_args, p_limits.partition_by_task, o.kwargs, o.task_name, o.codec) = asked.key
      ) AS t
    ) AS h
  ) AS load;
END
$$;


--
-- Name: horsies_pass(public.horsies_wanted, jsonb, jsonb, jsonb, boolean); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_pass(p_wanted public.horsies_wanted, p_outcomes jsonb, p_releases jsonb, p_starts jsonb, p_expired_leases boolean) RETURNS SETOF public.horsies_passed
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_settled record;
  v_plain boolean;
  v_freed text[];
  v_keys text[];
  v_now timestamptz;
  v_whole record;
  v_sent text[];
  v_claimed text[];
  v_count int;
  v_row horsies_passed;
BEGIN
  IF p_outcomes IS NOT NULL THEN
    v_settled := horsies_settle(p_wanted.worker, p_outcomes, p_wanted.max_crashes, p_wanted.channel, p_wanted.news, p_wanted.max_bytes, p_wanted.now);
    v_plain := v_settled.plain;
    v_row.report := v_settled.report;
    v_sent := v_settled.sent;
  ELSE
    v_plain := NOT EXISTS (SELECT FROM horsies_limits l
                           WHERE l.queue_name IN (p_wanted.news, '*')
                             AND NOT ((l.max_concurrency, l.local_limit, l.partition_max_concurrency, l.partition_local_limit) IS NULL))
      AND (p_wanted.news IS NULL OR EXISTS (SELECT FROM horsies_limits l WHERE l.queue_name = p_wanted.news))
      AND NOT EXISTS (SELECT FROM horsies_heartbeats b WHERE b.id = p_wanted.worker AND b.died_at IS NOT NULL);
  END IF;

  IF v_plain AND p_releases IS NULL AND p_starts IS NULL AND NOT p_expired_leases AND p_wanted.prefetch = 0
    AND (p_wanted.sync + p_wanted.async = 0
         OR (p_wanted.news IS NOT NULL AND p_wanted.batch = 0 AND p_wanted.grace IS NULL AND p_wanted.cursors IS NULL
             AND p_wanted.sync + p_wanted.async <= p_wanted.total))
  THEN
    IF p_wanted.sync + p_wanted.async > 0 THEN
      v_now := coalesce(p_wanted.now, clock_timestamp());
      RETURN QUERY
        WITH found AS MATERIALIZED (
          SELECT f.id FROM (VALUES ('sync', p_wanted.sync), ('async', p_wanted.async)) AS l (lane, slots) CROSS JOIN LATERAL (
            SELECT t.id FROM horsies_tasks t
            WHERE t.queue_name = p_wanted.news AND t.lane = l.lane AND t.enqueued_at <= v_now
              AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked AND (t.good_until IS NULL OR t.good_until > v_now)
              AND (t.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)))
            ORDER BY t.priority, t.enqueued_at, t.id LIMIT l.slots FOR NO KEY UPDATE SKIP LOCKED) AS f
          WHERE l.slots > 0
        ), claimed AS (
          UPDATE horsies_tasks t
          SET status = 'RUNNING', claimed_by = p_wanted.worker, claimed_at = v_now, started_at = v_now,
              claim_generation = t.claim_generation % 2147483647 + 1
          WHERE t.id = ANY (ARRAY(SELECT found.id FROM found)) AND t.status = 'PENDING'
          RETURNING t.*
        )
        SELECT r.* FROM (SELECT * FROM claimed ORDER BY priority, enqueued_at, id) AS c CROSS JOIN LATERAL horsies_claimed('start', c) AS r;
      GET DIAGNOSTICS v_count = ROW_COUNT;
    END IF;
    v_row.kind := 'short';
  ELSE
    IF p_outcomes IS NOT NULL THEN
      v_freed := v_settled.queues;
      v_keys := v_settled.keys;
    END IF;
    v_whole := horsies_whole_pass(p_wanted, p_releases, p_starts, p_expired_leases, coalesce(v_freed, '{}'), coalesce(v_keys, '{}'),
                                  coalesce(v_row.report::jsonb, '{}'));
    IF v_whole.claims IS NOT NULL THEN
      FOREACH v_row IN ARRAY v_whole.claims LOOP
        RETURN NEXT v_row;
      END LOOP;
    END IF;
    v_row := v_whole.passed;
    p_wanted.durable := v_whole.durable;
  END IF;
  RETURN NEXT v_row;
  IF v_sent <> '{}' THEN  -- workers are told of tasks that were sent here and not claimed
    IF v_row.kind = 'short' THEN
      v_claimed := array_fill(p_wanted.news, ARRAY[coalesce(v_count, 0)]);
    ELSE
      v_claimed := ARRAY(SELECT c.queue_name FROM unnest(v_whole.claims) AS c WHERE c.kind = 'start');
    END IF;
    PERFORM pg_notify(p_wanted.channel || '_new', extract(epoch FROM now()) || ' ' || s.queue)
    FROM (SELECT u.queue, count(*) AS many FROM unnest(v_sent) AS u (queue) GROUP BY u.queue) AS s
    WHERE s.many > cardinality(array_positions(v_claimed, s.queue));
  END IF;
  IF NOT p_wanted.durable THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
END
$$;


--
-- Name: horsies_pass_on(uuid, text, text, text[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_pass_on(p_worker uuid, p_channel text, p_lane text, p_queues text[]) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_team uuid[] := ARRAY(
    SELECT other.id FROM horsies_heartbeats own JOIN horsies_heartbeats other ON other.team = own.team
    WHERE own.id = p_worker AND other.id <> p_worker AND other.role = 'claimer' AND other.died_at IS NULL AND other.listens);
  v_waiting int := CASE WHEN v_team <> '{}' THEN horsies_count_due(p_queues, ARRAY[p_lane], 20, NULL, NULL) ELSE 0 END;
BEGIN
  IF v_waiting = 0 THEN
    RETURN NULL;
  END IF;
  RETURN (SELECT count(pg_notify(
            p_channel || '_' || free.id, 'now ' || p_lane || ' ' || CASE cardinality(p_queues) WHEN 1 THEN p_queues[1] ELSE '*' END))
          FROM (
            SELECT w.id FROM horsies_workers w
            LEFT JOIN (SELECT t.claimed_by, count(*) AS tasks FROM horsies_tasks t
                       WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL AND t.lane = p_lane GROUP BY t.claimed_by) AS busy
              ON busy.claimed_by = w.id
            WHERE w.id = ANY (v_team) AND coalesce(busy.tasks, 0)
              < greatest(w.processes, 1) * CASE p_lane WHEN 'sync' THEN w.threads ELSE w.async_concurrency END
            ORDER BY random() LIMIT v_waiting) AS free);
END
$$;


--
-- Name: horsies_permit_holders(public.horsies_limits, text, boolean, timestamp with time zone, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_permit_holders(p_limits public.horsies_limits, p_key text, p_claimed boolean, p_now timestamp with time zone, p_many integer) RETURNS jsonb
    LANGUAGE sql
    AS $$
  SELECT coalesce(jsonb_agg(jsonb_build_object(
    'task_id', held.id, 'task_name', held.task_name, 'worker_id', held.claimed_by, 'hostname', w.hostname, 'pid', w.pid,
    'child_pid', child.pid, 'since', coalesce(held.started_at, held.claimed_at)) ORDER BY held.claimed_at, held.id), '[]')
  FROM (
    SELECT t.id, t.task_name, t.claimed_by, t.claimed_at, t.started_at
    FROM horsies_tasks t
    WHERE (t.queue_name = p_limits.queue_name OR p_limits.queue_name = '*') AND t.claimed_by IS NOT NULL AND t.finished_at IS NULL
      AND horsies_holds_permit(t.status, t.claim_expires_at, p_claimed, p_now)
      AND (p_key IS NULL
           OR horsies_partition_key(p_limits.partition_by_args, p_limits.partition_by_task, t.kwargs, t.task_name, t.codec) = p_key)
    ORDER BY t.claimed_at, t.id LIMIT p_many
  ) AS held
  LEFT JOIN horsies_workers w ON w.id = held.claimed_by
  LEFT JOIN LATERAL (
    SELECT b.pid FROM horsies_heartbeats b
    WHERE b.worker_id = held.claimed_by AND b.role = 'runner' AND b.holding ? held.id::text
    ORDER BY b.sent_at DESC LIMIT 1
  ) AS child ON true
$$;


--
-- Name: horsies_permits_in_use(timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_permits_in_use(p_now timestamp with time zone) RETURNS TABLE(name text, running integer, permits integer)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
  RETURN QUERY
  SELECT coalesce(t.queue_name::text, '*'),
         (count(*) FILTER (WHERE horsies_holds_permit(t.status, t.claim_expires_at, false, p_now)))::int,
         (count(*) FILTER (WHERE horsies_holds_permit(t.status, t.claim_expires_at, true, p_now)))::int
  FROM horsies_tasks t
  WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL
  GROUP BY GROUPING SETS ((t.queue_name), ());
END
$$;


--
-- Name: horsies_plain_runs(uuid[], bigint[], uuid[], integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_plain_runs(p_runs uuid[], p_numbers bigint[], p_tasks uuid[], p_many integer) RETURNS uuid[]
    LANGUAGE plpgsql
    SET enable_nestloop TO 'on'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
DECLARE
  v_runs uuid[];
BEGIN
  v_runs := ARRAY(
    SELECT f.run
    FROM unnest(p_runs, p_numbers) AS f (run, number)
    JOIN horsies_workflow_nodes n ON n.workflow_id = f.run AND n.number = f.number
    CROSS JOIN LATERAL (SELECT count(*) AS many FROM (
      SELECT FROM horsies_workflow_edges e WHERE e.workflow_id = f.run AND e.upstream = f.number LIMIT 11) AS e) AS below
    GROUP BY f.run
    HAVING bool_and(n.kind IN ('task', 'timer') AND below.many <= 10));
  IF v_runs <> '{}' THEN
    v_runs := ARRAY(
      SELECT w.id FROM horsies_workflows w
      WHERE w.id = ANY (v_runs) AND w.status = 'RUNNING' AND w.owed_at IS NULL AND w.parent_id IS NULL AND w.max_in_flight IS NULL
        AND w.error_node IS NULL
      FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
  IF v_runs = '{}' THEN
    RETURN v_runs;
  END IF;
  RETURN ARRAY(
    SELECT f.run
    FROM unnest(p_runs, p_numbers, p_tasks) AS f (run, number, task)
    JOIN horsies_workflow_nodes n ON n.workflow_id = f.run AND n.number = f.number
    LEFT JOIN horsies_workflow_edges e ON e.workflow_id = f.run AND e.upstream = f.number
    LEFT JOIN horsies_workflow_nodes d ON d.workflow_id = e.workflow_id AND d.number = e.downstream
    WHERE f.run = ANY (v_runs)
    GROUP BY f.run
    HAVING count(*) <= p_many AND bool_and(
        coalesce(n.kind = 'task' AND n.status = 'ENQUEUED' AND n.task_id = f.task OR n.kind = 'timer' AND n.status = 'WAITING', false)
        AND (e.downstream IS NULL OR d.kind = 'task' AND d.status = 'PENDING' AND d.rule = 'all' AND d.when_path IS NULL
                                     AND d.delay IS NULL AND d.due_at IS NULL))
      AND NOT EXISTS (SELECT FROM horsies_workflow_nodes a WHERE a.workflow_id = f.run AND a.status = 'ADDED'));
END
$$;


--
-- Name: horsies_promote(public.horsies_workflows, integer, integer, text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_promote(p_run public.horsies_workflows, p_limit integer, p_max_bytes integer, p_channel text, p_now timestamp with time zone, OUT many integer, OUT moved bigint[], OUT more boolean, OUT continued boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_limit int := p_limit;
  v_waits boolean := false;
  v_tasks bigint[];
  v_others bigint[];
  v_number bigint;
  v_node horsies_workflow_nodes;
  v_found record;
  v_code text;
  v_ended boolean;
BEGIN
  many := 0;
  moved := '{}';
  more := false;
  continued := false;
  IF p_limit > 0 THEN
    v_found := horsies_begin_waits(p_run.id, p_limit, coalesce(p_now, clock_timestamp()));
    moved := v_found.moved;
    v_waits := v_found.more;
  END IF;
  IF p_run.max_in_flight IS NOT NULL THEN
    SELECT least(p_limit, p_run.max_in_flight - coalesce(sum(
             CASE WHEN n.kind IN ('map', 'undo') THEN n.in_flight ELSE 1 END), 0)::int)
    INTO v_limit
    FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_run.id AND n.finished_at IS NULL AND (n.status = 'ENQUEUED' OR (n.status = 'READY' AND n.kind IN ('map', 'undo')));
  END IF;
  SELECT coalesce(array_agg(r.number) FILTER (WHERE r.kind = 'task'), '{}'),
         coalesce(array_agg(r.number ORDER BY r.number) FILTER (WHERE r.kind <> 'task'), '{}')
  INTO v_tasks, v_others
  FROM (SELECT n.number, n.kind FROM horsies_workflow_nodes n
        WHERE n.workflow_id = p_run.id AND n.status = 'READY' AND NOT n.is_wait AND n.finished_at IS NULL
        ORDER BY n.number LIMIT greatest(v_limit, 0)) AS r;
  IF v_tasks <> '{}' THEN
    BEGIN
      many := horsies_send_all(array_fill(p_run.id, ARRAY[cardinality(v_tasks)]), v_tasks, p_max_bytes, p_now);
    EXCEPTION WHEN SQLSTATE 'HW001' OR data_exception OR integrity_constraint_violation OR program_limit_exceeded OR plpgsql_error THEN
      v_others := v_tasks || v_others;  -- one by one
    END;
  END IF;
  FOREACH v_number IN ARRAY v_others LOOP
    EXIT WHEN many >= v_limit;
    BEGIN
      SELECT n.* INTO v_node FROM horsies_workflow_nodes n WHERE n.workflow_id = p_run.id AND n.number = v_number;
      IF v_node.kind IN ('map', 'undo') THEN
        v_found := horsies_expand(p_run, v_node, v_limit - many, p_max_bytes, p_now);
        many := many + v_found.many;
        IF v_found.moved THEN
          moved := moved || v_number;
        END IF;
      ELSIF v_node.kind = 'workflow' THEN  -- no other transaction knows its run yet, so this does not lock two
        v_node.task_id := horsies_uuid7(0);
        PERFORM horsies_send_run(v_node.task_id, v_node.graph - 'key'::text, v_node.graph -> 'nodes', horsies_node_kwargs(v_node, p_max_bytes),
                                 p_run.id, v_number, NULL, 1000, p_max_bytes, p_channel, p_now);
        UPDATE horsies_workflow_nodes n SET status = 'ENQUEUED', task_id = v_node.task_id WHERE n.workflow_id = p_run.id AND n.number = v_number;
        many := many + 1;
      ELSIF v_node.kind = 'continue' THEN
        PERFORM horsies_continue_run(p_run, v_node, p_max_bytes, p_channel, p_now);
        moved := moved || v_number;
        many := many + 1;
        continued := true;
        RETURN;
      ELSE
        many := many + horsies_send_all(ARRAY[p_run.id], ARRAY[v_number], p_max_bytes, p_now);
      END IF;
    EXCEPTION WHEN SQLSTATE 'HW001' OR data_exception OR integrity_constraint_violation OR program_limit_exceeded OR plpgsql_error THEN
      GET STACKED DIAGNOSTICS v_code = PG_EXCEPTION_DETAIL;
      UPDATE horsies_workflow_nodes n
      SET status = CASE WHEN n.in_flight = 0 THEN 'FAILED' ELSE 'ENQUEUED' END,  -- a map ends when its tasks have
          finished_at = CASE WHEN n.in_flight = 0 THEN coalesce(p_now, clock_timestamp()) END,
          expanded = CASE WHEN n.in_flight = 0 THEN n.expanded ELSE n.total END,
          items_bad = CASE WHEN n.in_flight = 0 THEN n.items_bad ELSE n.total - n.items_ok - n.in_flight END,
          error = SQLERRM, error_code = CASE WHEN SQLSTATE = 'HW001' THEN v_code ELSE 'NODE_NOT_SENT' END
      WHERE n.workflow_id = p_run.id AND n.number = v_number
      RETURNING n.finished_at IS NOT NULL INTO v_ended;
      IF v_ended THEN
        moved := moved || v_number;
      END IF;
    END;
  END LOOP;
  more := (cardinality(v_tasks) + cardinality(v_others) >= v_limit OR v_others <> '{}')
    AND (p_run.max_in_flight IS NULL OR many >= p_limit OR many < v_limit)  -- less than allowed: a map passed over elements
    AND EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_run.id AND n.status = 'READY' AND n.finished_at IS NULL)
    OR v_waits;
END
$$;


--
-- Name: horsies_propagate(uuid, bigint[], boolean, boolean, integer, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_propagate(p_workflow uuid, p_moved bigint[], p_ending boolean, p_admits boolean, p_many integer, p_now timestamp with time zone, OUT failed boolean, OUT refused boolean, OUT many integer) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_moved bigint[] := p_moved;
  v_admit int := CASE WHEN p_admits AND EXISTS (
    SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.status = 'ADDED') THEN p_many ELSE 0 END;
  v_many int;
BEGIN
  refused := false;
  many := 0;
  failed := false;
  WHILE v_moved <> '{}' OR v_admit > 0 LOOP
    WITH final AS MATERIALIZED (
      SELECT u.workflow_id, u.number, u.status
      FROM (SELECT p_workflow AS workflow_id, unnest(v_moved) AS number) AS f
      JOIN horsies_workflow_nodes u ON u.workflow_id = f.workflow_id AND u.number = f.number
    ), added AS MATERIALIZED (
      SELECT n.workflow_id, n.number FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.status = 'ADDED' LIMIT v_admit
    ), counted AS MATERIALIZED (  -- told: what changes; admitted: what there is
      SELECT e.workflow_id, e.downstream AS number, -count(*)::int AS open, false AS admitted,
             count(*) FILTER (WHERE e.counts AND f.status = 'COMPLETED')::int AS ok,
             count(*) FILTER (WHERE e.counts AND f.status <> 'COMPLETED')::int AS bad
      FROM final f JOIN horsies_workflow_edges e ON e.workflow_id = f.workflow_id AND e.upstream = f.number
      GROUP BY e.workflow_id, e.downstream
      UNION ALL
      SELECT a.workflow_id, a.number, count(u.number) FILTER (WHERE u.finished_at IS NULL OR u.status = 'ADDED')::int, true,
             count(u.number) FILTER (WHERE u.counts AND u.status = 'COMPLETED')::int,
             count(u.number) FILTER (WHERE u.counts AND u.finished_at IS NOT NULL AND u.status NOT IN ('COMPLETED', 'ADDED'))::int
      FROM added a LEFT JOIN LATERAL (  -- see horsies_has_failed_upstream
        SELECT e.counts, u.* FROM horsies_workflow_edges e CROSS JOIN LATERAL (
          SELECT u.number, u.status, u.finished_at FROM horsies_workflow_nodes u
          WHERE u.workflow_id = e.workflow_id AND u.number = e.upstream OFFSET 0) AS u
        WHERE e.workflow_id = a.workflow_id AND e.downstream = a.number OFFSET 0) AS u ON true
      GROUP BY a.workflow_id, a.number
    ), decided AS MATERIALIZED (
      SELECT c.workflow_id, c.number, c.admitted, s.*, c.admitted OR v.verdict IS NOT NULL AS judged,
             CASE WHEN c.admitted AND NOT i.decides THEN 'CANCELLED'
                  WHEN v.verdict IS NULL THEN CASE WHEN i.decides THEN 'ADDED' ELSE n.status END
                  WHEN v.verdict = 'READY' AND n.when_path IS NOT NULL THEN
                    CASE horsies_condition(p_workflow, n.when_node, n.when_path) WHEN true THEN 'READY' WHEN false THEN 'SKIPPED' ELSE 'PENDING' END
                  ELSE v.verdict END AS status,
             NOT p_ending AND v.verdict = 'SKIPPED' AND n.rule = 'quorum' AND horsies_has_failed_upstream(p_workflow, n.number) AS refused
      FROM counted c
      JOIN horsies_workflow_nodes n ON n.workflow_id = c.workflow_id AND n.number = c.number AND (n.status = 'ADDED') = c.admitted
      CROSS JOIN LATERAL (SELECT CASE WHEN c.admitted THEN 0 ELSE n.open END + c.open AS open, CASE WHEN c.admitted THEN 0 ELSE n.ok END + c.ok AS ok,
                                 CASE WHEN c.admitted THEN 0 ELSE n.bad END + c.bad AS bad) AS s
      CROSS JOIN LATERAL (SELECT n.status IN ('PENDING', 'ADDED') AND (NOT p_ending OR n.kind = 'undo' OR n.rule IN ('failed', 'finished')) AS decides) AS i
      CROSS JOIN LATERAL (SELECT CASE WHEN i.decides AND (c.admitted OR horsies_propagate.many < p_many) THEN horsies_join_verdict(
        p_workflow, n.number, n.rule, n.needs, n.allow_failed, n.branches, s.open, s.ok, s.bad) END AS verdict OFFSET 0) AS v
    ), moved AS (
      UPDATE horsies_workflow_nodes n
      SET open = d.open, ok = d.ok, bad = d.bad, status = d.status,
          finished_at = CASE WHEN d.judged AND d.status IN ('SKIPPED', 'CANCELLED') THEN p_now WHEN NOT d.admitted THEN n.finished_at END,
          error_code = CASE WHEN NOT d.admitted THEN n.error_code WHEN d.status = 'CANCELLED' THEN 'WORKFLOW_ENDED' END,
          error = CASE WHEN NOT d.admitted THEN n.error WHEN d.status = 'CANCELLED' THEN 'the run had ended before this node was admitted' END
      FROM decided d WHERE n.workflow_id = d.workflow_id AND n.number = d.number
      RETURNING n.number, d.judged AND d.status IN ('SKIPPED', 'CANCELLED') AS ended, d.admitted, d.refused
    )
    SELECT coalesce(array_agg(m.number) FILTER (WHERE m.ended), '{}'), count(*) FILTER (WHERE m.ended OR m.admitted),
           horsies_propagate.refused OR coalesce(bool_or(m.refused), false),
           failed OR EXISTS (SELECT FROM final f WHERE f.status IN ('FAILED', 'CANCELLED', 'EXPIRED'))
    INTO v_moved, v_many, refused, failed FROM moved m;
    many := many + v_many;
    v_admit := 0;
  END LOOP;
END
$$;


--
-- Name: horsies_prunable(text, text, jsonb, text[], boolean, interval, jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_prunable(p_queue text, p_status text, p_options jsonb, p_queues text[], p_others boolean, p_age interval, p_own jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
  SELECT CASE
    WHEN p_own IS NOT NULL THEN p_options @> p_own AND p_status = 'COMPLETED'
    WHEN (p_queue = ANY (p_queues)) = p_others THEN false
    WHEN p_options IS NULL OR p_status <> 'COMPLETED' THEN true
    WHEN jsonb_typeof(p_options -> 'keep_result') = 'number' THEN
      (p_options -> 'keep_result')::numeric <= extract(epoch FROM p_age) * 1000
    ELSE true END
$$;


--
-- Name: horsies_prune(text, text[], boolean, interval, jsonb, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_prune(p_key text, p_queues text[], p_others boolean, p_age interval, p_keep jsonb, p_many integer, OUT tasks integer, OUT attempts integer, OUT more boolean) RETURNS record
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_state horsies_prunings;
  v_after timestamptz;
  v_until timestamptz;
  v_ids uuid[];
  v_left timestamptz;
  v_own jsonb := CASE WHEN p_keep IS NOT NULL THEN jsonb_build_object('keep_result', p_keep) END;
BEGIN
  tasks := 0;
  attempts := 0;
  more := false;
  IF NOT pg_try_advisory_xact_lock(hashtextextended('prune', 'horsies_tasks'::regclass::oid::bigint)) THEN
    RETURN;
  END IF;
  SELECT p.* INTO v_state FROM horsies_prunings p WHERE p.key = p_key;
  IF NOT FOUND THEN
    DELETE FROM horsies_prunings p  -- of settings that are no longer in use; tasks say that theirs are
    WHERE p.pruned_at < v_now - interval '30 days' AND NOT starts_with(p.key, 'own: ');
    INSERT INTO horsies_prunings AS p (key, began_at, pruned_at) VALUES (p_key, v_now, v_now)
    RETURNING p.* INTO v_state;
  ELSIF v_state.began_at < v_now - interval '7 days' THEN
    v_state.began_at := v_now;
    v_state.reached_at := NULL;
  END IF;

  v_after := coalesce(v_state.reached_at, '-infinity');
  SELECT max(w.finished_at) INTO v_until
  FROM (
    SELECT t.finished_at FROM horsies_tasks t
    WHERE t.finished_at > v_after AND t.finished_at < v_now - p_age
    ORDER BY t.finished_at LIMIT p_many
  ) AS w;
  IF v_until IS NULL THEN
    UPDATE horsies_prunings p
    SET reached_at = least(v_state.reached_at, v_state.left_at - interval '1 microsecond'), left_at = NULL,
        began_at = v_state.began_at, pruned_at = v_now
    WHERE p.key = p_key;
    RETURN;
  END IF;

  v_ids := ARRAY(
    SELECT t.id FROM horsies_tasks t
    WHERE t.finished_at > v_after AND t.finished_at <= v_until AND t.workflow_id IS NULL
      AND horsies_prunable(t.queue_name, t.status, t.options, p_queues, p_others, p_age, v_own)
    ORDER BY t.finished_at LIMIT p_many FOR UPDATE SKIP LOCKED);
  tasks := cardinality(v_ids);
  attempts := horsies_delete_tasks(v_ids);
  more := true;
  IF tasks = p_many THEN
    v_until := v_until - interval '1 microsecond';
  END IF;
  SELECT min(t.finished_at) INTO v_left FROM horsies_tasks t
  WHERE t.finished_at > v_after AND t.finished_at <= v_until AND t.workflow_id IS NULL
    AND horsies_prunable(t.queue_name, t.status, t.options, p_queues, p_others, p_age, v_own);
  UPDATE horsies_prunings p
  SET reached_at = v_until, left_at = least(v_state.left_at, v_left), began_at = v_state.began_at, pruned_at = v_now
  WHERE p.key = p_key;
END
$$;


--
-- Name: horsies_prune_runs(interval, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_prune_runs(p_age interval, p_many integer, OUT runs integer, OUT tasks integer, OUT attempts integer, OUT more boolean) RETURNS record
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_left int := p_many;
  v_root uuid;
  v_finished timestamptz := '-infinity';
  v_tree uuid[];
  v_ids uuid[];
  v_count int;
BEGIN
  runs := 0;
  tasks := 0;
  attempts := 0;
  more := false;
  IF NOT pg_try_advisory_xact_lock(hashtextextended('prune', 'horsies_workflows'::regclass::oid::bigint)) THEN
    RETURN;
  END IF;
  WHILE v_left > 0 LOOP
    SELECT w.id, w.finished_at INTO v_root, v_finished FROM horsies_workflows w
    WHERE w.finished_at >= v_finished AND w.finished_at < v_now - p_age AND w.parent_id IS NULL AND NOT EXISTS (
      WITH RECURSIVE tree (id) AS (
        SELECT w.id UNION ALL SELECT c.id FROM tree JOIN horsies_workflows c ON c.parent_id = tree.id
      )
      SELECT FROM tree JOIN horsies_workflow_nodes n ON n.workflow_id = tree.id WHERE n.finished_at IS NULL)
    ORDER BY w.finished_at LIMIT 1 FOR UPDATE SKIP LOCKED;
    EXIT WHEN v_root IS NULL;
    WITH RECURSIVE tree (id) AS (
      SELECT v_root UNION ALL SELECT c.id FROM tree JOIN horsies_workflows c ON c.parent_id = tree.id
    )
    SELECT array_agg(tree.id) INTO v_tree FROM tree;
    v_ids := ARRAY(SELECT t.id FROM horsies_tasks t WHERE t.workflow_id = ANY (v_tree) LIMIT v_left);
    attempts := attempts + horsies_delete_tasks(v_ids);
    tasks := tasks + cardinality(v_ids);
    v_left := v_left - cardinality(v_ids);
    IF v_left > 0 THEN
      DELETE FROM horsies_workflow_edges e WHERE e.ctid = ANY (ARRAY(
        SELECT x.ctid FROM horsies_workflow_edges x WHERE x.workflow_id = ANY (v_tree) LIMIT v_left));
      GET DIAGNOSTICS v_count = ROW_COUNT;
      v_left := v_left - v_count;
    END IF;
    IF v_left > 0 THEN
      DELETE FROM horsies_workflow_signals s WHERE s.id = ANY (ARRAY(
        SELECT x.id FROM horsies_workflow_signals x WHERE x.workflow_id = ANY (v_tree) LIMIT v_left));
      GET DIAGNOSTICS v_count = ROW_COUNT;
      v_left := v_left - v_count;
    END IF;
    IF v_left > 0 THEN
      DELETE FROM horsies_workflow_nodes n WHERE n.ctid = ANY (ARRAY(
        SELECT x.ctid FROM horsies_workflow_nodes x WHERE x.workflow_id = ANY (v_tree) LIMIT v_left));
      GET DIAGNOSTICS v_count = ROW_COUNT;
      v_left := v_left - v_count;
    END IF;
    IF v_left > 0 THEN
      DELETE FROM horsies_workflows w WHERE w.id = ANY (v_tree);
      runs := runs + 1;
    END IF;
  END LOOP;
  more := v_left <= 0;
END
$$;


--
-- Name: horsies_purge(uuid[], text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_purge(p_ids uuid[], p_channel text) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_ids uuid[];
BEGIN
  v_ids := ARRAY(
    SELECT t.id FROM horsies_tasks t
    WHERE t.id = ANY (p_ids) AND t.status = 'PENDING' AND t.workflow_id IS NULL
    FOR NO KEY UPDATE SKIP LOCKED);
  PERFORM horsies_cancel(v_ids, false, p_channel);
  RETURN cardinality(v_ids);
END
$$;


--
-- Name: horsies_purgeable(boolean, text, text, text, timestamp with time zone, boolean, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_purgeable(p_finished boolean, p_queue text, p_name text, p_status text, p_before timestamp with time zone, p_in_runs boolean, p_many integer) RETURNS SETOF uuid
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
BEGIN
  IF p_finished THEN
    RETURN QUERY
    SELECT t.id FROM horsies_tasks t
    WHERE t.finished_at <= p_before AND (p_queue IS NULL OR t.queue_name = p_queue) AND (p_name IS NULL OR t.task_name = p_name)
      AND (p_status IS NULL OR t.status = p_status) AND (t.workflow_id IS NOT NULL) = p_in_runs
    LIMIT p_many;
    RETURN;
  END IF;
  RETURN QUERY
  SELECT t.id FROM horsies_tasks t
  WHERE t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    AND t.sent_at <= p_before AND (p_queue IS NULL OR t.queue_name = p_queue) AND (p_name IS NULL OR t.task_name = p_name)
    AND (t.workflow_id IS NOT NULL) = p_in_runs
  UNION ALL
  SELECT t.id FROM horsies_tasks t
  WHERE t.claimed_by IS NULL AND t.finished_at IS NULL AND t.parked
    AND t.sent_at <= p_before AND (p_queue IS NULL OR t.queue_name = p_queue) AND (p_name IS NULL OR t.task_name = p_name)
    AND (t.workflow_id IS NOT NULL) = p_in_runs
  LIMIT p_many;
END
$$;


--
-- Name: horsies_reap(interval, boolean, integer, integer, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_reap(p_threshold interval, p_judge boolean, p_many integer, p_max_crashes integer, p_channel text) RETURNS TABLE(kind text, id uuid, task_name text, attempt integer, queue_name text, options text)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  c_gone CONSTANT text := 'the worker that ran the task is gone; the task may or may not have done its work';
  v_now timestamptz := clock_timestamp();
  v_ids uuid[];
  v_names text[];
  v_attempts int[];
  v_failed uuid[];
  v_started uuid[];
  v_dead record;
  v_outcome jsonb;
  v_refused uuid[] := '{}';
  v_options text[];
  v_queues text[];
  v_keys text[];
  v_expired uuid[];
  v_limits horsies_limits[];
  v_cluster int;
BEGIN
  IF NOT pg_try_advisory_xact_lock(hashtextextended('reaper', 'horsies_tasks'::regclass::oid::bigint)) THEN
    RETURN;
  END IF;
  IF p_judge AND pg_postmaster_start_time() < v_now - p_threshold THEN
    RETURN QUERY
    UPDATE horsies_heartbeats b SET died_at = v_now
    WHERE b.role = 'claimer' AND b.died_at IS NULL AND b.sent_at < v_now - p_threshold
    RETURNING 'died', b.id, NULL, NULL::int, NULL, NULL;
  END IF;

  DELETE FROM horsies_heartbeats b USING horsies_heartbeats parent
  WHERE parent.id = b.worker_id AND parent.role = 'claimer' AND parent.died_at < v_now - interval '1 day';

  SELECT array_agg(o.id), array_agg(o.task_name), array_agg(o.retry_count + 1),
         array_agg(o.id) FILTER (WHERE o.status = 'RUNNING'), array_agg(CASE WHEN o.options ? 'metadata' THEN o.options::text END),
         array_agg(o.queue_name), array_agg(o.partition_key)
  INTO v_ids, v_names, v_attempts, v_started, v_options, v_queues, v_keys
  FROM (
    SELECT t.id, t.status, t.queue_name, t.partition_key, t.task_name, t.retry_count, t.options FROM horsies_tasks t
    WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL AND horsies_is_orphaned(t.claimed_by, t.claimed_at, v_now - p_threshold)
    LIMIT p_many FOR NO KEY UPDATE SKIP LOCKED
  ) AS o;
  IF v_ids IS NOT NULL THEN
    FOR v_dead IN  -- settled in the name of each dead worker
      SELECT t.claimed_by AS worker, jsonb_agg(jsonb_build_object(
               'id', t.id, 'generation', t.claim_generation, 'status', 'FAILED', 'error_code', 'WORKER_CRASHED', 'error_message', c_gone,
               'result', horsies_error_result('WORKER_CRASHED', c_gone)::text, 'crashed', true)) AS outcomes
      FROM horsies_tasks t WHERE t.id = ANY (v_started) GROUP BY t.claimed_by
    LOOP
      BEGIN
        SELECT v_failed || s.finals INTO v_failed FROM horsies_settle(v_dead.worker, v_dead.outcomes, p_max_crashes, p_channel, NULL, NULL, NULL) AS s;
      EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded OR plpgsql_error THEN
        FOR v_outcome IN SELECT o.value FROM jsonb_array_elements(v_dead.outcomes) AS o LOOP
          BEGIN
            SELECT v_failed || s.finals INTO v_failed
            FROM horsies_settle(v_dead.worker, jsonb_build_array(v_outcome), p_max_crashes, p_channel, NULL, NULL, NULL) AS s;
          EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded OR plpgsql_error THEN
            BEGIN
              UPDATE horsies_tasks t
              SET status = 'FAILED', finished_at = v_now, error_code = 'WORKER_CRASHED',
                  result = horsies_error_result('WORKER_CRASHED', c_gone || '; its attempt could not be written: ' || SQLERRM)
              WHERE t.id = (v_outcome ->> 'id')::uuid AND t.claimed_by = v_dead.worker AND t.status = 'RUNNING';
              v_failed := v_failed || (v_outcome ->> 'id')::uuid;
              PERFORM horsies_notify_finished(p_channel, ARRAY[(v_outcome ->> 'id')::uuid]);
            EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded OR plpgsql_error THEN
              v_refused := v_refused || (v_outcome ->> 'id')::uuid;
            END;
          END;
        END LOOP;
      END;
    END LOOP;
    UPDATE horsies_tasks t
    SET status = 'PENDING', claimed_by = NULL, claimed_at = NULL, claim_expires_at = NULL
    WHERE t.id = ANY (v_ids) AND t.status = 'CLAIMED';
    RETURN QUERY SELECT CASE WHEN r.id = ANY (v_refused) THEN 'refused' WHEN r.id = ANY (v_failed) THEN 'failed'
                             WHEN r.id = ANY (v_started) THEN 'retried' ELSE 'returned' END, r.id, r.name, r.attempt, r.queue, r.options
                 FROM unnest(v_ids, v_names, v_attempts, v_queues, v_options) AS r (id, name, attempt, queue, options);
  END IF;

  -- a task that is not parked may have been unparked for a permit, which the next one of its partition then gets
  SELECT array_agg(l.id), v_queues || array_agg(l.queue_name) FILTER (WHERE l.unparked),
         v_keys || array_agg(l.partition_key) FILTER (WHERE l.unparked)
  INTO v_expired, v_queues, v_keys
  FROM (
    SELECT t.id, t.queue_name, t.partition_key, NOT t.parked AND t.partition_key IS NOT NULL AS unparked FROM horsies_tasks t
    WHERE t.claimed_by IS NULL AND t.finished_at IS NULL AND t.good_until <= v_now
    ORDER BY t.good_until LIMIT p_many FOR NO KEY UPDATE SKIP LOCKED
  ) AS l;
  IF v_expired IS NOT NULL THEN
    v_expired := horsies_expire(v_expired, v_now, p_channel);
    RETURN QUERY SELECT 'expired', t.id, t.task_name::text, t.retry_count + 1, t.queue_name::text, NULL
                 FROM horsies_tasks t WHERE t.id = ANY (v_expired);
  END IF;
  IF v_queues IS NOT NULL THEN  -- all at once, so that locks are taken in their order
    SELECT array_agg(l) FILTER (WHERE l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL),
           min(l.max_concurrency) FILTER (WHERE l.queue_name = '*')
    INTO v_limits, v_cluster FROM horsies_limits l WHERE l.queue_name = ANY (v_queues || '*'::text);
    IF v_limits IS NOT NULL THEN
      PERFORM horsies_lock_caps(v_limits, v_cluster);
      PERFORM horsies_unpark(v_limits, v_queues, v_keys);
    END IF;
    PERFORM pg_notify(p_channel || '_new', '0 ' || q.queue) FROM (SELECT DISTINCT u.queue FROM unnest(v_queues) AS u (queue)) AS q;
  END IF;
END
$$;


--
-- Name: horsies_record_step(uuid, uuid, integer, text, text, jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_record_step(p_task uuid, p_worker uuid, p_generation integer, p_name text, p_digest text, p_result jsonb) RETURNS boolean
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
BEGIN
  PERFORM FROM horsies_tasks t
  WHERE t.id = p_task AND t.claimed_by = p_worker AND t.claim_generation = p_generation AND t.status = 'RUNNING'
  FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  INSERT INTO horsies_task_steps (task_id, name, digest, result) VALUES (p_task, p_name, p_digest, p_result);
  RETURN true;
END
$$;


--
-- Name: horsies_redact(uuid, text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_redact(p_id uuid, p_actor text, p_reason text, OUT status text, OUT redacted boolean, OUT lost text) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_task horsies_tasks;
  v_now timestamptz := clock_timestamp();
BEGIN
  redacted := false;
  SELECT t.* INTO v_task FROM horsies_tasks t WHERE t.id = p_id FOR NO KEY UPDATE;
  status := v_task.status;
  IF v_task.finished_at IS NULL OR v_task.redacted_at IS NOT NULL THEN
    RETURN;
  END IF;
  UPDATE horsies_tasks t
  SET kwargs = '{}', options = nullif(t.options - 'metadata', '{}'), redacted_at = v_now,
      partition_key = CASE WHEN t.partition_key = jsonb_build_object('', t.task_name)::text THEN t.partition_key END,
      result = horsies_error_result(coalesce(t.error_code, 'RESULT_REDACTED'), 'redacted')
  WHERE t.id = p_id;
  UPDATE horsies_task_attempts a SET error_message = 'redacted', exception_class = NULL, traceback = NULL
  WHERE a.task_id = p_id AND a.error_message IS NOT NULL;
  DELETE FROM horsies_task_steps s WHERE s.task_id = p_id;
  lost := horsies_note('task.redact', p_actor, p_id::text, p_reason, NULL,
                       jsonb_build_object('task_name', v_task.task_name, 'status', v_task.status));
  redacted := true;
END
$$;


--
-- Name: horsies_release(public.horsies_wanted, jsonb, boolean); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_release(p_wanted public.horsies_wanted, p_claims jsonb, p_wakes boolean, OUT queues text[], OUT keys text[], OUT missed uuid[], OUT earliest timestamp with time zone) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_ids uuid[];
  v_cancelled uuid[];
BEGIN
  IF p_claims IS NULL THEN
    v_ids := ARRAY(
      SELECT t.id FROM horsies_tasks t
      WHERE t.queue_name = ANY (p_wanted.queues) AND t.claimed_by IS NOT NULL AND t.finished_at IS NULL
        AND t.status = 'CLAIMED' AND t.claim_expires_at <= v_now
      LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED);
    IF v_ids = '{}' THEN
      RETURN;
    END IF;
  ELSE
    WITH claim AS MATERIALIZED (
      SELECT * FROM jsonb_to_recordset(p_claims) AS c (id uuid, generation int)
    ), held AS MATERIALIZED (
      SELECT t.id, t.claim_generation FROM horsies_tasks t
      WHERE t.id = ANY (ARRAY(SELECT claim.id FROM claim)) AND t.claimed_by = p_wanted.worker AND t.status IN ('CLAIMED', 'RUNNING')
      FOR NO KEY UPDATE SKIP LOCKED
    )
    SELECT coalesce(array_agg(h.id), '{}') INTO v_ids FROM held h JOIN claim c ON c.id = h.id AND c.generation = h.claim_generation;
    missed := ARRAY(SELECT c.id FROM jsonb_to_recordset(p_claims) AS c (id uuid) WHERE c.id <> ALL (v_ids));
  END IF;
  WITH released AS (  -- whose rows are locked by now, behind the fence
    UPDATE horsies_tasks t
    SET status = CASE WHEN t.cancel_requested_at IS NULL THEN 'PENDING' ELSE 'CANCELLED' END,
        finished_at = CASE WHEN t.cancel_requested_at IS NOT NULL THEN v_now END,
        error_code = CASE WHEN t.cancel_requested_at IS NOT NULL THEN 'TASK_CANCELLED' END,
        result = CASE WHEN t.cancel_requested_at IS NOT NULL
                   THEN horsies_error_result('TASK_CANCELLED', 'the task was cancelled before it started') END,
        claimed_by = NULL, claimed_at = NULL, claim_expires_at = NULL, started_at = NULL
    WHERE t.id = ANY (v_ids) AND t.status IN ('CLAIMED', 'RUNNING')
    RETURNING t.id, t.queue_name, t.partition_key, t.finished_at, t.enqueued_at
  ), notified AS (
    SELECT pg_notify(p_wanted.channel || '_new', extract(epoch FROM min(r.enqueued_at)) || CASE WHEN p_wakes THEN ' ' ELSE ' behind ' END || r.queue_name)
    FROM released r WHERE r.finished_at IS NULL GROUP BY r.queue_name
  )
  SELECT coalesce(array_agg(r.queue_name::text), '{}'), coalesce(array_agg(r.partition_key), '{}'),
         coalesce(array_agg(r.id) FILTER (WHERE r.finished_at IS NOT NULL), '{}'),
         min(r.enqueued_at) FILTER (WHERE r.finished_at IS NULL)
  INTO queues, keys, v_cancelled, earliest FROM released r WHERE (SELECT count(*) FROM notified) >= 0;  -- every notification is sent
  PERFORM horsies_notify_finished(p_wanted.channel, v_cancelled);
END
$$;


--
-- Name: horsies_remaining_capacity(public.horsies_limits[], uuid, boolean, timestamp with time zone, jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_remaining_capacity(p_limits public.horsies_limits[], p_worker uuid, p_claimed boolean, p_now timestamp with time zone, p_cursors jsonb, OUT rooms integer[], OUT held jsonb) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  c_singly CONSTANT int := 8;
  v_limits horsies_limits;
  v_version int;
  v_tracked boolean;
  v_singly timestamptz[];
  v_since timestamptz;
  v_load record;
BEGIN
  rooms := '{}';
  held := '{}';
  FOREACH v_limits IN ARRAY p_limits LOOP
    IF v_limits.max_concurrency IS NULL AND v_limits.local_limit IS NULL THEN
      rooms := rooms || NULL::int;
      CONTINUE;
    END IF;
    v_tracked := v_limits.max_concurrency IS NOT NULL AND p_cursors ? v_limits.queue_name;
    v_since := NULL;
    IF v_tracked AND p_cursors -> v_limits.queue_name ? 'held' THEN
      v_singly := ARRAY(SELECT m::timestamptz FROM jsonb_array_elements_text(p_cursors -> v_limits.queue_name -> 'held') AS m);
      v_since := v_singly[cardinality(v_singly)];
    END IF;
    IF v_limits.queue_name = '*' THEN
      SELECT count(*) AS held, NULL::bigint AS here, NULL::timestamptz[] AS moments INTO v_load FROM horsies_tasks t
      WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL AND horsies_holds_permit(t.status, t.claim_expires_at, true, p_now);
    ELSIF coalesce(v_since > p_now, true) THEN
      SELECT count(*) FILTER (WHERE h.holds) AS held, count(*) FILTER (WHERE h.holds AND h.claimed_by = p_worker) AS here,
             array_agg(DISTINCT h.claimed_at) FILTER (WHERE v_tracked) AS moments
      INTO v_load
      FROM (
        SELECT t.claimed_by, t.claimed_at, horsies_holds_permit(t.status, t.claim_expires_at, p_claimed, p_now) AS holds
        FROM horsies_tasks t WHERE t.queue_name = v_limits.queue_name AND t.claimed_by IS NOT NULL AND t.finished_at IS NULL
      ) AS h;
    ELSE
      v_version := coalesce(v_limits.partition_version, 0);
      SELECT count(*) FILTER (WHERE h.holds) AS held, count(*) FILTER (WHERE h.holds AND h.claimed_by = p_worker) AS here,
             array_agg(DISTINCT h.claimed_at) AS moments
      INTO v_load
      FROM (
        SELECT t.claimed_by, t.claimed_at, horsies_holds_permit(t.status, t.claim_expires_at, p_claimed, p_now) AS holds
        FROM (
          SELECT n.* FROM horsies_tasks n
          WHERE n.queue_name = v_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
            AND n.partition_version = v_version AND n.partition_key IS NULL AND n.claimed_at >= v_since
          UNION ALL
          SELECT n.* FROM horsies_tasks n
          WHERE n.queue_name = v_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
            AND n.partition_version = v_version AND n.partition_key IS NULL
            AND n.claimed_at = ANY (v_singly[1 : cardinality(v_singly) - 1])
          UNION ALL
          SELECT n.* FROM horsies_tasks n
          WHERE n.queue_name = v_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
            AND n.partition_version = v_version AND n.partition_key IS NOT NULL AND n.claimed_at >= v_singly[1]
          UNION ALL
          SELECT n.* FROM horsies_tasks n
          WHERE n.queue_name = v_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
            AND n.partition_version < v_version AND n.claimed_at >= v_singly[1]
          UNION ALL
          SELECT n.* FROM horsies_tasks n
          WHERE n.queue_name = v_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
            AND n.partition_version > v_version AND n.claimed_at >= v_singly[1]
          UNION ALL
          SELECT n.* FROM horsies_tasks n
          WHERE n.queue_name = v_limits.queue_name AND n.claimed_by IS NOT NULL AND n.finished_at IS NULL
            AND n.partition_version IS NULL AND n.claimed_at >= v_singly[1]
        ) AS t
      ) AS h;
    END IF;
    rooms := rooms || greatest(0, least(v_limits.max_concurrency - v_load.held, v_limits.local_limit - v_load.here))::int;
    IF v_tracked THEN
      held := held || jsonb_build_object(v_limits.queue_name, (v_load.moments || p_now)[1 : c_singly + 1]);
    END IF;
  END LOOP;
END
$$;


--
-- Name: horsies_replace_tasks(uuid, bigint[], integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_replace_tasks(p_workflow uuid, p_numbers bigint[], p_many integer) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_joined bigint[];
BEGIN
  WITH again AS MATERIALIZED (  -- see horsies_propagate
    SELECT p_workflow AS workflow_id, unnest(p_numbers) AS number
  ), parts AS MATERIALIZED (
    SELECT n.workflow_id, n.number, n.kind, n.undo IS NOT NULL AS undone, n.expanded AS until,
           greatest(n.expanded - greatest(p_many - sum(n.expanded) OVER (ORDER BY n.number) + n.expanded, 0), 0)::int AS since
    FROM again a JOIN horsies_workflow_nodes n ON n.workflow_id = a.workflow_id AND n.number = a.number
  ), had AS MATERIALIZED (
    SELECT p.workflow_id, p.number, p.since, t.id, t.node_index, t.advanced_at IS NOT NULL AS counted,
           p.kind = 'map' AND (t.status = 'COMPLETED' OR t.error_code IS NOT DISTINCT FROM 'TASK_SKIPPED') AS kept,
           p.undone AND t.status <> 'COMPLETED' AND horsies_has_begun(t.id, t.status, t.error_code) AS begun
    FROM parts p
    LEFT JOIN horsies_tasks t ON t.workflow_id = p.workflow_id AND t.node = p.number AND t.node_index >= p.since AND t.node_index < p.until
  ), replaced AS (
    UPDATE horsies_tasks t SET node = NULL FROM had h WHERE t.id = h.id AND NOT h.kept
  ), nodes AS MATERIALIZED (
    SELECT h.workflow_id, h.number, h.since, count(*) FILTER (WHERE h.kept AND h.counted)::int AS ok,
           jsonb_object_agg(h.node_index, h.id) FILTER (WHERE h.begun) AS begun,
           h.since = 0 AND NOT EXISTS (
             SELECT FROM horsies_workflow_edges e CROSS JOIN LATERAL (  -- see horsies_has_failed_upstream
               SELECT FROM horsies_workflow_nodes d WHERE d.workflow_id = e.workflow_id AND d.number = e.downstream AND d.status = 'SKIPPED'
                 AND d.error_code IS DISTINCT FROM 'SKIPPED_BY_HAND' OFFSET 0) AS d
             WHERE e.workflow_id = h.workflow_id AND e.upstream = h.number) AS joins
    FROM had h GROUP BY h.workflow_id, h.number, h.since
  ), joined AS (
    UPDATE horsies_workflow_nodes n
    SET finished_at = CASE WHEN NOT h.joins THEN n.finished_at END, error_code = NULL, error = NULL,
        due_at = CASE WHEN n.delay IS NULL THEN n.due_at END,
        items_ok = n.items_ok + h.ok, expanded = h.since, task_id = CASE WHEN n.kind = 'workflow' THEN n.task_id END,
        undo = CASE WHEN h.begun IS NULL THEN n.undo ELSE jsonb_set(n.undo, '{begun}', coalesce(n.undo -> 'begun', '{}') || h.begun) END
    FROM nodes h WHERE n.workflow_id = h.workflow_id AND n.number = h.number
    RETURNING n.number, h.joins
  )
  SELECT coalesce(array_agg(j.number) FILTER (WHERE j.joins), '{}') INTO v_joined FROM joined j;
  RETURN v_joined;
END
$$;


--
-- Name: horsies_results(uuid, jsonb, bigint, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_results(p_workflow uuid, p_spec jsonb, p_from bigint, p_many integer) RETURNS TABLE(place bigint, status text, result jsonb, redacted boolean)
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_left int := p_many;
  v_node record;
  v_found record;
  v_many int;
BEGIN
  FOR v_node IN
    SELECT n.number::bigint, (n.place - 1) << 32 AS place
    FROM jsonb_array_elements_text(coalesce(p_spec -> 'nodes', jsonb_build_array(p_spec -> 'node'))) WITH ORDINALITY AS n (number, place)
    WHERE n.place > p_from >> 32 ORDER BY n.place
  LOOP
    v_found := horsies_node_result(p_workflow, v_node.number);
    IF v_found.kind = 'map' THEN
      RETURN QUERY
      SELECT v_node.place + t.node_index, t.status::text, t.result::jsonb, t.redacted_at IS NOT NULL FROM horsies_tasks t
      WHERE t.workflow_id = p_workflow AND t.node = v_node.number AND t.node_index >= p_from - v_node.place
      ORDER BY t.node_index LIMIT v_left;
      GET DIAGNOSTICS v_many = ROW_COUNT;
      v_left := v_left - v_many;
    ELSIF v_node.place >= p_from THEN
      place := v_node.place;
      status := v_found.status;
      result := v_found.result;
      redacted := v_found.redacted;
      RETURN NEXT;
      v_left := v_left - 1;
    END IF;
    EXIT WHEN v_left <= 0;
  END LOOP;
END
$$;


--
-- Name: horsies_retry_children(uuid, integer, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_retry_children(p_workflow uuid, p_many integer, p_now timestamp with time zone, OUT begun boolean, OUT more boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_many int;
  v_children uuid[];
BEGIN
  begun := false;
  WITH others AS MATERIALIZED (
    SELECT n.workflow_id, n.number FROM horsies_workflow_nodes n LEFT JOIN horsies_workflows c ON c.id = n.task_id
    WHERE n.workflow_id = p_workflow AND n.status = 'ADDED' AND n.kind = 'workflow' AND n.task_id IS NOT NULL
      AND (c.finished_at IS NULL OR EXISTS (
        SELECT FROM horsies_workflow_edges e CROSS JOIN LATERAL (  -- see horsies_has_failed_upstream
          SELECT FROM horsies_workflow_nodes u
          WHERE u.workflow_id = e.workflow_id AND u.number = e.upstream AND u.status = 'ADDED' OFFSET 0) AS u
        WHERE e.workflow_id = n.workflow_id AND e.downstream = n.number))
    LIMIT p_many
  )
  UPDATE horsies_workflow_nodes n SET task_id = NULL FROM others o WHERE n.workflow_id = o.workflow_id AND n.number = o.number;
  GET DIAGNOSTICS v_many = ROW_COUNT;
  more := v_many = p_many;
  IF more THEN
    RETURN;
  END IF;
  WITH kept AS MATERIALIZED (
    SELECT n.workflow_id, n.number FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.status = 'ADDED' AND n.kind = 'workflow' AND n.task_id IS NOT NULL LIMIT p_many
  ), goes_on AS (
    UPDATE horsies_workflow_nodes n SET status = 'ENQUEUED' FROM kept k WHERE n.workflow_id = k.workflow_id AND n.number = k.number
    RETURNING n.task_id
  )
  SELECT coalesce(array_agg(g.task_id), '{}') INTO v_children FROM goes_on g;
  PERFORM horsies_begin_retry(v_children, p_now);
  begun := v_children <> '{}';
  more := cardinality(v_children) = p_many;
END
$$;


--
-- Name: horsies_retry_decision(uuid, jsonb, integer, integer, timestamp with time zone, boolean, text, jsonb, jsonb, boolean, integer, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_retry_decision(p_id uuid, p_options jsonb, p_retry_count integer, p_max_retries integer, p_good_until timestamp with time zone, p_cancelled boolean, p_code text, p_classes jsonb, p_retry jsonb, p_crashed boolean, p_max_crashes integer, p_now timestamp with time zone, OUT due_at timestamp with time zone, OUT poison boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  c_longest CONSTANT numeric := 2592000;
  v_policy jsonb := p_options -> 'retry';
  v_delays jsonb := CASE jsonb_typeof(v_policy -> 'intervals') WHEN 'array' THEN v_policy -> 'intervals' ELSE '[]' END;
  v_fixed boolean := v_policy ->> 'strategy' IS NOT DISTINCT FROM 'fixed';
  v_delay jsonb := v_delays -> CASE WHEN v_fixed THEN least(p_retry_count + 1, jsonb_array_length(v_delays)) - 1 ELSE 0 END;
BEGIN
  poison := coalesce(p_crashed, false) AND p_max_crashes > 0 AND p_max_crashes <= 1 + (
    SELECT count(*) FROM horsies_task_attempts a WHERE a.task_id = p_id AND a.outcome = 'WORKER_FAILURE');
  IF poison OR p_cancelled OR (p_retry_count >= p_max_retries AND NOT (coalesce(p_crashed, false) AND p_retry IS NOT NULL)) THEN
    RETURN;
  END IF;
  IF p_retry IS NULL AND NOT coalesce(v_policy -> 'codes' ?| (ARRAY(SELECT jsonb_array_elements_text(p_classes)) || p_code), false) THEN
    RETURN;
  END IF;
  IF jsonb_typeof(p_retry) = 'number' THEN
    due_at := p_now + make_interval(secs => p_retry::float8);
  ELSIF jsonb_typeof(v_delay) = 'number' THEN
    due_at := p_now + make_interval(secs => greatest(0, least(
      least(v_delay::numeric, c_longest) * CASE WHEN v_fixed THEN 1 ELSE 2 ^ least(p_retry_count, 40) END::numeric
        * CASE WHEN v_policy -> 'jitter' = 'true' THEN 0.75 + random() / 2 ELSE 1 END::numeric,
      CASE jsonb_typeof(v_policy -> 'most') WHEN 'number' THEN (v_policy -> 'most')::numeric ELSE c_longest END, c_longest))::float8);
  END IF;
  IF due_at >= p_good_until THEN
    due_at := NULL;
  END IF;
END
$$;


--
-- Name: horsies_retry_part(public.horsies_workflows, bigint[], integer, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_retry_part(p_run public.horsies_workflows, p_moved bigint[], p_many integer, p_now timestamp with time zone, OUT retrying bigint, OUT begun boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  c_all CONSTANT bigint := 9223372036854775807;
  v_reached bigint[];
  v_failed bigint[];
  v_again bigint[];
  v_joined bigint[];
  v_many int;
  v_children record;
BEGIN
  retrying := p_run.retrying;
  begun := false;
  v_reached := ARRAY(
    SELECT n.number FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_run.id AND n.status = 'ADDED' AND n.finished_at IS NOT NULL LIMIT p_many);
  v_many := p_many - cardinality(v_reached);
  IF retrying < c_all AND v_many > 0 THEN
    v_failed := ARRAY(
      SELECT n.number FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_run.id AND n.number >= retrying AND n.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
      ORDER BY n.number LIMIT v_many);
    retrying := CASE WHEN cardinality(v_failed) < v_many THEN c_all ELSE v_failed[v_many] + 1 END;
    v_reached := v_reached || v_failed;
  END IF;
  IF p_moved <> '{}' THEN
    WITH final AS MATERIALIZED (SELECT p_run.id AS workflow_id, unnest(p_moved) AS number)
    UPDATE horsies_workflow_nodes d SET status = 'ADDED'
    FROM final f JOIN horsies_workflow_edges e ON e.workflow_id = f.workflow_id AND e.upstream = f.number
    WHERE d.workflow_id = e.workflow_id AND d.number = e.downstream AND d.status = 'PENDING';
    WITH final AS MATERIALIZED (SELECT p_run.id AS workflow_id, unnest(p_moved) AS number)
    SELECT v_reached || coalesce(array_agg(n.number), '{}') INTO v_reached
    FROM final f JOIN horsies_workflow_nodes n ON n.workflow_id = f.workflow_id AND n.number = f.number
    WHERE n.status IN ('FAILED', 'CANCELLED', 'EXPIRED');
  END IF;
  WITH RECURSIVE again (number) AS (
    SELECT unnest(v_reached)
    UNION
    SELECT d.number FROM again a CROSS JOIN LATERAL (
      SELECT e.workflow_id, e.downstream FROM horsies_workflow_edges e
      WHERE e.workflow_id = p_run.id AND e.upstream = a.number OFFSET 0) AS e
    CROSS JOIN LATERAL (
      SELECT n.number FROM horsies_workflow_nodes n
      WHERE n.workflow_id = e.workflow_id AND n.number = e.downstream AND n.status = 'SKIPPED'
        AND n.error_code IS DISTINCT FROM 'SKIPPED_BY_HAND' OFFSET 0) AS d
  )
  SELECT coalesce(array_agg(l.number), '{}') INTO v_again  -- the LIMIT ends the search; it lets some be reached each time
  FROM (SELECT a.number FROM again a LIMIT greatest(p_many, cardinality(v_reached) + p_many / 2)) AS l;
  WITH again AS MATERIALIZED (
    SELECT p_run.id AS workflow_id, unnest(v_again) AS number
  )
  UPDATE horsies_workflow_nodes n
  SET status = 'ADDED', items_ok = 0, items_bad = 0, in_flight = 0, expanded = CASE WHEN n.kind = 'map' THEN coalesce(n.total, 0) ELSE 1 END
  FROM again a WHERE n.workflow_id = a.workflow_id AND n.number = a.number AND n.status <> 'ADDED';
  v_joined := horsies_replace_tasks(p_run.id, v_again, p_many);
  WITH again AS MATERIALIZED (
    SELECT p_run.id AS workflow_id, unnest(v_joined || p_moved) AS number
  ), others AS MATERIALIZED (  -- nodes that keep their status
    SELECT DISTINCT n.workflow_id, n.number
    FROM again a CROSS JOIN LATERAL (
      SELECT e.workflow_id, e.downstream FROM horsies_workflow_edges e WHERE e.workflow_id = a.workflow_id AND e.upstream = a.number OFFSET 0) AS e
    CROSS JOIN LATERAL (
      SELECT n.workflow_id, n.number FROM horsies_workflow_nodes n
      WHERE n.workflow_id = e.workflow_id AND n.number = e.downstream AND n.status <> 'ADDED' OFFSET 0) AS n
  ), counted AS MATERIALIZED (
    SELECT o.workflow_id, o.number, count(*) FILTER (WHERE u.finished_at IS NULL)::int AS open,
           count(*) FILTER (WHERE u.counts AND u.status = 'COMPLETED')::int AS ok,
           count(*) FILTER (WHERE u.counts AND u.finished_at IS NOT NULL AND u.status <> 'COMPLETED')::int AS bad
    FROM others o CROSS JOIN LATERAL (
      SELECT e.counts, u.* FROM horsies_workflow_edges e CROSS JOIN LATERAL (
        SELECT u.status, u.finished_at FROM horsies_workflow_nodes u WHERE u.workflow_id = e.workflow_id AND u.number = e.upstream OFFSET 0) AS u
      WHERE e.workflow_id = o.workflow_id AND e.downstream = o.number OFFSET 0) AS u
    GROUP BY o.workflow_id, o.number
  )
  UPDATE horsies_workflow_nodes n SET open = c.open, ok = c.ok, bad = c.bad
  FROM counted c WHERE n.workflow_id = c.workflow_id AND n.number = c.number;
  IF retrying = c_all AND NOT EXISTS (
    SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_run.id AND n.status = 'ADDED' AND n.finished_at IS NOT NULL) THEN
    v_children := horsies_retry_children(p_run.id, p_many, p_now);
    begun := v_children.begun;
    retrying := CASE WHEN v_children.more THEN c_all END;
  END IF;
  UPDATE horsies_workflows w SET retrying = horsies_retry_part.retrying WHERE w.id = p_run.id;
END
$$;


--
-- Name: horsies_retry_run(uuid, boolean, integer, text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_retry_run(p_workflow uuid, p_nested boolean, p_max_bytes integer, p_channel text, p_now timestamp with time zone, OUT verdict text) RETURNS text
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_now timestamptz;
  v_run horsies_workflows;
  v_ending boolean;
BEGIN
  SELECT w.* INTO v_run FROM horsies_workflows w WHERE w.id = p_workflow FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  v_now := coalesce(p_now, clock_timestamp());
  IF v_run.parent_id IS NOT NULL AND v_run.finished_at IS NOT NULL AND NOT p_nested THEN
    verdict := 'CHILD';
    RETURN;
  ELSIF v_run.retrying IS NOT NULL AND v_run.finished_at IS NULL THEN
    PERFORM horsies_move_run(p_workflow, '{}', 1000, p_max_bytes, p_channel, p_now);
    verdict := 'RETRIED';
    RETURN;
  END IF;
  SELECT m.more AND (v_run.status = 'CANCELLED' OR v_run.on_error = 'stop' AND v_run.error_code IS NOT NULL) INTO v_ending
  FROM horsies_move_run(p_workflow, horsies_take_tasks(p_workflow, NULL, v_now), 1000, p_max_bytes, p_channel, p_now) AS m;
  IF EXISTS (SELECT FROM horsies_workflows w WHERE w.id = p_workflow AND w.continued_as IS NOT NULL) THEN
    verdict := 'CONTINUED';
    RETURN;
  END IF;
  verdict := horsies_retry_undo(p_workflow);
  IF verdict IS NOT NULL THEN
    IF verdict = 'RETRIED' THEN
      PERFORM horsies_move_run(p_workflow, '{}', 1000, p_max_bytes, p_channel, p_now);
    END IF;
    RETURN;
  END IF;
  IF v_run.status NOT IN ('CANCELLED', 'FAILED') AND NOT EXISTS (  -- one whose value could not be given may have no failed node
    SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.status IN ('FAILED', 'CANCELLED', 'EXPIRED')) THEN
    verdict := 'NOTHING';
    RETURN;
  ELSIF v_ending OR EXISTS (
    WITH RECURSIVE inside (id) AS (
      SELECT p_workflow
      UNION ALL
      SELECT w.id FROM inside i CROSS JOIN LATERAL (  -- see horsies_has_failed_upstream
        SELECT w.id FROM horsies_workflows w WHERE w.parent_id = i.id AND w.status IN ('FAILED', 'CANCELLED') OFFSET 0) AS w
    )
    SELECT FROM inside i
    CROSS JOIN LATERAL (SELECT FROM horsies_workflows w WHERE w.id = i.id AND w.finished_at IS NOT NULL OFFSET 0) AS w
    CROSS JOIN LATERAL (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = i.id AND n.finished_at IS NULL LIMIT 1) AS n) THEN
    verdict := 'STOPPING';
    RETURN;
  END IF;
  PERFORM horsies_begin_retry(ARRAY[p_workflow], v_now);
  PERFORM horsies_move_run(p_workflow, '{}', 1000, p_max_bytes, p_channel, p_now);
  verdict := 'RETRIED';
END
$$;


--
-- Name: horsies_retry_undo(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_retry_undo(p_workflow uuid) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_status text;
  v_again bigint[];
BEGIN
  SELECT w.status INTO v_status FROM horsies_workflows w WHERE w.id = p_workflow;
  IF v_status = 'COMPENSATING' THEN
    RETURN 'UNDOING';
  ELSIF NOT EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.kind = 'undo') THEN
    RETURN NULL;
  END IF;
  v_again := ARRAY(SELECT n.number FROM horsies_workflow_nodes n
                   WHERE n.workflow_id = p_workflow AND n.kind = 'undo' AND n.status IN ('FAILED', 'CANCELLED', 'EXPIRED'));
  IF v_again = '{}' THEN
    RETURN 'UNDONE';
  END IF;
  WITH again AS MATERIALIZED (  -- see horsies_propagate
    SELECT p_workflow AS workflow_id, unnest(v_again) AS number
  ), replaced AS MATERIALIZED (
    SELECT t.id FROM again a JOIN horsies_tasks t ON t.workflow_id = a.workflow_id AND t.node = a.number
    WHERE t.status <> 'COMPLETED' AND t.error_code IS DISTINCT FROM 'TASK_SKIPPED'
  )
  UPDATE horsies_tasks t SET node = NULL FROM replaced r WHERE t.id = r.id;
  INSERT INTO horsies_workflow_edges (workflow_id, upstream, downstream)
  WITH RECURSIVE reached (source, number, again) AS (  -- again: this one failed, too; the search ends at it
    SELECT a.number, a.number, false FROM unnest(v_again) AS a (number)
    UNION
    SELECT r.source, d.number, d.again FROM reached r CROSS JOIN LATERAL (
      SELECT e.workflow_id, e.downstream FROM horsies_workflow_edges e WHERE e.workflow_id = p_workflow AND e.upstream = r.number OFFSET 0) AS e
    CROSS JOIN LATERAL (
      SELECT n.number, n.status IN ('FAILED', 'CANCELLED', 'EXPIRED') AS again FROM horsies_workflow_nodes n
      WHERE n.workflow_id = e.workflow_id AND n.number = e.downstream OFFSET 0) AS d
    WHERE NOT r.again
  )
  SELECT p_workflow, r.source, r.number FROM reached r WHERE r.again
  ON CONFLICT DO NOTHING;
  WITH again AS MATERIALIZED (
    SELECT p_workflow AS workflow_id, unnest(v_again) AS number
  ), begun AS MATERIALIZED (
    SELECT a.*, horsies_begun_total(p_workflow, o.number, o.undo -> 'begun') AS total,
           (SELECT count(*) FROM horsies_tasks t WHERE t.workflow_id = a.workflow_id AND t.node = a.number AND t.advanced_at IS NOT NULL)::int AS done
    FROM again a JOIN horsies_workflow_nodes x ON x.workflow_id = a.workflow_id AND x.number = a.number
    JOIN horsies_workflow_nodes o ON o.workflow_id = x.workflow_id AND o.number = x.undoes
  )
  UPDATE horsies_workflow_nodes n
  SET status = 'ADDED', total = b.total, finished_at = NULL, error_code = NULL, error = NULL, task_id = NULL,
      expanded = 0, in_flight = 0, items_ok = b.done, items_bad = 0
  FROM begun b WHERE n.workflow_id = b.workflow_id AND n.number = b.number;
  WITH again AS MATERIALIZED (
    SELECT p_workflow AS workflow_id, unnest(v_again) AS number
  ), told AS MATERIALIZED (
    SELECT e.workflow_id, e.downstream AS number, count(*)::int AS open
    FROM again a JOIN horsies_workflow_edges e ON e.workflow_id = a.workflow_id AND e.upstream = a.number GROUP BY e.workflow_id, e.downstream
  )
  UPDATE horsies_workflow_nodes n SET open = n.open + t.open, bad = n.bad - t.open
  FROM told t WHERE n.workflow_id = t.workflow_id AND n.number = t.number AND n.finished_at IS NOT NULL;  -- those that do not run again
  UPDATE horsies_workflows w
  SET status = 'COMPENSATING', finished_at = NULL, error_code = CASE WHEN w.result #>> '{err,data,node}' IS NULL THEN 'WORKFLOW_CANCELLED'
                                                                     ELSE w.result #>> '{err,data,error_code}' END,
      result = jsonb_build_object('err', w.result #> '{err,data,cause}')
  WHERE w.id = p_workflow;
  RETURN 'RETRIED';
END
$$;


--
-- Name: horsies_send(uuid[], json, text, text, text, smallint, interval, timestamp with time zone, timestamp with time zone, smallint, jsonb, oid, interval, timestamp with time zone, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_send(p_ids uuid[], p_kwargs json, p_task_name text, p_queue_name text, p_lane text, p_priority smallint, p_delay interval, p_due_at timestamp with time zone, p_good_until timestamp with time zone, p_max_retries smallint, p_options jsonb, p_notified oid, p_good_for interval, p_now timestamp with time zone, p_codec text) RETURNS oid
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_table oid := 'horsies_tasks'::regclass;
  v_quiet boolean := coalesce(p_notified = v_table AND p_due_at IS NULL AND p_delay IS NULL, false);
  v_set text;
BEGIN
  IF v_quiet THEN
    v_set := set_config('horsies.quiet', 'on', true);
  END IF;
  INSERT INTO horsies_tasks (id, task_name, queue_name, lane, priority, kwargs, sent_at, enqueued_at, good_until,
                             partition_key, partition_version, max_retries, options, codec)
  SELECT sent.id, p_task_name, p_queue_name, p_lane, p_priority, sent.kwargs,
         v_now, coalesce(p_due_at, v_now + p_delay, v_now), coalesce(p_good_until, v_now + p_good_for),
         CASE WHEN queue.partition_by_args IS NOT NULL OR queue.partition_by_task  -- most queues have no rule and need no call
              THEN horsies_partition_key(queue.partition_by_args, queue.partition_by_task, sent.kwargs, p_task_name, p_codec) END,
         queue.partition_version, p_max_retries, p_options, p_codec
  FROM ROWS FROM (unnest(p_ids), json_array_elements(p_kwargs)) AS sent (id, kwargs)
  LEFT JOIN horsies_queues queue ON queue.name = p_queue_name;
  IF v_quiet THEN
    v_set := set_config('horsies.quiet', '', true);
  END IF;
  RETURN v_table;
END
$$;


--
-- Name: horsies_send_all(uuid[], bigint[], integer, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_send_all(p_workflows uuid[], p_numbers bigint[], p_max_bytes integer, p_now timestamp with time zone) RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_start timestamptz := coalesce(p_now, now());
  v_many int := 0;
  v_made record;
BEGIN
  FOR v_made IN
    INSERT INTO horsies_tasks (id, task_name, queue_name, lane, priority, kwargs, sent_at, enqueued_at, good_until,
                               partition_key, partition_version, max_retries, options, codec, workflow_id, node, node_index)
    SELECT horsies_uuid7(p.place::int), n.task_name, n.queue_name, n.lane, n.priority,
           horsies_stored_arguments(k.kwargs, n.codec),
           v_now, greatest(v_start, coalesce(n.due_at, v_start + n.delay)), least(n.good_until, w.good_until),
           CASE WHEN q.partition_by_args IS NOT NULL OR q.partition_by_task
                THEN horsies_partition_key(q.partition_by_args, q.partition_by_task, k.kwargs::json, n.task_name, NULL) END,
           q.partition_version, n.max_retries, n.options, n.codec, w.id, n.number, 0
    FROM unnest(p_workflows, p_numbers) WITH ORDINALITY AS p (workflow, number, place)
    CROSS JOIN LATERAL (SELECT w.id, w.good_until FROM horsies_workflows w WHERE w.id = p.workflow OFFSET 0) AS w
    CROSS JOIN LATERAL (  -- by the whole key, whatever the statistics say
      SELECT n.* FROM horsies_workflow_nodes n WHERE n.workflow_id = p.workflow AND n.number = p.number OFFSET 0) AS n
    LEFT JOIN horsies_queues q ON q.name = n.queue_name
    CROSS JOIN LATERAL (SELECT horsies_node_kwargs(n, p_max_bytes) AS kwargs OFFSET 0) AS k  -- once, also for a key
    RETURNING id, workflow_id, node
  LOOP  -- not a join, which may read all nodes there are, if it was planned for empty tables
    UPDATE horsies_workflow_nodes n
    SET status = 'ENQUEUED', task_id = v_made.id, due_at = coalesce(n.due_at, v_start + n.delay),
        open = CASE n.status WHEN 'PENDING' THEN 0 ELSE n.open END, ok = CASE n.status WHEN 'PENDING' THEN n.ok + n.open ELSE n.ok END
    WHERE n.workflow_id = v_made.workflow_id AND n.number = v_made.node;
    v_many := v_many + 1;
  END LOOP;
  RETURN v_many;
END
$$;


--
-- Name: horsies_send_run(uuid, jsonb, jsonb, jsonb, uuid, bigint, uuid, integer, integer, text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_send_run(p_id uuid, p_run jsonb, p_nodes jsonb, p_values jsonb, p_parent uuid, p_parent_node bigint, p_continues uuid, p_limit integer, p_max_bytes integer, p_channel text, p_now timestamp with time zone, OUT id uuid, OUT hash text, OUT created boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_parent_until timestamptz;
BEGIN
  IF p_parent IS NOT NULL THEN
    SELECT w.good_until INTO v_parent_until FROM horsies_workflows w WHERE w.id = p_parent;
  END IF;
  INSERT INTO horsies_workflows AS w (id, name, key, graph_hash, status, on_error, output, max_in_flight, good_until, parent_id,
                                      parent_node, continues, sent_at, owed_at)
  SELECT p_id, r.name, r.key, r.hash, 'RUNNING', r.on_error, r.output, r.max_in_flight,
         least(r.good_until, v_now + r.good_for, v_parent_until), p_parent, p_parent_node, p_continues, v_now,
         CASE WHEN current_setting('transaction_isolation') = 'serializable' THEN v_now END
  FROM jsonb_to_record(p_run) AS r (name text, key text, hash text, on_error text, output bigint, max_in_flight int,
                                    good_until timestamptz, good_for interval)
  ON CONFLICT (key, name) WHERE key IS NOT NULL DO NOTHING
  RETURNING w.id, w.graph_hash INTO id, hash;
  created := id IS NOT NULL;
  IF NOT created THEN
    SELECT w.id, w.graph_hash INTO id, hash FROM horsies_workflows w WHERE w.key = p_run ->> 'key' AND w.name = p_run ->> 'name';
    RETURN;
  END IF;
  PERFORM horsies_add_nodes(p_id, -1, p_nodes, p_values, p_now);
  IF p_limit IS NOT NULL THEN
    PERFORM horsies_begin_run(p_id, p_limit, p_max_bytes, p_channel, p_now);
  END IF;
END
$$;


--
-- Name: horsies_settle(uuid, jsonb, integer, text, text, integer, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_settle(p_worker uuid, p_outcomes jsonb, p_max_crashes integer, p_channel text, p_news text, p_max_bytes integer, p_now timestamp with time zone, OUT queues text[], OUT keys text[], OUT finals uuid[], OUT report jsonb, OUT plain boolean, OUT sent text[]) RETURNS record
    LANGUAGE plpgsql
    SET enable_nestloop TO 'off'
    AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_ids uuid[];
  v_decided jsonb;
  v_in_runs boolean;
  v_runs uuid[];  -- of what is final, with their nodes and tasks
  v_numbers bigint[];
  v_tasks uuid[];
  v_plain uuid[] := '{}';  -- runs that go on here
  v_set text;
  v_waited boolean;  -- whether a process waits for results
BEGIN
  IF p_outcomes @> '[{"status": "FAILED"}]' THEN
    SELECT jsonb_agg(o.value || coalesce(d.decision, '{}')) INTO p_outcomes
    FROM jsonb_array_elements(p_outcomes) AS o LEFT JOIN LATERAL (
      SELECT jsonb_build_object(
        'due_at', r.due_at, 'poison', r.poison,
        'exception_class', nullif(left(concat_ws('.', e.exception ->> 'module', e.exception ->> 'type'), 1000), ''),
        'traceback', left(e.exception ->> 'traceback', 100000)) AS decision
      FROM horsies_tasks t
      CROSS JOIN LATERAL horsies_retry_decision(
        t.id, t.options, t.retry_count, t.max_retries, t.good_until, t.cancel_requested_at IS NOT NULL, o.value ->> 'error_code',
        o.value -> 'classes', nullif(o.value -> 'retry', 'null'), (o.value ->> 'crashed')::boolean, p_max_crashes, v_now) AS r
      CROSS JOIN LATERAL (SELECT (o.value ->> 'result')::json -> 'err' -> 'exception' AS exception OFFSET 0) AS e
      WHERE o.value ->> 'status' = 'FAILED' AND t.id = (o.value ->> 'id')::uuid AND t.claimed_by = p_worker AND t.status = 'RUNNING'
      FOR NO KEY UPDATE OF t SKIP LOCKED
    ) AS d ON true;
  END IF;

  IF p_max_bytes IS NOT NULL THEN
    SELECT horsies_plain_runs(array_agg(t.workflow_id), array_agg(t.node),
                              array_agg(CASE WHEN o.status = 'COMPLETED' AND o.error_code IS NULL THEN t.id END), 200)
    INTO v_plain
    FROM horsies_tasks t JOIN jsonb_to_recordset(p_outcomes) AS o (id uuid, generation int, status text, error_code text)
      ON o.id = t.id AND o.generation = t.claim_generation
    WHERE t.id = ANY (ARRAY(SELECT r.id FROM jsonb_to_recordset(p_outcomes) AS r (id uuid))) AND t.workflow_id IS NOT NULL
      AND t.claimed_by = p_worker AND t.status = 'RUNNING';
  END IF;

  WITH outcome AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(p_outcomes) AS o (
      id uuid, generation int, status text, result text, error_code text, error_message text, child_pid int, crashed boolean,
      due_at timestamptz, poison boolean, exception_class text, traceback text)
  ), held AS MATERIALIZED (
    SELECT t.id, t.claim_generation, t.queue_name, t.partition_key, t.retry_count, t.started_at, t.workflow_id FROM horsies_tasks t
    WHERE t.id = ANY (ARRAY(SELECT outcome.id FROM outcome)) AND t.claimed_by = p_worker AND t.status = 'RUNNING'
    FOR NO KEY UPDATE SKIP LOCKED
  ), ended AS MATERIALIZED (
    SELECT h.queue_name, h.partition_key, h.retry_count, h.started_at, h.workflow_id, o.*
    FROM held h JOIN outcome o ON o.id = h.id AND o.generation = h.claim_generation
  ), settled AS (
    UPDATE horsies_tasks t
    SET status = e.status, finished_at = v_now, next_retry_at = NULL,
        advanced_at = CASE WHEN e.workflow_id = ANY (v_plain) THEN v_now ELSE t.advanced_at END,
        error_code = CASE WHEN e.poison THEN 'POISON' ELSE e.error_code END,
        result = CASE WHEN e.poison THEN horsies_error_result('POISON', 'processes died again and again while they ran this task: ' || e.error_message)::text
                   ELSE e.result END::horsies_json
    FROM ended e
    WHERE t.id = ANY (ARRAY(SELECT ended.id FROM ended WHERE ended.due_at IS NULL)) AND e.id = t.id
      AND t.claim_generation = e.generation AND t.claimed_by = p_worker AND t.status = 'RUNNING'
  ), attempt AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, claim_generation, outcome, will_retry, started_at, finished_at,
                                       error_code, error_message, exception_class, traceback, worker_id, child_pid)
    SELECT e.id, e.retry_count + 1, e.generation, CASE WHEN e.crashed THEN 'WORKER_FAILURE' ELSE e.status END, e.due_at IS NOT NULL,
           coalesce(e.started_at, v_now), v_now, e.error_code, e.error_message, e.exception_class, e.traceback, p_worker, e.child_pid
    FROM ended e
  )
  SELECT coalesce(array_agg(e.id), '{}'), coalesce(array_agg(e.queue_name::text), '{}'), coalesce(array_agg(e.partition_key), '{}'),
         coalesce(array_agg(e.id) FILTER (WHERE e.due_at IS NULL), '{}'),
         jsonb_object_agg(e.id, '{"code": "POISON"}'::jsonb) FILTER (WHERE e.poison),
         count(e.workflow_id) > 0,
         EXISTS (SELECT FROM horsies_waiters w WHERE w.expires_at > v_now),
         NOT EXISTS (SELECT FROM horsies_limits l
                     WHERE l.queue_name = ANY (ARRAY(SELECT held.queue_name::text FROM held) || ARRAY[p_news, '*'])
                       AND NOT ((l.max_concurrency, l.local_limit, l.partition_max_concurrency, l.partition_local_limit) IS NULL))
           AND (p_news IS NULL OR EXISTS (SELECT FROM horsies_limits l WHERE l.queue_name = p_news))
           AND NOT EXISTS (SELECT FROM horsies_heartbeats b WHERE b.id = p_worker AND b.died_at IS NOT NULL)
  INTO v_ids, queues, keys, finals, v_decided, v_in_runs, v_waited, plain FROM ended e;
  IF v_waited THEN
    PERFORM horsies_notify_finished(p_channel, finals);
  END IF;
  IF v_in_runs THEN
    SELECT array_agg(t.workflow_id), array_agg(t.node), array_agg(t.id) INTO v_runs, v_numbers, v_tasks
    FROM horsies_tasks t WHERE t.id = ANY (finals) AND t.workflow_id IS NOT NULL;
  END IF;
  IF v_plain <> '{}' THEN
    BEGIN
      v_set := set_config('horsies.quiet', 'on', true);
      sent := horsies_advance_plain(v_plain, v_runs, v_numbers, p_max_bytes, p_channel, p_now);
      v_set := set_config('horsies.quiet', '', true);
    EXCEPTION WHEN SQLSTATE 'HW001' OR data_exception OR integrity_constraint_violation OR program_limit_exceeded OR plpgsql_error THEN
      UPDATE horsies_tasks t SET advanced_at = NULL WHERE t.id = ANY (v_tasks) AND t.workflow_id = ANY (v_plain);
      v_plain := '{}';  -- horsies_advance finds out which node cannot be sent
    END;
  END IF;
  IF v_decided IS NOT NULL OR v_runs IS NOT NULL OR cardinality(finals) < jsonb_array_length(p_outcomes) THEN
    IF cardinality(finals) < cardinality(v_ids) THEN
      WITH retried AS (
        UPDATE horsies_tasks t
        SET status = 'PENDING', retry_count = t.retry_count + 1, next_retry_at = o.due_at, enqueued_at = o.due_at,
            claimed_by = NULL, claimed_at = NULL, started_at = NULL
        FROM jsonb_to_recordset(p_outcomes) AS o (id uuid, generation int, due_at timestamptz)
        WHERE t.id = ANY (v_ids) AND o.id = t.id AND o.due_at IS NOT NULL
          AND t.claim_generation = o.generation AND t.claimed_by = p_worker AND t.status = 'RUNNING'
        RETURNING t.id, t.queue_name, t.retry_count, t.max_retries, t.next_retry_at
      ), woken AS (
        SELECT pg_notify(p_channel || '_new', extract(epoch FROM min(r.next_retry_at)) || ' ' || r.queue_name) FROM retried r GROUP BY r.queue_name
      )
      SELECT coalesce(v_decided, '{}') || jsonb_object_agg(r.id, jsonb_build_object(
               'retry', r.retry_count, 'of', r.max_retries, 'at', extract(epoch FROM r.next_retry_at)))
      INTO v_decided FROM retried r WHERE (SELECT count(*) FROM woken) >= 0;
    END IF;
    report := jsonb_build_object('decided', v_decided, 'in_runs', (
      SELECT jsonb_agg(jsonb_build_array(r.run, r.task)) FROM unnest(v_runs, v_tasks) AS r (run, task) WHERE r.run <> ALL (v_plain)), 'missed', ARRAY(
      SELECT o.value -> 'id' FROM jsonb_array_elements(p_outcomes) AS o WHERE (o.value ->> 'id')::uuid <> ALL (v_ids)));
  END IF;
END
$$;


--
-- Name: horsies_signal(uuid, text, text, jsonb, text, integer, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_signal(p_workflow uuid, p_name text, p_key text, p_data jsonb, p_actor text, p_look integer, p_now timestamp with time zone, OUT verdict text, OUT names text[]) RETURNS record
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
BEGIN
  SELECT CASE WHEN w.finished_at IS NULL THEN 'SENT' ELSE 'ENDED' END INTO verdict FROM horsies_workflows w WHERE w.id = p_workflow;
  IF verdict IS DISTINCT FROM 'SENT' THEN
    RETURN;
  ELSIF NOT EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.signal = p_name AND n.kind = 'signal') THEN
    verdict := CASE WHEN EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.signal = p_name)
                 THEN 'GATE' ELSE 'UNKNOWN' END;
    names := ARRAY(SELECT DISTINCT n.signal::text FROM horsies_workflow_nodes n
                   WHERE n.workflow_id = p_workflow AND n.signal IS NOT NULL AND n.kind = 'signal' ORDER BY 1 LIMIT 20);
  ELSIF NOT EXISTS (
    SELECT FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.signal = p_name AND n.kind = 'signal'
      AND n.status IN ('ADDED', 'PENDING', 'READY', 'WAITING')) AND NOT EXISTS (
    SELECT FROM horsies_workflow_nodes n
    WHERE n.workflow_id = p_workflow AND n.signal = p_name AND n.kind = 'signal' AND n.added_by >= 0) THEN
    verdict := 'FINISHED';
  ELSE
    IF p_look IS DISTINCT FROM 0 THEN
      names := ARRAY(
        SELECT DISTINCT coalesce(t.signal_type, '') FROM (
          (SELECT n.signal_type FROM horsies_workflow_nodes n
           WHERE n.workflow_id = p_workflow AND n.signal = p_name AND n.kind = 'signal' AND n.signal_key IS NULL
             AND n.status IN ('ADDED', 'PENDING', 'READY', 'WAITING') LIMIT p_look)
          UNION ALL
          (SELECT n.signal_type FROM horsies_workflow_nodes n
           WHERE n.workflow_id = p_workflow AND n.signal = p_name AND n.kind = 'signal' AND n.signal_key = p_key
             AND n.status IN ('ADDED', 'PENDING', 'READY', 'WAITING') LIMIT p_look)) AS t);
      IF names <> '{}' AND '' <> ALL (names) THEN
        verdict := 'TYPED';
        RETURN;
      END IF;
    END IF;
    INSERT INTO horsies_workflow_signals (id, workflow_id, name, key, data, actor, sent_at)
    VALUES (horsies_uuid7(0), p_workflow, p_name, p_key, p_data, p_actor, coalesce(p_now, clock_timestamp()));
    PERFORM pg_notify(horsies_channel() || '_new', 'advance ' || p_workflow);
  END IF;
END
$$;


--
-- Name: horsies_skip_node(uuid, bigint, integer, text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_skip_node(p_workflow uuid, p_number bigint, p_max_bytes integer, p_channel text, p_now timestamp with time zone, OUT verdict text) RETURNS text
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_now timestamptz;
  v_status text;
  v_begun boolean;
BEGIN
  PERFORM FROM horsies_workflows w WHERE w.id = p_workflow FOR NO KEY UPDATE;
  v_now := coalesce(p_now, clock_timestamp());
  PERFORM horsies_withdraw(p_workflow, p_number, NULL);
  SELECT n.status, n.finished_at IS NULL AND (n.status = 'ENQUEUED' OR n.items_ok + n.items_bad > 0 OR EXISTS (
           SELECT FROM horsies_tasks t WHERE t.workflow_id = p_workflow AND t.node = p_number)),
         CASE WHEN n.finished_at IS NOT NULL THEN 'FINISHED' END
  INTO v_status, v_begun, verdict
  FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.number = p_number;
  IF v_status IS NULL OR verdict IS NOT NULL THEN
    RETURN;
  ELSIF v_begun THEN
    verdict := 'BEGUN';
    PERFORM horsies_move_run(p_workflow, '{}', 1000, p_max_bytes, p_channel, p_now);  -- sends again what was withdrawn
    RETURN;
  END IF;
  UPDATE horsies_workflow_nodes n SET status = 'SKIPPED', finished_at = v_now, error_code = 'SKIPPED_BY_HAND', error = 'skipped by hand'
  WHERE n.workflow_id = p_workflow AND n.number = p_number;
  PERFORM horsies_move_run(p_workflow, ARRAY[p_number], 1000, p_max_bytes, p_channel, p_now);
  verdict := 'SKIPPED';
END
$$;


--
-- Name: horsies_start(public.horsies_wanted, public.horsies_limits[], boolean, jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_start(p_wanted public.horsies_wanted, p_limits public.horsies_limits[], p_paused boolean, p_starts jsonb, OUT started uuid[], OUT expired uuid[], OUT returned uuid[], OUT earliest timestamp with time zone) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_candidates horsies_candidate[];
BEGIN
  WITH wanted AS MATERIALIZED (
    SELECT w.value ->> 'id' AS id, (w.value ->> 'generation')::int AS generation, w.place
    FROM jsonb_array_elements(p_starts) WITH ORDINALITY AS w (value, place)
  ), held AS MATERIALIZED (
    SELECT t.id, t.claim_generation, l.ordinality::int AS queue, t.priority, t.enqueued_at, coalesce(t.good_until <= p_wanted.now, false) AS late,
           CASE WHEN t.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(t.workflow_id, t.node)) THEN 'sync' ELSE 'none' END AS lane,
           horsies_partition_key(l.partition_by_args, l.partition_by_task, t.kwargs, t.task_name, t.codec) AS key
    FROM horsies_tasks t JOIN unnest(p_limits) WITH ORDINALITY AS l ON l.queue_name = t.queue_name
    WHERE t.id = ANY (ARRAY(SELECT wanted.id::uuid FROM wanted)) AND t.claimed_by = p_wanted.worker AND t.status = 'CLAIMED'
      AND t.claim_expires_at > p_wanted.now
    FOR NO KEY UPDATE OF t SKIP LOCKED
  )
  SELECT array_agg(ROW(h.id, h.queue, h.lane, h.priority, h.enqueued_at, h.key, false, h.late, '')::horsies_candidate ORDER BY w.place)
  INTO v_candidates FROM wanted w JOIN held h ON h.id = w.id::uuid AND h.claim_generation = w.generation;
  IF v_candidates IS NULL THEN
    RETURN;
  END IF;

  p_wanted.sync := cardinality(v_candidates);
  p_wanted.async := 0;
  p_wanted.prefetch := 0;
  p_wanted.total := CASE WHEN p_paused THEN 0 ELSE p_wanted.sync END;
  p_wanted.lease := '0';  -- claims hold no permits
  SELECT a.p_candidates INTO v_candidates
  FROM horsies_allot(p_limits, NULL, p_wanted, (horsies_remaining_capacity(p_limits, p_wanted.worker, false, p_wanted.now, p_wanted.cursors)).rooms,
                     v_candidates) AS a;
  SELECT array_agg(v.id ORDER BY v.ordinality) FILTER (WHERE v.verdict = 'start'), array_agg(v.id ORDER BY v.ordinality) FILTER (WHERE v.verdict = 'late'),
         array_agg(v.id ORDER BY v.ordinality) FILTER (WHERE v.verdict NOT IN ('start', 'late'))
  INTO started, expired, returned FROM unnest(v_candidates) WITH ORDINALITY AS v;

  UPDATE horsies_tasks t SET status = 'RUNNING', started_at = p_wanted.now, claim_expires_at = NULL
  WHERE t.id = ANY (started) AND t.status = 'CLAIMED';
  IF expired IS NOT NULL THEN
    PERFORM horsies_expire(expired, p_wanted.now, p_wanted.channel);
    PERFORM horsies_unpark(p_limits, array_agg(p_limits[v.queue].queue_name::text), array_agg(v.key))  -- tasks that were parked behind these
    FROM unnest(v_candidates) AS v WHERE v.verdict = 'late';
  END IF;
  IF returned IS NOT NULL THEN
    earliest := (horsies_release(p_wanted, (
      SELECT jsonb_agg(s.value) FROM jsonb_array_elements(p_starts) AS s WHERE (s.value ->> 'id')::uuid = ANY (returned)), false)).earliest;
  END IF;
END
$$;


--
-- Name: horsies_stored_arguments(jsonb, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_stored_arguments(p_named jsonb, p_codec text) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  SELECT CASE p_codec WHEN 'plain' THEN jsonb_build_object('args', '[]'::jsonb, 'kwargs', p_named) ELSE p_named END
$$;


--
-- Name: horsies_sweep(text, integer, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_sweep(p_queue text, p_many integer, p_channel text) RETURNS boolean
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_sweep jsonb;
  v_limits horsies_limits;
  v_cluster int;
  v_now timestamptz;
  v_count int;
  v_keys text[] := '{}';
  v_key text;
  v_last record;
BEGIN
  SELECT l.* INTO v_limits FROM horsies_limits l WHERE l.queue_name = p_queue;  -- before the row, as a change of limits does
  SELECT l.max_concurrency INTO v_cluster FROM horsies_limits l WHERE l.queue_name = '*';
  SELECT q.sweep INTO v_sweep FROM horsies_queues q WHERE q.name = p_queue AND q.sweep IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM horsies_lock_caps(ARRAY[v_limits], v_cluster);
  v_now := clock_timestamp();

  IF v_sweep ->> 'stage' IS NULL THEN
    UPDATE horsies_tasks t
    SET parked = false, partition_version = v_limits.partition_version,
        partition_key = horsies_partition_key(v_limits.partition_by_args, v_limits.partition_by_task, t.kwargs, t.task_name, t.codec)
    WHERE t.parked AND t.id = ANY (ARRAY(
      SELECT p.id FROM horsies_tasks p
      WHERE p.queue_name = p_queue AND p.claimed_by IS NULL AND p.finished_at IS NULL AND p.parked
        AND (p.partition_version IS DISTINCT FROM v_limits.partition_version
             OR (v_limits.partition_max_concurrency IS NULL AND v_limits.partition_local_limit IS NULL))
      LIMIT p_many FOR NO KEY UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count > 0 THEN
      PERFORM pg_notify(p_channel || '_new', '0 ' || p_queue);
    END IF;
    v_sweep := CASE WHEN v_count < p_many THEN '{"stage": "heads"}' ELSE '{}' END;

  ELSIF v_sweep ->> 'stage' = 'heads' THEN
    v_key := v_sweep ->> 'after';
    LOOP  -- one partition with parked tasks after the other
      SELECT p.partition_key INTO v_key FROM horsies_tasks p
      WHERE p.queue_name = p_queue AND p.partition_key > coalesce(v_key, '')
        AND p.claimed_by IS NULL AND p.finished_at IS NULL AND p.parked
      ORDER BY p.partition_key LIMIT 1;
      EXIT WHEN NOT FOUND;
      v_keys := v_keys || v_key;
      EXIT WHEN cardinality(v_keys) >= p_many;
    END LOOP;
    IF v_keys <> '{}' THEN
      PERFORM horsies_unpark(ARRAY[v_limits], array_agg(p_queue), array_agg(r.key), array_agg(r.everyone))
      FROM horsies_partition_rooms(v_limits, v_keys, NULL, true, v_now) AS r WHERE r.everyone > 0;
    END IF;
    v_sweep := CASE WHEN cardinality(v_keys) < p_many THEN '{"stage": "keys"}'
                    ELSE jsonb_build_object('stage', 'heads', 'after', v_key) END;

  ELSE
    WITH batch AS MATERIALIZED (
      SELECT t.id, t.lane, t.priority, t.enqueued_at, t.partition_version FROM horsies_tasks t
      WHERE t.queue_name = p_queue AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
        AND (t.lane, t.priority, t.enqueued_at, t.id)
          > (coalesce(v_sweep ->> 'lane', ''), coalesce((v_sweep ->> 'priority')::smallint, 0::smallint),
             coalesce((v_sweep ->> 'enqueued_at')::timestamptz, '-infinity'), coalesce(v_sweep ->> 'id', '00000000-0000-0000-0000-000000000000')::uuid)
      ORDER BY t.lane, t.priority, t.enqueued_at, t.id LIMIT p_many
    ), keyed AS (
      UPDATE horsies_tasks t
      SET partition_version = v_limits.partition_version,
          partition_key = horsies_partition_key(v_limits.partition_by_args, v_limits.partition_by_task, t.kwargs, t.task_name, t.codec)
      WHERE t.id = ANY (ARRAY(
        SELECT s.id FROM horsies_tasks s
        WHERE s.id = ANY (ARRAY(SELECT b.id FROM batch b WHERE b.partition_version IS DISTINCT FROM v_limits.partition_version))
          AND s.claimed_by IS NULL AND s.finished_at IS NULL FOR NO KEY UPDATE SKIP LOCKED))
    )
    SELECT count(*) OVER () AS many, b.* INTO v_last FROM batch b ORDER BY b.lane DESC, b.priority DESC, b.enqueued_at DESC, b.id DESC LIMIT 1;
    v_sweep := CASE WHEN coalesce(v_last.many, 0) < p_many THEN NULL
                    ELSE jsonb_build_object('stage', 'keys', 'lane', v_last.lane, 'priority', v_last.priority,
                                            'enqueued_at', v_last.enqueued_at, 'id', v_last.id) END;
  END IF;
  UPDATE horsies_queues q SET sweep = v_sweep WHERE q.name = p_queue;
  RETURN v_sweep IS NOT NULL;
END
$$;


--
-- Name: horsies_take_signal(uuid, bigint, uuid, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_take_signal(p_workflow uuid, p_number bigint, p_signal uuid, p_now timestamp with time zone) RETURNS void
    LANGUAGE sql
    AS $$
  WITH taken AS (
    UPDATE horsies_workflow_signals s SET seen_at = coalesce(s.seen_at, p_now), used_at = p_now, node = p_number
    WHERE s.id = p_signal RETURNING s.data
  )
  UPDATE horsies_workflow_nodes n SET status = 'COMPLETED', finished_at = p_now, value = t.data
  FROM taken t WHERE n.workflow_id = p_workflow AND n.number = p_number
$$;


--
-- Name: horsies_take_tasks(uuid, uuid[], timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_take_tasks(p_workflow uuid, p_tasks uuid[], p_now timestamp with time zone) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_tasks uuid[] := p_tasks;
  v_moved bigint[];
  v_maps bigint[];
BEGIN
  IF v_tasks IS NULL THEN
    v_tasks := ARRAY(SELECT t.id FROM horsies_tasks t
                     WHERE t.workflow_id = p_workflow AND t.finished_at IS NOT NULL AND t.advanced_at IS NULL);
  END IF;
  IF v_tasks = '{}' THEN
    RETURN '{}';
  END IF;
  WITH done AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
    WHERE t.id = ANY (v_tasks) AND t.workflow_id IS NOT DISTINCT FROM p_workflow AND t.advanced_at IS NULL
      AND t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')  -- "finished_at IS NOT NULL" may read all finished tasks there are
    FOR NO KEY UPDATE SKIP LOCKED
  ), taken AS (
    UPDATE horsies_tasks t SET advanced_at = p_now WHERE t.id = ANY (ARRAY(SELECT d.id FROM done d))
    RETURNING t.workflow_id, t.id, t.node, t.status, t.error_code, t.result #>> '{err,message}' AS message,
              t.status <> 'CANCELLED' OR t.started_at IS NOT NULL OR t.retry_count > 0 AS begun
  ), of_tasks AS (
    UPDATE horsies_workflow_nodes n
    SET status = CASE WHEN t.error_code = 'TASK_SKIPPED' THEN 'SKIPPED' ELSE t.status END, finished_at = p_now,
        error_code = t.error_code, error = t.message
    FROM taken t
    WHERE n.workflow_id = t.workflow_id AND n.number = t.node AND n.kind = 'task' AND n.task_id = t.id AND n.status = 'ENQUEUED'
    RETURNING n.number
  ), of_maps AS (
    UPDATE horsies_workflow_nodes n
    SET in_flight = n.in_flight - c.many, items_ok = n.items_ok + c.many - c.bad, items_bad = n.items_bad + c.bad, error = coalesce(n.error, c.error)
    FROM (SELECT t.workflow_id, t.node, count(*)::int AS many, (count(*) FILTER (WHERE t.bad))::int AS bad,
                 min(concat_ws(': ', coalesce(t.error_code, t.status), t.message)) FILTER (WHERE t.bad AND t.begun) AS error
          FROM (SELECT t.*, t.status <> 'COMPLETED' AND t.error_code IS DISTINCT FROM 'TASK_SKIPPED' AS bad FROM taken t) AS t
          GROUP BY t.workflow_id, t.node) AS c
    WHERE n.workflow_id = c.workflow_id AND n.number = c.node AND n.kind IN ('map', 'undo') AND n.status IN ('READY', 'ENQUEUED')
    RETURNING n.number
  )
  SELECT ARRAY(SELECT o.number FROM of_tasks o), ARRAY(SELECT o.number FROM of_maps o) INTO v_moved, v_maps;
  IF v_maps <> '{}' THEN
    v_moved := v_moved || horsies_close_maps(p_workflow, v_maps, p_now);
  END IF;
  RETURN v_moved;
END
$$;


--
-- Name: horsies_take_waits(uuid, integer, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_take_waits(p_workflow uuid, p_many integer, p_now timestamp with time zone, OUT moved bigint[], OUT more boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_unseen uuid[];
  v_due bigint[];
  v_signal record;
  v_number bigint;
BEGIN
  moved := '{}';
  more := false;
  IF NOT (EXISTS (SELECT FROM horsies_workflow_nodes n WHERE n.workflow_id = p_workflow AND n.is_wait AND n.finished_at IS NULL)
          OR EXISTS (SELECT FROM horsies_workflow_signals s WHERE s.workflow_id = p_workflow AND s.seen_at IS NULL)) THEN
    RETURN;
  END IF;
  v_unseen := ARRAY(SELECT s.id FROM horsies_workflow_signals s WHERE s.workflow_id = p_workflow AND s.seen_at IS NULL ORDER BY s.sent_at, s.id LIMIT p_many);
  IF v_unseen <> '{}' THEN
    FOR v_signal IN
      SELECT s.id, s.name, s.key, s.data, s.sent_at FROM horsies_workflow_signals s WHERE s.id = ANY (v_unseen) ORDER BY s.sent_at, s.id
    LOOP
      SELECT w.number INTO v_number FROM (  -- one look per key: among many nodes with keys, neither reads those of the others
        (SELECT n.number FROM horsies_workflow_nodes n
         WHERE n.workflow_id = p_workflow AND n.signal = v_signal.name AND n.status = 'WAITING' AND n.signal_key IS NULL
           AND n.kind = 'signal' AND (n.due_at IS NULL OR n.due_at > v_signal.sent_at)
         ORDER BY n.signal_key, n.number LIMIT 1)
        UNION ALL
        (SELECT n.number FROM horsies_workflow_nodes n
         WHERE n.workflow_id = p_workflow AND n.signal = v_signal.name AND n.status = 'WAITING' AND n.signal_key = v_signal.key
           AND n.kind = 'signal' AND (n.due_at IS NULL OR n.due_at > v_signal.sent_at)
         ORDER BY n.number LIMIT 1)) AS w
      ORDER BY w.number LIMIT 1;
      IF FOUND THEN
        PERFORM horsies_take_signal(p_workflow, v_number, v_signal.id, p_now);
        moved := moved || v_number;
      END IF;
    END LOOP;
    UPDATE horsies_workflow_signals s SET seen_at = p_now WHERE s.id = ANY (v_unseen) AND s.seen_at IS NULL;
  END IF;
  v_due := ARRAY(
    SELECT d.number FROM (
      SELECT n.number, n.kind, n.signal, n.signal_key, n.due_at FROM horsies_workflow_nodes n
      WHERE n.workflow_id = p_workflow AND n.status = 'WAITING' AND n.is_wait AND n.finished_at IS NULL AND n.due_at <= p_now
      ORDER BY n.due_at LIMIT p_many) AS d
    WHERE d.kind <> 'signal' OR cardinality(v_unseen) < p_many OR NOT EXISTS (
      SELECT FROM horsies_next_signal(p_workflow, d.signal, d.signal_key, true) AS s WHERE s.sent_at < d.due_at)
    ORDER BY d.due_at);
  IF v_due <> '{}' THEN
    WITH due AS MATERIALIZED (SELECT p_workflow AS workflow_id, unnest(v_due) AS number)  -- see horsies_propagate
    UPDATE horsies_workflow_nodes n
    SET finished_at = p_now, value = CASE WHEN n.on_timeout = 'complete' THEN 'null'::jsonb END,
        status = CASE n.on_timeout WHEN 'complete' THEN 'COMPLETED' WHEN 'skip' THEN 'SKIPPED' ELSE 'FAILED' END,
        error_code = CASE WHEN n.on_timeout <> 'complete' THEN 'WAIT_TIMED_OUT' END,
        error = CASE WHEN n.on_timeout <> 'complete' THEN
                  CASE WHEN n.kind = 'gate' THEN 'nobody decided in time' ELSE format('no signal %L came in time', n.signal) END END
    FROM due d WHERE n.workflow_id = d.workflow_id AND n.number = d.number;
    moved := moved || v_due;
  END IF;
  more := cardinality(v_unseen) = p_many OR cardinality(v_due) = p_many;
END
$$;


--
-- Name: horsies_tasks_before(public.horsies_tasks, timestamp with time zone, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_tasks_before(p_task public.horsies_tasks, p_now timestamp with time zone, p_bound integer) RETURNS integer
    LANGUAGE plpgsql
    AS $$
BEGIN
  IF p_task.parked THEN
    RETURN (
      SELECT count(*) FROM (
        SELECT FROM horsies_tasks t
        WHERE t.queue_name = p_task.queue_name AND t.partition_key = p_task.partition_key AND t.lane = p_task.lane
          AND t.claimed_by IS NULL AND t.finished_at IS NULL AND t.parked
          AND (t.priority, t.enqueued_at, t.id) < (p_task.priority, p_task.enqueued_at, p_task.id)
        ORDER BY t.priority, t.enqueued_at, t.id LIMIT p_bound
      ) AS earlier);
  END IF;
  RETURN (
    SELECT count(*) FROM (
      SELECT FROM generate_series(1, p_task.priority) AS p (priority)
      CROSS JOIN LATERAL (
        SELECT FROM horsies_tasks t
        WHERE t.queue_name = p_task.queue_name AND t.lane = p_task.lane AND t.priority = p.priority
          AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
          AND (t.enqueued_at, t.id) < (CASE WHEN p.priority < p_task.priority THEN p_now ELSE p_task.enqueued_at END, p_task.id)
        ORDER BY t.enqueued_at, t.id LIMIT p_bound
      ) AS of_priority LIMIT p_bound
    ) AS earlier);
END
$$;


--
-- Name: horsies_tasks_holding_permits(text, integer, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_tasks_holding_permits(p_queue text, p_many integer, p_now timestamp with time zone) RETURNS SETOF public.horsies_tasks
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
  RETURN QUERY
  SELECT t.* FROM horsies_tasks t
  WHERE (t.queue_name = p_queue OR p_queue = '*') AND t.claimed_by IS NOT NULL AND t.finished_at IS NULL
    AND horsies_holds_permit(t.status, t.claim_expires_at, true, p_now)
  ORDER BY t.claimed_at, t.id LIMIT p_many;
END
$$;


--
-- Name: horsies_tasks_per_worker(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_tasks_per_worker() RETURNS TABLE(worker uuid, tasks integer)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
  RETURN QUERY
  SELECT t.claimed_by, count(*)::int FROM horsies_tasks t
  WHERE t.claimed_by IS NOT NULL AND t.finished_at IS NULL GROUP BY t.claimed_by;
END
$$;


--
-- Name: horsies_undo_result(uuid, jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_undo_result(p_workflow uuid, p_result jsonb) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
  v_data jsonb;
  v_left jsonb;
  v_names text;
BEGIN
  SELECT jsonb_strip_nulls(jsonb_build_object('node', p_result #> '{err,data,node}',
                                              'error_code', coalesce(p_result #> '{err,data,error_code}', p_result #> '{err,error_code}')))
         || jsonb_build_object('undone', count(*) FILTER (WHERE u.status = 'COMPLETED')),
         jsonb_agg(jsonb_build_object('node', n.name, 'error_code', coalesce(u.error_code, u.status)) ORDER BY u.finished_at, u.number)
           FILTER (WHERE u.status IN ('FAILED', 'CANCELLED', 'EXPIRED')),
         string_agg(n.name, ', ' ORDER BY u.finished_at, u.number) FILTER (WHERE u.status IN ('FAILED', 'CANCELLED', 'EXPIRED'))
  INTO v_data, v_left, v_names
  FROM horsies_workflow_nodes u JOIN horsies_workflow_nodes n ON n.workflow_id = p_workflow AND n.number = u.undoes
  WHERE u.workflow_id = p_workflow AND u.kind = 'undo';
  IF v_left IS NULL THEN
    RETURN jsonb_set(p_result, '{err,data}', v_data);
  END IF;
  RETURN jsonb_build_object('err', jsonb_build_object(
    'error_code', 'COMPENSATION_FAILED', 'message', left(concat('not undone: ', v_names, '; ', p_result #>> '{err,message}'), 10000),
    'data', v_data || jsonb_build_object('not_undone', v_left, 'cause', p_result -> 'err'), 'exception', NULL));
END
$$;


--
-- Name: horsies_unhold(uuid, integer, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_unhold(p_workflow uuid, p_many integer, p_channel text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_many int;
BEGIN
  UPDATE horsies_tasks t SET enqueued_at = t.next_retry_at
  WHERE t.id = ANY (ARRAY(
    SELECT h.id FROM horsies_tasks h
    WHERE h.workflow_id = p_workflow AND h.status = 'PENDING' AND h.enqueued_at > h.next_retry_at LIMIT p_many FOR NO KEY UPDATE));
  GET DIAGNOSTICS v_many = ROW_COUNT;
  IF v_many < p_many THEN
    PERFORM pg_notify(p_channel || '_new', extract(epoch FROM min(t.enqueued_at)) || ' ' || t.queue_name)
    FROM horsies_tasks t WHERE t.workflow_id = p_workflow AND t.status = 'PENDING' GROUP BY t.queue_name;
  END IF;
  RETURN v_many = p_many;
END
$$;


--
-- Name: horsies_unpark(public.horsies_limits[], text[], text[], integer[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_unpark(p_limits public.horsies_limits[], p_queues text[], p_keys text[], p_permits integer[] DEFAULT NULL::integer[]) RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_names text[] := ARRAY(
    SELECT l.queue_name FROM unnest(p_limits) AS l CROSS JOIN LATERAL (  -- as in horsies_waiting_queues
      SELECT FROM horsies_tasks p WHERE p.queue_name = l.queue_name AND p.claimed_by IS NULL AND p.finished_at IS NULL AND p.parked LIMIT 1) AS p
    WHERE (l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL) AND l.queue_name = ANY (p_queues));
  v_count int;
BEGIN
  IF v_names = '{}' THEN
    RETURN 0;
  END IF;
  UPDATE horsies_tasks t SET parked = false
  WHERE t.parked AND t.id = ANY (ARRAY(
    SELECT head.id
    FROM (
      SELECT u.queue, u.key, sum(coalesce(u.permits, 1)) AS permits FROM unnest(p_queues, p_keys, p_permits) AS u (queue, key, permits)
      WHERE u.queue = ANY (v_names) AND u.key IS NOT NULL GROUP BY u.queue, u.key
    ) AS freed
    CROSS JOIN (VALUES ('sync'), ('async')) AS lanes (lane)
    CROSS JOIN LATERAL (
      SELECT h.id FROM horsies_tasks h
      WHERE h.queue_name = freed.queue AND h.partition_key = freed.key AND h.lane = lanes.lane
        AND h.claimed_by IS NULL AND h.finished_at IS NULL AND h.parked
        AND (h.workflow_id IS NULL OR NOT EXISTS (SELECT FROM horsies_forbidding(h.workflow_id, h.node)))
      ORDER BY h.priority, h.enqueued_at, h.id LIMIT freed.permits FOR NO KEY UPDATE SKIP LOCKED
    ) AS head));
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END
$$;


--
-- Name: horsies_uuid7(integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_uuid7(p_place integer) RETURNS uuid
    LANGUAGE sql
    AS $$
  SELECT (overlay(lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 4096000)::bigint), 15, '0') PLACING '7' FROM 13 FOR 0)
          || '8' || lpad(to_hex(p_place & 16777215), 6, '0') || right(gen_random_uuid()::text, 9))::uuid
$$;


--
-- Name: horsies_waiting_queues(text[], text[], jsonb, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_waiting_queues(p_queues text[], p_lanes text[], p_cursors jsonb, p_behind timestamp with time zone, OUT names text[], OUT firsts jsonb) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  c_few CONSTANT int := 8;
  v_queue text := '';
  v_ended jsonb;
BEGIN
  names := '{}';
  firsts := '{}';
  IF p_cursors IS NULL AND cardinality(p_queues) > c_few THEN
    FOR i IN 0 .. cardinality(p_queues) LOOP
      SELECT t.queue_name INTO v_queue FROM horsies_tasks t
      WHERE t.queue_name > v_queue AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
      ORDER BY t.queue_name LIMIT 1;
      IF NOT FOUND THEN
        RETURN;
      ELSIF v_queue = ANY (p_queues) THEN
        names := names || v_queue;
      END IF;
    END LOOP;
  END IF;
  IF p_cursors IS NULL THEN
    names := ARRAY(
      SELECT q.name FROM unnest(p_queues) AS q (name) CROSS JOIN LATERAL (  -- an EXISTS may become a join that reads all tasks that wait
        SELECT FROM horsies_tasks t WHERE t.queue_name = q.name AND t.lane = ANY (p_lanes)
          AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked LIMIT 1) AS t);
    RETURN;
  END IF;
  v_ended := (SELECT jsonb_object_agg(l.lane, '{"end": true}'::jsonb) FROM unnest(p_lanes) AS l (lane));
  FOREACH v_queue IN ARRAY p_queues LOOP
    IF EXISTS (SELECT FROM unnest(p_lanes) AS l (lane)
               WHERE (horsies_first_waiting(v_queue, l.lane, 0::smallint, p_cursors, p_behind)).priority IS NOT NULL) THEN
      names := names || v_queue;
    ELSIF p_cursors ? v_queue THEN
      firsts := firsts || jsonb_build_object(v_queue, v_ended);
    END IF;
  END LOOP;
END
$$;


--
-- Name: horsies_wake(integer, integer, integer, text, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_wake(p_many integer, p_limit integer, p_max_bytes integer, p_channel text, p_now timestamp with time zone) RETURNS TABLE(workflow uuid, busy boolean, many integer, more boolean, finished boolean, parent uuid, halted text)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
  v_now timestamptz := coalesce(p_now, clock_timestamp());
  v_runs uuid[];
  v_waiting uuid[];
  v_numbers bigint[];
  v_woken uuid[];
BEGIN
  v_runs := ARRAY(
    SELECT w.id FROM horsies_workflow_nodes n JOIN horsies_workflows w ON w.id = n.workflow_id
    WHERE n.status = 'WAITING' AND n.finished_at IS NULL AND n.due_at <= v_now
    ORDER BY n.due_at LIMIT p_many FOR NO KEY UPDATE OF w SKIP LOCKED);
  SELECT array_agg(n.workflow_id), array_agg(n.number) INTO v_waiting, v_numbers FROM horsies_workflow_nodes n
  WHERE n.workflow_id = ANY (v_runs) AND n.status = 'WAITING' AND n.is_wait AND n.finished_at IS NULL AND n.due_at <= v_now;
  v_woken := horsies_plain_runs(v_waiting, v_numbers, NULL, p_limit);
  IF v_woken <> '{}' THEN
    PERFORM horsies_advance_plain(v_woken, v_waiting, v_numbers, p_max_bytes, p_channel, p_now);
  END IF;
  RETURN QUERY SELECT r.id, false, 1, false, false, NULL::uuid, NULL::text FROM unnest(v_woken) AS r (id);
  FOR workflow IN SELECT r.id FROM unnest(v_runs) AS r (id) EXCEPT SELECT r.id FROM unnest(v_woken) AS r (id) LOOP
    SELECT a.busy, a.many, a.more, a.finished, a.parent, a.halted INTO busy, many, more, finished, parent, halted
    FROM horsies_advance(workflow, '{}', '{}', p_limit, p_max_bytes, p_channel, p_now) AS a;
    RETURN NEXT;
  END LOOP;
END
$$;


--
-- Name: horsies_whole_pass(public.horsies_wanted, jsonb, jsonb, boolean, text[], text[], jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_whole_pass(p_wanted public.horsies_wanted, p_releases jsonb, p_starts jsonb, p_expired_leases boolean, p_freed text[], p_keys text[], p_report jsonb, OUT passed public.horsies_passed, OUT claims public.horsies_passed[], OUT durable boolean) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
  v_now timestamptz := p_wanted.now;  -- NULL: use the clock
  v_claiming boolean := p_wanted.sync > 0 OR p_wanted.async > 0 OR p_wanted.prefetch > 0;
  v_cluster horsies_limits;
  v_written record;
  v_looked_at timestamptz;
  v_waiting record;
  v_active text[] := '{}';  -- queues with tasks to claim or start
  v_limits horsies_limits[];  -- of these, and of those with freed permits
  v_live horsies_limits[];  -- of those whose caps are locked if they have any
  v_limit horsies_limits;
  v_partitioned boolean;
  v_capped boolean;
  v_rooms record;
  v_taker horsies_workers;
  v_claimed record;
  v_used text[];
BEGIN
  durable := p_wanted.durable;
  SELECT l.* INTO v_cluster FROM horsies_limits l WHERE l.queue_name = '*';
  IF EXISTS (SELECT FROM horsies_heartbeats b WHERE b.id = p_wanted.worker AND b.died_at IS NOT NULL) THEN
    passed.dead := true;  -- its tasks are given to other workers
    v_claiming := false;
    p_starts := NULL;
  END IF;
  IF p_releases IS NOT NULL THEN
    v_written := horsies_release(p_wanted, p_releases, true);
    p_freed := p_freed || v_written.queues;
    p_keys := p_keys || v_written.keys;
    p_wanted.behind := v_written.earliest;
    p_report := p_report || jsonb_build_object('missed', coalesce(p_report -> 'missed', '[]') || to_jsonb(v_written.missed));
  END IF;
  IF p_expired_leases THEN
    p_wanted.behind := least(p_wanted.behind, (horsies_release(p_wanted, NULL, false)).earliest);
  END IF;

  IF v_claiming THEN
    IF p_wanted.cursors IS NOT NULL THEN  -- unparking sends no notification
      p_wanted.cursors := p_wanted.cursors - ARRAY(
        SELECT l.queue_name::text FROM horsies_limits l WHERE l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL);
    END IF;
    v_looked_at := coalesce(v_now, clock_timestamp());
    v_waiting := horsies_waiting_queues(
      p_wanted.queues, CASE WHEN p_wanted.async = 0 THEN '{sync}' WHEN p_wanted.sync + p_wanted.prefetch = 0 THEN '{async}' ELSE '{sync,async}' END::text[],
      p_wanted.cursors, p_wanted.behind);
    v_active := v_waiting.names;
    IF v_waiting.firsts <> '{}' THEN
      p_report := p_report || jsonb_build_object('idle', v_waiting.firsts, 'looked_at', extract(epoch FROM v_looked_at));
    END IF;
  END IF;
  IF p_starts IS NOT NULL THEN
    v_active := v_active || ARRAY(
      SELECT t.queue_name::text FROM horsies_tasks t
      WHERE t.id = ANY (ARRAY(SELECT (s.value ->> 'id')::uuid FROM jsonb_array_elements(p_starts) AS s)));
  END IF;
  SELECT coalesce(array_agg(l ORDER BY l.priority, l.queue_name), '{}'),
         coalesce(array_agg(l ORDER BY l.priority, l.queue_name) FILTER (
           WHERE coalesce(l.max_concurrency <> 0, true) AND (l.queue_name = ANY (v_active) OR (p.partitioned AND l.queue_name = ANY (p_freed)))), '{}'),
         coalesce(bool_or(p.partitioned), false), coalesce(bool_or(p.partitioned OR l.max_concurrency IS NOT NULL), false)
  INTO v_limits, v_live, v_partitioned, v_capped
  FROM horsies_limits l CROSS JOIN LATERAL (
    SELECT l.partition_max_concurrency IS NOT NULL OR l.partition_local_limit IS NOT NULL AS partitioned) AS p
  WHERE l.queue_name = ANY (
    v_active || ARRAY(SELECT f.queue FROM unnest(p_freed) AS f (queue) WHERE f.queue = ANY (p_wanted.queues)));  -- it claims from its own only
  v_capped := v_capped OR v_cluster.max_concurrency IS NOT NULL;

  IF v_capped AND v_live <> '{}' THEN
    PERFORM horsies_lock_caps(v_live, v_cluster.max_concurrency);
  END IF;
  p_wanted.now := coalesce(v_now, clock_timestamp());  -- after the locks
  IF v_partitioned AND p_freed <> '{}' THEN
    PERFORM horsies_unpark(v_live, p_freed, p_keys);
  END IF;
  IF p_starts IS NOT NULL THEN
    v_written := horsies_start(p_wanted, v_limits, coalesce(v_cluster.max_concurrency = 0, false), p_starts);
    durable := durable OR v_written.expired IS NOT NULL OR v_written.returned IS NOT NULL;
    p_wanted.behind := least(p_wanted.behind, v_written.earliest);
    p_report := p_report || jsonb_build_object('started', v_written.started, 'expired', v_written.expired, 'returned', v_written.returned);
  END IF;
  IF v_claiming AND v_live <> '{}' THEN
    v_rooms := horsies_remaining_capacity(v_live, p_wanted.worker, p_wanted.lease IS NULL, p_wanted.now, p_wanted.cursors);
    IF p_wanted.batch > 0 THEN
      v_rooms.rooms := ARRAY(SELECT least(r.room, p_wanted.batch) FROM unnest(v_rooms.rooms) WITH ORDINALITY AS r (room, place) ORDER BY r.place);
    END IF;
    IF v_cluster.max_concurrency IS NOT NULL THEN
      p_wanted.total := least(p_wanted.total, (horsies_remaining_capacity(ARRAY[v_cluster], NULL, true, p_wanted.now, NULL)).rooms[1]);
    END IF;
    IF p_wanted.grace IS NOT NULL THEN
      SELECT w.* INTO v_taker FROM horsies_workers w WHERE w.id = p_wanted.worker;
      IF v_taker.task_names IS NOT NULL THEN  -- looked up for every task: fast among the keys of an object
        v_taker.task_names := coalesce((SELECT jsonb_object_agg(n.name, 1) FROM jsonb_array_elements_text(v_taker.task_names) AS n (name)), '{}');
      END IF;
      p_wanted.taker := v_taker;
    END IF;
    v_claimed := horsies_claim(p_wanted, v_live, v_rooms.rooms);
    claims := v_claimed.claims;
    durable := durable OR v_claimed.late;
    passed.due_in := extract(epoch FROM v_claimed.due - clock_timestamp());
    passed.limited := v_claimed.limited;
    passed.again := v_claimed.again;
    IF v_claimed.firsts <> '{}' OR v_rooms.held <> '{}' THEN
      p_report := jsonb_build_object('firsts', v_claimed.firsts, 'held', v_rooms.held, 'looked_at', extract(epoch FROM p_wanted.now)) || p_report;
    END IF;
  END IF;

  IF v_capped AND p_freed <> '{}' THEN  -- permits that were freed here and not used again: nothing else wakes other workers for them
    v_used := ARRAY(SELECT c.queue_name FROM unnest(claims) AS c WHERE c.kind = 'start');
    IF v_cluster.max_concurrency IS NOT NULL THEN  -- other workers' queues use the same permits
      IF cardinality(p_freed) > cardinality(v_used)
        AND horsies_count_due(ARRAY(SELECT l.queue_name::text FROM horsies_limits l WHERE l.queue_name <> '*'), '{sync,async}', 1,
                              p_wanted.cursors, p_wanted.behind) > 0
      THEN
        PERFORM pg_notify(p_wanted.channel || '_new', '0 *');
      END IF;
    ELSE
      FOREACH v_limit IN ARRAY v_limits LOOP
        IF (v_limit.max_concurrency > 0 OR v_limit.partition_max_concurrency IS NOT NULL)
          AND cardinality(array_positions(p_freed, v_limit.queue_name::text)) > cardinality(array_positions(v_used, v_limit.queue_name::text))
          AND horsies_count_due(ARRAY[v_limit.queue_name], '{sync,async}', 1, p_wanted.cursors, p_wanted.behind) > 0
        THEN
          PERFORM pg_notify(p_wanted.channel || '_new', '0 ' || v_limit.queue_name);
        END IF;
      END LOOP;
    END IF;
  END IF;
  passed.kind := 'whole';
  passed.report := nullif(p_report, '{}');
END
$$;


--
-- Name: horsies_withdraw(uuid, bigint, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_withdraw(p_workflow uuid, p_number bigint, p_many integer) RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
  c_held CONSTANT timestamptz := '9999-01-01 00:00+00';
  v_many int;
  v_held int := 0;
BEGIN
  WITH waiting AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
    WHERE t.workflow_id = p_workflow AND t.node IS NOT NULL AND (p_number IS NULL OR t.node = p_number)
      AND t.status = 'PENDING' AND t.retry_count = 0
    LIMIT p_many FOR UPDATE SKIP LOCKED
  ), withdrawn AS (
    DELETE FROM horsies_tasks t WHERE t.id = ANY (ARRAY(SELECT w.id FROM waiting w)) RETURNING t.workflow_id, t.node, t.node_index
  ), counted AS (
    SELECT w.workflow_id, w.node, min(w.node_index) AS first, count(*)::int AS many FROM withdrawn w GROUP BY w.workflow_id, w.node
  ), freed AS (
    UPDATE horsies_workflow_nodes n
    SET status = 'READY', task_id = NULL, expanded = CASE WHEN n.kind IN ('map', 'undo') THEN least(n.expanded, c.first) ELSE 0 END,
        in_flight = CASE WHEN n.kind IN ('map', 'undo') THEN n.in_flight - c.many ELSE 0 END
    FROM counted c WHERE n.workflow_id = c.workflow_id AND n.number = c.node AND n.status IN ('READY', 'ENQUEUED')
  )
  SELECT coalesce(sum(c.many), 0) INTO v_many FROM counted c;
  IF p_number IS NULL THEN
    UPDATE horsies_tasks t SET enqueued_at = c_held, parked = false
    WHERE t.id = ANY (ARRAY(
      SELECT h.id FROM horsies_tasks h
      WHERE h.workflow_id = p_workflow AND h.status = 'PENDING' AND h.next_retry_at IS NOT NULL AND h.enqueued_at < c_held
      LIMIT p_many - v_many FOR NO KEY UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_held = ROW_COUNT;
  END IF;
  RETURN v_many + v_held;
END
$$;


--
-- Name: horsies_worker_knows(text, jsonb, public.horsies_workers); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_worker_knows(p_name text, p_options jsonb, p_taker public.horsies_workers) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
  SELECT coalesce(p_taker.task_names ? p_name, true) AND CASE jsonb_typeof(p_options -> 'wire')
    WHEN 'number' THEN (p_options -> 'wire')::numeric <= coalesce(p_taker.wire, 1) ELSE true END
$$;


--
-- Name: horsies_worker_state(timestamp with time zone, timestamp with time zone, timestamp with time zone, interval); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_worker_state(p_stopped timestamp with time zone, p_beat timestamp with time zone, p_died timestamp with time zone, p_threshold interval) RETURNS text
    LANGUAGE sql STABLE
    AS $$
  SELECT CASE WHEN p_stopped IS NOT NULL THEN 'stopped'
              WHEN p_beat IS NULL OR p_died IS NOT NULL THEN 'dead'
              WHEN p_beat < statement_timestamp() - p_threshold THEN 'stale'
              ELSE 'living' END
$$;


--
-- Name: horsies_workers_serving(text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.horsies_workers_serving(p_queue text) RETURNS SETOF uuid
    LANGUAGE sql STABLE ROWS 10
    AS $$
  SELECT w.id FROM horsies_workers w JOIN horsies_heartbeats b ON b.id = w.id
  WHERE b.died_at IS NULL AND w.stopped_at IS NULL AND (p_queue = '*' OR w.queues ? p_queue)
$$;


--
-- Name: auth_group; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.auth_group (
    id integer NOT NULL,
    name character varying(150) NOT NULL
);


--
-- Name: auth_group_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.auth_group ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.auth_group_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: auth_group_permissions; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.auth_group_permissions (
    id bigint NOT NULL,
    group_id integer NOT NULL,
    permission_id integer NOT NULL
);


--
-- Name: auth_group_permissions_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.auth_group_permissions ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.auth_group_permissions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: auth_permission; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.auth_permission (
    id integer NOT NULL,
    name character varying(255) NOT NULL,
    content_type_id integer NOT NULL,
    codename character varying(100) NOT NULL
);


--
-- Name: auth_permission_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.auth_permission ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.auth_permission_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: auth_user; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.auth_user (
    id integer NOT NULL,
    password character varying(128) NOT NULL,
    last_login timestamp with time zone,
    is_superuser boolean NOT NULL,
    username character varying(150) NOT NULL,
    first_name character varying(150) NOT NULL,
    last_name character varying(150) NOT NULL,
    email character varying(254) NOT NULL,
    is_staff boolean NOT NULL,
    is_active boolean NOT NULL,
    date_joined timestamp with time zone NOT NULL
);


--
-- Name: auth_user_groups; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.auth_user_groups (
    id bigint NOT NULL,
    user_id integer NOT NULL,
    group_id integer NOT NULL
);


--
-- Name: auth_user_groups_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.auth_user_groups ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.auth_user_groups_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: auth_user_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.auth_user ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.auth_user_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: auth_user_user_permissions; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.auth_user_user_permissions (
    id bigint NOT NULL,
    user_id integer NOT NULL,
    permission_id integer NOT NULL
);


--
-- Name: auth_user_user_permissions_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.auth_user_user_permissions ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.auth_user_user_permissions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: django_content_type; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.django_content_type (
    id integer NOT NULL,
    app_label character varying(100) NOT NULL,
    model character varying(100) NOT NULL
);


--
-- Name: django_content_type_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.django_content_type ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.django_content_type_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: django_migrations; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.django_migrations (
    id bigint NOT NULL,
    app character varying(255) NOT NULL,
    name character varying(255) NOT NULL,
    applied timestamp with time zone NOT NULL
);


--
-- Name: django_migrations_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.django_migrations ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.django_migrations_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: horsies_audit; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_audit (
    id uuid NOT NULL,
    at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    actor text NOT NULL,
    action character varying(50) NOT NULL,
    subject text NOT NULL,
    reason text,
    before jsonb,
    after jsonb
);


--
-- Name: horsies_heartbeats; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_heartbeats (
    id uuid NOT NULL,
    worker_id uuid NOT NULL,
    role character varying(7) NOT NULL,
    pid integer NOT NULL,
    sent_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    died_at timestamp with time zone,
    holding jsonb,
    team bigint,
    listens boolean DEFAULT false NOT NULL,
    CONSTRAINT horsies_heartbeats_role CHECK (((role)::text = ANY ((ARRAY['claimer'::character varying, 'runner'::character varying])::text[])))
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='100', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='100');


--
-- Name: horsies_lost_records; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_lost_records (
    kind character varying(10) NOT NULL,
    at timestamp with time zone NOT NULL,
    what text NOT NULL,
    error text NOT NULL
);


--
-- Name: horsies_prunings; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_prunings (
    key character varying(100) NOT NULL,
    reached_at timestamp with time zone,
    left_at timestamp with time zone,
    began_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    pruned_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL
);


--
-- Name: horsies_schedule_ticks; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_schedule_ticks (
    schedule_name character varying(255) NOT NULL,
    fire_at timestamp with time zone NOT NULL,
    task_id uuid NOT NULL,
    sent_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL
);


--
-- Name: horsies_schedules; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_schedules (
    name character varying(255) NOT NULL,
    declared jsonb DEFAULT '{}'::jsonb NOT NULL,
    declared_in text,
    declared_at timestamp with time zone,
    gone_at timestamp with time zone,
    changes jsonb DEFAULT '{}'::jsonb NOT NULL,
    since timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    last_fire_at timestamp with time zone,
    next_fire_at timestamp with time zone,
    next_at timestamp with time zone,
    rules smallint,
    error text,
    error_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    updated_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    CONSTRAINT horsies_schedules_fits CHECK (((jsonb_typeof(declared) = 'object'::text) AND (NOT jsonb_path_exists(declared, '$.**{500 to last}'::jsonpath)) AND (NOT jsonb_path_exists(declared, '$.**?(@.type() == "number" && (@ > 10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000 || @ < -10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000))'::jsonpath)) AND (jsonb_typeof(changes) = 'object'::text) AND (NOT jsonb_path_exists(changes, '$.**{500 to last}'::jsonpath)) AND (NOT jsonb_path_exists(changes, '$.**?(@.type() == "number" && (@ > 10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000 || @ < -10000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000))'::jsonpath)) AND (LEAST(since, last_fire_at, next_fire_at, next_at, declared_at, gone_at, error_at, created_at, updated_at) > '0003-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(since, last_fire_at, next_fire_at, next_at, declared_at, gone_at, error_at, created_at, updated_at) < '9000-01-01 00:00:00+00'::timestamp with time zone)))
);


--
-- Name: horsies_task_attempts; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_task_attempts (
    task_id uuid NOT NULL,
    attempt smallint NOT NULL,
    claim_generation integer NOT NULL,
    outcome character varying(14) NOT NULL,
    will_retry boolean DEFAULT false NOT NULL,
    started_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone NOT NULL,
    error_code character varying(100),
    error_message text,
    exception_class text,
    traceback text,
    worker_id uuid,
    child_pid integer,
    CONSTRAINT horsies_task_attempts_outcome CHECK (((outcome)::text = ANY ((ARRAY['COMPLETED'::character varying, 'FAILED'::character varying, 'CANCELLED'::character varying, 'WORKER_FAILURE'::character varying])::text[])))
);


--
-- Name: horsies_task_steps; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_task_steps (
    task_id uuid NOT NULL,
    name character varying(200) NOT NULL,
    digest character varying(32) NOT NULL,
    result jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL
);


--
-- Name: horsies_waiters; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_waiters (
    id uuid NOT NULL,
    expires_at timestamp with time zone NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='100', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='100');


--
-- Name: horsies_worker_states; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_worker_states (
    id uuid NOT NULL,
    worker_id uuid NOT NULL,
    snapshot_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    running_sync integer NOT NULL,
    running_async integer NOT NULL,
    buffered integer NOT NULL,
    children integer NOT NULL,
    memory_usage_mb double precision NOT NULL,
    children_memory_mb double precision NOT NULL,
    cpu_percent double precision
);


--
-- Name: horsies_workflow_edges; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_workflow_edges (
    workflow_id uuid NOT NULL,
    upstream bigint NOT NULL,
    downstream bigint NOT NULL,
    counts boolean DEFAULT true NOT NULL
);


--
-- Name: horsies_workflow_node_numbers; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.horsies_workflow_node_numbers
    START WITH 1000000
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: horsies_workflow_signals; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.horsies_workflow_signals (
    id uuid NOT NULL,
    workflow_id uuid NOT NULL,
    name character varying(200) NOT NULL,
    key character varying(255),
    data jsonb NOT NULL,
    actor text NOT NULL,
    sent_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    seen_at timestamp with time zone,
    node bigint,
    used_at timestamp with time zone
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000');


--
-- Data for Name: auth_group; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: auth_group_permissions; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: auth_permission; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.auth_permission VALUES
	(1, 'Can add permission', 1, 'add_permission'),
	(2, 'Can change permission', 1, 'change_permission'),
	(3, 'Can delete permission', 1, 'delete_permission'),
	(4, 'Can view permission', 1, 'view_permission'),
	(5, 'Can add group', 2, 'add_group'),
	(6, 'Can change group', 2, 'change_group'),
	(7, 'Can delete group', 2, 'delete_group'),
	(8, 'Can view group', 2, 'view_group'),
	(9, 'Can add user', 3, 'add_user'),
	(10, 'Can change user', 3, 'change_user'),
	(11, 'Can delete user', 3, 'delete_user'),
	(12, 'Can view user', 3, 'view_user'),
	(13, 'Can add content type', 4, 'add_contenttype'),
	(14, 'Can change content type', 4, 'change_contenttype'),
	(15, 'Can delete content type', 4, 'delete_contenttype'),
	(16, 'Can view content type', 4, 'view_contenttype'),
	(17, 'Can view task', 5, 'view_task'),
	(18, 'Can retry, cancel and delete tasks', 5, 'operate_task'),
	(19, 'Can see arguments, results and tracebacks of tasks', 5, 'view_payload'),
	(20, 'Can view attempt', 6, 'view_taskattempt'),
	(21, 'Can view queue', 8, 'view_queue'),
	(22, 'Can change limits, pause queues and edit schedules', 8, 'configure_queue'),
	(23, 'Can view worker', 10, 'view_worker'),
	(24, 'Can view heartbeat', 11, 'view_heartbeat'),
	(25, 'Can view schedule', 13, 'view_schedule'),
	(26, 'Can view audit entry', 18, 'view_auditentry'),
	(27, 'Can view workflow', 21, 'view_workflowrun'),
	(28, 'Can pause, resume, cancel and retry workflows', 21, 'operate_workflow');


--
-- Data for Name: auth_user; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: auth_user_groups; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: auth_user_user_permissions; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: django_content_type; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.django_content_type VALUES
	(1, 'auth', 'permission'),
	(2, 'auth', 'group'),
	(3, 'auth', 'user'),
	(4, 'contenttypes', 'contenttype'),
	(5, 'horsies', 'task'),
	(6, 'horsies', 'taskattempt'),
	(7, 'horsies', 'taskstep'),
	(8, 'horsies', 'queue'),
	(9, 'horsies', 'queuelimits'),
	(10, 'horsies', 'worker'),
	(11, 'horsies', 'heartbeat'),
	(12, 'horsies', 'workerstate'),
	(13, 'horsies', 'schedule'),
	(14, 'horsies', 'scheduletick'),
	(15, 'horsies', 'waiter'),
	(16, 'horsies', 'pruning'),
	(17, 'horsies', 'lostrecord'),
	(18, 'horsies', 'auditentry'),
	(19, 'horsies', 'workflowedge'),
	(20, 'horsies', 'workflownode'),
	(21, 'horsies', 'workflowrun'),
	(22, 'horsies', 'workflowsignal');


--
-- Data for Name: django_migrations; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.django_migrations VALUES
	(1, 'contenttypes', '0001_initial', '2026-11-26 09:10:44.531838+00'),
	(2, 'contenttypes', '0002_remove_content_type_name', '2026-11-26 09:10:44.537916+00'),
	(3, 'auth', '0001_initial', '2026-11-26 09:10:44.594375+00'),
	(4, 'auth', '0002_alter_permission_name_max_length', '2026-11-26 09:10:44.6024+00'),
	(5, 'auth', '0003_alter_user_email_max_length', '2026-11-26 09:10:44.607573+00'),
	(6, 'auth', '0004_alter_user_username_opts', '2026-11-26 09:10:44.610807+00'),
	(7, 'auth', '0005_alter_user_last_login_null', '2026-11-26 09:10:44.614459+00'),
	(8, 'auth', '0006_require_contenttypes_0002', '2026-11-26 09:10:44.614936+00'),
	(9, 'auth', '0007_alter_validators_add_error_messages', '2026-11-26 09:10:44.617995+00'),
	(10, 'auth', '0008_alter_user_username_max_length', '2026-11-26 09:10:44.624087+00'),
	(11, 'auth', '0009_alter_user_last_name_max_length', '2026-11-26 09:10:44.629503+00'),
	(12, 'auth', '0010_alter_group_name_max_length', '2026-11-26 09:10:44.634947+00'),
	(13, 'auth', '0011_update_proxy_permissions', '2026-11-26 09:10:44.640419+00'),
	(14, 'auth', '0012_alter_user_first_name_max_length', '2026-11-26 09:10:44.645454+00'),
	(15, 'horsies', '0001_initial', '2026-11-26 09:10:44.821872+00'),
	(16, 'horsies', '0002_functions', '2026-11-26 09:10:44.856813+00');


--
-- Data for Name: horsies_audit; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.horsies_audit VALUES
	('01a2171f-1d9f-7f1a-8000-0005a81bd737', '2026-11-26 09:10:44.896006+00', 'migrate', 'queue.declare', 'former', NULL, NULL, NULL),
	('01a2171f-1da2-7035-8000-000fc7e47aa3', '2026-11-26 09:10:44.898034+00', 'migrate', 'queue.declare', 'latter', NULL, NULL, NULL),
	('01a2171f-1da4-7872-8000-000efa20da25', '2026-11-26 09:10:44.900547+00', 'migrate', 'queue.declare', 'tenants', NULL, '{"partition_by_args": null, "partition_max_concurrency": null}', '{"partition_by_args": ["tenant"], "partition_max_concurrency": 1}'),
	('01a2171f-1da6-7097-8000-0009ee4773b0', '2026-11-26 09:10:44.902055+00', 'migrate', 'queue.declare', 'default', NULL, NULL, NULL),
	('01a2171f-1da7-7839-8000-000f6a1a9b47', '2026-11-26 09:10:44.90353+00', 'migrate', 'queue.declare', '*', NULL, NULL, NULL),
	('01a2171f-2439-7cfd-8000-00037df89b99', '2026-11-26 09:10:46.585877+00', 'code', 'workflow.pause', '01a2171f-242d-74e0-8967-8b69917cd2c0', NULL, NULL, '{"after": "PAUSED", "before": "RUNNING"}');


--
-- Data for Name: horsies_heartbeats; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.horsies_heartbeats VALUES
	('9298cf3a-e3bf-4d11-bf48-1f5269a05586', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 'runner', 28082, '2026-11-26 09:10:45.54496+00', NULL, '[]', NULL, false),
	('982185cc-fe45-49a8-b61d-06e2fba310bb', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 'runner', 28083, '2026-11-26 09:10:45.54496+00', NULL, '[]', NULL, false),
	('01a2171f-1fbc-73f2-bdfb-bd4422b0a194', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 'claimer', 28070, '2026-11-26 09:10:46.521566+00', NULL, NULL, -113399804765693287, true);


--
-- Data for Name: horsies_limits; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.horsies_limits VALUES
	(100, NULL, NULL, NULL, false, 0, NULL, NULL, 'former'),
	(100, NULL, NULL, NULL, false, 0, NULL, NULL, 'latter'),
	(100, NULL, NULL, '["tenant"]', false, 1, 1, NULL, 'tenants'),
	(100, NULL, NULL, NULL, false, 0, NULL, NULL, 'default'),
	(100, NULL, NULL, NULL, false, 0, NULL, NULL, '*');


--
-- Data for Name: horsies_lost_records; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: horsies_prunings; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: horsies_queues; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.horsies_queues VALUES
	('*', 100, '2026-11-26 09:10:44.9026+00', '2026-11-26 09:10:44.90303+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL),
	('former', 100, '2026-11-26 09:10:44.892663+00', '2026-11-26 09:10:44.894444+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, NULL, 0, NULL, NULL, NULL, '2026-11-26 09:10:45.574416+00', NULL),
	('latter', 100, '2026-11-26 09:10:44.897063+00', '2026-11-26 09:10:44.897556+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, NULL, 0, NULL, NULL, NULL, '2026-11-26 09:10:45.574438+00', NULL),
	('tenants', 100, '2026-11-26 09:10:44.898612+00', '2026-11-26 09:10:44.899023+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, '["tenant"]', false, NULL, 1, 1, NULL, NULL, NULL, '2026-11-26 09:10:45.574441+00', NULL),
	('default', 100, '2026-11-26 09:10:44.901142+00', '2026-11-26 09:10:44.901596+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, NULL, 0, NULL, NULL, NULL, '2026-11-26 09:10:45.574443+00', NULL);


--
-- Data for Name: horsies_schedule_ticks; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: horsies_schedules; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: horsies_task_attempts; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.horsies_task_attempts VALUES
	('01a2171f-1dc7-72e6-ac0c-bc7b143d2348', 1, 1, 'COMPLETED', false, '2026-11-26 09:10:45.560433+00', '2026-11-26 09:10:45.572458+00', NULL, NULL, NULL, NULL, '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 28082),
	('01a2171f-2055-7418-8000-001c3a74d3ae', 1, 1, 'COMPLETED', false, '2026-11-26 09:10:45.592678+00', '2026-11-26 09:10:45.59738+00', NULL, NULL, NULL, NULL, '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 28082),
	('01a2171f-2065-702d-8000-0013bf91525d', 1, 1, 'COMPLETED', false, '2026-11-26 09:10:45.608345+00', '2026-11-26 09:10:45.610167+00', NULL, NULL, NULL, NULL, '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 28082),
	('01a2171f-240c-701c-8000-000336f05fcd', 1, 1, 'COMPLETED', false, '2026-11-26 09:10:46.544834+00', '2026-11-26 09:10:46.547229+00', NULL, NULL, NULL, NULL, '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 28082),
	('01a2171f-240c-7e93-8000-0024d559ff0c', 1, 1, 'COMPLETED', false, '2026-11-26 09:10:46.544834+00', '2026-11-26 09:10:46.547229+00', NULL, NULL, NULL, NULL, '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 28082),
	('01a2171f-240c-7db6-8000-001381bdab61', 1, 1, 'COMPLETED', false, '2026-11-26 09:10:46.544834+00', '2026-11-26 09:10:46.547229+00', NULL, NULL, NULL, NULL, '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 28083),
	('01a2171f-2419-76c4-8000-001383782b16', 1, 1, 'COMPLETED', false, '2026-11-26 09:10:46.55516+00', '2026-11-26 09:10:46.556611+00', NULL, NULL, NULL, NULL, '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 28082),
	('01a2171f-2420-7293-9c20-e1a61bc53187', 1, 1, 'FAILED', false, '2026-11-26 09:10:46.561433+00', '2026-11-26 09:10:46.564766+00', 'UNHANDLED_ERROR', 'LookupError: no 1', 'builtins.LookupError', 'Traceback (most recent call last):
  File "/srv/site/horsies_django/worker/child/run_task.py", line 91, in sync_reply
    value = call(run, task, args, keywords)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/srv/site/horsies_django/worker/child/middleware.py", line 42, in call
    return task.function(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/srv/site/tests/upgrades/site/tasks.py", line 22, in fails
    raise LookupError(f"no {number}")
LookupError: no 1
', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 28082),
	('01a2171f-242c-760c-8000-0017fbc503be', 1, 1, 'COMPLETED', false, '2026-11-26 09:10:46.573295+00', '2026-11-26 09:10:46.574725+00', NULL, NULL, NULL, NULL, '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 28082),
	('01a2171f-242e-78a3-8000-001bef2f357a', 1, 1, 'COMPLETED', false, '2026-11-26 09:10:46.575593+00', '2026-11-26 09:10:46.578873+00', NULL, NULL, NULL, NULL, '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 28082),
	('01a2171f-243a-77b2-be40-d8af33e4a9fc', 1, 1, 'FAILED', true, '2026-11-26 09:10:46.587657+00', '2026-11-26 09:10:46.609523+00', 'UNHANDLED_ERROR', 'LookupError: no second step yet', 'builtins.LookupError', 'Traceback (most recent call last):
  File "/srv/site/horsies_django/worker/child/run_task.py", line 91, in sync_reply
    value = call(run, task, args, keywords)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/srv/site/horsies_django/worker/child/middleware.py", line 42, in call
    return task.function(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/srv/site/tests/upgrades/site/tasks.py", line 42, in steps
    raise LookupError("no second step yet")
LookupError: no second step yet
', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 28082);


--
-- Data for Name: horsies_task_steps; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.horsies_task_steps VALUES
	('01a2171f-243a-77b2-be40-d8af33e4a9fc', 'first', '8cf74f876a476a09ed70d7ea01d1c31f', '2', '2026-11-26 09:10:46.60263+00');


--
-- Data for Name: horsies_tasks; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.horsies_tasks VALUES
	('01a2171f-1dc7-72e6-ac0c-bc7b143d2348', 'tests.upgrades.site.tasks.add', 'former', 'sync', 100, '{"a":1,"b":2}', NULL, NULL, 'COMPLETED', NULL, 0, false, '2026-11-26 09:10:44.936455+00', '2026-11-26 09:10:44.936455+00', NULL, '2026-11-26 09:10:45.560433+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:45.560433+00', '2026-11-26 09:10:45.572458+00', NULL, 0, 0, NULL, '{"ok":3}', NULL, false, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2055-7418-8000-001c3a74d3ae', 'tests.upgrades.site.tasks.double', 'latter', 'sync', 100, '{"n": 1}', NULL, NULL, 'COMPLETED', NULL, 0, false, '2026-11-26 09:10:45.587022+00', '2026-11-26 09:10:45.579797+00', NULL, '2026-11-26 09:10:45.592678+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:45.592678+00', '2026-11-26 09:10:45.59738+00', NULL, 0, 0, NULL, '{"ok":2}', NULL, false, NULL, NULL, '01a2171f-204a-739f-a4e6-fec43e4f82e0', 0, 0, '2026-11-26 09:10:45.59738+00'),
	('01a2171f-2065-702d-8000-0013bf91525d', 'tests.upgrades.site.tasks.add', 'former', 'sync', 100, '{"a": 2, "b": 1}', NULL, NULL, 'COMPLETED', NULL, 0, false, '2026-11-26 09:10:45.601921+00', '2026-11-26 09:10:45.597267+00', NULL, '2026-11-26 09:10:45.608345+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:45.608345+00', '2026-11-26 09:10:45.610167+00', NULL, 0, 0, NULL, '{"ok":3}', NULL, false, NULL, NULL, '01a2171f-204a-739f-a4e6-fec43e4f82e0', 1, 0, '2026-11-26 09:10:45.612656+00'),
	('01a2171f-240c-701c-8000-000336f05fcd', 'tests.upgrades.site.tasks.double', 'latter', 'sync', 100, '{"n": 1}', NULL, NULL, 'COMPLETED', NULL, 0, false, '2026-11-26 09:10:46.536633+00', '2026-11-26 09:10:46.524127+00', NULL, '2026-11-26 09:10:46.544834+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:46.544834+00', '2026-11-26 09:10:46.547229+00', NULL, 0, 0, NULL, '{"ok":2}', NULL, false, NULL, NULL, '01a2171f-204a-739f-a4e6-fec43e4f82e0', 3, 0, '2026-11-26 09:10:46.549423+00'),
	('01a2171f-240c-7db6-8000-001381bdab61', 'tests.upgrades.site.tasks.double', 'latter', 'sync', 100, '{"n": 2}', NULL, NULL, 'COMPLETED', NULL, 0, false, '2026-11-26 09:10:46.536633+00', '2026-11-26 09:10:46.524127+00', NULL, '2026-11-26 09:10:46.544834+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:46.544834+00', '2026-11-26 09:10:46.547229+00', NULL, 0, 0, NULL, '{"ok":4}', NULL, false, NULL, NULL, '01a2171f-204a-739f-a4e6-fec43e4f82e0', 3, 1, '2026-11-26 09:10:46.549423+00'),
	('01a2171f-240c-7e93-8000-0024d559ff0c', 'tests.upgrades.site.tasks.double', 'latter', 'sync', 100, '{"n": 3}', NULL, NULL, 'COMPLETED', NULL, 0, false, '2026-11-26 09:10:46.536633+00', '2026-11-26 09:10:46.524127+00', NULL, '2026-11-26 09:10:46.544834+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:46.544834+00', '2026-11-26 09:10:46.547229+00', NULL, 0, 0, NULL, '{"ok":6}', NULL, false, NULL, NULL, '01a2171f-204a-739f-a4e6-fec43e4f82e0', 3, 2, '2026-11-26 09:10:46.549423+00'),
	('01a2171f-2419-76c4-8000-001383782b16', 'tests.upgrades.site.tasks.total', 'former', 'sync', 100, '{"values": [2, 4, 6]}', NULL, NULL, 'COMPLETED', NULL, 0, false, '2026-11-26 09:10:46.551731+00', '2026-11-26 09:10:46.54935+00', NULL, '2026-11-26 09:10:46.55516+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:46.55516+00', '2026-11-26 09:10:46.556611+00', NULL, 0, 0, NULL, '{"ok":12}', NULL, false, NULL, NULL, '01a2171f-204a-739f-a4e6-fec43e4f82e0', 4, 0, '2026-11-26 09:10:46.556611+00'),
	('01a2171f-2420-7293-9c20-e1a61bc53187', 'tests.upgrades.site.tasks.fails', 'former', 'sync', 100, '{"number":1}', NULL, NULL, 'FAILED', NULL, 0, false, '2026-11-26 09:10:46.560343+00', '2026-11-26 09:10:46.560343+00', NULL, '2026-11-26 09:10:46.561433+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:46.561433+00', '2026-11-26 09:10:46.564766+00', NULL, 0, 0, NULL, '{"err":{"error_code":"UNHANDLED_ERROR","message":"LookupError: no 1","exception":{"type":"LookupError","module":"builtins","message":"no 1","repr":"LookupError(''no 1'')","traceback":"Traceback (most recent call last):\n  File \"/srv/site/horsies_django/worker/child/run_task.py\", line 91, in sync_reply\n    value = call(run, task, args, keywords)\n            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/srv/site/horsies_django/worker/child/middleware.py\", line 42, in call\n    return task.function(*args, **kwargs)\n           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/srv/site/tests/upgrades/site/tasks.py\", line 22, in fails\n    raise LookupError(f\"no {number}\")\nLookupError: no 1\n"},"data":null}}', 'UNHANDLED_ERROR', false, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2427-762f-837b-15833d3c5648', 'tests.upgrades.site.tasks.add', 'former', 'sync', 100, '{"a":5,"b":5}', NULL, NULL, 'CANCELLED', NULL, 0, false, '2026-11-26 09:10:46.567571+00', '2026-11-26 10:10:46.567571+00', NULL, NULL, NULL, 0, NULL, NULL, '2026-11-26 09:10:46.568785+00', '2026-11-26 09:10:46.568785+00', 0, 0, NULL, '{"err": {"data": null, "message": "the task was cancelled before it started", "exception": null, "error_code": "TASK_CANCELLED"}}', 'TASK_CANCELLED', false, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-242c-760c-8000-0017fbc503be', 'tests.upgrades.site.tasks.add', 'former', 'sync', 100, '{"a": 1, "b": 2}', NULL, NULL, 'COMPLETED', NULL, 0, false, '2026-11-26 09:10:46.572261+00', '2026-11-26 09:10:46.570891+00', NULL, '2026-11-26 09:10:46.573295+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:46.573295+00', '2026-11-26 09:10:46.574725+00', NULL, 0, 0, NULL, '{"ok":3}', NULL, false, NULL, NULL, '01a2171f-242a-751a-9a33-9fcb7a5aadab', 0, 0, '2026-11-26 09:10:46.576831+00'),
	('01a2171f-242e-78a3-8000-001bef2f357a', 'tests.upgrades.site.tasks.add', 'former', 'sync', 100, '{"a": 1, "b": 2}', NULL, NULL, 'COMPLETED', NULL, 0, false, '2026-11-26 09:10:46.574467+00', '2026-11-26 09:10:46.573605+00', NULL, '2026-11-26 09:10:46.575593+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:46.575593+00', '2026-11-26 09:10:46.578873+00', NULL, 0, 0, NULL, '{"ok":3}', NULL, false, NULL, NULL, '01a2171f-242d-74e0-8967-8b69917cd2c0', 0, 0, '2026-11-26 09:10:46.580422+00'),
	('01a2171f-243a-77b2-be40-d8af33e4a9fc', 'tests.upgrades.site.tasks.steps', 'former', 'sync', 100, '{}', NULL, '{"wire": 1, "retry": {"most": null, "codes": ["builtins.Exception", "WORKER_CRASHED", "TASK_TIMEOUT"], "jitter": true, "strategy": "fixed", "intervals": [30, 1, 1]}}', 'PENDING', NULL, 0, false, '2026-11-26 09:10:46.586396+00', '2026-11-26 09:11:23.087996+00', NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, 1, 3, '2026-11-26 09:11:23.087996+00', NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2458-75ee-bb11-5305de3ed725', 'tests.upgrades.site.tasks.hangs', 'former', 'sync', 100, '{"number":0}', NULL, '{"wire": 1, "retry": {"most": null, "codes": ["builtins.Exception", "WORKER_CRASHED", "TASK_TIMEOUT"], "jitter": true, "strategy": "fixed", "intervals": [1, 1, 1]}}', 'RUNNING', NULL, 0, false, '2026-11-26 09:10:46.617194+00', '2026-11-26 09:10:46.617194+00', NULL, '2026-11-26 09:10:46.619422+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:46.619422+00', NULL, NULL, 0, 3, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2458-75ee-bb11-5306f15328e5', 'tests.upgrades.site.tasks.hangs', 'former', 'sync', 100, '{"number":1}', NULL, '{"wire": 1, "retry": {"most": null, "codes": ["builtins.Exception", "WORKER_CRASHED", "TASK_TIMEOUT"], "jitter": true, "strategy": "fixed", "intervals": [1, 1, 1]}}', 'RUNNING', NULL, 0, false, '2026-11-26 09:10:46.617194+00', '2026-11-26 09:10:46.617194+00', NULL, '2026-11-26 09:10:46.619422+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:46.619422+00', NULL, NULL, 0, 3, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2458-75ee-bb11-530781bb5e5b', 'tests.upgrades.site.tasks.hangs', 'former', 'sync', 100, '{"number":2}', NULL, '{"wire": 1, "retry": {"most": null, "codes": ["builtins.Exception", "WORKER_CRASHED", "TASK_TIMEOUT"], "jitter": true, "strategy": "fixed", "intervals": [1, 1, 1]}}', 'RUNNING', NULL, 0, false, '2026-11-26 09:10:46.617194+00', '2026-11-26 09:10:46.617194+00', NULL, '2026-11-26 09:10:46.619422+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:46.619422+00', NULL, NULL, 0, 3, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2458-75ee-bb11-530825aaacab', 'tests.upgrades.site.tasks.hangs', 'former', 'sync', 100, '{"number":3}', NULL, '{"wire": 1, "retry": {"most": null, "codes": ["builtins.Exception", "WORKER_CRASHED", "TASK_TIMEOUT"], "jitter": true, "strategy": "fixed", "intervals": [1, 1, 1]}}', 'RUNNING', NULL, 0, false, '2026-11-26 09:10:46.617194+00', '2026-11-26 09:10:46.617194+00', NULL, '2026-11-26 09:10:46.619422+00', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 1, NULL, '2026-11-26 09:10:46.619422+00', NULL, NULL, 0, 3, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2458-75ee-bb11-530977568667', 'tests.upgrades.site.tasks.hangs', 'former', 'sync', 100, '{"number":4}', NULL, '{"wire": 1, "retry": {"most": null, "codes": ["builtins.Exception", "WORKER_CRASHED", "TASK_TIMEOUT"], "jitter": true, "strategy": "fixed", "intervals": [1, 1, 1]}}', 'PENDING', NULL, 0, false, '2026-11-26 09:10:46.617194+00', '2026-11-26 09:10:46.617194+00', NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, 3, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-246f-7702-845c-68c9c0ae1cf0', 'tests.upgrades.site.tasks.add', 'former', 'sync', 100, '{"a":7,"b":7}', NULL, NULL, 'PENDING', NULL, 0, false, '2026-11-26 09:10:46.640457+00', '2026-11-26 09:10:46.640457+00', '2026-11-26 09:10:46.641457+00', NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2471-73b2-8d54-9db6deb8db55', 'tests.upgrades.site.tasks.of_tenant', 'tenants', 'sync', 100, '{"tenant":"a"}', NULL, NULL, 'PENDING', '{"tenant": "a"}', 1, false, '2026-11-26 09:10:46.641685+00', '2026-11-26 09:10:46.641685+00', NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2471-73b2-8d54-9db7a4c52bfb', 'tests.upgrades.site.tasks.of_tenant', 'tenants', 'sync', 100, '{"tenant":"a"}', NULL, NULL, 'PENDING', '{"tenant": "a"}', 1, false, '2026-11-26 09:10:46.641685+00', '2026-11-26 09:10:46.641685+00', NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2471-73b2-8d54-9db8e624cb52', 'tests.upgrades.site.tasks.of_tenant', 'tenants', 'sync', 100, '{"tenant":"b"}', NULL, NULL, 'PENDING', '{"tenant": "b"}', 1, false, '2026-11-26 09:10:46.641685+00', '2026-11-26 09:10:46.641685+00', NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, false, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2475-7a87-8000-0016ed022552', 'tests.upgrades.site.tasks.double', 'latter', 'sync', 100, '{"n": 2}', NULL, NULL, 'PENDING', NULL, 0, false, '2026-11-26 09:10:46.645537+00', '2026-11-26 09:10:46.643967+00', NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, false, NULL, NULL, '01a2171f-2473-7687-933c-a80764985598', 0, 0, NULL),
	('01a2171f-2478-7449-8000-001379132969', 'tests.upgrades.site.tasks.add', 'former', 'sync', 100, '{"a": 1, "b": 2}', NULL, NULL, 'PENDING', NULL, 0, false, '2026-11-26 09:10:46.648167+00', '2026-11-26 09:10:46.647017+00', NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, false, NULL, NULL, '01a2171f-2476-70fa-9d17-270687ebfef1', 0, 0, NULL);


--
-- Data for Name: horsies_waiters; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.horsies_waiters VALUES
	('bafefd5a-02b5-43c5-95ca-8b1912c3f518', '2026-11-26 09:11:44.957316+00');


--
-- Data for Name: horsies_worker_states; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.horsies_worker_states VALUES
	('01a2171f-2030-71f7-8000-000c98c1c691', '01a2171f-1fbc-73f2-bdfb-bd4422b0a194', '2026-11-26 09:10:45.55211+00', 0, 0, 0, 2, 64.9, 99.6, NULL);


--
-- Data for Name: horsies_workers; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.horsies_workers VALUES
	('01a2171f-1fbc-73f2-bdfb-bd4422b0a194', 'web-1', 28070, '0.1.0', '["default", "former", "latter", "tenants"]', 2, 1, 100, '2026-11-26 09:10:45.51851+00', '2026-11-26 09:10:45.54496+00', NULL, 0, 0, 64.9, 99.6, '["tests.upgrades.site.tasks.add", "tests.upgrades.site.tasks.double", "tests.upgrades.site.tasks.fails", "tests.upgrades.site.tasks.hangs", "tests.upgrades.site.tasks.of_tenant", "tests.upgrades.site.tasks.steps", "tests.upgrades.site.tasks.total", "tests.upgrades.site.tasks.undoes"]', 2);


--
-- Data for Name: horsies_workflow_edges; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.horsies_workflow_edges VALUES
	('01a2171f-204a-739f-a4e6-fec43e4f82e0', 0, 1, true),
	('01a2171f-204a-739f-a4e6-fec43e4f82e0', 1, 2, true),
	('01a2171f-204a-739f-a4e6-fec43e4f82e0', 2, 3, true),
	('01a2171f-204a-739f-a4e6-fec43e4f82e0', 3, 4, true),
	('01a2171f-242a-751a-9a33-9fcb7a5aadab', 0, 1, true),
	('01a2171f-242a-751a-9a33-9fcb7a5aadab', 1, 2, true),
	('01a2171f-242a-751a-9a33-9fcb7a5aadab', 1, 3, true),
	('01a2171f-242a-751a-9a33-9fcb7a5aadab', 2, 3, true),
	('01a2171f-242d-74e0-8967-8b69917cd2c0', 0, 1, true),
	('01a2171f-242d-74e0-8967-8b69917cd2c0', 1, 2, true),
	('01a2171f-242d-74e0-8967-8b69917cd2c0', 1, 3, true),
	('01a2171f-242d-74e0-8967-8b69917cd2c0', 2, 3, true),
	('01a2171f-2473-7687-933c-a80764985598', 0, 1, true),
	('01a2171f-2473-7687-933c-a80764985598', 1, 2, true),
	('01a2171f-2473-7687-933c-a80764985598', 2, 3, true),
	('01a2171f-2473-7687-933c-a80764985598', 3, 4, true),
	('01a2171f-2476-70fa-9d17-270687ebfef1', 0, 1, true),
	('01a2171f-2476-70fa-9d17-270687ebfef1', 1, 2, true),
	('01a2171f-2476-70fa-9d17-270687ebfef1', 1, 3, true),
	('01a2171f-2476-70fa-9d17-270687ebfef1', 2, 3, true);


--
-- Data for Name: horsies_workflow_nodes; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.horsies_workflow_nodes VALUES
	('01a2171f-204a-739f-a4e6-fec43e4f82e0', 0, -1, 'double', 'task', 'COMPLETED', 'tests.upgrades.site.tasks.double', 'latter', 'sync', 100, 0, NULL, '{"n": 1}', NULL, NULL, NULL, NULL, NULL, 'all', NULL, false, false, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, '01a2171f-2055-7418-8000-001c3a74d3ae', '2026-11-26 09:10:45.600815+00', NULL, NULL),
	('01a2171f-204a-739f-a4e6-fec43e4f82e0', 1, -1, 'add', 'task', 'COMPLETED', 'tests.upgrades.site.tasks.add', 'former', 'sync', 100, 0, NULL, '{"b": 1}', NULL, '{"a": {"as": "value", "node": 0}}', NULL, NULL, NULL, 'all', NULL, false, false, NULL, NULL, NULL, NULL, 1, 0, 1, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, '{"lane": "sync", "task": "tests.upgrades.site.tasks.undoes", "queue": "former", "priority": 100, "parameters": ["result", "a", "b"], "max_retries": 0}', NULL, '01a2171f-2065-702d-8000-0013bf91525d', '2026-11-26 09:10:45.612656+00', NULL, NULL),
	('01a2171f-204a-739f-a4e6-fec43e4f82e0', 2, -1, 'sleep', 'timer', 'COMPLETED', '', '', '', 100, 0, NULL, '{}', NULL, NULL, NULL, NULL, 'null', 'all', NULL, false, true, NULL, NULL, '00:00:00.1', NULL, 1, 0, 1, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, '2026-11-26 09:10:45.718811+00', 'complete', NULL, 1, NULL, NULL, NULL, NULL, '2026-11-26 09:10:46.526388+00', NULL, NULL),
	('01a2171f-242a-751a-9a33-9fcb7a5aadab', 1, -1, 'told', 'signal', 'WAITING', '', '', '', 100, 0, NULL, '{}', NULL, NULL, NULL, NULL, NULL, 'all', NULL, false, true, NULL, NULL, NULL, NULL, 1, 0, 1, 0, NULL, 0, 0, 0, 0, 'told', NULL, 'int', NULL, 'fail', NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-204a-739f-a4e6-fec43e4f82e0', 3, -1, 'double-2', 'map', 'COMPLETED', 'tests.upgrades.site.tasks.double', 'latter', 'sync', 100, 0, NULL, '{}', NULL, NULL, 'n', NULL, '[1, 2, 3]', 'all', NULL, false, false, NULL, NULL, NULL, NULL, 1, 0, 1, 0, 3, 3, 0, 3, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, '2026-11-26 09:10:46.549423+00', NULL, NULL),
	('01a2171f-204a-739f-a4e6-fec43e4f82e0', 4, -1, 'total', 'task', 'COMPLETED', 'tests.upgrades.site.tasks.total', 'former', 'sync', 100, 0, NULL, '{}', NULL, '{"values": {"as": "list", "node": 3}}', NULL, NULL, NULL, 'all', NULL, false, false, NULL, NULL, NULL, NULL, 1, 0, 1, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, '01a2171f-2419-76c4-8000-001383782b16', '2026-11-26 09:10:46.557296+00', NULL, NULL),
	('01a2171f-242a-751a-9a33-9fcb7a5aadab', 2, -1, 'agreed', 'gate', 'PENDING', '', '', '', 100, 0, NULL, '{}', NULL, NULL, NULL, NULL, NULL, 'all', NULL, false, true, NULL, NULL, NULL, NULL, 1, 1, 0, 0, NULL, 0, 0, 0, 0, 'agreed', NULL, NULL, NULL, 'fail', NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-242a-751a-9a33-9fcb7a5aadab', 3, -1, 'double', 'task', 'PENDING', 'tests.upgrades.site.tasks.double', 'latter', 'sync', 100, 0, NULL, '{}', NULL, '{"n": {"as": "value", "node": 1}}', NULL, NULL, NULL, 'all', NULL, false, false, NULL, NULL, NULL, NULL, 2, 2, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-242d-74e0-8967-8b69917cd2c0', 2, -1, 'agreed', 'gate', 'PENDING', '', '', '', 100, 0, NULL, '{}', NULL, NULL, NULL, NULL, NULL, 'all', NULL, false, true, NULL, NULL, NULL, NULL, 1, 1, 0, 0, NULL, 0, 0, 0, 0, 'agreed', NULL, NULL, NULL, 'fail', NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-242d-74e0-8967-8b69917cd2c0', 3, -1, 'double', 'task', 'PENDING', 'tests.upgrades.site.tasks.double', 'latter', 'sync', 100, 0, NULL, '{}', NULL, '{"n": {"as": "value", "node": 1}}', NULL, NULL, NULL, 'all', NULL, false, false, NULL, NULL, NULL, NULL, 2, 2, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-242a-751a-9a33-9fcb7a5aadab', 0, -1, 'add', 'task', 'COMPLETED', 'tests.upgrades.site.tasks.add', 'former', 'sync', 100, 0, NULL, '{"a": 1, "b": 2}', NULL, NULL, NULL, NULL, NULL, 'all', NULL, false, false, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, '01a2171f-242c-760c-8000-0017fbc503be', '2026-11-26 09:10:46.576831+00', NULL, NULL),
	('01a2171f-242d-74e0-8967-8b69917cd2c0', 0, -1, 'add', 'task', 'COMPLETED', 'tests.upgrades.site.tasks.add', 'former', 'sync', 100, 0, NULL, '{"a": 1, "b": 2}', NULL, NULL, NULL, NULL, NULL, 'all', NULL, false, false, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, '01a2171f-242e-78a3-8000-001bef2f357a', '2026-11-26 09:10:46.580422+00', NULL, NULL),
	('01a2171f-242d-74e0-8967-8b69917cd2c0', 1, -1, 'told', 'signal', 'WAITING', '', '', '', 100, 0, NULL, '{}', NULL, NULL, NULL, NULL, NULL, 'all', NULL, false, true, NULL, NULL, NULL, NULL, 1, 0, 1, 0, NULL, 0, 0, 0, 0, 'told', NULL, 'int', NULL, 'fail', NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2473-7687-933c-a80764985598', 1, -1, 'add', 'task', 'PENDING', 'tests.upgrades.site.tasks.add', 'former', 'sync', 100, 0, NULL, '{"b": 1}', NULL, '{"a": {"as": "value", "node": 0}}', NULL, NULL, NULL, 'all', NULL, false, false, NULL, NULL, NULL, NULL, 1, 1, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, '{"lane": "sync", "task": "tests.upgrades.site.tasks.undoes", "queue": "former", "priority": 100, "parameters": ["result", "a", "b"], "max_retries": 0}', NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2473-7687-933c-a80764985598', 2, -1, 'sleep', 'timer', 'PENDING', '', '', '', 100, 0, NULL, '{}', NULL, NULL, NULL, NULL, NULL, 'all', NULL, false, true, NULL, NULL, '00:00:00.1', NULL, 1, 1, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 'complete', NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2473-7687-933c-a80764985598', 3, -1, 'double-2', 'map', 'PENDING', 'tests.upgrades.site.tasks.double', 'latter', 'sync', 100, 0, NULL, '{}', NULL, NULL, 'n', NULL, '[1, 2, 3]', 'all', NULL, false, false, NULL, NULL, NULL, NULL, 1, 1, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2473-7687-933c-a80764985598', 4, -1, 'total', 'task', 'PENDING', 'tests.upgrades.site.tasks.total', 'former', 'sync', 100, 0, NULL, '{}', NULL, '{"values": {"as": "list", "node": 3}}', NULL, NULL, NULL, 'all', NULL, false, false, NULL, NULL, NULL, NULL, 1, 1, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2473-7687-933c-a80764985598', 0, -1, 'double', 'task', 'ENQUEUED', 'tests.upgrades.site.tasks.double', 'latter', 'sync', 100, 0, NULL, '{"n": 2}', NULL, NULL, NULL, NULL, NULL, 'all', NULL, false, false, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, '01a2171f-2475-7a87-8000-0016ed022552', NULL, NULL, NULL),
	('01a2171f-2476-70fa-9d17-270687ebfef1', 1, -1, 'told', 'signal', 'PENDING', '', '', '', 100, 0, NULL, '{}', NULL, NULL, NULL, NULL, NULL, 'all', NULL, false, true, NULL, NULL, NULL, NULL, 1, 1, 0, 0, NULL, 0, 0, 0, 0, 'told', NULL, 'int', NULL, 'fail', NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2476-70fa-9d17-270687ebfef1', 2, -1, 'agreed', 'gate', 'PENDING', '', '', '', 100, 0, NULL, '{}', NULL, NULL, NULL, NULL, NULL, 'all', NULL, false, true, NULL, NULL, NULL, NULL, 1, 1, 0, 0, NULL, 0, 0, 0, 0, 'agreed', NULL, NULL, NULL, 'fail', NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2476-70fa-9d17-270687ebfef1', 3, -1, 'double', 'task', 'PENDING', 'tests.upgrades.site.tasks.double', 'latter', 'sync', 100, 0, NULL, '{}', NULL, '{"n": {"as": "value", "node": 1}}', NULL, NULL, NULL, 'all', NULL, false, false, NULL, NULL, NULL, NULL, 2, 2, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2476-70fa-9d17-270687ebfef1', 0, -1, 'add', 'task', 'ENQUEUED', 'tests.upgrades.site.tasks.add', 'former', 'sync', 100, 0, NULL, '{"a": 1, "b": 2}', NULL, NULL, NULL, NULL, NULL, 'all', NULL, false, false, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, '01a2171f-2478-7449-8000-001379132969', NULL, NULL, NULL);


--
-- Data for Name: horsies_workflow_signals; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: horsies_workflows; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.horsies_workflows VALUES
	('01a2171f-204a-739f-a4e6-fec43e4f82e0', 'rally', NULL, NULL, 'COMPLETED', 'fail', 4, NULL, NULL, NULL, NULL, NULL, NULL, '2026-11-26 09:10:45.580394+00', NULL, NULL, false, '2026-11-26 09:10:46.557296+00', NULL, NULL, NULL, '{"ok": 12}'),
	('01a2171f-242a-751a-9a33-9fcb7a5aadab', 'asked', NULL, NULL, 'RUNNING', 'fail', 3, NULL, NULL, NULL, NULL, NULL, NULL, '2026-11-26 09:10:46.571091+00', NULL, NULL, false, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-242d-74e0-8967-8b69917cd2c0', 'paused', NULL, NULL, 'PAUSED', 'fail', 3, NULL, NULL, NULL, NULL, NULL, NULL, '2026-11-26 09:10:46.573805+00', NULL, NULL, false, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2473-7687-933c-a80764985598', 'rally', NULL, NULL, 'RUNNING', 'fail', 4, NULL, NULL, NULL, NULL, NULL, NULL, '2026-11-26 09:10:46.644258+00', NULL, NULL, false, NULL, NULL, NULL, NULL, NULL),
	('01a2171f-2476-70fa-9d17-270687ebfef1', 'begun', NULL, NULL, 'RUNNING', 'fail', 3, NULL, NULL, NULL, NULL, NULL, NULL, '2026-11-26 09:10:46.647407+00', NULL, NULL, false, NULL, NULL, NULL, NULL, NULL);


--
-- Name: auth_group_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.auth_group_id_seq', 1, false);


--
-- Name: auth_group_permissions_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.auth_group_permissions_id_seq', 1, false);


--
-- Name: auth_permission_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.auth_permission_id_seq', 28, true);


--
-- Name: auth_user_groups_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.auth_user_groups_id_seq', 1, false);


--
-- Name: auth_user_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.auth_user_id_seq', 1, false);


--
-- Name: auth_user_user_permissions_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.auth_user_user_permissions_id_seq', 1, false);


--
-- Name: django_content_type_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.django_content_type_id_seq', 22, true);


--
-- Name: django_migrations_id_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.django_migrations_id_seq', 16, true);


--
-- Name: horsies_workflow_node_numbers; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.horsies_workflow_node_numbers', 1000000, false);


--
-- Name: auth_group auth_group_name_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_group
    ADD CONSTRAINT auth_group_name_key UNIQUE (name);


--
-- Name: auth_group_permissions auth_group_permissions_group_id_permission_id_0cd325b0_uniq; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_group_permissions
    ADD CONSTRAINT auth_group_permissions_group_id_permission_id_0cd325b0_uniq UNIQUE (group_id, permission_id);


--
-- Name: auth_group_permissions auth_group_permissions_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_group_permissions
    ADD CONSTRAINT auth_group_permissions_pkey PRIMARY KEY (id);


--
-- Name: auth_group auth_group_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_group
    ADD CONSTRAINT auth_group_pkey PRIMARY KEY (id);


--
-- Name: auth_permission auth_permission_content_type_id_codename_01ab375a_uniq; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_permission
    ADD CONSTRAINT auth_permission_content_type_id_codename_01ab375a_uniq UNIQUE (content_type_id, codename);


--
-- Name: auth_permission auth_permission_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_permission
    ADD CONSTRAINT auth_permission_pkey PRIMARY KEY (id);


--
-- Name: auth_user_groups auth_user_groups_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_user_groups
    ADD CONSTRAINT auth_user_groups_pkey PRIMARY KEY (id);


--
-- Name: auth_user_groups auth_user_groups_user_id_group_id_94350c0c_uniq; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_user_groups
    ADD CONSTRAINT auth_user_groups_user_id_group_id_94350c0c_uniq UNIQUE (user_id, group_id);


--
-- Name: auth_user auth_user_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_user
    ADD CONSTRAINT auth_user_pkey PRIMARY KEY (id);


--
-- Name: auth_user_user_permissions auth_user_user_permissions_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_user_user_permissions
    ADD CONSTRAINT auth_user_user_permissions_pkey PRIMARY KEY (id);


--
-- Name: auth_user_user_permissions auth_user_user_permissions_user_id_permission_id_14a6b632_uniq; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_user_user_permissions
    ADD CONSTRAINT auth_user_user_permissions_user_id_permission_id_14a6b632_uniq UNIQUE (user_id, permission_id);


--
-- Name: auth_user auth_user_username_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_user
    ADD CONSTRAINT auth_user_username_key UNIQUE (username);


--
-- Name: django_content_type django_content_type_app_label_model_76bd3d3b_uniq; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.django_content_type
    ADD CONSTRAINT django_content_type_app_label_model_76bd3d3b_uniq UNIQUE (app_label, model);


--
-- Name: django_content_type django_content_type_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.django_content_type
    ADD CONSTRAINT django_content_type_pkey PRIMARY KEY (id);


--
-- Name: django_migrations django_migrations_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.django_migrations
    ADD CONSTRAINT django_migrations_pkey PRIMARY KEY (id);


--
-- Name: horsies_audit horsies_audit_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_audit
    ADD CONSTRAINT horsies_audit_pkey PRIMARY KEY (id);


--
-- Name: horsies_heartbeats horsies_heartbeats_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_heartbeats
    ADD CONSTRAINT horsies_heartbeats_pkey PRIMARY KEY (id);


--
-- Name: horsies_limits horsies_limits_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_limits
    ADD CONSTRAINT horsies_limits_pkey PRIMARY KEY (queue_name);


--
-- Name: horsies_lost_records horsies_lost_records_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_lost_records
    ADD CONSTRAINT horsies_lost_records_pkey PRIMARY KEY (kind);


--
-- Name: horsies_prunings horsies_prunings_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_prunings
    ADD CONSTRAINT horsies_prunings_pkey PRIMARY KEY (key);


--
-- Name: horsies_queues horsies_queues_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_queues
    ADD CONSTRAINT horsies_queues_pkey PRIMARY KEY (name);


--
-- Name: horsies_schedule_ticks horsies_schedule_ticks_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_schedule_ticks
    ADD CONSTRAINT horsies_schedule_ticks_pkey PRIMARY KEY (schedule_name, fire_at);


--
-- Name: horsies_schedules horsies_schedules_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_schedules
    ADD CONSTRAINT horsies_schedules_pkey PRIMARY KEY (name);


--
-- Name: horsies_task_attempts horsies_task_attempts_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_task_attempts
    ADD CONSTRAINT horsies_task_attempts_pkey PRIMARY KEY (task_id, claim_generation);


--
-- Name: horsies_task_steps horsies_task_steps_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_task_steps
    ADD CONSTRAINT horsies_task_steps_pkey PRIMARY KEY (task_id, name);


--
-- Name: horsies_tasks horsies_tasks_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_tasks
    ADD CONSTRAINT horsies_tasks_pkey PRIMARY KEY (id);


--
-- Name: horsies_waiters horsies_waiters_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_waiters
    ADD CONSTRAINT horsies_waiters_pkey PRIMARY KEY (id);


--
-- Name: horsies_worker_states horsies_worker_states_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_worker_states
    ADD CONSTRAINT horsies_worker_states_pkey PRIMARY KEY (id);


--
-- Name: horsies_workers horsies_workers_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_workers
    ADD CONSTRAINT horsies_workers_pkey PRIMARY KEY (id);


--
-- Name: horsies_workflow_edges horsies_workflow_edges_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_workflow_edges
    ADD CONSTRAINT horsies_workflow_edges_pkey PRIMARY KEY (workflow_id, upstream, downstream);


--
-- Name: horsies_workflow_nodes horsies_workflow_nodes_name; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_workflow_nodes
    ADD CONSTRAINT horsies_workflow_nodes_name UNIQUE (name, workflow_id, added_by);


--
-- Name: horsies_workflow_nodes horsies_workflow_nodes_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_workflow_nodes
    ADD CONSTRAINT horsies_workflow_nodes_pkey PRIMARY KEY (workflow_id, number);


--
-- Name: horsies_workflow_signals horsies_workflow_signals_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_workflow_signals
    ADD CONSTRAINT horsies_workflow_signals_pkey PRIMARY KEY (id);


--
-- Name: horsies_workflows horsies_workflows_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.horsies_workflows
    ADD CONSTRAINT horsies_workflows_pkey PRIMARY KEY (id);


--
-- Name: auth_group_name_a6ea08ec_like; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX auth_group_name_a6ea08ec_like ON public.auth_group USING btree (name varchar_pattern_ops);


--
-- Name: auth_group_permissions_group_id_b120cbf9; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX auth_group_permissions_group_id_b120cbf9 ON public.auth_group_permissions USING btree (group_id);


--
-- Name: auth_group_permissions_permission_id_84c5c92e; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX auth_group_permissions_permission_id_84c5c92e ON public.auth_group_permissions USING btree (permission_id);


--
-- Name: auth_permission_content_type_id_2f476e4b; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX auth_permission_content_type_id_2f476e4b ON public.auth_permission USING btree (content_type_id);


--
-- Name: auth_user_groups_group_id_97559544; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX auth_user_groups_group_id_97559544 ON public.auth_user_groups USING btree (group_id);


--
-- Name: auth_user_groups_user_id_6a12ed8b; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX auth_user_groups_user_id_6a12ed8b ON public.auth_user_groups USING btree (user_id);


--
-- Name: auth_user_user_permissions_permission_id_1fbb5f2c; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX auth_user_user_permissions_permission_id_1fbb5f2c ON public.auth_user_user_permissions USING btree (permission_id);


--
-- Name: auth_user_user_permissions_user_id_a95ead1b; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX auth_user_user_permissions_user_id_a95ead1b ON public.auth_user_user_permissions USING btree (user_id);


--
-- Name: auth_user_username_6821ab7c_like; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX auth_user_username_6821ab7c_like ON public.auth_user USING btree (username varchar_pattern_ops);


--
-- Name: horsies_audit_subject; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_audit_subject ON public.horsies_audit USING btree (subject, at DESC);


--
-- Name: horsies_heartbeats_parents; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_heartbeats_parents ON public.horsies_heartbeats USING btree (died_at, id) WHERE ((role)::text = 'claimer'::text);


--
-- Name: horsies_heartbeats_worker; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_heartbeats_worker ON public.horsies_heartbeats USING btree (worker_id);


--
-- Name: horsies_limits_queue_name_8f4a3595_like; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_limits_queue_name_8f4a3595_like ON public.horsies_limits USING btree (queue_name varchar_pattern_ops);


--
-- Name: horsies_lost_records_kind_3701f72e_like; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_lost_records_kind_3701f72e_like ON public.horsies_lost_records USING btree (kind varchar_pattern_ops);


--
-- Name: horsies_prunings_key_71cd8211_like; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_prunings_key_71cd8211_like ON public.horsies_prunings USING btree (key varchar_pattern_ops);


--
-- Name: horsies_queues_name_a66e9dbe_like; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_queues_name_a66e9dbe_like ON public.horsies_queues USING btree (name varchar_pattern_ops);


--
-- Name: horsies_schedule_ticks_sent; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_schedule_ticks_sent ON public.horsies_schedule_ticks USING btree (sent_at);


--
-- Name: horsies_schedules_name_b97eb19d_like; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_schedules_name_b97eb19d_like ON public.horsies_schedules USING btree (name varchar_pattern_ops);


--
-- Name: horsies_schedules_next; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_schedules_next ON public.horsies_schedules USING btree (next_at) WHERE (next_at IS NOT NULL);


--
-- Name: horsies_signals_keyed; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_signals_keyed ON public.horsies_workflow_signals USING btree (workflow_id, name, key, sent_at, id) WHERE ((key IS NOT NULL) AND (used_at IS NULL));


--
-- Name: horsies_signals_run; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_signals_run ON public.horsies_workflow_signals USING btree (workflow_id, sent_at, id);


--
-- Name: horsies_signals_unseen; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_signals_unseen ON public.horsies_workflow_signals USING btree (workflow_id, sent_at, id) WHERE (seen_at IS NULL);


--
-- Name: horsies_signals_unused; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_signals_unused ON public.horsies_workflow_signals USING btree (workflow_id, name, sent_at, id) WHERE (used_at IS NULL);


--
-- Name: horsies_tasks_claim; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_tasks_claim ON public.horsies_tasks USING btree (queue_name, lane, priority, enqueued_at, id) WHERE ((claimed_by IS NULL) AND (finished_at IS NULL) AND (NOT parked));


--
-- Name: horsies_tasks_copies; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_tasks_copies ON public.horsies_tasks USING btree (copy_of) WHERE (copy_of IS NOT NULL);


--
-- Name: horsies_tasks_deadline; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_tasks_deadline ON public.horsies_tasks USING btree (good_until) WHERE ((claimed_by IS NULL) AND (finished_at IS NULL) AND (good_until IS NOT NULL));


--
-- Name: horsies_tasks_finished; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_tasks_finished ON public.horsies_tasks USING btree (finished_at) WHERE (finished_at IS NOT NULL);


--
-- Name: horsies_tasks_holding; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_tasks_holding ON public.horsies_tasks USING btree (queue_name, partition_version, partition_key, claimed_at) WHERE ((claimed_by IS NOT NULL) AND (finished_at IS NULL));


--
-- Name: horsies_tasks_node; Type: INDEX; Schema: public; Owner: -
--

CREATE UNIQUE INDEX horsies_tasks_node ON public.horsies_tasks USING btree (workflow_id, node, node_index) WHERE (workflow_id IS NOT NULL);


--
-- Name: horsies_tasks_parked; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_tasks_parked ON public.horsies_tasks USING btree (queue_name, partition_key, lane, priority, enqueued_at, id) WHERE ((claimed_by IS NULL) AND (finished_at IS NULL) AND parked);


--
-- Name: horsies_tasks_unadvanced; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_tasks_unadvanced ON public.horsies_tasks USING btree (finished_at) WHERE ((advanced_at IS NULL) AND (finished_at IS NOT NULL) AND (workflow_id IS NOT NULL));


--
-- Name: horsies_tasks_unsuccessful; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_tasks_unsuccessful ON public.horsies_tasks USING btree (finished_at) WHERE ((error_code IS NOT NULL) AND (finished_at IS NOT NULL));


--
-- Name: horsies_worker_states_worker; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_worker_states_worker ON public.horsies_worker_states USING btree (worker_id, id DESC);


--
-- Name: horsies_workers_started; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workers_started ON public.horsies_workers USING btree (started_at DESC);


--
-- Name: horsies_workflow_edges_down; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflow_edges_down ON public.horsies_workflow_edges USING btree (downstream, workflow_id);


--
-- Name: horsies_workflow_nodes_added; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflow_nodes_added ON public.horsies_workflow_nodes USING btree (workflow_id, finished_at) WHERE ((status)::text = 'ADDED'::text);


--
-- Name: horsies_workflow_nodes_due; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflow_nodes_due ON public.horsies_workflow_nodes USING btree (due_at) WHERE ((finished_at IS NULL) AND ((status)::text = 'WAITING'::text));


--
-- Name: horsies_workflow_nodes_grown; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflow_nodes_grown ON public.horsies_workflow_nodes USING btree (workflow_id, added_by) WHERE (added_by >= 0);


--
-- Name: horsies_workflow_nodes_open; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflow_nodes_open ON public.horsies_workflow_nodes USING btree (workflow_id, status, number) WHERE (finished_at IS NULL);


--
-- Name: horsies_workflow_nodes_signal; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflow_nodes_signal ON public.horsies_workflow_nodes USING btree (workflow_id, signal, status, signal_key, number) WHERE (signal IS NOT NULL);


--
-- Name: horsies_workflow_nodes_waits; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflow_nodes_waits ON public.horsies_workflow_nodes USING btree (workflow_id, status, due_at) WHERE ((finished_at IS NULL) AND is_wait);


--
-- Name: horsies_workflows_finished; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflows_finished ON public.horsies_workflows USING btree (finished_at) WHERE ((finished_at IS NOT NULL) AND (parent_id IS NULL));


--
-- Name: horsies_workflows_key; Type: INDEX; Schema: public; Owner: -
--

CREATE UNIQUE INDEX horsies_workflows_key ON public.horsies_workflows USING btree (key, name) WHERE (key IS NOT NULL);


--
-- Name: horsies_workflows_name; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflows_name ON public.horsies_workflows USING btree (name, sent_at);


--
-- Name: horsies_workflows_owed; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflows_owed ON public.horsies_workflows USING btree (owed_at) WHERE (owed_at IS NOT NULL);


--
-- Name: horsies_workflows_parent; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflows_parent ON public.horsies_workflows USING btree (parent_id, parent_node) WHERE (parent_id IS NOT NULL);


--
-- Name: horsies_workflows_sent; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflows_sent ON public.horsies_workflows USING btree (sent_at);


--
-- Name: horsies_workflows_unfinished; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflows_unfinished ON public.horsies_workflows USING btree (sent_at) WHERE (finished_at IS NULL);


--
-- Name: horsies_workflows_untold; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX horsies_workflows_untold ON public.horsies_workflows USING btree (finished_at) WHERE ((advanced_at IS NULL) AND (finished_at IS NOT NULL) AND (parent_id IS NOT NULL));


--
-- Name: horsies_tasks horsies_tasks_announce; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER horsies_tasks_announce AFTER INSERT ON public.horsies_tasks REFERENCING NEW TABLE AS added FOR EACH STATEMENT WHEN ((current_setting('horsies.quiet'::text, true) IS DISTINCT FROM 'on'::text)) EXECUTE FUNCTION public.horsies_announce();


--
-- Name: auth_group_permissions auth_group_permissio_permission_id_84c5c92e_fk_auth_perm; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_group_permissions
    ADD CONSTRAINT auth_group_permissio_permission_id_84c5c92e_fk_auth_perm FOREIGN KEY (permission_id) REFERENCES public.auth_permission(id) DEFERRABLE INITIALLY DEFERRED;


--
-- Name: auth_group_permissions auth_group_permissions_group_id_b120cbf9_fk_auth_group_id; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_group_permissions
    ADD CONSTRAINT auth_group_permissions_group_id_b120cbf9_fk_auth_group_id FOREIGN KEY (group_id) REFERENCES public.auth_group(id) DEFERRABLE INITIALLY DEFERRED;


--
-- Name: auth_permission auth_permission_content_type_id_2f476e4b_fk_django_co; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_permission
    ADD CONSTRAINT auth_permission_content_type_id_2f476e4b_fk_django_co FOREIGN KEY (content_type_id) REFERENCES public.django_content_type(id) DEFERRABLE INITIALLY DEFERRED;


--
-- Name: auth_user_groups auth_user_groups_group_id_97559544_fk_auth_group_id; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_user_groups
    ADD CONSTRAINT auth_user_groups_group_id_97559544_fk_auth_group_id FOREIGN KEY (group_id) REFERENCES public.auth_group(id) DEFERRABLE INITIALLY DEFERRED;


--
-- Name: auth_user_groups auth_user_groups_user_id_6a12ed8b_fk_auth_user_id; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_user_groups
    ADD CONSTRAINT auth_user_groups_user_id_6a12ed8b_fk_auth_user_id FOREIGN KEY (user_id) REFERENCES public.auth_user(id) DEFERRABLE INITIALLY DEFERRED;


--
-- Name: auth_user_user_permissions auth_user_user_permi_permission_id_1fbb5f2c_fk_auth_perm; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_user_user_permissions
    ADD CONSTRAINT auth_user_user_permi_permission_id_1fbb5f2c_fk_auth_perm FOREIGN KEY (permission_id) REFERENCES public.auth_permission(id) DEFERRABLE INITIALLY DEFERRED;


--
-- Name: auth_user_user_permissions auth_user_user_permissions_user_id_a95ead1b_fk_auth_user_id; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.auth_user_user_permissions
    ADD CONSTRAINT auth_user_user_permissions_user_id_a95ead1b_fk_auth_user_id FOREIGN KEY (user_id) REFERENCES public.auth_user(id) DEFERRABLE INITIALLY DEFERRED;


--
-- PostgreSQL database dump complete
--


