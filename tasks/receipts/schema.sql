CREATE TABLE IF NOT EXISTS receipts (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  payment_id   bigint NOT NULL,
  tenant_id    bigint NOT NULL,
  name         text NOT NULL,
  amount_cents bigint NOT NULL,
  sent_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'umavez_worker') THEN
    GRANT SELECT, INSERT ON receipts TO umavez_worker;
  END IF;
END $$;
