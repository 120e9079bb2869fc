CREATE OR REPLACE FUNCTION public.horsies_announce_v1()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
  PERFORM pg_notify('horsies_' || left(md5(TG_TABLE_SCHEMA), 8) || '_new', extract(epoch FROM now()) || ' ' || q.queue_name)
  FROM (SELECT DISTINCT added.queue_name FROM added) AS q;
  RETURN NULL;
END
$function$
;
CREATE OR REPLACE FUNCTION public.horsies_candidates_v1(p_queue text, p_lane text, p_limit integer, p_now timestamp with time zone, OUT ids uuid[], OUT late uuid[], OUT due timestamp with time zone)
 RETURNS record
 LANGUAGE plpgsql
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_sort TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
DECLARE
  v_priority smallint := 0;
  v_ids uuid[];
  v_late uuid[];
  v_due timestamptz;
BEGIN
  ids := '{}';
  late := '{}';
  LOOP
    SELECT t.priority INTO v_priority FROM horsies_tasks t
    WHERE t.queue_name = p_queue AND t.lane = p_lane AND t.priority > v_priority
      AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    ORDER BY t.priority LIMIT 1;
    EXIT WHEN NOT FOUND;

    SELECT array_agg(c.id) FILTER (WHERE c.good_until > p_now), array_agg(c.id) FILTER (WHERE c.good_until <= p_now)
    INTO v_ids, v_late
    FROM (
      SELECT t.id, coalesce(t.good_until, 'infinity') AS good_until FROM horsies_tasks t
      WHERE t.queue_name = p_queue AND t.lane = p_lane AND t.priority = v_priority AND t.enqueued_at <= p_now
        AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
      ORDER BY t.enqueued_at, t.id LIMIT p_limit - cardinality(ids) - cardinality(late) FOR NO KEY UPDATE SKIP LOCKED
    ) AS c;
    ids := ids || coalesce(v_ids, '{}');
    late := late || coalesce(v_late, '{}');
    EXIT WHEN cardinality(ids) + cardinality(late) >= p_limit;

    SELECT t.enqueued_at INTO v_due FROM horsies_tasks t
    WHERE t.queue_name = p_queue AND t.lane = p_lane AND t.priority = v_priority AND t.enqueued_at > p_now
      AND t.claimed_by IS NULL AND t.finished_at IS NULL AND NOT t.parked
    ORDER BY t.enqueued_at LIMIT 1;
    due := least(due, v_due);
  END LOOP;
END
$function$
;
CREATE OR REPLACE FUNCTION public.horsies_claim_v1(p_worker uuid, p_queues text[], p_priorities integer[], p_sync integer, p_async integer)
 RETURNS TABLE(kind text, id uuid, generation integer, lane text, task_name text, kwargs text, seconds double precision)
 LANGUAGE plpgsql
 SET enable_seqscan TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_lane text;
  v_free int;
  v_room int;
  v_queue int;
  v_first int;
  v_found record;
  v_picked uuid[];
  v_next timestamptz;
  v_claimed uuid[] := '{}';
  v_expired uuid[] := '{}';
