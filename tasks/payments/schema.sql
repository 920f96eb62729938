-- What the example needs of the application. There is no unique constraint on end_to_end_id: a second effect would show.
CREATE TABLE IF NOT EXISTS payments (
  id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id     bigint NOT NULL,
  end_to_end_id text NOT NULL,
  amount_cents  bigint NOT NULL,
  txid          text,
  paid_at       timestamptz,
  booked_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'umavez_worker') THEN
    GRANT SELECT, INSERT ON payments TO umavez_worker;
  END IF;
END $$;
