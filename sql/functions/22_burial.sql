-- Dead workers and busy ones: what a supervisor tells about its children. The plans are fixed as in 20_queue.sql.

-- bury_worker: gives back at once all that a dead worker holds. p_charged are the runs that are to blame (whose code was executing
-- when it died): their delivery stays counted, crashes goes up, p_failure is recorded, and they are due again at once the first
-- time, since the worker may have been killed for nothing of theirs, then in 1 s, 4 s, 16 s, 64 s at most (less up to a quarter).
-- For all others the delivery has not been; they are due at once. Each run is charged once a death, however often this is called.
-- Call it only for a worker that is dead, and again while `locked` is not 0, and some seconds long: its last statements (a take, an
-- end) may still be under way in the server, whose sessions find out late that nobody is there any more.
CREATE OR REPLACE FUNCTION umavez.bury_worker(
  p_worker uuid, p_charged uuid[], p_failure jsonb, OUT returned bigint, OUT charged bigint, OUT locked bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $fn$
DECLARE
  v_since constant timestamptz := coalesce((SELECT m.since[1] FROM umavez.marks m WHERE m.name = 'reap'), '-infinity');
BEGIN
  WITH held AS MATERIALIZED (
    SELECT r.run_id, r.run_id = ANY (coalesce(p_charged, '{}')) AS to_blame
      FROM umavez.runs r
     WHERE r.state = 'running' AND r.worker_id = p_worker AND r.lease_until >= v_since
       FOR UPDATE SKIP LOCKED
  ), freed AS (
    UPDATE umavez.runs t
       SET state = 'available', lease_until = NULL, worker_id = NULL, busy = 0,
           deliveries = CASE WHEN held.to_blame THEN t.deliveries ELSE greatest(0, t.deliveries - 1) END,
           crashes = t.crashes + held.to_blame::integer,
           failure = CASE WHEN held.to_blame THEN p_failure ELSE t.failure END,
           run_at = clock_timestamp() + interval '1 second'
                    * CASE WHEN held.to_blame AND t.crashes > 0 THEN 4 ^ least(t.crashes - 1, 3) * (1 - random() / 4) ELSE 0 END
      FROM held
     WHERE t.run_id = ANY (ARRAY[held.run_id])
    RETURNING held.to_blame
  )
  SELECT count(*) FILTER (WHERE NOT f.to_blame), count(*) FILTER (WHERE f.to_blame) INTO returned, charged FROM freed f;
  SELECT count(*) INTO locked
    FROM umavez.runs r
   WHERE r.state = 'running' AND r.worker_id = p_worker AND r.lease_until >= v_since;
  DELETE FROM umavez.workers w WHERE w.worker_id = p_worker;
  IF returned + charged > 0 THEN
    PERFORM umavez.wake();
  END IF;
END $fn$;

-- renew_worker: for a worker whose loop is busy, so that it cannot say that it is alive: what it holds is held p_lease_ms from now at
-- least. Gives the number of runs. What a transaction is just ending is left alone. Commits without waiting for a standby.
CREATE OR REPLACE FUNCTION umavez.renew_worker(p_worker uuid, p_lease_ms bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $fn$
DECLARE
  v_since constant timestamptz := coalesce((SELECT m.since[1] FROM umavez.marks m WHERE m.name = 'reap'), '-infinity');
  v_held bigint;
BEGIN
  PERFORM set_config('synchronous_commit', 'local', true)
   WHERE current_setting('synchronous_commit') NOT IN ('off', 'local');
  WITH held AS MATERIALIZED (
    SELECT r.run_id
      FROM umavez.runs r
     WHERE r.state = 'running' AND r.worker_id = p_worker AND r.lease_until >= v_since
       FOR UPDATE SKIP LOCKED
  )
  UPDATE umavez.runs t
     SET lease_until = greatest(t.lease_until, clock_timestamp() + p_lease_ms * interval '1 millisecond')
    FROM held
   WHERE t.run_id = ANY (ARRAY[held.run_id]);
  GET DIAGNOSTICS v_held = ROW_COUNT;
  RETURN v_held;
END $fn$;

-- last_failure: what was recorded of a run that has used up its deliveries. Asked beside its claim.
CREATE OR REPLACE FUNCTION umavez.last_failure(p_run uuid, OUT code text, OUT message text, OUT failure text)
LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
BEGIN
  SELECT r.failure->>'code', r.failure->>'message', r.failure::text INTO code, message, failure
    FROM umavez.runs r WHERE r.run_id = p_run;
END $fn$;