BEGIN
  FOREACH v_lane IN ARRAY ARRAY['sync', 'async'] LOOP
    v_free := CASE v_lane WHEN 'sync' THEN p_sync ELSE p_async END;
    v_queue := 1;
    WHILE v_free > 0 AND v_queue <= cardinality(p_queues) LOOP
      v_first := v_queue;
      v_picked := '{}';
      WHILE v_queue <= cardinality(p_queues) AND p_priorities[v_queue] = p_priorities[v_first] LOOP
        v_room := v_free;
        LOOP  -- again while expired tasks stand in front, each round with more room for them
          v_found := horsies_candidates_v1(p_queues[v_queue], v_lane, v_room, v_now);
          EXIT WHEN v_found.late = '{}';
          UPDATE horsies_tasks t
          SET status = 'EXPIRED', finished_at = v_now, error_code = 'TASK_EXPIRED',
              result = jsonb_build_object('err', jsonb_build_object('error_code', 'TASK_EXPIRED', 'data', NULL,
                'exception', NULL, 'message', 'the task was not started before its good_until'))
          WHERE t.id = ANY (v_found.late) AND t.status = 'PENDING';
          v_expired := v_expired || v_found.late;
          EXIT WHEN cardinality(v_expired) >= 2000;  -- a pass stays short; the engine comes round again
          v_room := v_room + 500;
        END LOOP;
        v_next := least(v_next, v_found.due);
        v_picked := v_picked || v_found.ids;
        v_queue := v_queue + 1;
      END LOOP;
      IF v_queue - v_first > 1 THEN
        SELECT array_agg(t.id ORDER BY t.priority, t.enqueued_at, t.id) INTO v_picked
        FROM horsies_tasks t WHERE t.id = ANY (v_picked);
      END IF;
      v_picked := coalesce(v_picked[:v_free], '{}');
      v_free := v_free - cardinality(v_picked);
      v_claimed := v_claimed || v_picked;
    END LOOP;
  END LOOP;

  IF v_claimed <> '{}' THEN
    RETURN QUERY
    WITH claimed AS (
      UPDATE horsies_tasks t
      SET status = 'RUNNING', claimed_by = p_worker, claimed_at = v_now, started_at = v_now,
          claim_generation = t.claim_generation + 1
      WHERE t.id = ANY (v_claimed) AND t.status = 'PENDING'
      RETURNING t.id, t.claim_generation, t.lane, t.task_name, t.kwargs
    )
    SELECT 'claimed', c.id, c.claim_generation, c.lane::text, c.task_name::text, c.kwargs::text, NULL::float8
    FROM unnest(v_claimed) WITH ORDINALITY AS picked (id, place) JOIN claimed c ON c.id = picked.id ORDER BY picked.place;
  END IF;
  IF v_expired <> '{}' THEN
    RETURN QUERY SELECT 'expired', e.id, NULL::int, NULL, NULL, NULL, NULL::float8 FROM unnest(v_expired) AS e (id);
  END IF;
  IF v_next IS NOT NULL THEN
    RETURN QUERY SELECT 'due', NULL::uuid, NULL::int, NULL, NULL, NULL, extract(epoch FROM v_next - clock_timestamp())::float8;
  END IF;
END
$function$
;
CREATE OR REPLACE FUNCTION public.horsies_pass_v1(p_worker uuid, p_channel text, p_outcomes jsonb, p_releases jsonb, p_queues text[], p_priorities integer[], p_sync integer, p_async integer)
 RETURNS TABLE(kind text, id uuid, generation integer, lane text, task_name text, kwargs text, seconds double precision)
 LANGUAGE plpgsql
AS $function$
DECLARE
  v_done uuid[] := '{}';
BEGIN
  IF p_outcomes IS NOT NULL THEN
    v_done := coalesce(horsies_settle_v1(p_worker, p_outcomes), '{}');
    RETURN QUERY SELECT 'settled', s.id, NULL::int, NULL, NULL, NULL, NULL::float8 FROM unnest(v_done) AS s (id);
  END IF;
  IF p_releases IS NOT NULL THEN
    RETURN QUERY SELECT 'settled', s.id, NULL::int, NULL, NULL, NULL, NULL::float8
    FROM unnest(horsies_release_v1(p_worker, p_releases, p_channel)) AS s (id);
  END IF;
  IF p_sync > 0 OR p_async > 0 THEN
    FOR kind, id, generation, lane, task_name, kwargs, seconds IN
      SELECT c.* FROM horsies_claim_v1(p_worker, p_queues, p_priorities, p_sync, p_async) AS c
    LOOP
      IF kind = 'expired' THEN
        v_done := v_done || id;
      END IF;
      RETURN NEXT;
    END LOOP;
  END IF;
  IF v_done <> '{}' AND EXISTS (SELECT FROM horsies_waiters w WHERE w.expires_at > clock_timestamp()) THEN
    -- 200 ids of 36 characters stay below the 8,000 bytes that a payload may have
    PERFORM pg_notify(p_channel || '_done', string_agg(d.id::text, ' '))
    FROM unnest(v_done) WITH ORDINALITY AS d (id, place) GROUP BY (d.place - 1) / 200;
  END IF;
END
$function$
;
CREATE OR REPLACE FUNCTION public.horsies_release_v1(p_worker uuid, p_claims jsonb, p_channel text)
 RETURNS uuid[]
 LANGUAGE plpgsql
 SET enable_seqscan TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
DECLARE
  v_released uuid[];
  v_woken int;
