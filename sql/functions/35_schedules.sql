-- Schedules: when the next slot is, and enqueueing the slots that are due. docs/schedules.md says what users may rely on.
--
-- A slot is a moment. Each slot of a task is enqueued once, because the row of umavez.schedules is locked, its slots are enqueued and
-- next_slot moves on in one transaction, by the database's clock, and next_slot never moves back. Workers all call tick_schedules;
-- who finds the row locked leaves it to the other one.

-- The run of a slot: RFC 9562 version 8, the first 128 bits of SHA-256 over
--   "umavez.slot.v1" NUL, length of the task's name (4 octets, big-endian), the name, 1 octet (1: a tenant follows, 0: none),
--   the tenant (8 octets), the slot (8 octets: microseconds since 1970-01-01 00:00 UTC).
CREATE OR REPLACE FUNCTION umavez.slot_run_id(p_task text, p_tenant bigint, p_slot timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT encode(set_byte(set_byte(h, 6, get_byte(h, 6) & 15 | 128), 8, get_byte(h, 8) & 63 | 128), 'hex')::uuid
    FROM substring(sha256('umavez.slot.v1'::bytea || '\x00'::bytea || int4send(octet_length(p_task)) || convert_to(p_task, 'UTF8')
           || CASE WHEN p_tenant IS NULL THEN '\x00'::bytea ELSE '\x01'::bytea || int8send(p_tenant) END
           || int8send((extract(epoch FROM p_slot) * 1000000)::bigint)) FROM 1 FOR 16) AS h
$fn$;

-- Does a cron schedule name this day?
CREATE OR REPLACE FUNCTION umavez.schedule_has_day(p_declared jsonb, p_day date) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT p_declared->'months' @> to_jsonb(extract(month FROM p_day)::int)
     AND CASE WHEN (p_declared->>'either')::boolean THEN of_month OR of_week ELSE of_month AND of_week END
    FROM (SELECT p_declared->'days' @> to_jsonb(extract(day FROM p_day)::int)
                 OR (p_declared->>'last_day')::boolean AND extract(day FROM p_day + 1) = 1 AS of_month,
                 p_declared->'weekdays' @> to_jsonb(extract(dow FROM p_day)::int) AS of_week) d
$fn$;

-- The first slot between two moments in which the zone's offset changes: walks minute by minute, as the wall clock does. With a
-- named hour, a time is due when the clock first reaches or passes it: what a gap leaves out is due at its end, and what comes
-- again is not due again. With every hour (`*`), it is due whenever the clock shows it.
CREATE OR REPLACE FUNCTION umavez.walk_slots(p_declared jsonb, p_after timestamptz, p_until timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $fn$
DECLARE
  v_tz constant text := p_declared->>'tz';
  v_every_hour constant boolean := (p_declared->>'every_hour')::boolean;
  v_hours constant int[] := ARRAY(SELECT h::int FROM jsonb_array_elements_text(p_declared->'hours') h);
  v_minutes constant int[] := ARRAY(SELECT m::int FROM jsonb_array_elements_text(p_declared->'minutes') m);
  v_at timestamptz := date_trunc('minute', p_after);
  v_reached timestamp := (SELECT max(at AT TIME ZONE v_tz) FROM generate_series(v_at - interval '26 hours', v_at, interval '1 minute') at);
  v_wall timestamp; v_time timestamp;
BEGIN
  LOOP
    v_at := v_at + interval '1 minute';
    EXIT WHEN v_at > p_until;
    v_wall := v_at AT TIME ZONE v_tz;
    v_time := date_trunc('minute', CASE WHEN v_every_hour THEN v_wall ELSE v_reached + interval '1 minute' END);
    WHILE v_time <= v_wall LOOP
      IF extract(minute FROM v_time) = ANY (v_minutes) AND extract(hour FROM v_time) = ANY (v_hours)
         AND umavez.schedule_has_day(p_declared, v_time::date) THEN
        RETURN v_at;
      END IF;
      v_time := v_time + interval '1 minute';
    END LOOP;
    v_reached := greatest(v_reached, v_wall);
  END LOOP;
  RETURN NULL;
END $fn$;

-- next_slot: the first slot later than p_after; NULL when there is none. Raises 22023 for a zone that the database does not know.
-- A day whose surroundings (any zone's day lies within them) show one offset only is arithmetic; others are walked.
CREATE OR REPLACE FUNCTION umavez.next_slot(p_declared jsonb, p_after timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $fn$
DECLARE
  v_every constant bigint := (p_declared->>'every_ms')::bigint;
  v_tz constant text := p_declared->>'tz';
  v_day date; v_last date; v_from timestamptz; v_until timestamptz; v_offset interval; v_slot timestamptz; v_wall timestamp; v_minute int;
BEGIN
  IF v_every IS NOT NULL THEN
    RETURN to_timestamp((floor(extract(epoch FROM p_after) * 1000 / v_every)::numeric + 1) * v_every / 1000.0);
  END IF;
  v_day := (p_after AT TIME ZONE v_tz)::date;
  -- 29 February that is a Sunday, with both to fit, is at most 40 years away.
  v_last := v_day + 366 * 45;
  WHILE v_day <= v_last LOOP
    IF NOT p_declared->'months' @> to_jsonb(extract(month FROM v_day)::int) THEN
      v_day := date_trunc('month', v_day::timestamp) + interval '1 month';
      CONTINUE;
    END IF;
    IF umavez.schedule_has_day(p_declared, v_day) THEN
      v_from := v_day::timestamp AT TIME ZONE 'UTC' - interval '15 hours';
      v_until := (v_day + 1)::timestamp AT TIME ZONE 'UTC' + interval '15 hours';
      v_offset := v_from AT TIME ZONE v_tz - v_from AT TIME ZONE 'UTC';
      IF v_offset = v_until AT TIME ZONE v_tz - v_until AT TIME ZONE 'UTC' THEN
        v_wall := greatest(p_after AT TIME ZONE 'UTC' + v_offset, v_day::timestamp - interval '1 second');
        v_minute := CASE WHEN v_wall < v_day THEN -1 ELSE extract(hour FROM v_wall) * 60 + extract(minute FROM v_wall) END;
        SELECT h::int * 60 + m::int INTO v_minute
          FROM jsonb_array_elements_text(p_declared->'hours') h, jsonb_array_elements_text(p_declared->'minutes') m
         WHERE h::int >= v_minute / 60 AND h::int * 60 + m::int > v_minute AND v_wall < v_day + 1
         ORDER BY 1 LIMIT 1;
        v_slot := CASE WHEN FOUND THEN (v_day + make_interval(mins => v_minute) - v_offset) AT TIME ZONE 'UTC' END;
      ELSE
        v_slot := umavez.walk_slots(p_declared, greatest(p_after, v_from), v_until);
      END IF;
      IF v_slot IS NOT NULL THEN
        RETURN v_slot;
      END IF;
    END IF;
    v_day := v_day + 1;
  END LOOP;
  RETURN NULL;
END $fn$;

-- The latest slot up to p_now, where p_slot is one: halves the time between, so that years of slots cost a few steps.
CREATE OR REPLACE FUNCTION umavez.latest_slot(p_declared jsonb, p_slot timestamptz, p_now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
  v_slot timestamptz := p_slot; v_end timestamptz := p_now; v_next timestamptz; v_middle timestamptz;
BEGIN
  LOOP
    v_next := umavez.next_slot(p_declared, v_slot);
    EXIT WHEN v_next IS NULL OR v_next > p_now;
    v_slot := v_next;
    v_middle := v_slot + (v_end - v_slot) / 2;
    v_next := umavez.next_slot(p_declared, v_middle);
    IF v_next <= p_now THEN
      v_slot := v_next;
    ELSE
      v_end := v_middle;
    END IF;
  END LOOP;
  RETURN v_slot;
END $fn$;

-- One slot's runs: one, or for each tenant (5,000 tenants a call, so that no transaction grows without limit). Gives how many were
-- enqueued, and the last tenant when more are to follow.
CREATE OR REPLACE FUNCTION umavez.enqueue_slot(
  p_task text, p_declared jsonb, p_slot timestamptz, p_tenant_after bigint, OUT enqueued bigint, OUT tenant_after bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $fn$
DECLARE
  v_args constant jsonb := coalesce(p_declared->'args', '{}') || CASE WHEN p_declared->>'slot_arg' IS NULL THEN '{}' ELSE
    jsonb_build_object(p_declared->>'slot_arg', to_char(p_slot, 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) END;
  v_queue constant text := coalesce((SELECT t.queue FROM umavez.tasks t WHERE t.name = p_task), 'default');
  v_tenants text;
BEGIN
  IF NOT coalesce((p_declared->>'each_tenant')::boolean, false) THEN
    INSERT INTO umavez.runs (run_id, task, args, queue, priority, run_at)
    VALUES (umavez.slot_run_id(p_task, NULL, p_slot), p_task, v_args, v_queue, 2, p_slot)
    ON CONFLICT (run_id) DO NOTHING;
    GET DIAGNOSTICS enqueued = ROW_COUNT;
    RETURN;
  END IF;
  SELECT format('%I.%I', n.nspname, r.relname) INTO STRICT v_tenants
    FROM pg_constraint c JOIN pg_class r ON r.oid = c.confrelid JOIN pg_namespace n ON n.oid = r.relnamespace
   WHERE c.conrelid = 'umavez.runs'::regclass AND c.conname = 'runs_tenant_id_fkey';
  EXECUTE format($q$
    WITH t AS (SELECT id FROM %s WHERE $1 IS NULL OR id > $1 ORDER BY id LIMIT 5000),
         new AS (INSERT INTO umavez.runs (run_id, task, tenant_id, args, queue, priority, run_at)
                 SELECT umavez.slot_run_id($2, t.id, $3), $2, t.id, $4, $5, 2, $3 FROM t
                 ON CONFLICT (run_id) DO NOTHING RETURNING 1)
    SELECT (SELECT count(*) FROM new), (SELECT CASE WHEN count(*) = 5000 THEN max(id) END FROM t)$q$, v_tenants)
     USING p_tenant_after, p_task, p_slot, v_args, v_queue INTO enqueued, tenant_after;
END $fn$;

-- What is due of one schedule, whose row the caller has locked. Gives what to tell (see tick_schedules). At most 100 slots and about
-- 5,000 runs a call: next_slot stays in the past when there is more.
CREATE OR REPLACE FUNCTION umavez.run_schedule(p_row umavez.schedules, p_now timestamptz) RETURNS jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
  v_missed constant text := coalesce(p_row.declared->>'missed', 'once');
  v_slot timestamptz := p_row.next_slot; v_last timestamptz := p_row.last_slot; v_after bigint := p_row.tenant_after;
  v_done record; v_from timestamptz; v_until timestamptz; v_slots int := 0; v_runs bigint := 0; v_events jsonb := '[]';
BEGIN
  IF v_missed <> 'all' AND v_after IS NULL THEN          -- a slot that has been begun is finished
    v_slot := umavez.latest_slot(p_row.declared, p_row.next_slot, p_now);
    IF v_missed = 'skip' AND v_slot < p_now - interval '1 minute' THEN
      v_last := v_slot;
      v_slot := umavez.next_slot(p_row.declared, v_slot);
    END IF;
    IF v_slot IS DISTINCT FROM p_row.next_slot THEN
      v_events := v_events || jsonb_build_object('event', 'skipped', 'slot', p_row.next_slot, 'until', v_slot);
    END IF;
  END IF;
  WHILE v_slot <= p_now AND v_slots < 100 AND v_runs < 5000 LOOP
    v_from := coalesce(v_from, v_slot);
    v_until := v_slot;
    SELECT * INTO v_done FROM umavez.enqueue_slot(p_row.task, p_row.declared, v_slot, v_after);
    v_runs := v_runs + v_done.enqueued;
    v_after := v_done.tenant_after;
    EXIT WHEN v_after IS NOT NULL;
    v_slots := v_slots + 1;
    v_last := v_slot;
    v_slot := umavez.next_slot(p_row.declared, v_slot);
  END LOOP;
  IF v_from IS NOT NULL THEN
    v_events := v_events || jsonb_build_object('event', 'enqueued', 'slot', v_from, 'until', v_until, 'slots', v_slots, 'runs', v_runs,
      'lag_ms', floor(extract(epoch FROM p_now - v_from) * 1000)::bigint);
  END IF;
  UPDATE umavez.schedules s SET last_slot = v_last, next_slot = v_slot, tenant_after = v_after, seen_at = p_now
   WHERE s.task = p_row.task;
  RETURN v_events;
END $fn$;

-- A declaration that is new or has changed takes the row. What both name stays due; a change counts from when a worker last looked
-- at what was declared before, five minutes back at most: no slot that both have is lost between the last look and the change.
CREATE OR REPLACE FUNCTION umavez.declare_schedule(p_task text, p_declared jsonb, p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
#variable_conflict use_column
DECLARE
  v_not_when constant text[] := '{args,slot_arg,missed,each_tenant,text}';      -- what leaves the slots alone
BEGIN
  INSERT INTO umavez.schedules AS s (task, declared, next_slot, seen_at)
  VALUES (p_task, p_declared, umavez.next_slot(p_declared, p_now), p_now)
  ON CONFLICT (task) DO UPDATE SET declared = excluded.declared, seen_at = p_now,
    tenant_after = CASE WHEN s.declared - v_not_when = excluded.declared - v_not_when THEN s.tenant_after END,
    next_slot =
    CASE WHEN s.declared - v_not_when = excluded.declared - v_not_when THEN s.next_slot
         ELSE umavez.next_slot(excluded.declared, greatest(s.last_slot, s.seen_at, p_now - interval '5 minutes')) END
  WHERE s.declared <> excluded.declared;
END $fn$;

-- tick_schedules: enqueues what is due of the schedules that the calling worker declares (an array of objects; see next_slot and
-- enqueue_slot for what is read of them). p_fresh: the worker has just started, and its declarations are news. Otherwise a row with
-- another declaration belongs to other workers, a reload under way; unless nobody has looked at it for two minutes. So a schedule
-- that no worker declares rests.
-- Gives events: declared, enqueued (slot to until, slots, runs, lag_ms of the first), skipped (slot to before until), busy (somebody
-- holds a lock for more than a moment), failed (error; both are tried again, the others go on); and last, event wait, after how many
-- milliseconds to call again.
CREATE OR REPLACE FUNCTION umavez.tick_schedules(p_declared jsonb, p_fresh boolean)
RETURNS TABLE (event text, task text, slot text, until text, slots bigint, runs bigint, lag_ms bigint, error text, wait_ms bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' SET timezone = 'UTC' AS $fn$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp();
  v_row umavez.schedules; v_task text; v_one jsonb; v_events jsonb; v_all jsonb := '[]'; v_wait bigint := 30000; v_known boolean;
BEGIN
  FOR v_one IN SELECT e FROM jsonb_array_elements(p_declared) e ORDER BY e->>'task' LOOP
    v_task := v_one->>'task';
    v_events := '[]';
    BEGIN
      SELECT * INTO v_row FROM umavez.schedules s WHERE s.task = v_task;
      v_known := FOUND;
      IF NOT v_known OR v_row.declared <> v_one THEN
        CONTINUE WHEN v_known AND NOT p_fresh AND v_row.seen_at > v_now - interval '2 minutes';
        PERFORM umavez.declare_schedule(v_task, v_one, v_now);
        SELECT * INTO STRICT v_row FROM umavez.schedules s WHERE s.task = v_task;
        v_events := v_events || jsonb_build_object('event', 'declared', 'slot', v_row.next_slot);
      END IF;
      IF v_row.next_slot <= v_now THEN
        SELECT * INTO v_row FROM umavez.schedules s WHERE s.task = v_task AND s.declared = v_one FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
          v_wait := least(v_wait, 250);
        ELSIF v_row.next_slot <= v_now THEN
          v_events := v_events || umavez.run_schedule(v_row, v_now);
          SELECT * INTO STRICT v_row FROM umavez.schedules s WHERE s.task = v_task;
        END IF;
      ELSIF v_row.seen_at < v_now - interval '1 minute' THEN
        UPDATE umavez.schedules u SET seen_at = v_now WHERE u.task = ANY (ARRAY(
          SELECT s.task FROM umavez.schedules s WHERE s.task = v_task AND s.declared = v_one FOR UPDATE SKIP LOCKED));
      END IF;
      IF v_row.task IS NOT NULL THEN
        v_wait := least(v_wait, ceil(extract(epoch FROM v_row.next_slot - clock_timestamp()) * 1000)::bigint);
      END IF;
    EXCEPTION WHEN lock_not_available THEN
      v_events := jsonb_build_array(jsonb_build_object('event', 'busy', 'slot', v_row.next_slot, 'error', SQLERRM));
      v_wait := least(v_wait, 1000);
    WHEN OTHERS THEN
      v_events := jsonb_build_array(jsonb_build_object('event', 'failed', 'slot', v_row.next_slot,
        'error', SQLERRM || ' (' || SQLSTATE || ')'));
    END;
    v_all := v_all || (SELECT coalesce(jsonb_agg(e || jsonb_build_object('task', v_task)), '[]') FROM jsonb_array_elements(v_events) e);
  END LOOP;
  RETURN QUERY SELECT e.* FROM jsonb_to_recordset(v_all || jsonb_build_object('event', 'wait', 'wait_ms', greatest(v_wait, 0)))
    AS e(event text, task text, slot text, until text, slots bigint, runs bigint, lag_ms bigint, error text, wait_ms bigint);
  IF v_all @> '[{"event": "enqueued"}]' THEN
    PERFORM umavez.wake();
  END IF;
END $fn$;

-- schedule_slots: for people, the next slots of some declarations, or why there are none.
CREATE OR REPLACE FUNCTION umavez.schedule_slots(p_declared jsonb, p_count integer)
RETURNS TABLE (task text, slots text[], error text)
LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $fn$
#variable_conflict use_column
DECLARE
  v_one jsonb; v_slot timestamptz;
BEGIN
  FOR v_one IN SELECT e FROM jsonb_array_elements(p_declared) e ORDER BY e->>'task' LOOP
    task := v_one->>'task';
    slots := '{}';
    error := NULL;
    v_slot := clock_timestamp();
    BEGIN
      FOR i IN 1..p_count LOOP
        v_slot := umavez.next_slot(v_one, v_slot);
        EXIT WHEN v_slot IS NULL;
        slots := slots || to_char(v_slot, 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
      END LOOP;
    EXCEPTION WHEN OTHERS THEN
      error := SQLERRM;
    END;
    RETURN NEXT;
  END LOOP;
END $fn$;
