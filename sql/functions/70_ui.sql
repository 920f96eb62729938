-- The dashboard (docs/ui.md): its pages' data and its acts, as JSON. The HTTP door passes questions on and answers back and knows no page;
-- the connection's role is one of umavez_operator's.
--
-- Quick with a million ended runs: nothing is counted whole, and finished_runs, which has no index by time (each run would pay for it), is
-- read by its blocks from the newest backwards, a bounded number for each answer; the answer says where to go on. Rows lie in the order in
-- which runs have ended, but for those that have filled the place of a run that was retried.

-- ui_token: whose token it is, by its digest (at the log-in) or its number (of a session): a valid one of the platform with the scope ui
-- or ui:write, spelled out: `*` is for tasks. signing: what a session's cookie is signed with; ends with the token. Not for
-- umavez_worker: a handler, who could read the gate's secret, must not be able to sign.
CREATE OR REPLACE FUNCTION umavez.ui_token(p_id bigint, p_digest bytea)
RETURNS TABLE (id bigint, name text, may_write boolean, signing text)
LANGUAGE sql STABLE PARALLEL UNSAFE ROWS 1 SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT t.id, t.name, 'ui:write' = ANY (t.scopes),
         encode(sha256(convert_to('umavez.ui.v1', 'UTF8') || '\x00' || t.digest || g.secret), 'hex')
    FROM umavez.tokens t CROSS JOIN umavez.gate g
   WHERE (t.id = p_id OR t.digest = p_digest) AND t.tenant_id IS NULL AND t.scopes && ARRAY['ui', 'ui:write']
     AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp());
$fn$;

-- ---- runs ----

-- ui_row: a run as lists show it.
CREATE OR REPLACE FUNCTION umavez.ui_row(f umavez.finished_runs) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT jsonb_build_object('run_id', f.run_id, 'task', f.task, 'tenant', f.tenant_id::text, 'queue', f.queue,
           'state', CASE WHEN f.discarded_at IS NULL THEN f.status ELSE 'discarded' END, 'replay', f.replay, 'deliveries', f.deliveries,
           'code', CASE WHEN f.status <> 'completed' THEN f.outcome->>'code' END,
           'enqueued_at', f.enqueued_at, 'finished_at', f.finished_at);
$fn$;

-- ui_ended: ended runs that fit, the newest first, from p_cursor on (NULL: from the newest). Reads p_blocks blocks at most; next: where
-- to go on, NULL at the end; back_to: how far back has been read.
CREATE OR REPLACE FUNCTION umavez.ui_ended(p_filter jsonb, p_cursor text, p_limit integer, p_blocks integer) RETURNS jsonb
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $fn$
DECLARE
  v_from constant text := split_part(p_cursor, ':', 1);
  v_name text; v_size bigint; v_upto bigint; v_step bigint := 2; v_left bigint := p_blocks; v_n integer; v_found jsonb; v_oldest timestamptz;
  v_rows jsonb := '[]'; v_back timestamptz; v_begun boolean := p_cursor IS NULL;