BEGIN
  WITH claim AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(p_claims) AS c (id uuid, generation int)
  ), held AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
    WHERE t.id = ANY (ARRAY(SELECT claim.id FROM claim)) AND t.claimed_by = p_worker AND t.status = 'RUNNING'
    FOR NO KEY UPDATE SKIP LOCKED
  ), released AS (
    UPDATE horsies_tasks t
    SET status = 'PENDING', claimed_by = NULL, claimed_at = NULL, claim_expires_at = NULL, started_at = NULL
    FROM claim c
    WHERE t.id = ANY (ARRAY(SELECT held.id FROM held)) AND c.id = t.id
      AND t.claim_generation = c.generation AND t.claimed_by = p_worker AND t.status = 'RUNNING'
    RETURNING t.id, t.queue_name, t.enqueued_at
  ), woken AS (
    SELECT pg_notify(p_channel || '_new', extract(epoch FROM min(r.enqueued_at)) || ' ' || r.queue_name)
    FROM released r GROUP BY r.queue_name
  )
  SELECT array_agg(r.id), (SELECT count(*) FROM woken) INTO v_released, v_woken FROM released r;
  RETURN v_released;
END
$function$
;
CREATE OR REPLACE FUNCTION public.horsies_settle_v1(p_worker uuid, p_outcomes jsonb)
 RETURNS uuid[]
 LANGUAGE plpgsql
 SET enable_seqscan TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
AS $function$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_settled uuid[];
BEGIN
  WITH outcome AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(p_outcomes) AS o (
      id uuid, generation int, status text, result jsonb, error_code text, error_message text, child_pid int, crashed boolean)
  ), held AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
    WHERE t.id = ANY (ARRAY(SELECT outcome.id FROM outcome)) AND t.claimed_by = p_worker AND t.status = 'RUNNING'
    FOR NO KEY UPDATE SKIP LOCKED
  ), settled AS (
    UPDATE horsies_tasks t
    SET status = o.status, finished_at = v_now, result = o.result, error_code = o.error_code
    FROM outcome o
    WHERE t.id = ANY (ARRAY(SELECT held.id FROM held)) AND o.id = t.id
      AND t.claim_generation = o.generation AND t.claimed_by = p_worker AND t.status = 'RUNNING'
    RETURNING t.id, t.retry_count + 1 AS attempt, t.claim_generation, t.started_at
  ), attempt AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, claim_generation, outcome, started_at, finished_at,
                                       error_code, error_message, worker_id, child_pid)
    SELECT s.id, s.attempt, s.claim_generation, CASE WHEN o.crashed THEN 'WORKER_FAILURE' ELSE o.status END,
           s.started_at, v_now, o.error_code, o.error_message, p_worker, o.child_pid
    FROM settled s JOIN outcome o ON o.id = s.id
  )
  SELECT array_agg(s.id) INTO v_settled FROM settled s;
  RETURN v_settled;
