-- What an operator decides about queues, runs and keys, and who has decided it.

-- One row an act. Written by the functions of 60_operate.sql alone, in the transaction of the act itself.
CREATE TABLE umavez.audit (
  id      bigint GENERATED ALWAYS AS IDENTITY,
  at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  db_user text NOT NULL,                  -- who was logged in
  os_user text,                           -- who says to have asked, user@host; NULL: nothing was said
  action  text NOT NULL,
  target  text NOT NULL,                  -- a queue, a run, a key's digest, or a selection of runs in words
  reason  text,
  detail  jsonb NOT NULL DEFAULT '{}',
  CONSTRAINT audit_pkey PRIMARY KEY (id),
  CONSTRAINT audit_action_check CHECK (action IN ('pause', 'resume', 'cancel', 'discard', 'retry', 'forget'))
);

-- Queues of which nobody takes anything. Read by each umavez.take_runs, and mostly empty.
CREATE TABLE umavez.paused_queues (
  queue     text NOT NULL,
  paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  paused_by text NOT NULL,
  reason    text,
  CONSTRAINT paused_queues_pkey PRIMARY KEY (queue),
  CONSTRAINT paused_queues_queue_check CHECK (queue <> '')
);

-- Runs that shall end although a worker holds them. Apart from umavez.runs, because a run's row must not change while its own
-- transaction is at work (it may have locked it, and under SERIALIZABLE would fail). Mostly empty: umavez.end_cancelled.
CREATE TABLE umavez.cancellations (
  run_id   uuid NOT NULL,
  asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  asked_by text NOT NULL,
  reason   text,
  CONSTRAINT cancellations_pkey PRIMARY KEY (run_id)
);

-- The worker processes that are alive: a row each, made at the start, touched now and then, gone at the end. Nothing depends on
-- it but what an operator sees.
CREATE TABLE umavez.workers (
  worker_id  uuid NOT NULL,
  host       text NOT NULL,
  pid        integer NOT NULL,
  version    text NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  detail     jsonb NOT NULL DEFAULT '{}',        -- queues, tasks, supervisor, pool_size
  CONSTRAINT workers_pkey PRIMARY KEY (worker_id)
) WITH (fillfactor = 50);

-- A failed run that somebody has dealt with: it stays in the history, but is no failure to look at any more.
ALTER TABLE umavez.finished_runs
  ADD COLUMN discarded_at timestamptz,
  ADD CONSTRAINT finished_runs_discarded_check CHECK (discarded_at IS NULL OR status = 'failed_permanent') NOT VALID;
