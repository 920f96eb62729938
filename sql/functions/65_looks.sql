-- What an operator looks at: workers, schedules, the audit, the rates of what ends, one run. Shared by the command line and the dashboard
-- (70_ui.sql), so that both tell the same. All for umavez_operator; none of them reads a table that grows without bounds from end to end.

-- list_workers: those that have said something lately; p_all: those too that have not. Runs held are counted up to 100,000.
CREATE OR REPLACE FUNCTION umavez.list_workers(p_all boolean)
RETURNS TABLE (worker_id uuid, host text, pid integer, version text, started_at timestamptz, up_s double precision, seen_s double precision,
               alive boolean, held integer, supervisor integer, http text, queues text)
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $fn$
  SELECT w.worker_id, w.host, w.pid, w.version, w.started_at, extract(epoch FROM clock_timestamp() - w.started_at)::float8,
         extract(epoch FROM clock_timestamp() - w.seen_at)::float8, w.seen_at > clock_timestamp() - interval '45 seconds',
         coalesce(h.n, 0)::int, (w.detail->>'supervisor')::int, w.detail->>'http',
         coalesce(w.detail->>'shares', (SELECT string_agg(q, ',') FROM jsonb_array_elements_text(w.detail->'queues') q))
    FROM umavez.workers w
    LEFT JOIN (SELECT l.worker_id, count(*) AS n
                 FROM (SELECT r.worker_id FROM umavez.runs r WHERE r.state = 'running' LIMIT 100000) l
                GROUP BY l.worker_id) h ON h.worker_id = w.worker_id
   WHERE p_all OR w.seen_at > clock_timestamp() - interval '45 seconds'
   ORDER BY w.host, w.started_at, w.pid;
$fn$;

-- list_schedules: what workers have declared, of one task or all.
CREATE OR REPLACE FUNCTION umavez.list_schedules(p_task text)
RETURNS TABLE (task text, spec text, tz text, missed text, each_tenant boolean, last_slot timestamptz, next_slot timestamptz, seen_at timestamptz)
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT s.task, s.declared->>'text', s.declared->>'tz', s.declared->>'missed', (s.declared->>'each_tenant')::boolean, s.last_slot,
         s.next_slot, s.seen_at
    FROM umavez.schedules s WHERE p_task IS NULL OR s.task = p_task ORDER BY s.task;
$fn$;

-- list_audit: acts, the latest first, older than the act p_before.
CREATE OR REPLACE FUNCTION umavez.list_audit(p_action text, p_target text, p_before bigint, p_limit integer)
RETURNS TABLE (id bigint, at timestamptz, db_user text, os_user text, action text, target text, reason text, detail jsonb)
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $fn$
  SELECT a.id, a.at, a.db_user, a.os_user, a.action, a.target, a.reason, a.detail
    FROM umavez.audit a
   WHERE (p_action IS NULL OR a.action = p_action) AND (p_target IS NULL OR a.target = p_target) AND (p_before IS NULL OR a.id < p_before)
   ORDER BY a.id DESC LIMIT p_limit;
$fn$;

-- recent_rates: of what ended within the last ten seconds (of less, where more has ended in that time than the sample of p_blocks holds): a
-- row for all (task NULL) and one a task.
CREATE OR REPLACE FUNCTION umavez.recent_rates(p_blocks integer)
RETURNS TABLE (task text, ended_per_s double precision, failed_per_s double precision, replayed_per_s double precision,
               p50_ms double precision, p95_ms double precision, p99_ms double precision, span_s double precision)
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $fn$
  WITH e AS MATERIALIZED (
    SELECT x.*, extract(epoch FROM x.finished_at - x.enqueued_at)::float8 * 1000 AS ms FROM umavez.recent_ends(p_blocks) x
  ), span AS (
    SELECT least(10, greatest(0.001, coalesce(extract(epoch FROM clock_timestamp() - min(e.finished_at)), 10)))::float8 AS s FROM e
  )
  SELECT e.task, (count(*) / min(span.s))::float8,
         (count(*) FILTER (WHERE e.status <> 'completed') / min(span.s))::float8,
         (count(*) FILTER (WHERE e.replay) / min(span.s))::float8,
         percentile_disc(0.5) WITHIN GROUP (ORDER BY e.ms)::float8, percentile_disc(0.95) WITHIN GROUP (ORDER BY e.ms)::float8,
         percentile_disc(0.99) WITHIN GROUP (ORDER BY e.ms)::float8, min(span.s)::float8
    FROM e, span
   WHERE e.finished_at > clock_timestamp() - span.s * interval '1 second' - interval '1 millisecond'
   GROUP BY GROUPING SETS ((), (e.task)) ORDER BY 2 DESC, 1;
