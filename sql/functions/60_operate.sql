-- What an operator does: pausing queues, cancelling, discarding and retrying runs; and what is shown to one. (Forgetting a key is a
-- matter of the ledger: 10_ledger.sql.) Each act writes its row of umavez.audit in its own transaction.
--
-- jit is off where a plan may hold a scan of a table that is tiny: with enable_seqscan off its cost looks enormous, and compiling the plan
-- takes a hundred times as long as the work.
--
-- p_actor is who says to have asked (user@host of the command line): the database knows only the role that is logged in, and
-- records both. An act that changes nothing leaves no row.

CREATE OR REPLACE FUNCTION umavez.write_audit(
  p_action text, p_target text, p_reason text, p_actor text, p_detail jsonb DEFAULT '{}') RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  INSERT INTO umavez.audit (db_user, os_user, action, target, reason, detail)
  VALUES (session_user, nullif(p_actor, ''), p_action, p_target, nullif(p_reason, ''), coalesce(p_detail, '{}'));
$fn$;

-- Workers that LISTEN look at once what has been ordered (umavez.held_orders), instead of when they renew their leases. The
-- notification says nothing else: anybody could send one.
CREATE OR REPLACE FUNCTION umavez.notify_look() RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT pg_notify('umavez_runs', 'look');
$fn$;

-- ---- queues ----

