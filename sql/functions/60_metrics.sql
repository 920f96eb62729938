-- queue_depths: what waits in the queues, for the metrics page: of p_queues and of those that any worker's tasks name, 200 at most.
--   due       runs that are due, counted up to p_limit
--   later     runs whose time is yet to come (delayed, or to be retried), counted up to p_limit
--   oldest_s  for how long the one that waits longest has been due, in seconds; 0 when none is
-- It reads runs_ready alone, p_limit entries of a queue at most, and begins where takes begin (see take_runs): what lies before a
-- mark nevertheless is not counted until a take has found it. Lanes (25_lanes.sql) are counted where anything is declared. Plans as in 20_queue.sql; umavez.tasks is small and read whole, which
-- enable_seqscan = off makes look so dear that it would be compiled (jit).
CREATE OR REPLACE FUNCTION umavez.queue_depths(p_queues text[], p_limit integer)
RETURNS TABLE (queue text, due bigint, later bigint, oldest_s double precision)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off AS $fn$
#variable_conflict use_column
DECLARE
  v_now constant timestamptz := clock_timestamp();
  v_lanes constant boolean := EXISTS (SELECT FROM umavez.limits);
BEGIN
  RETURN QUERY
  SELECT q.name,
         least(p_limit, coalesce(d.due, 0) + (SELECT count(*)
            FROM (SELECT 1
                    FROM generate_series(1, 4) AS g(priority)
                    CROSS JOIN LATERAL (
                      SELECT 1
                        FROM umavez.runs r
                       WHERE r.state = 'available' AND r.queue = q.name AND r.lane = '' AND r.priority = g.priority
                         AND r.run_at >= coalesce(q.since[g.priority], '-infinity') AND r.run_at <= v_now
                      OFFSET 0) e
                   LIMIT p_limit) c)),
         least(p_limit, coalesce(d.later, 0) + (SELECT count(*)
            FROM (SELECT 1
                    FROM generate_series(1, 4) AS g(priority)
                    CROSS JOIN LATERAL (
                      SELECT 1
                        FROM umavez.runs r
                       WHERE r.state = 'available' AND r.queue = q.name AND r.lane = '' AND r.priority = g.priority AND r.run_at > v_now
                      OFFSET 0) e
                   LIMIT p_limit) c)),
         greatest(coalesce(d.oldest_s, 0), coalesce((SELECT extract(epoch FROM v_now - min(e.run_at))
                     FROM generate_series(1, 4) AS g(priority)
                     CROSS JOIN LATERAL (
                       SELECT r.run_at
                         FROM umavez.runs r
                        WHERE r.state = 'available' AND r.queue = q.name AND r.lane = '' AND r.priority = g.priority
                          AND r.run_at >= coalesce(q.since[g.priority], '-infinity') AND r.run_at <= v_now
                        ORDER BY r.run_at
                        LIMIT 1) e), 0)::double precision)
    FROM (SELECT n.name, m.since
            FROM (SELECT u.name FROM unnest(p_queues) AS u(name) UNION SELECT t.queue FROM umavez.tasks t ORDER BY 1 LIMIT 200) n
            LEFT JOIN LATERAL (SELECT k.since FROM umavez.marks k
                                WHERE k.name = 'take:' || n.name AND k.full_at <> '-infinity' OFFSET 0) m ON true
          OFFSET 0) q
    LEFT JOIN LATERAL (SELECT x.due, x.later, x.oldest_s FROM umavez.lanes_depth(q.name, p_limit, v_now) x WHERE v_lanes OFFSET 0) d ON true
   ORDER BY q.name;
END $fn$;
