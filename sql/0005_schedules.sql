-- Schedules: one row for each task that a worker has declared a schedule of. See docs/schedules.md and
-- sql/functions/35_schedules.sql; only umavez.tick_schedules writes here.
CREATE TABLE umavez.schedules (
  task         text NOT NULL,
  declared     jsonb NOT NULL,            -- the manifest's schedule, as umavez.next_slot and tick_schedules read it
  last_slot    timestamptz,               -- the last slot that was enqueued or passed over; NULL: none yet
  next_slot    timestamptz,               -- the next one, always later than last_slot; NULL: never
  tenant_after bigint,                    -- next_slot has been enqueued for the tenants up to this one; NULL: for none
  seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),   -- when a worker that declares it looked, to the minute
  CONSTRAINT schedules_pkey PRIMARY KEY (task),
  CONSTRAINT schedules_declared_check CHECK (jsonb_typeof(declared) = 'object'),
  CONSTRAINT schedules_next_slot_check CHECK (next_slot > last_slot)
) WITH (fillfactor = 50);
