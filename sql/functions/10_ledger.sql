-- The functions that touch the ledger. Everything is written once, for both tables: in a template, what stands between {both} and
-- {/both} becomes IF p_tenant IS NULL THEN (the platform's table) ELSE (the tenants') END IF, and what stands between {each} and
-- {/each} is repeated, first for the tenants' table, then for the platform's. Plans are cached as in any PL/pgSQL function: there
-- is no EXECUTE at run time. Tokens:
--   {ledger}     the table                                {name}       its bare name
--   {of_owner}   tenant_id = p_tenant AND, or nothing     {key_lock}   the key's advisory lock
--   {column}     tenant_id and a comma, or nothing        {value}      p_tenant and a comma, or nothing
--   {of_wanted}  the same for a row w of what is wanted
--   {owned}      as {of_owner}, but no condition that an index could be read by
--
-- All of them run as the migrating role with a pinned search_path, so that neither a hostile search_path nor a handler with the
-- worker's rights can get between them and the tables. enable_seqscan is off in them, because a plan that was cached while a
-- table was tiny would read all of it until the next ANALYZE. No statement leaves the planner a choice between indexes (why: see
-- 20_queue.sql): a row is found by its key with {of_owner}, or by its id with {owned}; with {of_owner} beside an id, all keys of
-- the tenant could be read for it.
--
-- Time is clock_timestamp(): a transaction may have begun long ago.
--
-- SQLSTATEs: UV001 stale verdict, UV002 the run is gone, UV003 run_id reused with other content, UV004 nothing to retry.

