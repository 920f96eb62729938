-- Partitions of finished_runs: a day (UTC) each. Both functions take locks that live sessions hold for a moment, so they wait 50 ms
-- at most, leave what they did not get for the next call, and are best called last in a short transaction: what they lock stays
-- locked until its end. They run as the migrating role, which owns the partitions.

-- make_partitions: those of today and the next p_days days that are not there yet. Gives the names of the new ones. A day of which
-- the default partition holds rows already gets none: those rows stay there until they are purged.
CREATE OR REPLACE FUNCTION umavez.make_partitions(p_days integer) RETURNS text[]
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET timezone = 'UTC' AS $fn$
DECLARE
  v_day date; v_name text; v_made text[] := '{}';
BEGIN
  FOR v_day IN SELECT (clock_timestamp()::date + g) FROM generate_series(0, p_days) g LOOP
    v_name := 'finished_runs_' || to_char(v_day, 'YYYYMMDD');
    CONTINUE WHEN to_regclass(format('umavez.%I', v_name)) IS NOT NULL;
    BEGIN      -- made apart and attached: CREATE … PARTITION OF would lock the whole table against readers
      -- No writer may be on its way: one that had chosen the default partition before would be refused there (23514).
      LOCK TABLE umavez.finished_runs IN SHARE ROW EXCLUSIVE MODE;
      CONTINUE WHEN EXISTS (SELECT 1 FROM umavez.finished_runs_default f
                             WHERE f.finished_at >= v_day::timestamptz AND f.finished_at < (v_day + 1)::timestamptz);
      EXECUTE format('CREATE TABLE umavez.%I (LIKE umavez.finished_runs INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', v_name);
      EXECUTE format('ALTER TABLE umavez.finished_runs ATTACH PARTITION umavez.%I FOR VALUES FROM (%L) TO (%L)',
                     v_name, v_day::timestamptz, (v_day + 1)::timestamptz);
      v_made := v_made || v_name;
    EXCEPTION WHEN lock_not_available OR check_violation OR duplicate_table OR unique_violation THEN
      NULL;    -- somebody works on them, or the first row of that day came just now: next time
    END;
  END LOOP;
  RETURN v_made;
END $fn$;

-- purge_finished: drops the partitions of which every run ended more than p_keep ago, and removes such runs from the default
-- partition (10,000 a call). Gives the names of the dropped ones. Declarations of limits that say nothing any more go too.
CREATE OR REPLACE FUNCTION umavez.purge_finished(p_keep interval) RETURNS text[]
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET timezone = 'UTC' AS $fn$
DECLARE
  v_before constant timestamptz := clock_timestamp() - p_keep;
  v_name text; v_dropped text[] := '{}';
BEGIN
  IF p_keep IS NULL OR p_keep < interval '0' THEN
    RAISE EXCEPTION 'how long to keep finished runs must not be negative' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  DELETE FROM umavez.finished_runs_default d
   WHERE d.ctid = ANY (ARRAY(SELECT f.ctid FROM umavez.finished_runs_default f
                              WHERE f.finished_at <= v_before LIMIT 10000 FOR UPDATE SKIP LOCKED));
  PERFORM umavez.forget_limits();
  FOR v_name IN
    SELECT c.relname
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'umavez.finished_runs'::regclass
       AND CASE WHEN c.relname ~ '^finished_runs_[0-9]{8}$'
                THEN (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamptz <= v_before END
     ORDER BY c.relname
  LOOP
    BEGIN
      EXECUTE format('DROP TABLE umavez.%I', v_name);
      v_dropped := v_dropped || v_name;
    EXCEPTION WHEN lock_not_available OR undefined_table THEN
      EXIT;
    END;
  END LOOP;
  RETURN v_dropped;
END $fn$;

-- purge_audit: removes what operators did more than p_keep ago, the oldest first, p_limit rows a call. Gives their number. Nobody can
-- have less than 90 days removed, so that an act cannot be made to disappear soon after it.
CREATE OR REPLACE FUNCTION umavez.purge_audit(p_keep interval, p_limit integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
DECLARE
  v_removed bigint;
BEGIN
  IF p_keep IS NULL OR p_keep < interval '90 days' THEN
    RAISE EXCEPTION 'the audit is kept for 90 days at least, not %', p_keep USING ERRCODE = 'invalid_parameter_value';
  END IF;
  DELETE FROM umavez.audit a
   WHERE a.id = ANY (ARRAY(SELECT o.id FROM (SELECT f.id, f.at FROM umavez.audit f ORDER BY f.id LIMIT p_limit) o
                            WHERE o.at < clock_timestamp() - p_keep));
  GET DIAGNOSTICS v_removed = ROW_COUNT;
  RETURN v_removed;
END $fn$;
