-- release_orphans: a worker that has reconnected gives back every run that the queue says it holds, except those it knows (p_kept).
-- They were taken for it by a statement whose answer was lost with the connection, so no handler has started: not charged. Gives
-- their number. Rows that somebody has locked are being ended or given back, and are left alone.
CREATE OR REPLACE FUNCTION umavez.release_orphans(p_worker uuid, p_kept uuid[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
DECLARE
  v_count bigint;
BEGIN
  WITH held AS MATERIALIZED (
    SELECT r.run_id
      FROM umavez.runs r
     WHERE r.state = 'running' AND r.worker_id = p_worker AND r.run_id <> ALL (p_kept)
       FOR UPDATE SKIP LOCKED
  )
  UPDATE umavez.runs t
     SET state = 'available', lease_until = NULL, worker_id = NULL, deliveries = greatest(0, t.deliveries - 1),
         run_at = clock_timestamp()
    FROM held
   WHERE t.run_id = held.run_id;
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $fn$;