$fn$;

-- dead_runs: how many runs have failed for good within the last hour and have not been discarded, counted up to p_limit.
CREATE OR REPLACE FUNCTION umavez.dead_runs(p_limit integer) RETURNS integer
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off AS $fn$
  SELECT count(*)::int
    FROM (SELECT FROM umavez.finished_runs f
           WHERE f.status = 'failed_permanent' AND f.discarded_at IS NULL AND f.finished_at > clock_timestamp() - interval '1 hour'
           LIMIT p_limit) l;
$fn$;

-- run_details: all that is known of a run, live or ended; no row: there is none. Columns that the one or the other has not are NULL.
CREATE OR REPLACE FUNCTION umavez.run_details(p_run uuid)
RETURNS TABLE (run_id uuid, task text, tenant_id bigint, queue text, priority integer, state text, replay boolean, deliveries integer,
               busy integer, crashes integer, attempt integer, discarded_at timestamptz, enqueued_at timestamptz, run_at timestamptz,
               lease_until timestamptz, finished_at timestamptz, worker_id uuid, traceparent text, key_digest text, outcome jsonb,
               failure jsonb, args jsonb)
LANGUAGE sql STABLE PARALLEL UNSAFE ROWS 1 SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $fn$
  (SELECT r.run_id, r.task, r.tenant_id, r.queue, r.priority, r.state, false, r.deliveries, r.busy, r.crashes, NULL::int, NULL::timestamptz,
          r.enqueued_at, r.run_at, r.lease_until, NULL::timestamptz, r.worker_id, r.traceparent, NULL::text, NULL::jsonb, r.failure, r.args
     FROM umavez.runs r WHERE r.run_id = p_run)
  UNION ALL
  (SELECT f.run_id, f.task, f.tenant_id, f.queue, f.priority, f.status, f.replay, f.deliveries, NULL, NULL, f.attempt, f.discarded_at,
          f.enqueued_at, NULL, NULL, f.finished_at, f.worker_id, f.traceparent, encode(f.idempotency_key, 'hex'), f.outcome, f.failure, f.args
     FROM umavez.finished_runs f WHERE f.run_id = p_run ORDER BY f.finished_at DESC LIMIT 1)
  LIMIT 1;
$fn$;

-- ledger_row: the ledger's row of a key of the tenant's, or the platform's (p_tenant NULL).
CREATE OR REPLACE FUNCTION umavez.ledger_row(p_tenant bigint, p_key bytea)
RETURNS TABLE (id bigint, tenant_id bigint, status text, attempt integer, fingerprint text, outcome jsonb, expires_at timestamptz,
               created_at timestamptz, updated_at timestamptz, expired boolean)
LANGUAGE sql STABLE PARALLEL UNSAFE ROWS 1 SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $fn$
  SELECT k.id, k.tenant_id, k.status, k.attempt, encode(k.request_fingerprint, 'hex'), k.outcome, k.expires_at, k.created_at, k.updated_at,
         k.expires_at <= clock_timestamp()
    FROM umavez.idempotency_keys k WHERE k.tenant_id = p_tenant AND k.idempotency_key = p_key
  UNION ALL
  SELECT k.id, NULL, k.status, k.attempt, encode(k.request_fingerprint, 'hex'), k.outcome, k.expires_at, k.created_at, k.updated_at,
         k.expires_at <= clock_timestamp()
    FROM umavez.platform_idempotency_keys k WHERE p_tenant IS NULL AND k.idempotency_key = p_key;
$fn$;