END
$function$
;
CREATE TABLE public.django_migrations (
    id bigint NOT NULL,
    app character varying(255) NOT NULL,
    name character varying(255) NOT NULL,
    applied timestamp with time zone NOT NULL
);
ALTER TABLE public.django_migrations ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.django_migrations_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.horsies_heartbeats (
    id uuid NOT NULL,
    worker_id uuid NOT NULL,
    role character varying(7) NOT NULL,
    pid integer NOT NULL,
    sent_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    died_at timestamp with time zone,
    CONSTRAINT horsies_heartbeats_role CHECK (((role)::text = ANY ((ARRAY['claimer'::character varying, 'runner'::character varying])::text[])))
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='100', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='100');
CREATE TABLE public.horsies_queues (
    name character varying(100) NOT NULL,
    priority smallint DEFAULT 100 NOT NULL,
    created_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    updated_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    CONSTRAINT horsies_queues_priority CHECK (((priority >= 1) AND (priority <= 100)))
);
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
    worker_id uuid,
    child_pid integer,
    CONSTRAINT horsies_task_attempts_outcome CHECK (((outcome)::text = ANY ((ARRAY['COMPLETED'::character varying, 'FAILED'::character varying, 'WORKER_FAILURE'::character varying])::text[])))
);
CREATE TABLE public.horsies_tasks (
    id uuid NOT NULL,
    task_name character varying(255) NOT NULL,
    queue_name character varying(100) NOT NULL,
    lane character varying(5) NOT NULL,
    priority smallint DEFAULT 100 NOT NULL,
    kwargs jsonb NOT NULL,
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
    result jsonb,
    error_code character varying(100),
    CONSTRAINT horsies_tasks_error_code CHECK ((((error_code IS NULL) AND ((status)::text = ANY ((ARRAY['PENDING'::character varying, 'CLAIMED'::character varying, 'RUNNING'::character varying, 'COMPLETED'::character varying])::text[]))) OR ((NOT ((status)::text = ANY ((ARRAY['PENDING'::character varying, 'CLAIMED'::character varying, 'RUNNING'::character varying, 'COMPLETED'::character varying])::text[]))) AND (error_code IS NOT NULL)))),
    CONSTRAINT horsies_tasks_lane CHECK (((lane)::text = ANY ((ARRAY['sync'::character varying, 'async'::character varying])::text[]))),
    CONSTRAINT horsies_tasks_priority CHECK (((priority >= 1) AND (priority <= 201))),
    CONSTRAINT horsies_tasks_status CHECK (((((status)::text = 'PENDING'::text) AND (claimed_by IS NULL) AND (finished_at IS NULL)) OR (((status)::text = ANY ((ARRAY['CLAIMED'::character varying, 'RUNNING'::character varying])::text[])) AND (claimed_by IS NOT NULL) AND (finished_at IS NULL)) OR (((status)::text = ANY ((ARRAY['CANCELLED'::character varying, 'COMPLETED'::character varying, 'EXPIRED'::character varying, 'FAILED'::character varying])::text[])) AND (finished_at IS NOT NULL))))
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='10000');
CREATE TABLE public.horsies_waiters (
    id uuid NOT NULL,
    expires_at timestamp with time zone NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='100', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='100');
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
    children_memory_mb double precision
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='100', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='100');
INSERT INTO public.django_migrations VALUES (18, 'horsies', '0001_initial', '2026-11-21 07:14:17.510221+00');
INSERT INTO public.django_migrations VALUES (19, 'horsies', '0002_functions', '2026-11-21 07:14:17.516762+00');
INSERT INTO public.horsies_heartbeats VALUES ('01930000-0000-7000-8000-000000000009', '01930000-0000-7000-8000-000000000009', 'claimer', 1, '2026-11-21 07:14:17.548097+00', NULL);
INSERT INTO public.horsies_queues VALUES ('mail', 1, '2026-11-21 07:14:17.547278+00', '2026-11-21 07:14:17.547278+00');
INSERT INTO public.horsies_queues VALUES ('bulk', 50, '2026-11-21 07:14:17.547278+00', '2026-11-21 07:14:17.547278+00');
INSERT INTO public.horsies_queues VALUES ('twin', 50, '2026-11-21 07:14:17.547278+00', '2026-11-21 07:14:17.547278+00');
INSERT INTO public.horsies_queues VALUES ('default', 100, '2026-11-21 07:14:17.547278+00', '2026-11-21 07:14:17.547278+00');
INSERT INTO public.horsies_task_attempts VALUES ('01930000-0000-7000-8000-000000000003', 1, 1, 'COMPLETED', false, '2026-11-21 07:14:17.548097+00', '2026-11-21 07:14:17.548097+00', NULL, NULL, '01930000-0000-7000-8000-000000000009', NULL);
INSERT INTO public.horsies_task_attempts VALUES ('01930000-0000-7000-8000-000000000004', 1, 1, 'FAILED', false, '2026-11-21 07:14:17.548097+00', '2026-11-21 07:14:17.548097+00', 'UNHANDLED_ERROR', NULL, '01930000-0000-7000-8000-000000000009', NULL);
INSERT INTO public.horsies_tasks VALUES ('01930000-0000-7000-8000-000000000000', 'tests.project.tasks.noop', 'default', 'sync', 100, '{}', NULL, 'PENDING', NULL, NULL, false, '2026-11-21 07:14:17.548097+00', '2026-11-21 07:14:17.548097+00', NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL);
INSERT INTO public.horsies_tasks VALUES ('01930000-0000-7000-8000-000000000001', 'tests.project.tasks.add', 'default', 'sync', 100, '{"a": 1}', NULL, 'PENDING', NULL, NULL, false, '2026-11-21 07:14:17.548097+00', '2026-11-21 07:14:17.548097+00', NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL);
INSERT INTO public.horsies_tasks VALUES ('01930000-0000-7000-8000-000000000002', 'tests.project.tasks.noop', 'mail', 'sync', 100, '{}', NULL, 'RUNNING', NULL, NULL, false, '2026-11-21 07:14:17.548097+00', '2026-11-21 07:14:17.548097+00', NULL, '2026-11-21 07:14:17.548097+00', '01930000-0000-7000-8000-000000000009', 1, NULL, '2026-11-21 07:14:17.548097+00', NULL, NULL, 0, 0, NULL, NULL, NULL);
INSERT INTO public.horsies_tasks VALUES ('01930000-0000-7000-8000-000000000003', 'tests.project.tasks.anoop', 'default', 'async', 100, '{}', NULL, 'COMPLETED', NULL, NULL, false, '2026-11-21 07:14:17.548097+00', '2026-11-21 07:14:17.548097+00', NULL, '2026-11-21 07:14:17.548097+00', '01930000-0000-7000-8000-000000000009', 1, NULL, '2026-11-21 07:14:17.548097+00', '2026-11-21 07:14:17.548097+00', NULL, 0, 0, NULL, '{"ok": null}', NULL);
INSERT INTO public.horsies_tasks VALUES ('01930000-0000-7000-8000-000000000004', 'tests.project.tasks.raises', 'default', 'sync', 100, '{"message": "x"}', NULL, 'FAILED', NULL, NULL, false, '2026-11-21 07:14:17.548097+00', '2026-11-21 07:14:17.548097+00', NULL, '2026-11-21 07:14:17.548097+00', '01930000-0000-7000-8000-000000000009', 1, NULL, '2026-11-21 07:14:17.548097+00', '2026-11-21 07:14:17.548097+00', NULL, 0, 0, NULL, '{"err": {"data": null, "message": "x", "exception": null, "error_code": "UNHANDLED_ERROR"}}', 'UNHANDLED_ERROR');
INSERT INTO public.horsies_tasks VALUES ('01930000-0000-7000-8000-000000000005', 'tests.project.tasks.noop', 'default', 'sync', 100, '{}', NULL, 'EXPIRED', NULL, NULL, false, '2026-11-21 07:14:17.548097+00', '2026-11-21 07:14:17.548097+00', '2026-11-21 07:14:17.548097+00', NULL, NULL, 0, NULL, NULL, '2026-11-21 07:14:17.548097+00', NULL, 0, 0, NULL, '{"err": {"error_code": "TASK_EXPIRED"}}', 'TASK_EXPIRED');
INSERT INTO public.horsies_workers VALUES ('01930000-0000-7000-8000-000000000009', 'kept', 1, '0.1.0', '["default", "mail"]', 2, 1, 100, '2026-11-21 07:14:17.548097+00', '2026-11-21 07:14:17.548097+00', NULL, 0, 0, NULL, NULL);
SELECT pg_catalog.setval('public.django_migrations_id_seq', 20, true);
ALTER TABLE ONLY public.django_migrations
    ADD CONSTRAINT django_migrations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.horsies_heartbeats
    ADD CONSTRAINT horsies_heartbeats_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.horsies_queues
    ADD CONSTRAINT horsies_queues_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.horsies_task_attempts
    ADD CONSTRAINT horsies_task_attempts_pkey PRIMARY KEY (task_id, attempt);
