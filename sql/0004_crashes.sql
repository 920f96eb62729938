-- How often a run has killed its worker: a delivery that was lost while its code was executing. Counted by umavez.bury_worker, given
-- by umavez.take_runs (which is made anew, since its result grows); the runner ends the run at its task's retry.max_crashes.
ALTER TABLE umavez.runs
  ADD COLUMN crashes integer NOT NULL DEFAULT 0,
  ADD CONSTRAINT runs_crashes_check CHECK (crashes >= 0);

DROP FUNCTION IF EXISTS umavez.take_runs(uuid, text[], integer, jsonb, bigint, timestamptz, text[]);
