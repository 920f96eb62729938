-- What is measured: one ledger row and one effect a run, 100 tenants, 20,000 settled ledger rows of an earlier day.
-- Floor and umavez write the same ledger (umavez.idempotency_keys) and the same effects.
CREATE TABLE bench_effects (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id  bigint NOT NULL,
  run_id     uuid NOT NULL,               -- not unique: a run done twice must show in the count, not be refused
  payload    jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'umavez_worker') THEN
    GRANT SELECT, INSERT ON bench_effects TO umavez_worker;
  END IF;
END $$;

CREATE TABLE bench_queue (id bigint PRIMARY KEY);         -- the floor's queue

INSERT INTO public.tenants (id) SELECT g FROM generate_series(1, 100) g ON CONFLICT DO NOTHING;

INSERT INTO umavez.idempotency_keys (tenant_id, idempotency_key, request_fingerprint, status, outcome, expires_at)
SELECT 1 + ((g * 2654435761) >> 8) % 100, sha256(int8send(-1000000000 - g)), sha256(int8send(-g)), 'completed', '{"old": true}',
       now() + interval '1 day'
  FROM generate_series(1, 20000) g;

-- A run_id that a number stands for, and the number's tenant: what pgbench can compute, and enqueueing too.
CREATE FUNCTION bench_run_id(n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$ SELECT lpad(to_hex(n), 32, '0')::uuid $$;
CREATE FUNCTION bench_tenant(n bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT 1 + ((n * 2654435761) >> 8) % 100 $$;

-- n runs of bench.insert, enqueued as an application does it.
CREATE FUNCTION bench_enqueue(n bigint) RETURNS bigint LANGUAGE sql AS $$
  SELECT sum(umavez.enqueue_many(runs))
    FROM (SELECT jsonb_agg(jsonb_build_object('task', 'bench.insert', 'run_id', bench_run_id(g), 'tenant_id', bench_tenant(g),
                                              'args', jsonb_build_object('amount', 100, 'account', g)) ORDER BY g) AS runs
            FROM generate_series(1, n) g GROUP BY g / 1000) batches
$$;
-- n runs of bench.keyed over so many keys; a key's runs are alike.
CREATE FUNCTION bench_enqueue_keyed(n bigint, keys bigint) RETURNS bigint LANGUAGE sql AS $$
  SELECT sum(umavez.enqueue_many(runs))
    FROM (SELECT jsonb_agg(jsonb_build_object('task', 'bench.keyed', 'tenant_id', bench_tenant(g % keys),
                                              'args', jsonb_build_object('key', g % keys, 'amount', 100)) ORDER BY g) AS runs
            FROM generate_series(1, n) g GROUP BY g / 1000) batches
$$;