-- pause_queue: nothing is taken from the queue any more, by nobody, and what workers hold of it without having begun goes back.
-- False: it was paused already; who and why stay as they were.
CREATE OR REPLACE FUNCTION umavez.pause_queue(p_queue text, p_reason text DEFAULT NULL, p_actor text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
BEGIN
  INSERT INTO umavez.paused_queues (queue, paused_by, reason)
  VALUES (p_queue, coalesce(nullif(p_actor, ''), session_user), nullif(p_reason, ''))
  ON CONFLICT (queue) DO NOTHING;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM umavez.write_audit('pause', p_queue, p_reason, p_actor);
  PERFORM umavez.notify_look();
  RETURN true;
END $fn$;

-- resume_queue: false: it was not paused.
CREATE OR REPLACE FUNCTION umavez.resume_queue(p_queue text, p_reason text DEFAULT NULL, p_actor text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
  v_was umavez.paused_queues;
BEGIN
  DELETE FROM umavez.paused_queues p WHERE p.queue = p_queue RETURNING p.* INTO v_was;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM umavez.write_audit('resume', p_queue, p_reason, p_actor, to_jsonb(v_was) - 'queue');
  PERFORM umavez.wake();
  RETURN true;
END $fn$;

-- list_queues: every queue that has runs, is some task's, is paused or declared, 200 at most. Counts as queue_depths counts them; oldest_s
-- is NULL when nothing is due. places, used: of its limit; NULL: it has none.
CREATE OR REPLACE FUNCTION umavez.list_queues(p_limit integer)
RETURNS TABLE (queue text, due bigint, later bigint, running bigint, oldest_s double precision, paused_at timestamptz,
               paused_by text, reason text, places integer, used bigint, fair boolean)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $fn$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH RECURSIVE waiting AS (                                    -- each queue once, by one look into the index
    (SELECT r.queue FROM umavez.runs r WHERE r.state = 'available' ORDER BY r.queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM umavez.runs r WHERE r.state = 'available' AND r.queue > w.queue ORDER BY r.queue LIMIT 1)
      FROM waiting w WHERE w.queue IS NOT NULL
  ), held AS MATERIALIZED (
    SELECT l.queue, count(*) AS n
      FROM (SELECT r.queue FROM umavez.runs r WHERE r.state = 'running' LIMIT p_limit) l GROUP BY l.queue
  )
  SELECT d.queue, d.due, d.later, coalesce(h.n, 0), CASE WHEN d.due > 0 THEN d.oldest_s END, p.paused_at, p.paused_by, p.reason,
         l.places, CASE WHEN l.places IS NOT NULL THEN l.used END, coalesce(l.fair, false)
    FROM umavez.queue_depths(ARRAY(SELECT w.queue FROM waiting w WHERE w.queue IS NOT NULL
                                   UNION SELECT q.queue FROM umavez.paused_queues q
                                   UNION SELECT k.queue FROM held k
                                   UNION SELECT o.name FROM umavez.limits o WHERE o.kind = 'queue' AND (o.places IS NOT NULL OR o.fair)),
                             p_limit) d
    LEFT JOIN held h ON h.queue = d.queue
    LEFT JOIN umavez.list_limits() l ON l.kind = 'queue' AND l.name = d.queue
    LEFT JOIN umavez.paused_queues p ON p.queue = d.queue
   ORDER BY d.queue;
END $fn$;

-- ---- cancelling ----

CREATE OR REPLACE FUNCTION umavez.cancelled_outcome(p_by text, p_reason text) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT jsonb_build_object('code', 'cancelled',
           'message', left('cancelled by ' || p_by || coalesce(': ' || p_reason, ''), 1000));
$fn$;

-- cancel_run: a run that waits ends at once as failed_permanent with the code cancelled; its key is left alone, since nothing has
-- claimed it. One that a worker holds is asked for: the worker stops it at its next wait and rolls its effect back; where it gives
-- the run back instead (its death, a failure), the run ends then. Gives
--   cancelled  it has ended now                       completed, failed_permanent  it had ended already
--   asked      it will, unless it completes first     unknown                      there is no such run
CREATE OR REPLACE FUNCTION umavez.cancel_run(p_run uuid, p_reason text DEFAULT NULL, p_actor text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
DECLARE
  v_by constant text := coalesce(nullif(p_actor, ''), session_user);
  v_state text; v_task text; v_outcome jsonb; v_answer text := 'asked';
BEGIN
  SELECT r.state, r.task INTO v_state, v_task FROM umavez.runs r WHERE r.run_id = p_run FOR UPDATE SKIP LOCKED;
  IF v_state = 'available' THEN
    v_outcome := umavez.cancelled_outcome(v_by, nullif(p_reason, ''));
    PERFORM umavez.end_run(p_run, 'failed_permanent', v_outcome, v_outcome);
    DELETE FROM umavez.cancellations c WHERE c.run_id = p_run;
    v_answer := 'cancelled';
  ELSIF EXISTS (SELECT FROM umavez.runs r WHERE r.run_id = p_run) THEN     -- held, or just being taken or ended
    INSERT INTO umavez.cancellations (run_id, asked_by, reason) VALUES (p_run, v_by, nullif(p_reason, ''))
    ON CONFLICT (run_id) DO NOTHING;
    PERFORM umavez.notify_look();
  ELSE
    RETURN coalesce((SELECT f.status FROM umavez.finished_runs f WHERE f.run_id = p_run ORDER BY f.finished_at DESC LIMIT 1),
                    'unknown');
  END IF;
  PERFORM umavez.write_audit('cancel', p_run::text, p_reason, p_actor,
                             jsonb_build_object('task', v_task, 'state', coalesce(v_state, 'running')));
  RETURN v_answer;
END $fn$;

-- end_cancelled: ends what has been asked for and is in no worker's hands, and forgets what was asked for in vain. Called by
-- umavez.take_runs while there is any; nobody waits for anybody.
CREATE OR REPLACE FUNCTION umavez.end_cancelled() RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $fn$
DECLARE
  v_asked umavez.cancellations; v_state text; v_outcome jsonb;
BEGIN
  FOR v_asked IN SELECT c.* FROM umavez.cancellations c ORDER BY c.run_id LIMIT 1000 FOR UPDATE SKIP LOCKED LOOP
    SELECT r.state INTO v_state FROM umavez.runs r WHERE r.run_id = v_asked.run_id FOR UPDATE SKIP LOCKED;
    IF v_state = 'available' THEN
      v_outcome := umavez.cancelled_outcome(v_asked.asked_by, v_asked.reason);
      PERFORM umavez.end_run(v_asked.run_id, 'failed_permanent', v_outcome, v_outcome);
    END IF;
    IF v_state = 'available' OR NOT EXISTS (SELECT FROM umavez.runs r WHERE r.run_id = v_asked.run_id) THEN
      DELETE FROM umavez.cancellations c WHERE c.run_id = v_asked.run_id;
    END IF;
  END LOOP;
END $fn$;

-- held_orders: what has been ordered about runs that a worker holds. order: 'cancel', with who asked and why; 'return', for runs of a
-- paused queue, which go back unless they have begun.
CREATE OR REPLACE FUNCTION umavez.held_orders(p_runs uuid[]) RETURNS TABLE (run_id uuid, what text, message text)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET enable_hashjoin = off SET enable_mergejoin = off AS $fn$
#variable_conflict use_column
BEGIN
  IF EXISTS (SELECT FROM umavez.cancellations) THEN
    RETURN QUERY
    SELECT c.run_id, 'cancel', umavez.cancelled_outcome(c.asked_by, c.reason)->>'message'
      FROM umavez.cancellations c WHERE c.run_id = ANY (p_runs);
  END IF;
  IF EXISTS (SELECT FROM umavez.paused_queues) THEN
    RETURN QUERY
    SELECT w.run_id, 'return', NULL
      FROM unnest(p_runs) AS w(run_id)
      CROSS JOIN LATERAL (SELECT l.queue FROM umavez.runs l WHERE l.run_id = w.run_id OFFSET 0) r
     WHERE r.queue IN (SELECT p.queue FROM umavez.paused_queues p);
  END IF;
END $fn$;

-- ---- failed runs ----

-- discard_runs: failed runs that somebody has dealt with: no failures to look at any more. Gives those that it has marked.
CREATE OR REPLACE FUNCTION umavez.discard_runs(p_runs uuid[], p_reason text DEFAULT NULL, p_actor text DEFAULT NULL)
RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
DECLARE
  v_run uuid; v_task text;
BEGIN
  FOR v_run, v_task IN
    UPDATE umavez.finished_runs f SET discarded_at = clock_timestamp()
     WHERE f.run_id = ANY (p_runs) AND f.status = 'failed_permanent' AND f.discarded_at IS NULL
    RETURNING f.run_id, f.task
  LOOP
    PERFORM umavez.write_audit('discard', v_run::text, p_reason, p_actor, jsonb_build_object('task', v_task));
    RETURN NEXT v_run;
  END LOOP;
END $fn$;

-- retry_runs: umavez.retry_run for many, and audited: one row for all of them. Those that cannot be retried (any more) are left
-- alone. Gives the number of those that are back in the queue.
CREATE OR REPLACE FUNCTION umavez.retry_runs(p_runs uuid[], p_target text, p_reason text DEFAULT NULL, p_actor text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
  v_run uuid; v_done uuid[] := '{}';
BEGIN
  FOR v_run IN SELECT DISTINCT u.run_id FROM unnest(p_runs) AS u(run_id) ORDER BY 1 LOOP
    BEGIN
      PERFORM umavez.retry_run(v_run);
      v_done := v_done || v_run;
    EXCEPTION WHEN SQLSTATE 'UV004' THEN
      NULL;
    END;
  END LOOP;
  IF v_done <> '{}' THEN
    PERFORM umavez.write_audit('retry', p_target, p_reason, p_actor, jsonb_build_object('runs', to_jsonb(v_done)));
  END IF;
  RETURN cardinality(v_done);
END $fn$;

-- failed_runs: failed runs of the queue that can be retried and have not been discarded, of one task or all, that ended between
-- p_from (exclusive, with p_after) and p_to: a page of them in the order of their end.
CREATE OR REPLACE FUNCTION umavez.failed_runs(
  p_task text, p_from timestamptz, p_after uuid, p_to timestamptz, p_limit integer)
RETURNS TABLE (run_id uuid, finished_at timestamptz)
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $fn$
  SELECT f.run_id, f.finished_at
    FROM umavez.finished_runs f
   WHERE f.status = 'failed_permanent' AND f.discarded_at IS NULL AND NOT (f.queue = 'http' AND f.worker_id IS NULL)
     AND (p_task IS NULL OR f.task = p_task) AND f.finished_at >= p_from AND f.finished_at <= p_to
     AND (f.finished_at, f.run_id) > (p_from, coalesce(p_after, '00000000-0000-0000-0000-000000000000'))
   ORDER BY f.finished_at, f.run_id
   LIMIT p_limit;
$fn$;

-- ---- workers ----

-- worker_beat: this worker is alive. Rows of workers that have said nothing for an hour go. Commits without waiting for the disk.
CREATE OR REPLACE FUNCTION umavez.worker_beat(p_worker uuid, p_host text, p_pid integer, p_version text, p_detail jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO umavez.workers AS w (worker_id, host, pid, version, detail)
  VALUES (p_worker, p_host, p_pid, p_version, coalesce(p_detail, '{}'))
  ON CONFLICT (worker_id) DO UPDATE SET seen_at = clock_timestamp();
  DELETE FROM umavez.workers w
   WHERE w.worker_id = ANY (ARRAY(SELECT o.worker_id FROM umavez.workers o
                                   WHERE o.seen_at < clock_timestamp() - interval '1 hour' FOR UPDATE SKIP LOCKED));
END $fn$;

CREATE OR REPLACE FUNCTION umavez.worker_gone(p_worker uuid) RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  DELETE FROM umavez.workers w WHERE w.worker_id = p_worker;
$fn$;

-- ---- what has ended lately ----

-- in_blocks: the condition that a row of f lies in the blocks from p_from to before p_upto: a range where the server can read one (14),
-- else each place that there may be.
CREATE OR REPLACE FUNCTION umavez.in_blocks(p_from bigint, p_upto bigint) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT CASE WHEN current_setting('server_version_num')::int >= 140000
    THEN format('f.ctid >= ''(%s,0)'' AND f.ctid < ''(%s,0)''', p_from, p_upto)
    ELSE format('f.ctid = ANY (ARRAY(SELECT format(''(%%s,%%s)'', b, i)::tid FROM generate_series(%s, %s) b, generate_series(1, 100) i))',
                p_from, p_upto - 1) END;                         -- no more than 100 rows fit
$fn$;

-- recent_ends: the runs in the last p_blocks blocks of the newest partitions: what has ended last, without an index and without
-- reading more of the history (its partitions only grow at their end, but for retries). Runs whose task keeps no history are not seen.
CREATE OR REPLACE FUNCTION umavez.recent_ends(p_blocks integer)
RETURNS TABLE (task text, status text, replay boolean, enqueued_at timestamptz, finished_at timestamptz)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET timezone = 'UTC' AS $fn$
DECLARE
  v_rel regclass; v_size bigint; v_left bigint := p_blocks;
BEGIN
  FOR v_rel IN
    SELECT to_regclass('umavez.finished_runs_' || n.name)
      FROM unnest(ARRAY[to_char(clock_timestamp(), 'YYYYMMDD'), 'default',
                        to_char(clock_timestamp() - interval '1 day', 'YYYYMMDD')]) WITH ORDINALITY AS n(name, nr)
     ORDER BY n.nr
  LOOP
    CONTINUE WHEN v_rel IS NULL;
    v_size := pg_relation_size(v_rel) / current_setting('block_size')::bigint;
    RETURN QUERY EXECUTE format(
      'SELECT f.task, f.status, f.replay, f.enqueued_at, f.finished_at FROM %s f WHERE ' ||
      umavez.in_blocks(greatest(0, v_size - v_left), v_size), v_rel);
    v_left := v_left - v_size;
    EXIT WHEN v_left <= 0;
  END LOOP;
END $fn$;