BEGIN
  FOR v_name IN
    SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'umavez.finished_runs'::regclass
     ORDER BY CASE c.relname WHEN 'finished_runs_default' THEN to_char(clock_timestamp() AT TIME ZONE 'UTC', '"finished_runs_"YYYYMMDD')
                             ELSE c.relname || '_' END COLLATE "C" DESC
  LOOP
    v_begun := v_begun OR v_name = v_from;
    CONTINUE WHEN NOT v_begun;
    v_size := pg_relation_size(format('umavez.%I', v_name)::regclass) / current_setting('block_size')::bigint;
    v_upto := CASE WHEN v_name = v_from THEN least(v_size, split_part(p_cursor, ':', 2)::bigint) ELSE v_size END;
    WHILE v_upto > 0 LOOP
      v_step := least(v_step, v_upto, v_left);
      EXECUTE format(
        'SELECT count(*) FILTER (WHERE s.fits), jsonb_agg(umavez.ui_row(s.f) ORDER BY (s.f).finished_at DESC, (s.f).run_id)
                  FILTER (WHERE s.fits), min((s.f).finished_at)
           FROM (SELECT f::umavez.finished_runs AS f,
                        ($1->>''state'' IS NULL OR CASE $1->>''state'' WHEN ''discarded'' THEN f.discarded_at IS NOT NULL
                           ELSE f.status = $1->>''state'' AND f.discarded_at IS NULL END)
                        AND ($1->>''task'' IS NULL OR f.task = $1->>''task'') AND ($1->>''queue'' IS NULL OR f.queue = $1->>''queue'')
                        AND ($1->>''tenant'' IS NULL OR coalesce(f.tenant_id::text, ''platform'') = $1->>''tenant'')
                        AND ($1->>''key'' IS NULL OR f.idempotency_key = decode($1->>''key'', ''hex'')) AS fits
                   FROM umavez.%I f WHERE %s) s', v_name, umavez.in_blocks(v_upto - v_step, v_upto))
        INTO v_n, v_found, v_oldest USING p_filter;
      IF v_n > 4 * p_limit AND v_step > 1 THEN                   -- too good a catch: a smaller net
        v_step := v_step / 2;
        CONTINUE;
      END IF;
      v_upto := v_upto - v_step;
      v_left := v_left - v_step;
      v_rows := v_rows || coalesce(v_found, '[]');
      v_back := coalesce(v_oldest, v_back);
      IF jsonb_array_length(v_rows) >= p_limit OR v_left <= 0 THEN
        RETURN jsonb_build_object('rows', v_rows, 'next', v_name || ':' || v_upto, 'back_to', v_back);
      END IF;
      v_step := least(v_step * 2, 128);
    END LOOP;
  END LOOP;
  RETURN jsonb_build_object('rows', v_rows, 'next', NULL, 'back_to', v_back);
END $fn$;

-- ui_failed: failed runs, the newest first, by their index: a look for each task. Reads p_scan of a task at most.
CREATE OR REPLACE FUNCTION umavez.ui_failed(p_filter jsonb, p_before timestamptz, p_limit integer, p_scan integer) RETURNS jsonb
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET enable_hashjoin = off SET enable_mergejoin = off AS $fn$
DECLARE
  v_rows jsonb; v_seen bigint; v_last timestamptz; v_oldest timestamptz;
BEGIN
  WITH RECURSIVE failing AS (                                    -- each task once, by one look into the index
    (SELECT f.task FROM umavez.finished_runs f WHERE f.status = 'failed_permanent' ORDER BY f.task LIMIT 1)
    UNION ALL
    SELECT (SELECT f.task FROM umavez.finished_runs f WHERE f.status = 'failed_permanent' AND f.task > w.task ORDER BY f.task LIMIT 1)
      FROM failing w WHERE w.task IS NOT NULL
  ), wanted AS (
    SELECT p_filter->>'task' AS task WHERE p_filter ? 'task'
    UNION ALL
    (SELECT w.task FROM failing w WHERE w.task IS NOT NULL AND NOT p_filter ? 'task' LIMIT 200)
  ), looked AS MATERIALIZED (
    SELECT l.f FROM wanted w
     CROSS JOIN LATERAL (SELECT f FROM umavez.finished_runs f
                          WHERE f.status = 'failed_permanent' AND f.task = w.task AND f.finished_at < coalesce(p_before, 'infinity')
                          ORDER BY f.finished_at DESC LIMIT p_scan) l
     ORDER BY (l.f).finished_at DESC LIMIT p_scan
  ), fitting AS (
    SELECT l.f FROM looked l
     WHERE ((l.f).discarded_at IS NOT NULL) = (p_filter->>'state' = 'discarded')
       AND (NOT p_filter ? 'queue' OR (l.f).queue = p_filter->>'queue')
       AND (NOT p_filter ? 'tenant' OR coalesce((l.f).tenant_id::text, 'platform') = p_filter->>'tenant')
       AND (NOT p_filter ? 'key' OR (l.f).idempotency_key = decode(p_filter->>'key', 'hex'))
     ORDER BY (l.f).finished_at DESC LIMIT p_limit
  )
  SELECT (SELECT jsonb_agg(umavez.ui_row(t.f) ORDER BY (t.f).finished_at DESC) FROM fitting t), (SELECT min((t.f).finished_at) FROM fitting t),
         (SELECT count(*) FROM looked), (SELECT min((k.f).finished_at) FROM looked k)
    INTO v_rows, v_last, v_seen, v_oldest;
  v_rows := coalesce(v_rows, '[]');
  RETURN jsonb_build_object('rows', v_rows, 'back_to', v_oldest,
    'next', CASE WHEN jsonb_array_length(v_rows) >= p_limit THEN v_last WHEN v_seen >= p_scan THEN v_oldest END);
END $fn$;

-- ui_live: runs that have not ended, p_limit at most: those that workers hold, or those that wait, by the time at which they are due.
-- Looks at p_scan of a queue and priority at most (of each of its other lanes, 25_lanes.sql, at a tenth of that, and at 1000 lanes), and begins
-- where takes begin.
CREATE OR REPLACE FUNCTION umavez.ui_live(p_filter jsonb, p_limit integer, p_scan integer) RETURNS jsonb
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $fn$
DECLARE
  v_queue constant text := p_filter->>'queue'; v_rows jsonb; v_seen bigint;
BEGIN
  WITH RECURSIVE waiting AS (                                    -- each lane once, by one look into the index
    (SELECT r.queue, r.lane, 1 AS n FROM umavez.runs r
      WHERE r.state = 'available' AND r.queue >= coalesce(v_queue, '') ORDER BY r.queue, r.lane LIMIT 1)
    UNION ALL
    SELECT x.queue, x.lane, w.n + 1
      FROM waiting w
     CROSS JOIN LATERAL (SELECT r.queue, r.lane FROM umavez.runs r
                          WHERE r.state = 'available' AND (r.queue, r.lane) > (w.queue, w.lane) ORDER BY r.queue, r.lane LIMIT 1) x
     WHERE w.n < 1000 AND (v_queue IS NULL OR w.queue = v_queue)
  ), lanes AS (
    SELECT w.queue, w.lane, CASE w.lane WHEN '' THEN p_scan ELSE p_scan / 10 END AS most, m.since
      FROM waiting w
      LEFT JOIN LATERAL (SELECT k.since FROM umavez.marks k
                          WHERE k.name = 'take:' || w.queue AND w.lane = '' AND k.full_at <> '-infinity' OFFSET 0) m ON true
     WHERE v_queue IS NULL OR w.queue = v_queue
  ), looked AS (
    SELECT l.r FROM (SELECT r FROM umavez.runs r WHERE r.state = 'running' ORDER BY r.lease_until LIMIT p_scan) l
     WHERE p_filter->>'state' = 'running'
    UNION ALL
    SELECT l.r FROM lanes q
     CROSS JOIN generate_series(1, 4) AS g(priority)
     CROSS JOIN LATERAL (SELECT r FROM umavez.runs r
                          WHERE r.state = 'available' AND r.queue = q.queue AND r.lane = q.lane AND r.priority = g.priority
                            AND r.run_at >= coalesce(q.since[g.priority], '-infinity')
                          ORDER BY r.run_at LIMIT q.most) l
     WHERE p_filter->>'state' = 'available'
  ), fitting AS (
    SELECT l.r FROM looked l
     WHERE (NOT p_filter ? 'task' OR (l.r).task = p_filter->>'task') AND (v_queue IS NULL OR (l.r).queue = v_queue)
       AND (NOT p_filter ? 'tenant' OR coalesce((l.r).tenant_id::text, 'platform') = p_filter->>'tenant')
     ORDER BY (l.r).run_at, (l.r).run_id LIMIT p_limit + 1
  )
  SELECT jsonb_agg(jsonb_build_object('run_id', (t.r).run_id, 'task', (t.r).task, 'tenant', (t.r).tenant_id::text, 'queue', (t.r).queue,
                     'state', (t.r).state, 'replay', false, 'deliveries', (t.r).deliveries, 'code', (t.r).failure->>'code',
                     'enqueued_at', (t.r).enqueued_at, 'run_at', (t.r).run_at, 'worker_id', (t.r).worker_id)
                   ORDER BY (t.r).run_at, (t.r).run_id), count(*)
    INTO v_rows, v_seen FROM fitting t;
  RETURN jsonb_build_object('rows', coalesce(v_rows, '[]') - p_limit, 'next', NULL, 'more', v_seen > p_limit);
END $fn$;

-- ui_runs: a list of runs: state (available, running, completed, failed_permanent, discarded; none: all that have ended), task, queue,
-- tenant (an id, or platform), key (a digest), cursor.
CREATE OR REPLACE FUNCTION umavez.ui_runs(p jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
BEGIN
  IF p ? 'key' AND p->>'key' !~ '^[0-9a-fA-F]{64}$' THEN
    RAISE EXCEPTION 'key must be a digest of 64 hexadecimal digits' USING ERRCODE = '22023';
  ELSIF p ? 'tenant' AND p->>'tenant' !~ '^([0-9]{1,18}|platform)$' THEN
    RAISE EXCEPTION 'tenant must be an id, or platform' USING ERRCODE = '22023';
  ELSIF p ? 'cursor' AND p->>'cursor' !~ '^(finished_runs_[a-z0-9]{1,40}:[0-9]{1,10}|[-0-9T:.+]{10,40})$' THEN
    RAISE EXCEPTION 'cursor is none of ours' USING ERRCODE = '22023';
  END IF;
  CASE coalesce(p->>'state', '')
    WHEN '', 'completed' THEN RETURN umavez.ui_ended(p, p->>'cursor', 50, 1500);
    WHEN 'failed_permanent', 'discarded' THEN RETURN umavez.ui_failed(p, (p->>'cursor')::timestamptz, 50, 300);
    WHEN 'available', 'running' THEN RETURN umavez.ui_live(p, 100, 5000);
    ELSE RAISE EXCEPTION 'state must be available, running, completed, failed_permanent or discarded' USING ERRCODE = '22023';
  END CASE;
END $fn$;

-- ui_run: a run's page. history: what operators have done about it, as far as the last 2000 acts tell. with_args: its args too.
CREATE OR REPLACE FUNCTION umavez.ui_run(p_run uuid, p_with_args boolean) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $fn$
  SELECT jsonb_build_object(
           'run', to_jsonb(d) - 'args' || jsonb_build_object('tenant_id', d.tenant_id::text, 'args_kept', d.args IS NOT NULL),
           'args', CASE WHEN p_with_args THEN d.args END,
           'ledger', (SELECT to_jsonb(l) - 'tenant_id' FROM umavez.ledger_row(d.tenant_id, decode(d.key_digest, 'hex')) l),
           'paused', (SELECT to_jsonb(q) FROM umavez.paused_queues q WHERE q.queue = d.queue AND d.state IN ('available', 'running')),
           'cancellation', (SELECT to_jsonb(c) FROM umavez.cancellations c WHERE c.run_id = p_run),
           'history', coalesce((SELECT jsonb_agg(jsonb_build_object('at', a.at, 'who', coalesce(a.os_user, a.db_user), 'action', a.action,
                                                   'reason', a.reason) ORDER BY a.id)
                        FROM umavez.list_audit(NULL, NULL, NULL, 2000) a
                       WHERE a.target = p_run::text OR a.detail->'runs' ? p_run::text), '[]'))
    FROM umavez.run_details(p_run) d;
$fn$;

-- ---- search ----

-- ui_key_digests: the digests that a text can stand for as the key of a task of p_task, or of any that is registered: as a string, as a
-- number, as what a key function gives; a JSON array means several parts. The framing is that of docs/keys.md.
CREATE OR REPLACE FUNCTION umavez.ui_key_digests(p_text text, p_task text) RETURNS TABLE (task text, digest bytea)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $fn$
#variable_conflict use_column
DECLARE
  v_parts jsonb[] := ARRAY[jsonb_build_array(jsonb_build_object('t', 's', 'v', p_text)), jsonb_build_array(jsonb_build_object('t', 'f', 'v', p_text))];
BEGIN
  IF p_text ~ '^-?[0-9]{1,15}$' THEN
    v_parts := v_parts || jsonb_build_array(jsonb_build_object('t', 'n', 'v', p_text::bigint::text));
  ELSIF p_text ~ '^\s*\[.*\]\s*$' THEN
    BEGIN
      v_parts := v_parts || (SELECT jsonb_agg(jsonb_build_object('t', CASE jsonb_typeof(e.v) WHEN 'number' THEN 'n' WHEN 'boolean' THEN 'b'
                                                                        ELSE 's' END, 'v', e.v #>> '{}') ORDER BY e.nr)
                               FROM jsonb_array_elements(p_text::jsonb) WITH ORDINALITY AS e(v, nr));
    EXCEPTION WHEN data_exception THEN
      NULL;                                                      -- a key that only looks like an array
    END;
  END IF;
  RETURN QUERY
  SELECT t.name, sha256(convert_to('umavez.key.v1', 'UTF8') || '\x00' || int4send(octet_length(convert_to(t.name, 'UTF8')))
                        || convert_to(t.name, 'UTF8')
                        || (SELECT string_agg(convert_to(e.v->>'t', 'UTF8') || int4send(octet_length(convert_to(e.v->>'v', 'UTF8')))
                                              || convert_to(e.v->>'v', 'UTF8'), '' ORDER BY e.nr)
                              FROM jsonb_array_elements(p.parts) WITH ORDINALITY AS e(v, nr)))
    FROM (SELECT k.name FROM umavez.tasks k WHERE p_task IS NULL OR k.name = p_task ORDER BY k.name LIMIT 500) t
   CROSS JOIN unnest(v_parts) AS p(parts)
   WHERE p.parts IS NOT NULL;
END $fn$;

-- ui_find: a run's id, a key's digest, a key as a task's args have it, a tenant's id, a task's or a queue's name: what there is. A key of a tenant's is looked
-- for under each tenant that has any key, 1000 of them at most, or under the one that is named.
CREATE OR REPLACE FUNCTION umavez.ui_find(p_text text, p_task text, p_tenant bigint) RETURNS jsonb
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET enable_hashjoin = off SET enable_mergejoin = off AS $fn$
DECLARE
  v_run jsonb; v_keys jsonb; v_digest bytea;
BEGIN
  IF p_text ~* '^[0-9a-f]{64}$' THEN
    v_digest := decode(p_text, 'hex');
  ELSIF p_text ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN
    SELECT jsonb_build_object('run_id', d.run_id, 'task', d.task, 'state', d.state, 'tenant', d.tenant_id::text)
      INTO v_run FROM umavez.run_details(p_text::uuid) d;
  END IF;
  WITH RECURSIVE digests AS MATERIALIZED (
    SELECT NULL::text AS task, v_digest AS digest WHERE v_digest IS NOT NULL
    UNION ALL
    SELECT d.task, d.digest FROM umavez.ui_key_digests(p_text, p_task) d WHERE v_digest IS NULL
  ), owners AS (
    SELECT (SELECT k.tenant_id FROM umavez.idempotency_keys k ORDER BY k.tenant_id LIMIT 1) AS tenant_id, 1 AS n WHERE p_tenant IS NULL
    UNION ALL
    SELECT (SELECT k.tenant_id FROM umavez.idempotency_keys k WHERE k.tenant_id > o.tenant_id ORDER BY k.tenant_id LIMIT 1), o.n + 1
      FROM owners o WHERE o.tenant_id IS NOT NULL AND o.n < 1000
  ), found AS (
    SELECT d.task, d.digest, k.tenant_id, k.status, k.updated_at
      FROM (SELECT o.tenant_id FROM owners o WHERE o.tenant_id IS NOT NULL UNION ALL SELECT p_tenant WHERE p_tenant IS NOT NULL) o
     CROSS JOIN digests d
     CROSS JOIN LATERAL (SELECT i.tenant_id, i.status, i.updated_at FROM umavez.idempotency_keys i
                          WHERE i.tenant_id = o.tenant_id AND i.idempotency_key = d.digest OFFSET 0) k
    UNION ALL
    SELECT d.task, d.digest, NULL, k.status, k.updated_at
      FROM digests d
     CROSS JOIN LATERAL (SELECT i.status, i.updated_at FROM umavez.platform_idempotency_keys i WHERE i.idempotency_key = d.digest OFFSET 0) k
     WHERE p_tenant IS NULL
  )
  SELECT jsonb_agg(jsonb_build_object('task', x.task, 'digest', encode(x.digest, 'hex'), 'tenant', x.tenant_id::text, 'status', x.status,
                                      'updated_at', x.updated_at) ORDER BY x.updated_at DESC)
    INTO v_keys FROM (SELECT * FROM found LIMIT 50) x;
  RETURN jsonb_build_object('run', v_run, 'keys', coalesce(v_keys, '[]'),
                            'tenant', CASE WHEN p_text ~ '^[0-9]{1,18}$' THEN p_text END,
                            'task', (SELECT t.name FROM umavez.tasks t WHERE t.name = p_text),
                            'queue', (SELECT t.queue FROM umavez.tasks t WHERE t.queue = p_text LIMIT 1));
END $fn$;

-- ---- pages ----

-- ui_overview: rates, depths, failures and workers of now.
CREATE OR REPLACE FUNCTION umavez.ui_overview() RETURNS jsonb
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $fn$
  WITH rates AS MATERIALIZED (SELECT * FROM umavez.recent_rates(64))
  SELECT jsonb_build_object(
    'now', clock_timestamp(), 'database', current_database(),
    'rates', coalesce((SELECT to_jsonb(r) - 'task' FROM rates r WHERE r.task IS NULL),
                      '{"ended_per_s": 0, "failed_per_s": 0, "replayed_per_s": 0}'),
    'tasks', coalesce((SELECT jsonb_agg(to_jsonb(r) ORDER BY r.ended_per_s DESC, r.task)
                         FROM (SELECT * FROM rates x WHERE x.task IS NOT NULL ORDER BY x.ended_per_s DESC, x.task LIMIT 20) r), '[]'),
    'dead_last_hour', umavez.dead_runs(10000), 'bounded_at', 10000,
    'queues', coalesce((SELECT jsonb_agg(to_jsonb(q)) FROM umavez.list_queues(10000) q), '[]'),
    'workers', (SELECT count(*) FROM umavez.list_workers(false)));
$fn$;

-- ui_history: what the sample of the newest blocks tells of the last five minutes, in slices of five seconds. from_at: since when it
-- tells all.
CREATE OR REPLACE FUNCTION umavez.ui_history() RETURNS jsonb
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $fn$
  WITH e AS MATERIALIZED (SELECT * FROM umavez.recent_ends(512)),
       s AS (SELECT floor(extract(epoch FROM e.finished_at) / 5)::bigint * 5 AS at, count(*) / 5.0 AS ended_per_s,
                    count(*) FILTER (WHERE e.status <> 'completed') / 5.0 AS failed_per_s, count(*) FILTER (WHERE e.replay) / 5.0 AS replayed_per_s,
                    percentile_disc(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY extract(epoch FROM e.finished_at - e.enqueued_at) * 1000) AS ms
               FROM e WHERE e.finished_at > clock_timestamp() - interval '5 minutes' GROUP BY 1)
  SELECT jsonb_build_object('from_at', (SELECT min(e.finished_at) FROM e), 'slices', coalesce((
    SELECT jsonb_agg(jsonb_build_object('at', s.at, 'ended_per_s', round(s.ended_per_s, 2), 'failed_per_s', round(s.failed_per_s, 2),
                                        'replayed_per_s', round(s.replayed_per_s, 2), 'p50_ms', round(s.ms[1]::numeric, 3),
                                        'p95_ms', round(s.ms[2]::numeric, 3), 'p99_ms', round(s.ms[3]::numeric, 3)) ORDER BY s.at)
      FROM s), '[]'));
$fn$;

-- ui_tasks: the tasks that workers have registered, their rates and their failures of the last day, counted up to 1000 each.
CREATE OR REPLACE FUNCTION umavez.ui_tasks() RETURNS jsonb
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET enable_hashjoin = off SET enable_mergejoin = off AS $fn$
  WITH rates AS MATERIALIZED (SELECT * FROM umavez.recent_rates(64))
  SELECT jsonb_build_object('bounded_at', 1000, 'rows', coalesce(jsonb_agg(jsonb_build_object(
           'task', t.name, 'owner', t.owner, 'queue', t.queue, 'updated_at', t.updated_at, 'ended_per_s', r.ended_per_s,
           'failed_per_s', r.failed_per_s, 'p50_ms', r.p50_ms, 'p99_ms', r.p99_ms, 'dead', d.n, 'places', l.places, 'used', l.used)
           ORDER BY t.name), '[]'))
    FROM (SELECT * FROM umavez.tasks k ORDER BY k.name LIMIT 500) t
    LEFT JOIN rates r ON r.task = t.name
    LEFT JOIN umavez.list_limits() l ON l.kind = 'task' AND l.name = t.name AND l.places IS NOT NULL
    LEFT JOIN LATERAL (SELECT count(*) AS n
                         FROM (SELECT FROM umavez.finished_runs f
                                WHERE f.status = 'failed_permanent' AND f.task = t.name AND f.finished_at > clock_timestamp() - interval '1 day'
                                  AND f.discarded_at IS NULL LIMIT 1000) l) d ON true;
$fn$;

-- ui_read: what a page shows. NULL: there is no such page, or no such run.
CREATE OR REPLACE FUNCTION umavez.ui_read(p_page text, p jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET jit = off AS $fn$
BEGIN
  CASE p_page
    WHEN 'overview' THEN RETURN umavez.ui_overview();
    WHEN 'history' THEN RETURN umavez.ui_history();
    WHEN 'queues' THEN
      RETURN jsonb_build_object('bounded_at', 10000,
                                'rows', coalesce((SELECT jsonb_agg(to_jsonb(q)) FROM umavez.list_queues(10000) q), '[]'));
    WHEN 'tasks' THEN RETURN umavez.ui_tasks();
    WHEN 'schedules' THEN
      RETURN jsonb_build_object('rows', coalesce((SELECT jsonb_agg(to_jsonb(s)) FROM umavez.list_schedules(NULL) s), '[]'));
    WHEN 'workers' THEN
      RETURN jsonb_build_object('rows', coalesce((SELECT jsonb_agg(to_jsonb(w)) FROM umavez.list_workers(true) w), '[]'));
    WHEN 'audit' THEN
      RETURN (SELECT jsonb_build_object('rows', coalesce(jsonb_agg(to_jsonb(a) ORDER BY a.id DESC), '[]'),
                                        'next', CASE WHEN count(*) = 50 THEN min(a.id)::text END)
                FROM umavez.list_audit(p->>'action', p->>'target', (p->>'cursor')::bigint, 50) a);
    WHEN 'runs' THEN RETURN umavez.ui_runs(p);
    WHEN 'run' THEN RETURN umavez.ui_run((p->>'id')::uuid, p->>'args' = '1');
    WHEN 'find' THEN RETURN umavez.ui_find(left(btrim(coalesce(p->>'q', '')), 1000), p->>'task', (p->>'tenant')::bigint);
    ELSE RETURN NULL;
  END CASE;
END $fn$;

-- ui_act: an operator's act: {action, target, reason}. result: changed, or why nothing was (unchanged, or what umavez.cancel_run gives).
CREATE OR REPLACE FUNCTION umavez.ui_act(p jsonb, p_actor text) RETURNS jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
  v_target constant text := p->>'target'; v_reason constant text := btrim(coalesce(p->>'reason', '')); v_done boolean; v_result text;
BEGIN
  IF coalesce(v_target, '') = '' OR length(v_target) > 1000 THEN
    RAISE EXCEPTION 'target must be a queue or a run' USING ERRCODE = '22023';
  ELSIF v_reason = '' OR length(v_reason) > 500 THEN
    RAISE EXCEPTION 'reason must be a text of 1 to 500 characters' USING ERRCODE = '22023';
  END IF;
  CASE coalesce(p->>'action', '')
    WHEN 'pause' THEN v_done := umavez.pause_queue(v_target, v_reason, p_actor);
    WHEN 'resume' THEN v_done := umavez.resume_queue(v_target, v_reason, p_actor);
    WHEN 'cancel' THEN v_result := umavez.cancel_run(v_target::uuid, v_reason, p_actor);
    WHEN 'retry' THEN v_done := umavez.retry_runs(ARRAY[v_target::uuid], v_target, v_reason, p_actor) = 1;
    WHEN 'discard' THEN v_done := EXISTS (SELECT FROM umavez.discard_runs(ARRAY[v_target::uuid], v_reason, p_actor));
    ELSE RAISE EXCEPTION 'action must be pause, resume, cancel, retry or discard' USING ERRCODE = '22023';
  END CASE;
  RETURN jsonb_build_object('result', coalesce(v_result, CASE WHEN v_done THEN 'changed' ELSE 'unchanged' END));
END $fn$;
