-- The queue: live runs in umavez.runs, ended ones in umavez.finished_runs (a partition a day, dropped by the purge).
--
--   enqueue ─► available ──take──► running ──complete / end / replay──► finished_runs
--                  ▲                  │
--                  └─ retry, busy, back, lease over ─┘
--
-- Each run costs one INSERT, one UPDATE (taken) and one DELETE here. None of them can be HOT (state is in the predicates of both
-- partial indexes), so there is nothing to gain from a fillfactor; what matters is that autovacuum comes often, and what it
-- cannot take away while somebody's snapshot holds the horizon is stepped over (umavez.marks).

CREATE TABLE umavez.tasks (               -- what workers have registered: enqueue looks up the task's queue here
  name       text NOT NULL,
  owner      text NOT NULL,
  queue      text NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT tasks_pkey PRIMARY KEY (name),
  CONSTRAINT tasks_owner_check CHECK (owner IN ('tenant', 'platform'))
);

CREATE TABLE umavez.runs (
  run_id      uuid NOT NULL,
  task        text NOT NULL,
  tenant_id   bigint,                     -- NULL: the platform's
  args        jsonb NOT NULL,
  queue       text NOT NULL,
  priority    integer NOT NULL,           -- 1 is served first
  state       text NOT NULL DEFAULT 'available',
  run_at      timestamptz NOT NULL,
  enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  deliveries  integer NOT NULL DEFAULT 0,
  busy        integer NOT NULL DEFAULT 0, -- deliveries that found the key held, in a row
  lease_until timestamptz,
  worker_id   uuid,
  failure     jsonb,                      -- of the last attempt
  traceparent text,
  CONSTRAINT runs_pkey PRIMARY KEY (run_id),
  CONSTRAINT runs_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES :tenants_table (id),
  CONSTRAINT runs_task_check CHECK (task <> ''),
  CONSTRAINT runs_queue_check CHECK (queue <> ''),
  CONSTRAINT runs_args_check CHECK (jsonb_typeof(args) = 'object'),
  CONSTRAINT runs_priority_check CHECK (priority BETWEEN 1 AND 4),
  CONSTRAINT runs_state_check CHECK (state IN ('available', 'running')),
  CONSTRAINT runs_lease_check CHECK ((state = 'running') = (lease_until IS NOT NULL) AND (state = 'running') = (worker_id IS NOT NULL)),
  CONSTRAINT runs_deliveries_check CHECK (deliveries >= 0 AND busy >= 0)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.1, autovacuum_analyze_threshold = 2000);

CREATE INDEX runs_ready ON umavez.runs (queue, priority, run_at) WHERE state = 'available';
CREATE INDEX runs_leased ON umavez.runs (lease_until) WHERE state = 'running';

CREATE TABLE umavez.finished_runs (
  run_id          uuid NOT NULL,
  task            text NOT NULL,
  tenant_id       bigint,
  queue           text NOT NULL,
  priority        integer NOT NULL,
  status          text NOT NULL,
  replay          boolean NOT NULL,       -- ended by an outcome that another run of the key had reached
  outcome         jsonb NOT NULL,
  failure         jsonb,
  args            jsonb,                  -- of failed runs, so that an operator can retry them
  deliveries      integer NOT NULL,
  attempt         integer,                -- of the ledger row; NULL: the ledger was not touched
  idempotency_key bytea,
  enqueued_at     timestamptz NOT NULL,
  finished_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  worker_id       uuid,
  traceparent     text,
  CONSTRAINT finished_runs_pkey PRIMARY KEY (run_id, finished_at),
  CONSTRAINT finished_runs_status_check CHECK (status IN ('completed', 'failed_permanent')),
  CONSTRAINT finished_runs_args_check CHECK ((status = 'completed') = (args IS NULL))
) PARTITION BY RANGE (finished_at);

CREATE INDEX finished_runs_failed ON umavez.finished_runs (task, finished_at) WHERE status = 'failed_permanent';

-- Takes what no day's partition takes. Days ahead are made by umavez.make_partitions().
CREATE TABLE umavez.finished_runs_default PARTITION OF umavez.finished_runs DEFAULT;

-- Where reading an index of umavez.runs may begin: everything before `since` had been taken when it was written. While a foreign
-- snapshot holds the vacuum horizon, the index entries of taken runs stay, and without marks each take would read them all again.
-- One row a queue ('take:' || queue, one mark a priority) and one for expired leases ('reap'). See umavez.take_runs.
CREATE TABLE umavez.marks (
  name     text NOT NULL,
  since    timestamptz[] NOT NULL,
  moved_at timestamptz NOT NULL,
  full_at  timestamptz NOT NULL,          -- from then on, the next reader begins at the very start once
  CONSTRAINT marks_pkey PRIMARY KEY (name)
) WITH (fillfactor = 50);
