-- The queue: enqueue, take, renew, give back, end.

-- Plans that no statistics can spoil. VACUUM or ANALYZE of a table whose rows are all dead records "no rows", while its indexes may
-- hold a million dead entries that a foreign snapshot keeps (or as many live ones, soon after). With no rows expected, reading one
-- index from end to end seems to cost the same as one look into it, and the planner throws a coin; enable_seqscan = off does not
-- help, since it is no sequential scan. So each statement here leaves it one way only:
--   - an UPDATE meets its rows by run_id = ANY (ARRAY[x.run_id]), not by run_id = x.run_id. The latter can be joined from either
--     side, and by reading all of runs_pkey in order; the former only by looking up each x in runs_pkey. (By ctid it would be the
--     same, but a row that was changed between the statement's snapshot and its lock would be locked and then not found.)
--   - a read that is joined is LATERAL (... OFFSET 0), which is done once for each row on its left.
--   - a condition that an index's predicate follows from (state = 'running': runs_leased) stands only where that index is to be
--     read; elsewhere worker_id = ... says the same, by runs_lease_check.

-- Sleeping workers and NOTIFY. A commit with a NOTIFY holds a lock of the whole database, so that enqueueing with one NOTIFY each
-- would be serial. So NOTIFY umavez_runs is sent only when a worker sleeps, and by one transaction at a time:
--   - a worker that runs out of work calls sleep_begin() on the session that LISTENs and sleep_end() when it has woken up; in
--     between it holds advisory lock ('umav', 1) in shared mode. If the worker dies, its session's end frees it.
--   - enqueue asks whether anybody holds that lock, by taking it exclusively without waiting and giving it back in the same
--     expression (nothing can interrupt in between). Another session's probe in that microsecond looks like a sleeper: harmless.
--   - only who gets lock ('umav', 2) until its commit sends the NOTIFY: nobody ever waits for somebody else's.
-- A wake-up may be lost: when the one that notifies commits before a run that relied on it, or when it commits late. Workers
-- poll anyhow. The numbers are two-integer keys, a space apart from the ledger's (one bigint).
CREATE OR REPLACE FUNCTION umavez.wake() RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
BEGIN
  IF (CASE WHEN pg_try_advisory_lock(1970102646, 1) THEN NOT pg_advisory_unlock(1970102646, 1) ELSE true END)
     AND pg_try_advisory_xact_lock(1970102646, 2) THEN
    PERFORM pg_notify('umavez_runs', '');
  END IF;
END $fn$;

-- Each sleep_begin() needs one sleep_end() on the same session. sleep_begin() may wait for a probe, a few microseconds.
CREATE OR REPLACE FUNCTION umavez.sleep_begin() RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT pg_advisory_lock_shared(1970102646, 1);
$fn$;

CREATE OR REPLACE FUNCTION umavez.sleep_end() RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT pg_advisory_unlock_shared(1970102646, 1);
$fn$;

-- A worker reads args as text, a batch of runs in one statement: one run beyond what a text can hold would stop the whole queue, and
-- a number such as 1e131071 takes ten octets as jsonb and 131,072 as text. What is small as jsonb stays below the limit in any case.
CREATE OR REPLACE FUNCTION umavez.check_args_size(p_args jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
BEGIN
  IF octet_length(p_args::text) > 16777216 THEN
    RAISE EXCEPTION 'args of % octets as text: a run carries 16777216 at most', octet_length(p_args::text)
      USING ERRCODE = 'program_limit_exceeded', HINT = 'Store them, and enqueue a reference.';
  END IF;
END $fn$;

-- enqueue: one run, inside the caller's transaction. The same run_id with the same content is one run, however often and from
-- wherever it is enqueued; with other content it raises UV003. A run that has ended already is not enqueued again.
-- An unknown tenant raises 23503.
CREATE OR REPLACE FUNCTION umavez.enqueue(
  task text, args jsonb DEFAULT '{}', tenant_id bigint DEFAULT NULL, run_id uuid DEFAULT NULL, run_at timestamptz DEFAULT NULL,
  queue text DEFAULT NULL, priority integer DEFAULT NULL, traceparent text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
#variable_conflict use_column
DECLARE
  v_run_id uuid := coalesce(enqueue.run_id, gen_random_uuid());
  v_run_at timestamptz := coalesce(enqueue.run_at, clock_timestamp());
  v_queue text := enqueue.queue; v_lane text := ''; v_limits boolean;
BEGIN
  IF pg_column_size(enqueue.args) > 1000 THEN
    PERFORM umavez.check_args_size(enqueue.args);
  END IF;
  SELECT coalesce(v_queue, (SELECT t.queue FROM umavez.tasks t WHERE t.name = enqueue.task), 'default'), EXISTS (SELECT FROM umavez.limits)
    INTO v_queue, v_limits;
  IF v_limits THEN
    v_lane := umavez.lane_of(v_queue, enqueue.task, enqueue.tenant_id);
  END IF;
  IF enqueue.run_id IS NULL THEN
    INSERT INTO umavez.runs (run_id, task, tenant_id, args, queue, lane, priority, run_at, traceparent)
    VALUES (v_run_id, enqueue.task, enqueue.tenant_id, coalesce(enqueue.args, '{}'), v_queue, v_lane, coalesce(enqueue.priority, 2),
            v_run_at, enqueue.traceparent);
  ELSE
    INSERT INTO umavez.runs (run_id, task, tenant_id, args, queue, lane, priority, run_at, traceparent)
    VALUES (v_run_id, enqueue.task, enqueue.tenant_id, coalesce(enqueue.args, '{}'), v_queue, v_lane, coalesce(enqueue.priority, 2),
            v_run_at, enqueue.traceparent)
    ON CONFLICT (run_id) DO NOTHING;
    IF umavez.settle_enqueued(ARRAY[v_run_id], ARRAY[enqueue.task], ARRAY[enqueue.tenant_id], ARRAY[coalesce(enqueue.args, '{}')],
                              CASE WHEN FOUND THEN ARRAY[v_run_id] ELSE '{}' END) = 0 THEN
      RETURN v_run_id;
    END IF;
  END IF;
  -- The probe of wake() here too, since mostly nobody sleeps and a call costs more than it.
  IF (CASE WHEN pg_try_advisory_lock(1970102646, 1) THEN NOT pg_advisory_unlock(1970102646, 1) ELSE true END)
     AND v_run_at <= clock_timestamp() THEN
    PERFORM umavez.wake();
  END IF;
  RETURN v_run_id;
END $fn$;

-- What callers of enqueue named a run_id for, after the INSERT; p_new, of p_ids, are those that it has inserted. Takes those away again that
-- have ended before (looked up after the INSERT, which waits for whoever is just ending the run, so that none is both live and
-- finished), and raises UV003 for other content. Gives the number of runs that stay newly enqueued.
CREATE OR REPLACE FUNCTION umavez.settle_enqueued(
  p_ids uuid[], p_tasks text[], p_tenants bigint[], p_args jsonb[], p_new uuid[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $fn$
DECLARE
  v_ended uuid[]; v_other uuid;
BEGIN
  SELECT array_agg(DISTINCT f.run_id),
         min(f.run_id::text) FILTER (WHERE f.task <> w.task OR f.tenant_id IS DISTINCT FROM w.tenant_id OR f.args <> w.args)::uuid
    INTO v_ended, v_other
    FROM unnest(p_ids, p_tasks, p_tenants, p_args) AS w(run_id, task, tenant_id, args)
    CROSS JOIN LATERAL (
      SELECT e.run_id, e.task, e.tenant_id, e.args FROM umavez.finished_runs e WHERE e.run_id = w.run_id OFFSET 0) f;
  IF v_other IS NULL AND cardinality(p_new) < cardinality(p_ids) THEN    -- what is new is as it was wanted
    SELECT w.run_id INTO v_other
      FROM unnest(p_ids, p_tasks, p_tenants, p_args) AS w(run_id, task, tenant_id, args)
      CROSS JOIN LATERAL (SELECT l.task, l.tenant_id, l.args FROM umavez.runs l WHERE l.run_id = w.run_id OFFSET 0) r
     WHERE r.task <> w.task OR r.tenant_id IS DISTINCT FROM w.tenant_id OR r.args <> w.args
     LIMIT 1;
  END IF;
  IF v_other IS NOT NULL THEN
    RAISE EXCEPTION 'run_id % is in use for another run', v_other USING ERRCODE = 'UV003',
      HINT = 'A run_id names one run: the same task, args and tenant each time.';
  END IF;
  IF v_ended IS NOT NULL THEN
    DELETE FROM umavez.runs r WHERE r.run_id = ANY (v_ended) AND r.run_id = ANY (p_new);
  END IF;
  RETURN (SELECT count(*) FROM unnest(p_new) AS n(run_id) WHERE NOT n.run_id = ANY (coalesce(v_ended, '{}')));
END $fn$;

-- enqueue_many: an array of objects with the names of enqueue's parameters. Gives the number of runs newly enqueued. They are due
-- in the array's order (a microsecond apart: the clock shows two of them the same time now and then), and inserted in the order of
-- run_id, so that two calls with the same ids cannot deadlock.
CREATE OR REPLACE FUNCTION umavez.enqueue_many(runs jsonb) RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
#variable_conflict use_column
DECLARE
  v_now constant timestamptz := clock_timestamp();
  v_limits constant boolean := EXISTS (SELECT FROM umavez.limits);
  v_bad jsonb; v_new uuid[]; v_count bigint; v_due boolean;
  v_ids uuid[]; v_tasks text[]; v_tenants bigint[]; v_args jsonb[];                        -- all, if any came with an id
BEGIN
  SELECT e INTO v_bad FROM jsonb_array_elements(enqueue_many.runs) e
   WHERE jsonb_typeof(e) <> 'object' OR e->>'task' IS NULL
      OR e - '{task,args,tenant_id,run_id,run_at,queue,priority,traceparent}'::text[] <> '{}'
   LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'not a run: %', left(v_bad::text, 200) USING ERRCODE = 'invalid_parameter_value',
      HINT = 'An object with task, and perhaps args, tenant_id, run_id, run_at, queue, priority, traceparent.';
  END IF;
  PERFORM umavez.check_args_size(e->'args') FROM jsonb_array_elements(enqueue_many.runs) e WHERE pg_column_size(e) > 1000;

  WITH wanted AS MATERIALIZED (
    SELECT coalesce(w.run_id, gen_random_uuid()) AS run_id, w.run_id IS NOT NULL AS named, w.task, w.tenant_id, coalesce(w.args, '{}') AS args, w.queue,
           coalesce(w.priority, 2) AS priority, coalesce(w.run_at, v_now + w.place * interval '1 microsecond') AS run_at, w.traceparent
      FROM ROWS FROM (jsonb_to_recordset(enqueue_many.runs) AS (task text, args jsonb, tenant_id bigint, run_id uuid,
                        run_at timestamptz, queue text, priority integer, traceparent text))
           WITH ORDINALITY AS w(task, args, tenant_id, run_id, run_at, queue, priority, traceparent, place)
  ), made AS (
    INSERT INTO umavez.runs (run_id, task, tenant_id, args, queue, lane, priority, run_at, traceparent)
    SELECT w.run_id, w.task, w.tenant_id, w.args, coalesce(w.queue, t.queue, 'default'),
           CASE WHEN v_limits THEN umavez.lane_of(coalesce(w.queue, t.queue, 'default'), w.task, w.tenant_id) ELSE '' END,
           w.priority, w.run_at, w.traceparent
      FROM wanted w LEFT JOIN umavez.tasks t ON t.name = w.task
     ORDER BY w.run_id
    ON CONFLICT (run_id) DO NOTHING
    RETURNING run_id, run_at
  )
  SELECT m.ids, m.many, m.due, n.ids, n.tasks, n.tenants, n.args INTO v_new, v_count, v_due, v_ids, v_tasks, v_tenants, v_args
    FROM (SELECT array_agg(k.run_id) AS ids, count(*) AS many, bool_or(k.run_at <= clock_timestamp()) AS due FROM made k) m,
         (SELECT array_agg(w.run_id) AS ids, array_agg(w.task) AS tasks, array_agg(w.tenant_id) AS tenants, array_agg(w.args) AS args
            FROM wanted w WHERE EXISTS (SELECT FROM wanted k WHERE k.named)) n;
  IF v_ids IS NOT NULL THEN
    v_count := umavez.settle_enqueued(v_ids, v_tasks, v_tenants, v_args, coalesce(v_new, '{}'));
  END IF;
  IF v_due AND v_count > 0 THEN
    PERFORM umavez.wake();
  END IF;
  RETURN v_count;
END $fn$;

-- register_tasks: what a worker serves, told at its start. Writes only what has changed.
CREATE OR REPLACE FUNCTION umavez.register_tasks(tasks jsonb) RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  INSERT INTO umavez.tasks AS t (name, owner, queue)
  SELECT r.task, r.owner, coalesce(r.queue, 'default')
    FROM jsonb_to_recordset($1) AS r(task text, owner text, queue text)
   ORDER BY r.task
  ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, queue = excluded.queue, updated_at = clock_timestamp()
   WHERE (t.owner, t.queue) IS DISTINCT FROM (excluded.owner, excluded.queue);
$fn$;

-- take_runs: up to p_limit due runs for this worker, priority 1 first, then by run_at; among several queues of a priority in random
-- order, so that none starves. p_leases gives leases by task, {"payments.pix": 30000}; p_lease_ms is for all others. Runs of
-- p_skip_tasks stay. Nobody waits for anybody (SKIP LOCKED), and no run goes to two workers. Under REPEATABLE READ and
-- SERIALIZABLE two takers can get 40001: call it in a READ COMMITTED transaction.
--
-- Marks. An index entry of a run that was taken stays until vacuum takes it away, which a foreign snapshot can delay for hours.
-- Each take would then read all of them again, from the oldest on. So, once that has become slow, umavez.marks remembers for each
-- queue and priority up to where everything has been taken, and takes begin there. What lies before a mark nevertheless (enqueued
-- by a transaction that committed later than the slack allows for, dated back, or skipped when its taker was rolled back) is found
-- by beginning at the very start now and then: as often as keeps that below half a percent of the time, and each 30 seconds. As
-- soon as that is quick again, every take does so (full_at = -infinity, or no row: nothing is remembered and nothing written). One
-- taker at a time keeps the marks. Priorities have marks of their own, because a backlog of a low priority lies behind newer runs of a higher one.
-- p_since forbids to step over anything later than it; '-infinity': begin at the very start.
--
-- Of paused queues nothing is taken, and their marks stay as they are. Runs that were cancelled while somebody held them are
-- ended first (umavez.end_cancelled). With p_weights, or where limits or fair queues are declared, umavez.take_shared does the work.
-- All three tables are empty as a rule: one look into three empty indexes. limited: the run has taken a place of a limit.
CREATE OR REPLACE FUNCTION umavez.take_runs(
  p_worker uuid, p_queues text[], p_limit integer, p_leases jsonb, p_lease_ms bigint, p_since timestamptz DEFAULT NULL,
  p_skip_tasks text[] DEFAULT NULL, p_weights integer[] DEFAULT NULL)
RETURNS TABLE (run_id uuid, task text, tenant_id bigint, args text, deliveries integer, enqueued_at timestamptz, traceparent text,
               run_at timestamptz, crashes integer, limited boolean)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $fn$
#variable_conflict use_column
DECLARE
  slack constant interval := '2 seconds';
  v_now constant timestamptz := clock_timestamp();
  v_queue text[]; v_priority integer[]; v_marks timestamptz[];    -- the probes, in their order
  v_moved_at timestamptz; v_quick boolean; v_due boolean; v_full boolean; v_keeper boolean := false;
  v_elapsed interval; v_slow boolean;
  v_taken integer := 0; v_last integer; v_head timestamptz; v_run record; v_paused text[]; v_cancelled boolean;
  v_shared boolean;
BEGIN
  SELECT ARRAY(SELECT p.queue FROM umavez.paused_queues p), EXISTS (SELECT FROM umavez.cancellations),
         p_weights IS NOT NULL OR EXISTS (SELECT FROM umavez.limits)
    INTO v_paused, v_cancelled, v_shared;
  IF v_cancelled THEN
    PERFORM umavez.end_cancelled();
  END IF;
  IF v_shared THEN
    RETURN QUERY
    SELECT s.*
      FROM (SELECT array_agg(u.queue ORDER BY u.place) AS queues,
                   CASE WHEN p_weights IS NOT NULL THEN array_agg(u.weight ORDER BY u.place) END AS weights
              FROM unnest(p_queues, p_weights) WITH ORDINALITY AS u(queue, weight, place) WHERE u.queue <> ALL (v_paused)) q
      CROSS JOIN LATERAL umavez.take_shared(p_worker, q.queues, q.weights, p_limit, p_leases, p_lease_ms, p_since, p_skip_tasks) s
     WHERE q.queues IS NOT NULL;
    RETURN;
  END IF;
  SELECT array_agg(p.queue ORDER BY p.priority, p.place), array_agg(p.priority ORDER BY p.priority, p.place),
         array_agg(coalesce(p.since, '-infinity') ORDER BY p.priority, p.place),
         min(p.moved_at), bool_or(coalesce(p.full_at, '-infinity') = '-infinity'), bool_or(p.full_at <= v_now)
    INTO v_queue, v_priority, v_marks, v_moved_at, v_quick, v_due
    FROM (SELECT q.queue, q.place, g.priority, m.since[g.priority] AS since, m.moved_at, m.full_at
            FROM (SELECT u.queue, random() AS place FROM unnest(p_queues) AS u(queue) WHERE u.queue <> ALL (v_paused) OFFSET 0) q
            CROSS JOIN generate_series(1, 4) AS g(priority)
            LEFT JOIN LATERAL (SELECT k.since, k.moved_at, k.full_at FROM umavez.marks k
                                WHERE k.name = 'take:' || q.queue OFFSET 0) m ON true) p;
  IF v_queue IS NULL THEN
    RETURN;                                                      -- all are paused
  END IF;
  IF NOT v_quick AND (v_due OR v_moved_at <= v_now - slack) THEN
    v_keeper := pg_try_advisory_xact_lock(1970102646, 3);
  END IF;
  v_full := v_quick OR v_due AND v_keeper OR coalesce(p_since = '-infinity', false);

  FOR v_run IN
    WITH picked AS MATERIALIZED (
      SELECT c.run_id, p.nr
        FROM unnest(v_queue, v_priority, v_marks) WITH ORDINALITY AS p(queue, priority, mark, nr)
        CROSS JOIN LATERAL (
          SELECT r.run_id
            FROM umavez.runs r
           WHERE r.state = 'available' AND r.queue = p.queue AND r.lane = '' AND r.priority = p.priority
             AND r.run_at >= CASE WHEN v_full THEN '-infinity' ELSE least(p.mark, p_since) END AND r.run_at <= v_now
             AND r.task <> ALL (coalesce(p_skip_tasks, '{}'))
           ORDER BY r.run_at
           LIMIT p_limit
             FOR UPDATE SKIP LOCKED) c
       LIMIT p_limit
    )
    UPDATE umavez.runs t
       SET state = 'running', deliveries = t.deliveries + 1, worker_id = p_worker,
           lease_until = clock_timestamp()
                         + coalesce((p_leases->>t.task)::bigint, p_lease_ms) * interval '1 millisecond'
      FROM picked
     WHERE t.run_id = ANY (ARRAY[picked.run_id])
    RETURNING t.run_id, t.task, t.tenant_id, t.args::text AS args, t.deliveries, t.enqueued_at, t.traceparent, t.run_at, t.crashes,
              picked.nr
  LOOP
    v_taken := v_taken + 1;
    v_last := v_run.nr;
    v_head := v_run.run_at;
    run_id := v_run.run_id; task := v_run.task; tenant_id := v_run.tenant_id; args := v_run.args;
    deliveries := v_run.deliveries; enqueued_at := v_run.enqueued_at; traceparent := v_run.traceparent; run_at := v_run.run_at;
    crashes := v_run.crashes;
    limited := false;
    RETURN NEXT;
  END LOOP;

  v_elapsed := clock_timestamp() - v_now;
  v_slow := v_elapsed > interval '2 milliseconds' + v_taken * interval '200 microseconds';
  IF v_full AND v_slow AND NOT v_keeper THEN
    v_keeper := pg_try_advisory_xact_lock(1970102646, 3);
  END IF;
  IF v_keeper AND (v_full OR v_slow OR v_taken > 0) THEN
    -- If the limit was not reached, nothing that was due at v_now is left. Otherwise that holds for the probes before the one that
    -- gave the last run; this one begins at that run next time; those after it were not asked. Skipped tasks leave runs behind.
    INSERT INTO umavez.marks AS m (name, since, moved_at, full_at)
    SELECT 'take:' || p.queue,
           array_agg(CASE WHEN cardinality(p_skip_tasks) > 0 OR (v_taken >= p_limit AND p.nr > v_last) THEN p.mark
                          WHEN v_taken >= p_limit AND p.nr = v_last THEN v_head - slack
                          ELSE v_now - slack END ORDER BY p.priority),
           v_now, CASE WHEN v_slow THEN v_now + least(interval '30 seconds', 200 * v_elapsed) ELSE '-infinity' END
      FROM unnest(v_queue, v_priority, v_marks) WITH ORDINALITY AS p(queue, priority, mark, nr)
     GROUP BY p.queue
    ON CONFLICT (name) DO UPDATE
       SET since = excluded.since, moved_at = excluded.moved_at,
           full_at = CASE WHEN v_full THEN excluded.full_at ELSE m.full_at END;
  END IF;
END $fn$;

-- reap_runs: makes runs available again whose lease is over; their delivery stays counted, since their handler may have begun.
-- It has a mark as take_runs has.
CREATE OR REPLACE FUNCTION umavez.reap_runs(p_limit integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $fn$
DECLARE
  slack constant interval := '2 seconds';
  v_now constant timestamptz := clock_timestamp();
  v_since timestamptz; v_full boolean := true; v_elapsed interval; v_reaped bigint;
BEGIN
  SELECT m.since[1], m.full_at <= v_now INTO v_since, v_full FROM umavez.marks m WHERE m.name = 'reap';
  v_full := coalesce(v_full, true);
  WITH dead AS MATERIALIZED (
    SELECT r.run_id
      FROM umavez.runs r
     WHERE r.state = 'running' AND r.lease_until < v_now
       AND r.lease_until >= CASE WHEN v_full THEN '-infinity' ELSE v_since END
     ORDER BY r.lease_until
     LIMIT p_limit
       FOR UPDATE SKIP LOCKED
  )
  UPDATE umavez.runs t
     SET state = 'available', run_at = clock_timestamp(), lease_until = NULL, worker_id = NULL
    FROM dead
   WHERE t.run_id = ANY (ARRAY[dead.run_id]);
  GET DIAGNOSTICS v_reaped = ROW_COUNT;
  v_elapsed := clock_timestamp() - v_now;
  IF v_reaped < p_limit AND v_elapsed > interval '2 milliseconds' AND pg_try_advisory_xact_lock(1970102646, 3) THEN
    INSERT INTO umavez.marks AS m (name, since, moved_at, full_at)
    VALUES ('reap', ARRAY[v_now - slack], v_now, v_now + least(interval '30 seconds', 200 * v_elapsed))
    ON CONFLICT (name) DO UPDATE
       SET since = excluded.since, moved_at = excluded.moved_at,
           full_at = CASE WHEN v_full THEN excluded.full_at ELSE m.full_at END;
  END IF;
  RETURN v_reaped;
END $fn$;

-- renew_runs: the leases of runs in flight, p_leases_ms from now. Gives those that this worker does not hold any more, or that a
-- transaction is just ending. Commits without waiting for a standby, so that a standby's absence cannot cost a lease.
CREATE OR REPLACE FUNCTION umavez.renew_runs(p_worker uuid, p_runs uuid[], p_leases_ms bigint[]) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $fn$
BEGIN
  PERFORM set_config('synchronous_commit', 'local', true)
   WHERE current_setting('synchronous_commit') NOT IN ('off', 'local');
  RETURN QUERY
  WITH held AS MATERIALIZED (
    SELECT r.run_id, w.lease_ms
      FROM (SELECT * FROM unnest(p_runs, p_leases_ms) AS u(run_id, lease_ms) ORDER BY u.run_id) w
      CROSS JOIN LATERAL (
        SELECT l.run_id
          FROM umavez.runs l
         WHERE l.run_id = w.run_id AND l.worker_id = p_worker
        OFFSET 0
           FOR UPDATE SKIP LOCKED) r                           -- locked: its own transaction is ending it
  ), renewed AS (
    UPDATE umavez.runs t
       SET lease_until = clock_timestamp() + held.lease_ms * interval '1 millisecond'
      FROM held
     WHERE t.run_id = ANY (ARRAY[held.run_id])
    RETURNING t.run_id
  )
  SELECT w.run_id FROM unnest(p_runs) AS w(run_id)
  EXCEPT
  SELECT renewed.run_id FROM renewed;
END $fn$;

-- hold_run: for a run's own transaction under REPEATABLE READ or SERIALIZABLE, right after its claim. Its end there would meet
-- every renewal of its lease since the snapshot as a conflict (40001), each time again. So the transaction locks the row: renewals and
-- reapers step over it, and while the transaction lives nobody else takes the run. 40001: changed since the snapshot, do it again.
CREATE OR REPLACE FUNCTION umavez.hold_run(p_run uuid) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET enable_seqscan = off AS $fn$
BEGIN
  PERFORM 1 FROM umavez.runs r WHERE r.run_id = p_run FOR UPDATE;
END $fn$;

-- release_runs: gives runs back that the worker still holds (others are left alone). Reasons:
--   busy     the key was held: this delivery is not counted. Due in p_delay, and at the latest in 100 ms, 200 ms, … 6.4 s (twice as
--            long each time in a row), less up to a quarter so that duplicates do not come all at once
--   back     not begun (drain, PostgreSQL away, no room): not counted, due in p_delay
--   counted  due in p_delay, counted
-- Like all that a worker asks on a connection which serves other runs as well, it does not wait for a row that somebody else has locked:
-- 55P03, and it is asked again.
CREATE OR REPLACE FUNCTION umavez.release_runs(p_worker uuid, p_runs uuid[], p_delays_ms bigint[], p_reasons text[]) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $fn$
BEGIN
  IF EXISTS (SELECT 1 FROM unnest(p_reasons) AS r WHERE r IS NULL OR r NOT IN ('busy', 'back', 'counted')) THEN
    RAISE EXCEPTION 'a reason is busy, back or counted' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  WITH held AS MATERIALIZED (
    SELECT r.run_id, coalesce(w.delay_ms, 0) AS delay_ms, w.delay_ms AS asked_ms, w.reason
      FROM (SELECT * FROM unnest(p_runs, p_delays_ms, p_reasons) AS u(run_id, delay_ms, reason) ORDER BY u.run_id) w
      CROSS JOIN LATERAL (
        SELECT l.run_id
          FROM umavez.runs l
         WHERE l.run_id = w.run_id AND l.worker_id = p_worker
        OFFSET 0
           FOR UPDATE) r
  )
  UPDATE umavez.runs t
     SET state = 'available', lease_until = NULL, worker_id = NULL,
         deliveries = greatest(0, t.deliveries - CASE held.reason WHEN 'counted' THEN 0 ELSE 1 END),
         busy = CASE held.reason WHEN 'busy' THEN t.busy + 1 ELSE 0 END,
         run_at = clock_timestamp() + interval '1 millisecond'
                  * CASE held.reason WHEN 'busy' THEN least(held.asked_ms, 100 * 2 ^ least(t.busy, 6)) * (1 - random() / 4)
                                     ELSE held.delay_ms END
    FROM held
   WHERE t.run_id = ANY (ARRAY[held.run_id]);
  IF FOUND AND 0 >= ANY (p_delays_ms) THEN
    PERFORM umavez.wake();
  END IF;
END $fn$;

-- release_orphans: gives back, uncounted, whatever this worker holds beside p_kept: runs taken for it by a statement whose answer
-- it never got, so that nothing of them has begun. Gives their number. Locked ones are being ended or given back: left alone.
-- Leases that ended before the reaper's mark have been reaped, so reading begins there.
CREATE OR REPLACE FUNCTION umavez.release_orphans(p_worker uuid, p_kept uuid[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $fn$
DECLARE
  v_released bigint;
BEGIN
  WITH orphans AS MATERIALIZED (
    SELECT r.run_id
      FROM umavez.runs r
     WHERE r.state = 'running' AND r.worker_id = p_worker AND r.run_id <> ALL (coalesce(p_kept, '{}'))
       AND r.lease_until >= coalesce((SELECT m.since[1] FROM umavez.marks m WHERE m.name = 'reap'), '-infinity')
       FOR UPDATE SKIP LOCKED
  )
  UPDATE umavez.runs t
     SET state = 'available', lease_until = NULL, worker_id = NULL, deliveries = greatest(0, t.deliveries - 1),
         run_at = clock_timestamp()
    FROM orphans
   WHERE t.run_id = ANY (ARRAY[orphans.run_id]);
  GET DIAGNOSTICS v_released = ROW_COUNT;
  IF v_released > 0 THEN
    PERFORM umavez.wake();
  END IF;
  RETURN v_released;
END $fn$;

-- end_run: ends a run without a word to the ledger (key_missing, key_reused, owner_mismatch, …). Failed runs keep their args.
CREATE OR REPLACE FUNCTION umavez.end_run(
  p_run uuid, p_status text, p_outcome jsonb, p_failure jsonb, p_key bytea DEFAULT NULL, p_attempt integer DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET enable_seqscan = off AS $fn$
BEGIN
  WITH gone AS (
    DELETE FROM umavez.runs r WHERE r.run_id = p_run RETURNING r.*
  )
  INSERT INTO umavez.finished_runs (run_id, task, tenant_id, queue, priority, status, replay, outcome, failure, args, deliveries,
                                    attempt, idempotency_key, enqueued_at, finished_at, worker_id, traceparent)
  SELECT g.run_id, g.task, g.tenant_id, g.queue, g.priority, p_status, false, coalesce(p_outcome, '{}'), p_failure,
         CASE WHEN p_status <> 'completed' THEN g.args END, g.deliveries, p_attempt, p_key, g.enqueued_at, clock_timestamp(),
         g.worker_id, g.traceparent
    FROM gone g;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'run % is gone', p_run USING ERRCODE = 'UV002';
  END IF;
END $fn$;

-- reschedule_run: due again in p_delay_ms, whoever holds its lease; the delivery stays counted.
CREATE OR REPLACE FUNCTION umavez.reschedule_run(p_run uuid, p_delay_ms bigint, p_failure jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET enable_seqscan = off AS $fn$
BEGIN
  UPDATE umavez.runs r
     SET state = 'available', lease_until = NULL, worker_id = NULL, busy = 0, failure = coalesce(p_failure, r.failure),
         run_at = clock_timestamp() + coalesce(p_delay_ms, 0) * interval '1 millisecond'
   WHERE r.run_id = p_run;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'run % is gone', p_run USING ERRCODE = 'UV002';
  END IF;
END $fn$;

-- put_off_run: for a run that this worker cannot serve (its task is unknown here) but another may. The delivery is not counted,
-- since nothing has begun; how often in a row it was put off for the same reason stands in failure.put_off. Due again in 1 s, 2 s,
-- 4 s, …; p_max times, then it ends as failed_permanent. Gives the ms until it is due; NULL: it has ended.
-- A task that some worker has registered is served, if not here: its runs wait, 32 s at most between two looks, and never end so.
CREATE OR REPLACE FUNCTION umavez.put_off_run(p_run uuid, p_failure jsonb, p_max integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET enable_seqscan = off AS $fn$
DECLARE
  v_times integer; v_delay_ms bigint; v_served boolean;
BEGIN
  SELECT 1 + CASE WHEN r.failure->>'code' = p_failure->>'code' THEN coalesce((r.failure->>'put_off')::integer, 0) ELSE 0 END,
         EXISTS (SELECT 1 FROM umavez.tasks t WHERE t.name = r.task)
    INTO v_times, v_served
    FROM umavez.runs r
   WHERE r.run_id = p_run
     FOR UPDATE OF r;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'run % is gone', p_run USING ERRCODE = 'UV002';
  END IF;
  p_failure := p_failure || jsonb_build_object('put_off', v_times);
  IF v_times >= p_max AND NOT v_served THEN
    PERFORM umavez.end_run(p_run, 'failed_permanent', p_failure, p_failure);
    RETURN NULL;
  END IF;
  v_delay_ms := 1000 * 2 ^ least(v_times - 1, CASE WHEN v_served THEN 5 ELSE 20 END);
  UPDATE umavez.runs r
     SET state = 'available', lease_until = NULL, worker_id = NULL, busy = 0, failure = p_failure,
         deliveries = greatest(0, r.deliveries - 1), run_at = clock_timestamp() + v_delay_ms * interval '1 millisecond'
   WHERE r.run_id = p_run;
  RETURN v_delay_ms;
END $fn$;
