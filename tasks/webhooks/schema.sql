-- No unique constraint on delivery: a second effect would show.
CREATE TABLE IF NOT EXISTS webhooks (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  delivery    text NOT NULL,
  event       text,
  payload     jsonb NOT NULL,
  received_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
DO $$ BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'umavez_worker') THEN
    GRANT SELECT, INSERT ON webhooks TO umavez_worker;
  END IF;
END $$;
