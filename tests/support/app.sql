-- The tests' own application: tenants, effects without any unique constraint, signals that no rollback undoes.
INSERT INTO public.tenants (id) SELECT g FROM generate_series(1, 50) g ON CONFLICT DO NOTHING;

CREATE TABLE public.effects (
  id        bigint GENERATED ALWAYS AS IDENTITY,
  run_id    uuid NOT NULL,
  task      text NOT NULL,
  tenant_id bigint,
  key       text NOT NULL,              -- what the run's task takes for its key, or the run_id
  value     jsonb,
  attempt   integer,
  backend   integer NOT NULL DEFAULT pg_backend_pid(),
  at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT SELECT, INSERT, UPDATE, DELETE ON public.effects TO umavez_worker;

-- Sequences are read and advanced outside transactions: a count of handler starts, and signals between handler and test,
-- whatever the isolation level and whether or not the handler's transaction ends well.
CREATE SCHEMA starts;
CREATE SCHEMA signals;
GRANT USAGE ON SCHEMA starts, signals TO umavez_worker;
ALTER DEFAULT PRIVILEGES IN SCHEMA starts  GRANT ALL ON SEQUENCES TO umavez_worker;
ALTER DEFAULT PRIVILEGES IN SCHEMA signals GRANT ALL ON SEQUENCES TO umavez_worker;

CREATE FUNCTION public.test_start(name text) RETURNS bigint LANGUAGE sql AS
$$ SELECT nextval(format('starts.%I', name)::regclass) $$;

CREATE FUNCTION public.test_reach(name text) RETURNS bigint LANGUAGE sql AS
$$ SELECT nextval(format('signals.%I', name)::regclass) $$;

-- Waits for a signal at most `ms`; true when it is set. The caller calls again: so a stopped worker leaves an idle transaction.
CREATE FUNCTION public.test_wait(name text, ms integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  is_set boolean;
  deadline timestamptz := clock_timestamp() + ms * interval '1 millisecond';
BEGIN
  LOOP
    EXECUTE format('SELECT is_called FROM signals.%I', name) INTO is_set;
    IF is_set OR clock_timestamp() >= deadline THEN RETURN is_set; END IF;
    PERFORM pg_sleep(0.01);
  END LOOP;
END $$;