ALTER TABLE ONLY public.horsies_tasks
    ADD CONSTRAINT horsies_tasks_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.horsies_waiters
    ADD CONSTRAINT horsies_waiters_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.horsies_workers
    ADD CONSTRAINT horsies_workers_pkey PRIMARY KEY (id);
CREATE INDEX horsies_heartbeats_worker ON public.horsies_heartbeats USING btree (worker_id);
CREATE INDEX horsies_queues_name_a66e9dbe_like ON public.horsies_queues USING btree (name varchar_pattern_ops);
CREATE INDEX horsies_tasks_claim ON public.horsies_tasks USING btree (queue_name, lane, priority, enqueued_at, id) WHERE ((claimed_by IS NULL) AND (finished_at IS NULL) AND (NOT parked));
CREATE INDEX horsies_tasks_finished ON public.horsies_tasks USING btree (finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX horsies_tasks_in_flight ON public.horsies_tasks USING btree (claimed_by, claimed_at) WHERE ((claimed_by IS NOT NULL) AND (finished_at IS NULL));
CREATE INDEX horsies_tasks_unsuccessful ON public.horsies_tasks USING btree (finished_at) WHERE ((error_code IS NOT NULL) AND (finished_at IS NOT NULL));
CREATE INDEX horsies_workers_started ON public.horsies_workers USING btree (started_at DESC);
CREATE TRIGGER horsies_tasks_announce AFTER INSERT ON public.horsies_tasks REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION public.horsies_announce_v1();
