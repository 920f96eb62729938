-- Limits across all workers, tenants in turn, queues by weight: taking runs where any of these is declared (umavez.limits) or asked
-- for (weights). Whoever declares none never gets here: see umavez.take_runs. The plans are fixed as in 20_queue.sql.
--
-- Lanes. Each run stands in a lane of its queue, named after what it counts for:
--   ''                       nothing is declared of it
--   '*'                      its queue has a limit
--   '5b2c7d01:7'             its queue is fair: a lane for each tenant, in the order of a hash, so that a random place to begin at
--                            favours nobody
--   '!shop.pay'              its task has a limit
--   '!shop.pay 5b2c7d01:7'   both
-- enqueue puts a run into its lane. What stands elsewhere (enqueued before something was declared, by a schedule, by a retry) is put
-- there by the take that meets it, once, instead of being taken. Where a declaration has gone, its lanes are served until they are empty.
-- A take finds the lanes that have runs by looks into runs_ready, one for each lane: nothing is kept about lanes, so nothing about them
-- can be wrong. While a foreign snapshot holds the vacuum horizon, lanes that have run empty stay to be stepped over; the lane ''
-- alone has marks.
--
-- Limits. A place is taken by a row of umavez.runs that a worker holds, and by nothing else: it is counted, not kept. So it is free
-- again in the transaction in which the run ends or goes back, and a dead worker's places with its leases. Who takes under a limit holds
-- an advisory lock of that limit (1970102647, hash) until its commit, so that two takers cannot count the same place; who does not
-- get it takes other runs, and is told to look again (a row without run_id). Nobody waits.
-- Runs that were taken before their limit was declared stand in the lane ''. They are counted through runs_leased until there are
-- none any more, which a row of umavez.marks remembers ('counted:task shop.pay').

-- The lane of a run: p_counted whether its task has a limit, p_bounded whether its queue has one, p_fair.
CREATE OR REPLACE FUNCTION umavez.lane_name(p_task text, p_tenant bigint, p_counted boolean, p_bounded boolean, p_fair boolean) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT CASE WHEN p_counted AND p_fair THEN '!' || p_task || ' ' || h.tenant
              WHEN p_counted THEN '!' || p_task
              WHEN p_fair THEN h.tenant
              WHEN p_bounded THEN '*'
              ELSE '' END
    FROM (SELECT left(md5(coalesce(p_tenant::text, '')), 8) || ':' || coalesce(p_tenant::text, '') AS tenant) h;
$fn$;

-- The lane that is right for a run now. Asked by enqueue while umavez.limits is not empty.
CREATE OR REPLACE FUNCTION umavez.lane_of(p_queue text, p_task text, p_tenant bigint) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $fn$
DECLARE
  v_bounded boolean; v_fair boolean;
BEGIN
  SELECT l.places IS NOT NULL, l.fair INTO v_bounded, v_fair FROM umavez.limits l WHERE l.kind = 'queue' AND l.name = p_queue;
  RETURN umavez.lane_name(p_task, p_tenant,
           EXISTS (SELECT FROM umavez.limits l WHERE l.kind = 'task' AND l.name = p_task AND l.places IS NOT NULL),
           coalesce(v_bounded, false), coalesce(v_fair, false));
END $fn$;