DO $generate$
DECLARE
  -- Claims the key for this transaction, or says what stands in the way.
  --
  -- Whoever makes or changes a claim holds the key's advisory lock until its transaction ends; who does not get it never waits.
  -- With the lock held, a row that is visible was committed (or is this transaction's own): a claim inside a transaction that died
  -- has vanished with it. The row is read by a later statement than the INSERT, whose snapshot need not show the row it met, and
  -- without a lock, so that a replay or a conflict leaves the row untouched. The purge may delete it in between: begin again.
  -- Under REPEATABLE READ and SERIALIZABLE the INSERT itself raises 40001 when it meets a row that the snapshot does not show.
  claim_body constant text := $body$
    {both}
    IF NOT pg_try_advisory_xact_lock({key_lock}) THEN
      -- What is settled stays so: duplicates of it need no lock, and do not stand in each other's way.
      SELECT k.id, k.attempt, k.status, k.request_fingerprint = p_fingerprint, k.outcome::text,
             ceil(extract(epoch FROM k.expires_at - clock_timestamp()) * 1000)
        INTO id, attempt, status, v_same, outcome, remaining_ms
        FROM {ledger} k
       WHERE {of_owner} k.idempotency_key = p_key AND k.status IN ('completed', 'failed_permanent')
         AND k.expires_at > clock_timestamp();
      verdict := CASE WHEN v_same THEN 'replay' WHEN NOT v_same THEN 'conflict' ELSE 'busy' END;
      IF verdict = 'conflict' THEN
        outcome := NULL;
      END IF;
      RETURN;
    END IF;
    FOR v_round IN 1..100 LOOP
      INSERT INTO {ledger} ({column} idempotency_key, request_fingerprint, expires_at)
      VALUES ({value} p_key, p_fingerprint, clock_timestamp() + p_lease_ms * interval '1 millisecond')
      ON CONFLICT ({column} idempotency_key) DO NOTHING
      RETURNING {ledger}.id INTO id;
      IF FOUND THEN
        verdict := 'claimed'; attempt := 1; status := 'processing'; outcome := '{}'; remaining_ms := p_lease_ms;
        RETURN;
      END IF;

      SELECT k.id, k.attempt, k.status, k.expires_at, k.request_fingerprint = p_fingerprint, k.outcome::text
        INTO v_id, v_attempt, v_status, v_expires_at, v_same, outcome
        FROM {ledger} k
       WHERE {of_owner} k.idempotency_key = p_key;
      CONTINUE WHEN NOT FOUND;
      remaining_ms := ceil(extract(epoch FROM v_expires_at - clock_timestamp()) * 1000);

      IF v_status <> 'processing' AND remaining_ms <= 0 THEN       -- its retention has passed: counts as absent
        DELETE FROM {ledger} k
         WHERE k.id = v_id AND k.status <> 'processing' AND k.expires_at <= clock_timestamp();
        CONTINUE;
      END IF;

      id := v_id; attempt := v_attempt; status := v_status;
      IF NOT v_same THEN
        verdict := 'conflict'; outcome := NULL;                    -- nobody sees an outcome by guessing a key
        RETURN;
      ELSIF v_status IN ('completed', 'failed_permanent') THEN
        verdict := 'replay';
        RETURN;
      ELSIF v_status = 'processing' AND remaining_ms > 0 THEN
        verdict := 'busy';
        RETURN;
      END IF;

      UPDATE {ledger} k
         SET status = 'processing', attempt = k.attempt + 1, outcome = '{}', updated_at = clock_timestamp(),
             expires_at = clock_timestamp() + p_lease_ms * interval '1 millisecond'
       WHERE k.id = v_id AND k.attempt = v_attempt AND k.status = v_status
         AND (v_status = 'failed_retryable' OR k.expires_at <= clock_timestamp())
      RETURNING k.attempt INTO attempt;
      IF FOUND THEN
        verdict := 'claimed'; status := 'processing'; outcome := '{}'; remaining_ms := p_lease_ms;
        RETURN;
      END IF;
    END LOOP;
    {/both}
    RAISE EXCEPTION 'the key''s row changes faster than it can be read' USING ERRCODE = 'serialization_failure';
  $body$;

  templates constant text[] := ARRAY[

-- claim: for programs that use the ledger themselves. verdict:
--   claimed   this transaction holds the key: row `id`, `attempt`
--   replay    settled with the same fingerprint: `status`, `outcome`, for `remaining_ms` more
--   busy      held: by a live transaction (remaining_ms NULL), or by a committed lease that ends in remaining_ms
--   conflict  the key is in use with another fingerprint; nothing is touched
-- 55P03 (a foreign session holds the row without the key's lock) means busy too. 40001 may be raised: do it again.
$f$
CREATE OR REPLACE FUNCTION umavez.claim(
  p_tenant bigint, p_key bytea, p_fingerprint bytea, p_lease_ms bigint,
  OUT verdict text, OUT id bigint, OUT attempt integer, OUT status text, OUT outcome text, OUT remaining_ms bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET enable_seqscan = off AS $fn$
#variable_conflict use_column
DECLARE
  v_id bigint; v_attempt integer; v_status text; v_expires_at timestamptz; v_same boolean;
BEGIN
  {claim_body}
END $fn$ $f$,

-- begin_run: claim, and what the handler's transaction needs besides. The settings last until the transaction ends.
$f$
CREATE OR REPLACE FUNCTION umavez.begin_run(
  p_tenant bigint, p_key bytea, p_fingerprint bytea, p_lease_ms bigint, p_idle_ms bigint,
  OUT verdict text, OUT id bigint, OUT attempt integer, OUT status text, OUT outcome text, OUT remaining_ms bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET enable_seqscan = off AS $fn$
#variable_conflict use_column
DECLARE
  v_id bigint; v_attempt integer; v_status text; v_expires_at timestamptz; v_same boolean; v_set text;
BEGIN
  v_set := set_config('umavez.tenant_id', coalesce(p_tenant::text, ''), true)
        || set_config('idle_in_transaction_session_timeout', p_idle_ms::text, true);
  IF current_setting('server_version_num')::integer >= 140000 THEN   -- a dead worker's statement ends, and its key is free
    v_set := set_config('client_connection_check_interval', '500ms', true);
  END IF;
  {claim_body}
END $fn$ $f$,

-- complete: settles exactly this claim. UV001: it is not this caller's any more.
$f$
CREATE OR REPLACE FUNCTION umavez.complete(
  p_tenant bigint, p_id bigint, p_attempt integer, p_outcome jsonb, p_retention_ms bigint,
  OUT outcome text, OUT remaining_ms bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
#variable_conflict use_column
BEGIN
  {both}
  UPDATE {ledger} k
     SET status = 'completed', outcome = coalesce(p_outcome, '{}'), updated_at = clock_timestamp(),
         expires_at = clock_timestamp() + p_retention_ms * interval '1 millisecond'
   WHERE {owned} k.id = p_id AND k.attempt = p_attempt AND k.status = 'processing'
  RETURNING k.outcome::text, p_retention_ms INTO outcome, remaining_ms;
  {/both}
  IF NOT FOUND THEN
    RAISE EXCEPTION 'stale verdict: claim % (attempt %) is not held any more', p_id, p_attempt USING ERRCODE = 'UV001';
  END IF;
END $fn$ $f$,

-- fail: the same with failed_retryable or failed_permanent.
$f$
CREATE OR REPLACE FUNCTION umavez.fail(
  p_tenant bigint, p_id bigint, p_attempt integer, p_status text, p_outcome jsonb, p_retention_ms bigint,
  OUT outcome text, OUT remaining_ms bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
#variable_conflict use_column
BEGIN
  IF p_status IS NULL OR p_status NOT IN ('failed_retryable', 'failed_permanent') THEN
    RAISE EXCEPTION 'a failure is failed_retryable or failed_permanent, not %', coalesce(p_status, 'NULL')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  {both}
  UPDATE {ledger} k
     SET status = p_status, outcome = coalesce(p_outcome, '{}'), updated_at = clock_timestamp(),
         expires_at = clock_timestamp() + p_retention_ms * interval '1 millisecond'
   WHERE {owned} k.id = p_id AND k.attempt = p_attempt AND k.status = 'processing'
  RETURNING k.outcome::text, p_retention_ms INTO outcome, remaining_ms;
  {/both}
  IF NOT FOUND THEN
    RAISE EXCEPTION 'stale verdict: claim % (attempt %) is not held any more', p_id, p_attempt USING ERRCODE = 'UV001';
  END IF;
END $fn$ $f$,

-- renew: a committed claim is held p_lease_ms longer from now. A lease that is over but not taken may still be renewed.
$f$
CREATE OR REPLACE FUNCTION umavez.renew(p_tenant bigint, p_id bigint, p_attempt integer, p_lease_ms bigint) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
BEGIN
  {both}
  UPDATE {ledger} k
     SET updated_at = clock_timestamp(), expires_at = clock_timestamp() + p_lease_ms * interval '1 millisecond'
   WHERE {owned} k.id = p_id AND k.attempt = p_attempt AND k.status = 'processing';
  {/both}
  IF NOT FOUND THEN
    RAISE EXCEPTION 'stale verdict: claim % (attempt %) is not held any more', p_id, p_attempt USING ERRCODE = 'UV001';
  END IF;
END $fn$ $f$,

-- release: gives a claim back unused, at once and uncharged. A first claim leaves no trace; a later one leaves the failure that it
-- had taken over (its detail is gone), for a day.
$f$
CREATE OR REPLACE FUNCTION umavez.release(p_tenant bigint, p_id bigint, p_attempt integer) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
BEGIN
  {both}
  IF p_attempt = 1 THEN
    DELETE FROM {ledger} k WHERE {owned} k.id = p_id AND k.attempt = p_attempt AND k.status = 'processing';
  ELSE
    UPDATE {ledger} k
       SET status = 'failed_retryable', attempt = k.attempt - 1, updated_at = clock_timestamp(),
           expires_at = clock_timestamp() + interval '1 day'
     WHERE {owned} k.id = p_id AND k.attempt = p_attempt AND k.status = 'processing';
  END IF;
  {/both}
  IF NOT FOUND THEN
    RAISE EXCEPTION 'stale verdict: claim % (attempt %) is not held any more', p_id, p_attempt USING ERRCODE = 'UV001';
  END IF;
END $fn$ $f$,

-- complete_run: settles the claim and ends the run. Whatever became of the run's lease meanwhile, the ledger's claim is the fence.
-- (Its delivery may have been given back meanwhile, if the worker died right after it had sent this: that was a delivery after all.)
-- UV002: the run is gone, so somebody else has ended it. (Three plain statements cost a quarter less than one with three WITHs.)
$f$
CREATE OR REPLACE FUNCTION umavez.complete_run(
  p_run uuid, p_tenant bigint, p_key bytea, p_id bigint, p_attempt integer, p_outcome jsonb, p_retention_ms bigint,
  p_history boolean, OUT outcome text, OUT remaining_ms bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
#variable_conflict use_column
DECLARE
  v_task text; v_tenant bigint; v_queue text; v_priority integer; v_deliveries integer; v_enqueued_at timestamptz; v_worker uuid;
  v_traceparent text;
BEGIN
  {both}
  UPDATE {ledger} k
     SET status = 'completed', outcome = coalesce(p_outcome, '{}'), updated_at = clock_timestamp(),
         expires_at = clock_timestamp() + p_retention_ms * interval '1 millisecond'
   WHERE {owned} k.id = p_id AND k.attempt = p_attempt AND k.status = 'processing'
  RETURNING k.outcome::text INTO outcome;
  {/both}
  IF NOT FOUND THEN
    RAISE EXCEPTION 'stale verdict: claim % (attempt %) is not held any more', p_id, p_attempt USING ERRCODE = 'UV001';
  END IF;
  DELETE FROM umavez.runs r
   WHERE r.run_id = p_run
  RETURNING r.task, r.tenant_id, r.queue, r.priority, r.deliveries, r.enqueued_at, r.worker_id, r.traceparent
       INTO v_task, v_tenant, v_queue, v_priority, v_deliveries, v_enqueued_at, v_worker, v_traceparent;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'run % is gone', p_run USING ERRCODE = 'UV002';
  END IF;
  IF p_history THEN
    INSERT INTO umavez.finished_runs (run_id, task, tenant_id, queue, priority, status, replay, outcome, deliveries, attempt,
                                      idempotency_key, enqueued_at, finished_at, worker_id, traceparent)
    VALUES (p_run, v_task, v_tenant, v_queue, v_priority, 'completed', false, coalesce(p_outcome, '{}'), greatest(1, v_deliveries),
            p_attempt, p_key, v_enqueued_at, clock_timestamp(), v_worker, v_traceparent);
  END IF;
  remaining_ms := p_retention_ms;
END $fn$ $f$,

-- fail_run: settles the claim as failed; a permanent failure ends the run, another is due again after p_delay_ms. Failed runs are
-- kept whatever p_history says: an operator must be able to see and to retry them.
$f$
CREATE OR REPLACE FUNCTION umavez.fail_run(
  p_run uuid, p_tenant bigint, p_key bytea, p_id bigint, p_attempt integer, p_permanent boolean, p_outcome jsonb,
  p_failure jsonb, p_retention_ms bigint, p_delay_ms bigint, p_history boolean, OUT outcome text, OUT remaining_ms bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
#variable_conflict use_column
BEGIN
  {both}
  UPDATE {ledger} k
     SET status = CASE WHEN p_permanent THEN 'failed_permanent' ELSE 'failed_retryable' END,
         outcome = coalesce(p_outcome, '{}'), updated_at = clock_timestamp(),
         expires_at = clock_timestamp() + p_retention_ms * interval '1 millisecond'
   WHERE {owned} k.id = p_id AND k.attempt = p_attempt AND k.status = 'processing'
  RETURNING k.outcome::text INTO outcome;
  {/both}
  IF NOT FOUND THEN
    RAISE EXCEPTION 'stale verdict: claim % (attempt %) is not held any more', p_id, p_attempt USING ERRCODE = 'UV001';
  END IF;
  remaining_ms := p_retention_ms;
  IF p_permanent THEN
    PERFORM umavez.end_run(p_run, 'failed_permanent', p_outcome, p_failure, p_key, p_attempt);
  ELSE
    PERFORM umavez.reschedule_run(p_run, p_delay_ms, p_failure);
  END IF;
END $fn$ $f$,

-- ---- many runs in one transaction (core/batch) ----
-- Runs of one task, so of one kind of owner: p_tenants holds none but tenants, or nothing but NULLs (the platform's).

-- begin_runs: claims each key that no row and no other transaction stands in the way of; gives the claims' ids in the order of
-- p_keys, all with attempt 1. NULL: not claimed here, whatever the reason; a claim alone (begin_run) finds out. READ COMMITTED
-- only.
$f$
CREATE OR REPLACE FUNCTION umavez.begin_runs(p_tenants bigint[], p_keys bytea[], p_fingerprints bytea[], p_lease_ms bigint)
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $fn$
#variable_conflict use_column
DECLARE
  p_tenant constant bigint := p_tenants[1];
  v_free boolean[]; v_ids bigint[];
BEGIN
  {both}
  v_free := ARRAY(SELECT pg_try_advisory_xact_lock({key_lock}) FROM unnest(p_tenants, p_keys) AS w(p_tenant, p_key));
  WITH wanted AS MATERIALIZED (
    SELECT w.* FROM unnest(p_tenants, p_keys, p_fingerprints, v_free) WITH ORDINALITY AS w(tenant_id, key, fingerprint, free, nr)
  ), made AS (
    INSERT INTO {ledger} AS k ({column} idempotency_key, request_fingerprint, expires_at)
    SELECT {wanted} w.key, w.fingerprint, clock_timestamp() + p_lease_ms * interval '1 millisecond'
      FROM wanted w WHERE w.free
    ON CONFLICT ({column} idempotency_key) DO NOTHING
    RETURNING {made} k.idempotency_key, k.id
  )
  SELECT array_agg(m.id ORDER BY w.nr) INTO v_ids
    FROM wanted w LEFT JOIN made m ON m.idempotency_key = w.key AND m.tenant_id IS NOT DISTINCT FROM w.tenant_id;
  {/both}
  RETURN v_ids;
END $fn$ $f$,

-- forget_runs: takes claims of begin_runs back, as if they had never been made.
$f$
CREATE OR REPLACE FUNCTION umavez.forget_runs(p_tenants bigint[], p_ids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $fn$
DECLARE
  p_tenant constant bigint := p_tenants[1];
  v_count bigint;
BEGIN
  {both}
  DELETE FROM {ledger} k WHERE k.id = ANY (p_ids) AND k.attempt = 1 AND k.status = 'processing';
  {/both}
  GET DIAGNOSTICS v_count = ROW_COUNT;
  IF v_count <> cardinality(p_ids) THEN
    RAISE EXCEPTION 'stale verdict: % of % claims are not held any more', cardinality(p_ids) - v_count, cardinality(p_ids)
      USING ERRCODE = 'UV001';
  END IF;
END $fn$ $f$,

-- complete_runs: complete_run for claims of begin_runs, all or none. Gives the outcomes as the ledger has them, in order.
$f$
CREATE OR REPLACE FUNCTION umavez.complete_runs(
  p_runs uuid[], p_tenants bigint[], p_keys bytea[], p_ids bigint[], p_outcomes jsonb[], p_retention_ms bigint, p_history boolean)
RETURNS SETOF text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $fn$
DECLARE
  p_tenant constant bigint := p_tenants[1];
  v_count bigint;
BEGIN
  {both}
  UPDATE {ledger} k
     SET status = 'completed', outcome = coalesce(w.outcome, '{}'), updated_at = clock_timestamp(),
         expires_at = clock_timestamp() + p_retention_ms * interval '1 millisecond'
    FROM unnest(p_ids, p_outcomes) AS w(id, outcome)
   WHERE k.id = ANY (ARRAY[w.id]) AND k.attempt = 1 AND k.status = 'processing';
  {/both}
  GET DIAGNOSTICS v_count = ROW_COUNT;
  IF v_count <> cardinality(p_ids) THEN
    RAISE EXCEPTION 'stale verdict: % of % claims are not held any more', cardinality(p_ids) - v_count, cardinality(p_ids)
      USING ERRCODE = 'UV001';
  END IF;
  WITH gone AS (
    DELETE FROM umavez.runs r
     USING unnest(p_runs, p_keys, p_outcomes) AS w(run_id, key, outcome)
     WHERE r.run_id = ANY (ARRAY[w.run_id])
    RETURNING r.run_id, r.task, r.tenant_id, r.queue, r.priority, r.deliveries, r.enqueued_at, r.worker_id, r.traceparent,
              w.key, w.outcome
  ), kept AS (
    INSERT INTO umavez.finished_runs (run_id, task, tenant_id, queue, priority, status, replay, outcome, deliveries, attempt,
                                      idempotency_key, enqueued_at, finished_at, worker_id, traceparent)
    SELECT g.run_id, g.task, g.tenant_id, g.queue, g.priority, 'completed', false, coalesce(g.outcome, '{}'),
           greatest(1, g.deliveries), 1, g.key, g.enqueued_at, clock_timestamp(), g.worker_id, g.traceparent
      FROM gone g
     WHERE p_history
  )
  SELECT count(*) INTO v_count FROM gone;
  IF v_count <> cardinality(p_runs) THEN
    RAISE EXCEPTION '% of % runs are gone', cardinality(p_runs) - v_count, cardinality(p_runs) USING ERRCODE = 'UV002';
  END IF;
  RETURN QUERY SELECT coalesce(w.outcome, '{}')::text FROM unnest(p_outcomes) WITH ORDINALITY AS w(outcome, nr) ORDER BY w.nr;
END $fn$ $f$,

-- ack_replays: ends runs whose keys are settled, of one kind of owner (p_tenants holds none but tenants, or nothing but NULLs). The
-- statement that removes a run finds the settled outcome itself and stores the ledger's, so that a wrong word (of the gate) cannot
-- end a run. A row for each that the ledger holds settled, its run gone already or not, `nr` counting from 1 in the order of p_runs;
-- none for the others, which stay as they are. In a transaction of its own, whose commit waits for no flush: if a crash of the server
-- undoes it, the runs are there again and are answered by the same outcomes.
$f$
CREATE OR REPLACE FUNCTION umavez.ack_replays(p_runs uuid[], p_tenants bigint[], p_keys bytea[], p_fingerprints bytea[], p_history boolean)
RETURNS TABLE (nr integer, status text, outcome text, remaining_ms bigint, id bigint, attempt integer)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan AS $fn$
#variable_conflict use_column
DECLARE
  p_tenant constant bigint := p_tenants[1];
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  {both}
  RETURN QUERY
  WITH held AS MATERIALIZED (
    SELECT w.nr, w.run_id, w.tenant_id, w.key, h.*
      FROM unnest(p_runs, p_tenants, p_keys, p_fingerprints) WITH ORDINALITY AS w(run_id, tenant_id, key, fingerprint, nr)
     CROSS JOIN LATERAL (
           SELECT k.id, k.attempt, k.status, k.outcome, k.expires_at
             FROM {ledger} k
            WHERE {of_wanted} k.idempotency_key = w.key AND k.request_fingerprint = w.fingerprint
              AND k.status IN ('completed', 'failed_permanent') AND k.expires_at > clock_timestamp()
           OFFSET 0) h
  ), gone AS (
    DELETE FROM umavez.runs r USING held h
     WHERE r.run_id = ANY (ARRAY[h.run_id]) AND r.tenant_id IS NOT DISTINCT FROM h.tenant_id
    RETURNING r.*, h.status AS settled, h.outcome, h.attempt, h.key
  ), kept AS (
    INSERT INTO umavez.finished_runs (run_id, task, tenant_id, queue, priority, status, replay, outcome, failure, args, deliveries,
                                      attempt, idempotency_key, enqueued_at, finished_at, worker_id, traceparent)
    SELECT g.run_id, g.task, g.tenant_id, g.queue, g.priority, g.settled, true, g.outcome, g.failure,
           CASE WHEN g.settled <> 'completed' THEN g.args END, greatest(1, g.deliveries),
           g.attempt, g.key, g.enqueued_at, clock_timestamp(), g.worker_id, g.traceparent
      FROM gone g
     WHERE p_history OR g.settled <> 'completed'
  )
  SELECT h.nr::integer, h.status, h.outcome::text,
         greatest(1, ceil(extract(epoch FROM h.expires_at - clock_timestamp()) * 1000))::bigint, h.id, h.attempt
    FROM held h;
  {/both}
END $fn$ $f$,

-- ack_replay: the same for one run.
$f$
CREATE OR REPLACE FUNCTION umavez.ack_replay(p_run uuid, p_tenant bigint, p_key bytea, p_fingerprint bytea, p_history boolean)
RETURNS TABLE (status text, outcome text, remaining_ms bigint, id bigint, attempt integer)
LANGUAGE sql VOLATILE PARALLEL UNSAFE ROWS 1 SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT a.status, a.outcome, a.remaining_ms, a.id, a.attempt
    FROM umavez.ack_replays(ARRAY[p_run], ARRAY[p_tenant], ARRAY[p_key], ARRAY[p_fingerprint], p_history) a;
$fn$ $f$,

-- fail_lost_run: the failure of a transaction that was lost (its connection or its time), told by a second one. It records only if
-- the worker still holds the run and nobody has claimed or settled the key meanwhile ('recorded'); otherwise the ledger is left
-- alone and the run is due again ('left'); the redelivery finds out.
$f$
CREATE OR REPLACE FUNCTION umavez.fail_lost_run(
  p_worker uuid, p_run uuid, p_tenant bigint, p_key bytea, p_fingerprint bytea, p_permanent boolean, p_outcome jsonb,
  p_failure jsonb, p_retention_ms bigint, p_delay_ms bigint, p_history boolean) RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
DECLARE
  v_claim record;
BEGIN
  PERFORM 1 FROM umavez.runs r WHERE r.run_id = p_run AND r.worker_id = p_worker FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 'left';
  END IF;
  BEGIN
    SELECT * INTO v_claim FROM umavez.claim(p_tenant, p_key, p_fingerprint, 60000);
  EXCEPTION WHEN lock_not_available THEN
    SELECT 'busy' AS verdict INTO v_claim;
  END;
  IF v_claim.verdict <> 'claimed' THEN
    PERFORM umavez.reschedule_run(p_run, p_delay_ms, p_failure);
    RETURN 'left';
  END IF;
  PERFORM umavez.fail_run(p_run, p_tenant, p_key, v_claim.id, v_claim.attempt, p_permanent, p_outcome, p_failure,
                          p_retention_ms, p_delay_ms, p_history);
  RETURN 'recorded';
END $fn$ $f$,

-- resolve_commit: what became of a COMMIT whose answer was lost.
--   in_progress  its transaction still holds the key's lock: ask again
--   committed    it, or a later delivery of the run, has settled: `status`, `outcome` as the claim's row has them; NULL where the
--                key has another row now (purged since, or never committed): it may be another request's
--   rolled_back  it has not; the run, if any, is still in the queue
-- A run that is gone has ended, since only its end removes it. One that is still there has not been completed by this claim, even
-- where the row shows (id, attempt) settled: then another delivery took the same attempt after ours was rolled back. Without a run
-- (p_run NULL) the row alone decides. The reading must be later than the lock, so READ COMMITTED is required.
$f$
CREATE OR REPLACE FUNCTION umavez.resolve_commit(
  p_run uuid, p_tenant bigint, p_key bytea, p_id bigint, p_attempt integer,
  OUT verdict text, OUT status text, OUT outcome text, OUT remaining_ms bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
#variable_conflict use_column
DECLARE
  v_live boolean; v_row boolean; v_mine boolean;
BEGIN
  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'umavez.resolve_commit() must be called in a READ COMMITTED transaction'
      USING ERRCODE = 'invalid_transaction_state';
  END IF;
  {both}
  IF NOT pg_try_advisory_xact_lock({key_lock}) THEN
    verdict := 'in_progress';
    RETURN;
  END IF;
  v_live := p_run IS NOT NULL AND EXISTS (SELECT 1 FROM umavez.runs r WHERE r.run_id = p_run);
  SELECT k.status, k.outcome::text, greatest(0, ceil(extract(epoch FROM k.expires_at - clock_timestamp()) * 1000))::bigint,
         k.id = p_id, k.id = p_id AND k.attempt = p_attempt
    INTO status, outcome, remaining_ms, v_row, v_mine
    FROM {ledger} k
   WHERE {of_owner} k.idempotency_key = p_key AND k.status <> 'processing';
  {/both}
  v_mine := coalesce(v_mine, false);
  IF p_run IS NULL THEN
    verdict := CASE WHEN v_mine THEN 'committed' ELSE 'rolled_back' END;
  ELSIF NOT v_live THEN
    verdict := 'committed';
  ELSE
    verdict := CASE WHEN v_mine AND status = 'failed_retryable' THEN 'committed' ELSE 'rolled_back' END;
  END IF;
  IF verdict = 'rolled_back' OR NOT coalesce(v_row, false) THEN
    status := NULL; outcome := NULL; remaining_ms := NULL;
  END IF;
END $fn$ $f$,

-- retry_run: an operator's second chance for a dead run: back into the queue with its deliveries at zero, and the ledger row from
-- failed_permanent to failed_retryable in the same transaction, so that the next claim takes it over. A run that ended without
-- touching the ledger (key_reused, unknown_task, …: its attempt is NULL) leaves the key's row alone, and so does one whose own row's
-- retention has passed: a row that was made after the run had ended is another request's. A request of the HTTP door has
-- no place in the queue: its client comes again. UV004: there is no such failed run.
$f$
CREATE OR REPLACE FUNCTION umavez.retry_run(p_run uuid) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
DECLARE
  v_dead umavez.finished_runs; p_tenant bigint;
BEGIN
  SELECT f.* INTO v_dead FROM umavez.finished_runs f
   WHERE f.run_id = p_run AND f.status <> 'completed' ORDER BY f.finished_at DESC LIMIT 1 FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no failed run % to retry', p_run USING ERRCODE = 'UV004';
  END IF;
  IF v_dead.queue = 'http' AND v_dead.worker_id IS NULL THEN
    RAISE EXCEPTION '% was a request of the HTTP door, not a run of the queue', p_run USING ERRCODE = 'UV004';
  END IF;
  DELETE FROM umavez.finished_runs f WHERE f.run_id = p_run AND f.finished_at = v_dead.finished_at;
  DELETE FROM umavez.cancellations c WHERE c.run_id = p_run;
  INSERT INTO umavez.runs (run_id, task, tenant_id, args, queue, priority, run_at, enqueued_at, failure, traceparent)
  VALUES (p_run, v_dead.task, v_dead.tenant_id, v_dead.args, v_dead.queue, v_dead.priority, clock_timestamp(), v_dead.enqueued_at,
          v_dead.failure, v_dead.traceparent);
  p_tenant := v_dead.tenant_id;
  IF v_dead.idempotency_key IS NOT NULL AND v_dead.attempt IS NOT NULL THEN
    {both}
    UPDATE {ledger} k
       SET status = 'failed_retryable', updated_at = clock_timestamp()
     WHERE {of_owner} k.idempotency_key = v_dead.idempotency_key AND k.status = 'failed_permanent'
       AND k.created_at <= v_dead.finished_at;
    {/both}
  END IF;
  PERFORM umavez.wake();
END $fn$ $f$,

-- forget_key: removes a settled key, so that the operation can be done anew; the history of its runs stays. Gives what became of it:
--   forgotten  it was settled (perhaps with a retention that has passed), and is gone
--   absent     there is no such key
--   live       somebody is at work with it, or holds its lease: untouched
--   open       failed_retryable: its next run claims it anyhow, so there is nothing to forget
-- The copy in Valkey is the caller's to remove, after this has committed.
$f$
CREATE OR REPLACE FUNCTION umavez.forget_key(p_tenant bigint, p_key bytea, p_reason text, p_actor text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
DECLARE
  v_gone jsonb; v_status text;
BEGIN
  IF coalesce(p_reason, '') = '' THEN
    RAISE EXCEPTION 'a key is not forgotten without a reason' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  {both}
  IF NOT pg_try_advisory_xact_lock({key_lock}) THEN
    RETURN 'live';
  END IF;
  DELETE FROM {ledger} k
   WHERE {of_owner} k.idempotency_key = p_key AND k.status IN ('completed', 'failed_permanent')
  RETURNING to_jsonb(k) INTO v_gone;
  IF v_gone IS NULL THEN
    SELECT CASE k.status WHEN 'failed_retryable' THEN 'open' ELSE 'live' END INTO v_status FROM {ledger} k
     WHERE {of_owner} k.idempotency_key = p_key;
    RETURN coalesce(v_status, 'absent');
  END IF;
  {/both}
  PERFORM umavez.write_audit('forget', encode(p_key, 'hex'), p_reason, p_actor,
                             v_gone - '{idempotency_key,request_fingerprint,outcome}'::text[]);
  RETURN 'forgotten';
END $fn$ $f$,

-- purge_keys: removes at most p_limit rows of each ledger whose retention has passed, and processing rows that somebody committed
-- and left for more than a day. (0, 0) means that nothing is left to do now. Rows that somebody has locked are stepped over. Call
-- it once a transaction with a modest p_limit: a claim of a key that is being removed is busy until the purge has committed.
-- How it finds them, and what that costs: see 0001_ledger.sql.
$f$
CREATE OR REPLACE FUNCTION umavez.purge_keys(p_limit integer, OUT tenant_keys bigint, OUT platform_keys bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
DECLARE
  zone_ids constant bigint := 100000;
  v_now constant timestamptz := clock_timestamp();
  v_newest bigint; v_last bigint; v_from bigint; v_to bigint; v_left bigint; v_deleted bigint; v_next timestamptz;
BEGIN
  {each}
  v_left := p_limit;
  SELECT max(z.from_id) INTO v_newest FROM umavez.purge_zones z WHERE z.ledger = '{name}';
  SELECT max(k.id) INTO v_last FROM {ledger} k;
  INSERT INTO umavez.purge_zones (ledger, from_id, next_at)
  SELECT '{name}', g, '-infinity' FROM generate_series(v_newest + zone_ids, v_last, zone_ids) g LIMIT 1000
  ON CONFLICT DO NOTHING;

  FOR v_from, v_to IN
    SELECT z.from_id, (SELECT min(n.from_id) FROM umavez.purge_zones n WHERE n.ledger = z.ledger AND n.from_id > z.from_id)
      FROM umavez.purge_zones z
     WHERE z.ledger = '{name}'
       AND (z.next_at <= v_now
            OR NOT EXISTS (SELECT 1 FROM umavez.purge_zones n WHERE n.ledger = z.ledger AND n.from_id > z.from_id))
     ORDER BY z.from_id
       FOR UPDATE SKIP LOCKED
  LOOP
    DELETE FROM {ledger} d
     WHERE d.id = ANY (ARRAY(
       SELECT k.id FROM {ledger} k
        WHERE k.id >= v_from AND (v_to IS NULL OR k.id < v_to)
          AND k.expires_at <= v_now - CASE k.status WHEN 'processing' THEN interval '1 day' ELSE interval '0' END
        ORDER BY k.id
        LIMIT v_left
          FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    v_left := v_left - v_deleted;
    EXIT WHEN v_left <= 0;                                       -- the zone stays due

    SELECT min(k.expires_at) INTO v_next FROM {ledger} k WHERE k.id >= v_from AND (v_to IS NULL OR k.id < v_to);
    IF v_next IS NULL AND v_from > 0 AND v_to IS NOT NULL THEN   -- empty: falls to its predecessor
      DELETE FROM umavez.purge_zones z WHERE z.ledger = '{name}' AND z.from_id = v_from;
    ELSE                                                         -- a day at most: what is committed late is found, too
      UPDATE umavez.purge_zones z SET next_at = least(v_next, v_now + interval '1 day')
       WHERE z.ledger = '{name}' AND z.from_id = v_from;
    END IF;
  END LOOP;
  {count} := p_limit - v_left;
  {/each}
END $fn$ $f$
  ];

  tenants constant text[] := ARRAY[
    'ledger', 'umavez.idempotency_keys', 'name', 'idempotency_keys', 'of_owner', 'k.tenant_id = p_tenant AND',
    'owned', 'k.tenant_id + 0 = p_tenant AND',
    'column', 'tenant_id,', 'value', 'p_tenant,', 'count', 'tenant_keys', 'wanted', 'w.tenant_id,', 'made', 'k.tenant_id,', 'of_wanted', 'k.tenant_id = w.tenant_id AND',
    'key_lock', $$hashtextextended(encode(p_key, 'hex'), p_tenant)$$];
  platform constant text[] := ARRAY[
    'ledger', 'umavez.platform_idempotency_keys', 'name', 'platform_idempotency_keys', 'of_owner', '', 'owned', '',
    'column', '', 'value', '', 'count', 'platform_keys', 'wanted', '', 'made', 'NULL::bigint AS tenant_id,', 'of_wanted', '',
    'key_lock', $$hashtextextended('platform:' || encode(p_key, 'hex'), 0)$$];

  template text; part text; tenants_part text; platform_part text; source text; n integer; kind text;
BEGIN
  FOREACH template IN ARRAY templates LOOP
    source := replace(template, '{claim_body}', claim_body);
    FOREACH kind IN ARRAY ARRAY['both', 'each'] LOOP
      template := source;
      source := '';
      n := 0;
      FOREACH part IN ARRAY regexp_split_to_array(template, '\{/?' || kind || '\}') LOOP
        n := n + 1;
        IF n % 2 = 1 THEN
          source := source || part;
          CONTINUE;
        END IF;
        tenants_part := part;
        platform_part := part;
        FOR i IN 1 .. array_length(tenants, 1) BY 2 LOOP
          tenants_part := replace(tenants_part, '{' || tenants[i] || '}', tenants[i + 1]);
          platform_part := replace(platform_part, '{' || platform[i] || '}', platform[i + 1]);
        END LOOP;
        source := source || CASE kind
          WHEN 'both' THEN 'IF p_tenant IS NULL THEN' || platform_part || 'ELSE' || tenants_part || 'END IF;'
          ELSE tenants_part || platform_part END;
      END LOOP;
    END LOOP;
    EXECUTE source;
  END LOOP;
END $generate$;