-- lane_groups: what may have runs in these queues: the lane '', and, found by one look each, '*', each limited task's lanes (task says
-- which), and the tenants' lanes. All lanes of a group lie between low and high. The lane '' is not looked at: takes read it from its
-- marks on, and this would read it from the start.
CREATE OR REPLACE FUNCTION umavez.lane_groups(p_queues text[]) RETURNS TABLE (queue text, low text, high text, task text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $fn$
#variable_conflict use_column
DECLARE
  v_queue text; v_lane text;
BEGIN
  FOREACH v_queue IN ARRAY p_queues LOOP
    queue := v_queue;
    low := ''; high := ''; task := NULL;
    RETURN NEXT;
    v_lane := ' ';
    LOOP
      SELECT r.lane INTO v_lane FROM umavez.runs r
       WHERE r.state = 'available' AND r.queue = v_queue AND r.lane >= v_lane ORDER BY r.lane LIMIT 1;
      EXIT WHEN v_lane IS NULL;
      task := CASE WHEN left(v_lane, 1) = '!' THEN split_part(substr(v_lane, 2), ' ', 1) END;
      low := CASE WHEN task IS NOT NULL THEN '!' || task WHEN v_lane = '*' THEN v_lane ELSE '0' END;
      high := CASE WHEN task IS NOT NULL THEN low || ' ~' WHEN v_lane = '*' THEN v_lane ELSE 'g' END;
      RETURN NEXT;
      v_lane := high || ' ';                                     -- the first name behind
    END LOOP;
  END LOOP;
END $fn$;

-- some_lanes: up to p_limit lanes of a group that have due runs, chosen by chance: all of them when they are that few; of the next 16 or
-- p_limit from a random one on, round and round, when they are more. It looks at 1000 lanes at most; those that it has not reached
-- have their chance in the next take.
CREATE OR REPLACE FUNCTION umavez.some_lanes(
  p_queue text, p_low text, p_high text, p_limit integer, p_now timestamptz, OUT lanes text[], OUT cut boolean)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan AS $fn$
#variable_conflict use_variable
DECLARE
  v_start constant text COLLATE "C" := CASE WHEN left(p_low, 1) = '!' THEN p_low || ' ' ELSE '' END
                                       || lpad(to_hex((random() * 4294967295)::bigint), 8, '0');
  v_at text COLLATE "C" := v_start; v_end text COLLATE "C" := p_high; v_lane text COLLATE "C"; v_steps integer := 0;
  v_priority integer; v_run_at timestamptz;
BEGIN
  lanes := '{}';
  cut := false;
  IF p_low = p_high THEN
    lanes := ARRAY[p_low];
    RETURN;
  END IF;
  LOOP
    SELECT r.lane, r.priority, r.run_at INTO v_lane, v_priority, v_run_at FROM umavez.runs r
     WHERE r.state = 'available' AND r.queue = p_queue AND r.lane >= v_at AND r.lane < v_end
     ORDER BY r.lane, r.priority, r.run_at LIMIT 1;
    IF v_lane IS NULL THEN
      EXIT WHEN v_end <= v_start;
      v_at := p_low;
      v_end := v_start;
      CONTINUE;
    END IF;
    IF v_run_at <= p_now
       OR EXISTS (SELECT FROM generate_series(v_priority + 1, 4) AS g(priority)
                   CROSS JOIN LATERAL (SELECT FROM umavez.runs r
                                        WHERE r.state = 'available' AND r.queue = p_queue AND r.lane = v_lane AND r.priority = g.priority
                                          AND r.run_at <= p_now LIMIT 1) d) THEN
      lanes := lanes || v_lane;
      EXIT WHEN cardinality(lanes) >= greatest(p_limit, 16);
    END IF;
    v_steps := v_steps + 1;
    cut := v_steps >= 1000;
    EXIT WHEN cut;
    v_at := v_lane || E'\x01';
  END LOOP;
  lanes := ARRAY(SELECT l FROM unnest(lanes) l ORDER BY random() LIMIT p_limit);
END $fn$;

-- free_places: how many places each limit of these tasks and queues has left, as {"task shop.pay": 3, "queue bank": 0}. Until this
-- transaction ends nobody else takes under those of them that it got the lock of; the others count as full, and cut is true. older: runs
-- that were taken before a limit came have places of it.
CREATE OR REPLACE FUNCTION umavez.free_places(p_tasks text[], p_queues text[], OUT free jsonb, OUT cut boolean, OUT older boolean)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $fn$
DECLARE
  v_limit record; v_used bigint; v_old bigint;
BEGIN
  free := '{}';
  cut := false;
  older := false;
  IF current_setting('transaction_isolation') <> 'read committed' AND EXISTS (SELECT FROM umavez.limits l WHERE l.places IS NOT NULL) THEN
    RAISE EXCEPTION 'runs under a limit are taken in a READ COMMITTED transaction only, this one is %', current_setting('transaction_isolation')
      USING ERRCODE = 'feature_not_supported', HINT = 'Its snapshot would be older than the lock of the limit.';
  END IF;
  FOR v_limit IN
    SELECT l.kind, l.name, l.places, 'counted:' || l.kind || ' ' || l.name AS mark, l.changed_at FROM umavez.limits l
     WHERE l.places IS NOT NULL AND l.name = ANY (CASE l.kind WHEN 'task' THEN p_tasks ELSE p_queues END)
     ORDER BY l.kind, l.name
  LOOP
    IF NOT pg_try_advisory_xact_lock(1970102647, hashtext(v_limit.kind || ' ' || v_limit.name)) THEN
      v_used := v_limit.places;
      cut := true;
    ELSIF v_limit.kind = 'queue' THEN                            -- a statement after the lock: it sees what the last holder has committed
      SELECT count(*) INTO v_used FROM umavez.runs r
       WHERE r.lane <> '' AND r.worker_id IS NOT NULL AND r.queue = v_limit.name;
    ELSE
      SELECT count(*) INTO v_used FROM umavez.runs r
       WHERE r.lane <> '' AND r.worker_id IS NOT NULL AND r.task = v_limit.name;
    END IF;
    IF v_used < v_limit.places AND NOT EXISTS (SELECT FROM umavez.marks m WHERE m.name = v_limit.mark) THEN
      SELECT count(*) INTO v_old FROM umavez.runs r
       WHERE r.state = 'running' AND r.lane = '' AND CASE v_limit.kind WHEN 'task' THEN r.task ELSE r.queue END = v_limit.name
         AND r.lease_until >= coalesce((SELECT m.since[1] FROM umavez.marks m WHERE m.name = 'reap'), '-infinity');
      v_used := v_used + v_old;
      older := older OR v_old > 0;
      -- Ten seconds: a take that knew nothing of the limit may have been under way.
      IF v_old = 0 AND v_limit.changed_at < clock_timestamp() - interval '10 seconds' THEN
        INSERT INTO umavez.marks (name, since, moved_at, full_at) VALUES (v_limit.mark, '{}', clock_timestamp(), 'infinity')
        ON CONFLICT DO NOTHING;
      END IF;
    END IF;
    free := free || jsonb_build_object(v_limit.kind || ' ' || v_limit.name, greatest(0, v_limit.places - v_used));
  END LOOP;
END $fn$;

-- take_groups: the groups of lanes that have runs, each with the unit whose share of a take it is from. With weights each queue is a unit.
-- Without, the queues of which nothing is declared are one (0), as one group, in which priority 1 goes first whatever the queue.
-- inbox: the lane '' of a queue of which something is declared, where no run may stay; only with p_sort.
CREATE OR REPLACE FUNCTION umavez.take_groups(p_queues text[], p_weights integer[], p_skip_tasks text[], p_declared text[], p_sort boolean)
RETURNS TABLE (unit bigint, weight bigint, queues text[], low text, high text, task text, inbox boolean)
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $fn$
  SELECT g.unit, sum(g.weight), array_agg(g.queue), g.low, g.high, g.task, g.inbox
    FROM (SELECT f.queue, f.low, f.high, f.task, w.weight, f.low = '' AND f.queue = ANY (p_declared) AS inbox,
                 CASE WHEN p_weights IS NULL AND f.queue <> ALL (p_declared) AND count(*) OVER (PARTITION BY f.queue) = 1 AND f.low = ''
                      THEN 0 ELSE w.place END AS unit
            FROM umavez.lane_groups(p_queues) f
            JOIN unnest(p_queues, coalesce(p_weights, array_fill(1, ARRAY[cardinality(p_queues)])))
                 WITH ORDINALITY AS w(queue, weight, place) ON w.queue = f.queue
           WHERE f.task IS NULL OR f.task <> ALL (p_skip_tasks)) g
   WHERE p_sort OR NOT g.inbox
   GROUP BY g.unit, g.low, g.high, g.task, g.inbox
   ORDER BY g.unit;
$fn$;

-- take_portions: takes so many due runs of each lane, in the order of priority and run_at; what stands in a wrong lane is put into its own
-- instead (moved). The lane '' may be that of several queues; it is read from the marks on unless p_full.
CREATE OR REPLACE FUNCTION umavez.take_portions(
  p_worker uuid, p_queues text[], p_lanes text[], p_quotas integer[], p_counted text[], p_bounded text[], p_fair text[],
  p_leases jsonb, p_lease_ms bigint, p_skip_tasks text[], p_now timestamptz, p_full boolean, p_since timestamptz)
RETURNS TABLE (portion bigint, moved boolean, queue text, lane text, priority integer, run_id uuid, task text, tenant_id bigint, args text,
               deliveries integer, enqueued_at timestamptz, traceparent text, run_at timestamptz, crashes integer)
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $fn$
  WITH picked AS MATERIALIZED (
    SELECT c.run_id, c.lane, c.portion, c.wanted <> '' AND c.wanted <> c.lane AS moved, c.wanted
      FROM (SELECT u.portion, r.run_id, u.lane,
                   umavez.lane_name(r.task, r.tenant_id, r.task = ANY (p_counted), r.queue = ANY (p_bounded), r.queue = ANY (p_fair)) AS wanted
              FROM unnest(p_queues, p_lanes, p_quotas) WITH ORDINALITY AS u(queues, lane, quota, portion)
              CROSS JOIN LATERAL (
                SELECT d.run_id, d.task, d.tenant_id, d.queue
                  FROM (SELECT q.queue, g.priority,
                               CASE WHEN p_full OR u.lane <> '' THEN '-infinity'
                                    ELSE least(coalesce((SELECT m.since[g.priority] FROM umavez.marks m WHERE m.name = 'take:' || q.queue),
                                                        '-infinity'), p_since) END AS mark
                          FROM unnest(u.queues::text[]) AS q(queue) CROSS JOIN generate_series(1, 4) AS g(priority)
                         ORDER BY g.priority, random()) p
                  CROSS JOIN LATERAL (
                    SELECT l.run_id, l.task, l.tenant_id, l.queue
                      FROM umavez.runs l
                     WHERE l.state = 'available' AND l.queue = p.queue AND l.lane = u.lane AND l.priority = p.priority
                       AND l.run_at >= p.mark AND l.run_at <= p_now AND l.task <> ALL (p_skip_tasks)
                     ORDER BY l.run_at
                     LIMIT u.quota
                       FOR UPDATE SKIP LOCKED) d
                 LIMIT u.quota) r
            OFFSET 0) c
  )
  UPDATE umavez.runs t
     SET state = CASE WHEN picked.moved THEN 'available' ELSE 'running' END,
         lane = CASE WHEN picked.moved THEN picked.wanted ELSE t.lane END,
         deliveries = t.deliveries + CASE WHEN picked.moved THEN 0 ELSE 1 END,
         worker_id = CASE WHEN NOT picked.moved THEN p_worker END,
         lease_until = CASE WHEN NOT picked.moved THEN
           clock_timestamp() + coalesce((p_leases->>t.task)::bigint, p_lease_ms) * interval '1 millisecond' END
    FROM picked
   WHERE t.run_id = ANY (ARRAY[picked.run_id])
  RETURNING picked.portion, picked.moved, t.queue, picked.lane, t.priority, t.run_id, t.task, t.tenant_id, t.args::text, t.deliveries,
            t.enqueued_at, t.traceparent, t.run_at, t.crashes;
$fn$;

-- move_marks: as take_runs does it, for the lane '' of these queues: those that were found empty, and up to where the others were read.
CREATE OR REPLACE FUNCTION umavez.move_marks(p_empty text[], p_heads jsonb, p_now timestamptz, p_full boolean, p_full_at timestamptz) RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  INSERT INTO umavez.marks AS m (name, since, moved_at, full_at)
  SELECT 'take:' || q.queue,
         ARRAY(SELECT CASE WHEN q.queue = ANY (p_empty) OR g < (p_heads->q.queue->>0)::integer THEN p_now - interval '2 seconds'
                           WHEN g = (p_heads->q.queue->>0)::integer THEN (p_heads->q.queue->>1)::timestamptz - interval '2 seconds'
                           ELSE coalesce((SELECT k.since[g] FROM umavez.marks k WHERE k.name = 'take:' || q.queue), '-infinity') END
                 FROM generate_series(1, 4) g ORDER BY g),
         p_now, p_full_at
    FROM (SELECT unnest(p_empty) AS queue UNION SELECT jsonb_object_keys(p_heads) ORDER BY 1) q
  ON CONFLICT (name) DO UPDATE
     SET since = excluded.since, moved_at = excluded.moved_at, full_at = CASE WHEN p_full THEN excluded.full_at ELSE m.full_at END;
$fn$;

-- share_out: who gets how many of p_left: by units as their weights say, by groups, by lanes; no more than there are free places.
-- Shares are rounded by one throw of the dice for all units, so that they are right on average however small p_left is, and sum up to it.
-- A group that is open and may give nothing now is told with lane NULL. cut: some_lanes has not seen all. Of an inbox 500 runs are
-- put into their lanes, beside all shares.
CREATE OR REPLACE FUNCTION umavez.share_out(
  p_units bigint[], p_weights bigint[], p_queues text[], p_lows text[], p_highs text[], p_tasks text[], p_inbox boolean[],
  p_open boolean[], p_free jsonb, p_left integer, p_now timestamptz)
RETURNS TABLE (nr bigint, queues text, lane text, quota integer, cut boolean)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $fn$
#variable_conflict use_column
DECLARE
  v_dice constant double precision := random();
  v_free jsonb := p_free; v_total double precision; v_sum double precision := 0; v_unit record; v_group record; v_lanes record;
  v_share integer; v_part integer; v_left integer; v_queue text; v_key text; v_n integer;
BEGIN
  RETURN QUERY SELECT u.nr, u.queues, '', 500, false
                 FROM unnest(p_queues, p_inbox, p_open) WITH ORDINALITY AS u(queues, inbox, open, nr) WHERE u.open AND u.inbox;
  SELECT sum(d.weight) INTO v_total
    FROM (SELECT DISTINCT u.unit, u.weight FROM unnest(p_units, p_weights, p_inbox, p_open) AS u(unit, weight, inbox, open)
           WHERE u.open AND NOT u.inbox) d;
  FOR v_unit IN
    SELECT u.unit, max(u.weight) AS weight, count(*) AS groups
      FROM unnest(p_units, p_weights, p_inbox, p_open) AS u(unit, weight, inbox, open)
     WHERE u.open AND NOT u.inbox GROUP BY u.unit ORDER BY u.unit
  LOOP
    v_share := p_left;
    IF v_total > 0 THEN
      v_share := floor((v_sum + v_unit.weight) * p_left / v_total + v_dice) - floor(v_sum * p_left / v_total + v_dice);
      v_sum := v_sum + v_unit.weight;
    END IF;
    v_left := v_unit.groups;
    FOR v_group IN
      SELECT u.nr, u.queues, u.low, u.high, u.task
        FROM unnest(p_units, p_queues, p_lows, p_highs, p_tasks, p_inbox, p_open)
             WITH ORDINALITY AS u(unit, queues, low, high, task, inbox, open, nr)
       WHERE u.open AND NOT u.inbox AND u.unit = v_unit.unit ORDER BY random()
    LOOP
      EXIT WHEN v_share <= 0;
      nr := v_group.nr;
      queues := v_group.queues;
      v_queue := (queues::text[])[1];
      v_part := ceil(v_share::double precision / v_left);
      v_left := v_left - 1;
      v_part := least(v_part, (v_free->>('queue ' || v_queue))::integer, (v_free->>('task ' || v_group.task))::integer);
      SELECT s.lanes, s.cut INTO v_lanes FROM umavez.some_lanes(v_queue, v_group.low, v_group.high, v_part, p_now) s WHERE v_part > 0;
      v_n := coalesce(cardinality(v_lanes.lanes), 0);
      IF v_n = 0 THEN
        lane := NULL; quota := 0; cut := coalesce(v_lanes.cut, false);
        RETURN NEXT;
        CONTINUE;
      END IF;
      FOR i IN 1..v_n LOOP
        lane := v_lanes.lanes[i]; quota := v_part / v_n + (i <= v_part % v_n)::integer; cut := false;
        RETURN NEXT;
      END LOOP;
      v_share := v_share - v_part;
      FOREACH v_key IN ARRAY ARRAY['queue ' || v_queue, coalesce('task ' || v_group.task, '')] LOOP
        IF v_free ? v_key THEN
          v_free := v_free || jsonb_build_object(v_key, (v_free->>v_key)::integer - v_part);
        END IF;
      END LOOP;
    END LOOP;
    EXIT WHEN v_total = 0 AND v_share < p_left;                  -- the first that has something: what is left goes on in the next round
  END LOOP;
END $fn$;

-- take_shared: take_runs where something is declared, or weights are given. p_weights: of each queue, how much of a take is its own
-- while all have due runs; what a queue leaves, the others get. All 0: in their order, each only when those before it are empty.
-- NULL: each ordinary queue counts as any other, and among them priority 1 goes first; queues with limits or tenants in turn have
-- their own share beside them, and priorities of their own. A tenant's priorities are among its own runs.
--
-- It goes in rounds, until p_limit runs are taken or nothing is left that may be: share out what is still wanted, take that, close what
-- has run empty; and look for groups anew when runs were put into their lanes. A row without run_id says: there may be more; look again
-- at once (deliveries 1: not all runs are in their lanes yet), in a while (0: somebody else takes under a limit; 3: some_lanes has not
-- seen all lanes), or when any run has ended (2: some that do not know of a limit have places of it).
CREATE OR REPLACE FUNCTION umavez.take_shared(
  p_worker uuid, p_queues text[], p_weights integer[], p_limit integer, p_leases jsonb, p_lease_ms bigint, p_since timestamptz,
  p_skip_tasks text[])
RETURNS TABLE (run_id uuid, task text, tenant_id bigint, args text, deliveries integer, enqueued_at timestamptz, traceparent text,
               run_at timestamptz, crashes integer, limited boolean)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $fn$
#variable_conflict use_column
DECLARE
  v_now constant timestamptz := clock_timestamp();
  v_skip constant text[] := coalesce(p_skip_tasks, '{}');
  v_counted text[]; v_bounded text[]; v_fair text[];             -- tasks and queues with limits, queues that are fair
  v_mark record; v_keeper boolean := false; v_full boolean; v_slow boolean; v_heads jsonb := '{}'; v_empty text[];  -- see take_runs
  v_groups record; v_open boolean[]; v_places record; v_portions record; v_got integer[]; v_run record; v_key text;
  v_moved boolean := true; v_locked boolean := false; v_again boolean := false; v_cut boolean := false; v_taken integer := 0;
BEGIN
  SELECT coalesce(array_agg(l.name) FILTER (WHERE l.kind = 'task' AND l.places IS NOT NULL), '{}'),
         coalesce(array_agg(l.name) FILTER (WHERE l.kind = 'queue' AND l.places IS NOT NULL), '{}'),
         coalesce(array_agg(l.name) FILTER (WHERE l.fair), '{}')
    INTO v_counted, v_bounded, v_fair
    FROM umavez.limits l;
  SELECT bool_or(coalesce(m.full_at, '-infinity') = '-infinity') AS quick, bool_or(m.full_at <= v_now) AS due, min(m.moved_at) AS moved_at
    INTO v_mark FROM unnest(p_queues) AS q(queue)
    LEFT JOIN LATERAL (SELECT k.full_at, k.moved_at FROM umavez.marks k WHERE k.name = 'take:' || q.queue OFFSET 0) m ON true;
  IF NOT v_mark.quick AND (v_mark.due OR v_mark.moved_at <= v_now - interval '2 seconds') THEN
    v_keeper := pg_try_advisory_xact_lock(1970102646, 3);
  END IF;
  v_full := v_mark.quick OR v_mark.due AND v_keeper OR coalesce(p_since = '-infinity', false);

  FOR v_round IN 1..10 + cardinality(p_queues) LOOP
    IF v_moved THEN
      SELECT array_agg(g.unit) AS unit, array_agg(g.weight) AS weight, array_agg(g.queues::text) AS queues, array_agg(g.low) AS low,
             array_agg(g.high) AS high, array_agg(g.task) AS task, array_agg(g.inbox) AS inbox, array_agg(true) AS open
        INTO v_groups FROM umavez.take_groups(p_queues, p_weights, v_skip, v_bounded || v_fair, v_round = 1) g;
      EXIT WHEN v_groups.unit IS NULL;
      v_open := v_groups.open;
      SELECT * INTO v_places FROM umavez.free_places(v_groups.task, ARRAY(SELECT q FROM unnest(v_groups.queues) l, unnest(l::text[]) q));
      v_locked := v_locked OR v_places.cut;
      v_moved := false;
    END IF;
    SELECT array_agg(s.nr) AS nr, array_agg(s.queues) AS queues, array_agg(s.lane) AS lane, array_agg(s.quota) AS quota,
           array_fill(0, ARRAY[count(*)::integer]) AS got, coalesce(bool_or(s.cut), false) AS cut
      INTO v_portions
      FROM umavez.share_out(v_groups.unit, v_groups.weight, v_groups.queues, v_groups.low, v_groups.high, v_groups.task,
                            v_groups.inbox, v_open, v_places.free, p_limit - v_taken, v_now) s;
    EXIT WHEN v_portions.nr IS NULL;
    v_cut := v_cut OR v_portions.cut;
    v_got := v_portions.got;
    FOR v_run IN
      SELECT * FROM umavez.take_portions(p_worker, v_portions.queues, v_portions.lane, v_portions.quota, v_counted, v_bounded, v_fair,
                                         p_leases, p_lease_ms, v_skip, v_now, v_full, p_since)
    LOOP
      v_got[v_run.portion] := v_got[v_run.portion] + 1;
      v_moved := v_moved OR v_run.moved;
      IF v_run.lane = '' THEN
        v_heads := v_heads || jsonb_build_object(v_run.queue, jsonb_build_array(v_run.priority, v_run.run_at));
      END IF;
      CONTINUE WHEN v_run.moved;
      v_taken := v_taken + 1;
      run_id := v_run.run_id; task := v_run.task; tenant_id := v_run.tenant_id; args := v_run.args; deliveries := v_run.deliveries;
      enqueued_at := v_run.enqueued_at; traceparent := v_run.traceparent; run_at := v_run.run_at; crashes := v_run.crashes;
      limited := false;
      FOREACH v_key IN ARRAY ARRAY['queue ' || v_run.queue, 'task ' || v_run.task] LOOP
        IF v_places.free ? v_key THEN
          limited := true;
          v_places.free := v_places.free || jsonb_build_object(v_key, (v_places.free->>v_key)::integer - 1);
        END IF;
      END LOOP;
      RETURN NEXT;
    END LOOP;
    EXIT WHEN v_taken >= p_limit;
    -- Where no lane gave as many as it was asked for, there are no more.
    SELECT array_agg(o.open AND NOT o.inbox AND NOT coalesce(e.emptied, false) ORDER BY o.nr),
           bool_or(o.inbox AND NOT e.emptied) OR v_again OR v_moved AND v_round >= 10
      INTO v_open, v_again
      FROM unnest(v_open, v_groups.inbox) WITH ORDINALITY AS o(open, inbox, nr)
      LEFT JOIN LATERAL (SELECT bool_and(d.lane IS NULL OR d.got < d.quota) AS emptied
                           FROM unnest(v_portions.nr, v_portions.lane, v_portions.quota, v_got) AS d(nr, lane, quota, got)
                          WHERE d.nr = o.nr) e ON true;
  END LOOP;

  v_slow := clock_timestamp() - v_now > interval '2 milliseconds' + v_taken * interval '200 microseconds';
  IF v_full AND v_slow AND NOT v_keeper THEN
    v_keeper := pg_try_advisory_xact_lock(1970102646, 3);
  END IF;
  IF v_keeper AND (v_full OR v_slow OR v_taken > 0) AND v_skip = '{}' THEN
    v_empty := ARRAY(SELECT q FROM unnest(v_groups.queues, v_groups.low, v_groups.inbox, v_open) AS g(queues, low, inbox, open),
                                   unnest(g.queues::text[]) q
                      WHERE g.low = '' AND NOT g.inbox AND NOT g.open);
    PERFORM umavez.move_marks(v_empty, v_heads, v_now, v_full,
              CASE WHEN v_slow THEN v_now + least(interval '30 seconds', 200 * (clock_timestamp() - v_now)) ELSE '-infinity' END);
  END IF;
  IF (v_again OR v_cut OR v_locked OR v_places.older) AND v_taken < p_limit THEN
    SELECT NULL, NULL, NULL, NULL, CASE WHEN v_again THEN 1 WHEN v_cut THEN 3 WHEN v_locked THEN 0 ELSE 2 END, NULL, NULL, NULL, NULL, NULL
      INTO run_id, task, tenant_id, args, deliveries, enqueued_at, traceparent, run_at, crashes, limited;
    RETURN NEXT;
  END IF;
END $fn$;

-- ---- what is declared ----

-- declare_limits: what the manifests of a worker say, told at its start: an array of {kind, name, limit, fair}. Of what it names, the
-- worker that was started last is believed, by all; of what it does not name it says nothing. Writes only what has changed.
CREATE OR REPLACE FUNCTION umavez.declare_limits(declared jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $fn$
DECLARE
  v_changed boolean;
BEGIN
  INSERT INTO umavez.limits AS l (kind, name, declared, fair)
  SELECT d.kind, d.name, d."limit", coalesce(d.fair, false)
    FROM jsonb_to_recordset(declare_limits.declared) AS d(kind text, name text, "limit" integer, fair boolean)
   WHERE d."limit" IS NOT NULL OR d.fair
      OR EXISTS (SELECT FROM umavez.limits o WHERE o.kind = d.kind AND o.name = d.name)
   ORDER BY d.kind, d.name
  ON CONFLICT (kind, name) DO UPDATE SET declared = excluded.declared, fair = excluded.fair, changed_at = clock_timestamp()
   WHERE (l.declared, l.fair) IS DISTINCT FROM (excluded.declared, excluded.fair);
  IF FOUND THEN
    DELETE FROM umavez.marks m USING umavez.limits l WHERE l.places IS NULL AND m.name = 'counted:' || l.kind || ' ' || l.name;
    PERFORM umavez.wake();
  END IF;
END $fn$;

-- forget_limits: takes away what says nothing any more, a day after it was changed, when no run stands in a lane: until then
-- umavez.take_runs must look into lanes. Called by the purge.
CREATE OR REPLACE FUNCTION umavez.forget_limits() RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $fn$
DECLARE
  v_queue text; v_gone bigint := 0;
BEGIN
  IF NOT EXISTS (SELECT FROM umavez.limits l
                  WHERE l.places IS NULL AND NOT l.fair AND l.changed_at < clock_timestamp() - interval '1 day')
     OR EXISTS (SELECT FROM umavez.runs r WHERE r.lane <> '' AND r.worker_id IS NOT NULL) THEN
    RETURN 0;
  END IF;
  LOOP
    SELECT r.queue INTO v_queue FROM umavez.runs r
     WHERE r.state = 'available' AND r.queue > coalesce(v_queue, '') ORDER BY r.queue LIMIT 1;
    EXIT WHEN v_queue IS NULL;
    IF EXISTS (SELECT FROM umavez.runs r WHERE r.state = 'available' AND r.queue = v_queue AND r.lane > '') THEN
      RETURN 0;
    END IF;
  END LOOP;
  DELETE FROM umavez.limits l WHERE l.places IS NULL AND NOT l.fair AND l.changed_at < clock_timestamp() - interval '1 day';
  GET DIAGNOSTICS v_gone = ROW_COUNT;
  RETURN v_gone;
END $fn$;

-- set_limit: an operator's limit of a task or queue, whatever manifests say; NULL: what they say again. Gives the limit in force
-- before (NULL: none).
CREATE OR REPLACE FUNCTION umavez.set_limit(
  p_kind text, p_name text, p_limit integer, p_reason text DEFAULT NULL, p_actor text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
  v_before integer;
BEGIN
  SELECT l.places INTO v_before FROM umavez.limits l WHERE l.kind = p_kind AND l.name = p_name FOR UPDATE;
  INSERT INTO umavez.limits AS l (kind, name, ordered) VALUES (p_kind, p_name, p_limit)
  ON CONFLICT (kind, name) DO UPDATE SET ordered = excluded.ordered, changed_at = clock_timestamp();
  DELETE FROM umavez.marks m USING umavez.limits l WHERE l.places IS NULL AND m.name = 'counted:' || l.kind || ' ' || l.name;
  PERFORM umavez.write_audit('limit', p_kind || ' ' || p_name, p_reason, p_actor,
                             jsonb_build_object('limit', p_limit, 'before', v_before));
  PERFORM umavez.wake();
  RETURN v_before;
END $fn$;

-- list_limits: what is declared, and how many places are taken.
CREATE OR REPLACE FUNCTION umavez.list_limits()
RETURNS TABLE (kind text, name text, places integer, declared integer, ordered integer, fair boolean, used bigint)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $fn$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT l.kind, l.name, l.places, l.declared, l.ordered, l.fair, u.n
    FROM umavez.limits l
    CROSS JOIN LATERAL (
      SELECT count(*) AS n FROM umavez.runs r
       WHERE r.lane <> '' AND r.worker_id IS NOT NULL AND (CASE l.kind WHEN 'task' THEN r.task ELSE r.queue END) = l.name OFFSET 0) u
   ORDER BY l.kind, l.name;
END $fn$;

-- lanes_depth: what waits in the lanes of a queue beside '': due and later among the first 10 * p_limit entries, p_limit each at most;
-- the oldest of the first 1000 lanes.
CREATE OR REPLACE FUNCTION umavez.lanes_depth(
  p_queue text, p_limit integer, p_now timestamptz, OUT due bigint, OUT later bigint, OUT oldest_s double precision)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $fn$
DECLARE
  v_lane text COLLATE "C" := ''; v_oldest timestamptz;
BEGIN
  SELECT least(p_limit, count(*) FILTER (WHERE e.run_at <= p_now)), least(p_limit, count(*) FILTER (WHERE e.run_at > p_now))
    INTO due, later
    FROM (SELECT r.run_at FROM umavez.runs r
           WHERE r.state = 'available' AND r.queue = p_queue AND r.lane > '' LIMIT 10 * p_limit::bigint) e;
  FOR i IN 1..1000 LOOP
    EXIT WHEN due = 0;
    SELECT r.lane INTO v_lane FROM umavez.runs r
     WHERE r.state = 'available' AND r.queue = p_queue AND r.lane > v_lane ORDER BY r.lane LIMIT 1;
    EXIT WHEN v_lane IS NULL;
    SELECT least(v_oldest, min(e.run_at)) INTO v_oldest
      FROM generate_series(1, 4) AS g(priority)
      CROSS JOIN LATERAL (SELECT r.run_at FROM umavez.runs r
                           WHERE r.state = 'available' AND r.queue = p_queue AND r.lane = v_lane AND r.priority = g.priority
                             AND r.run_at <= p_now
                           ORDER BY r.run_at LIMIT 1) e;
  END LOOP;
  oldest_s := coalesce(extract(epoch FROM p_now - v_oldest), 0);
END $fn$;
