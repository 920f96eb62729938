-- Limits across all workers, and queues whose tenants are served in turn. See sql/functions/25_lanes.sql.

-- What has been declared of tasks and queues: one row for each of which anything is. Where there is none, taking runs costs one look
-- into this empty table.
CREATE TABLE umavez.limits (
  kind       text NOT NULL,
  name       text NOT NULL,
  declared   integer,                     -- runs at once in all workers, as the manifest says that was registered last; NULL: no limit
  ordered    integer,                     -- as an operator says, who is obeyed; NULL: nothing
  places     integer GENERATED ALWAYS AS (coalesce(ordered, declared)) STORED,
  fair       boolean NOT NULL DEFAULT false,     -- of a queue: its tenants are served in turn
  changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT limits_pkey PRIMARY KEY (kind, name),
  CONSTRAINT limits_kind_check CHECK (kind IN ('task', 'queue')),
  CONSTRAINT limits_name_check CHECK (name <> ''),
  CONSTRAINT limits_declared_check CHECK (declared > 0),
  CONSTRAINT limits_ordered_check CHECK (ordered > 0),
  CONSTRAINT limits_fair_check CHECK (NOT fair OR kind = 'queue')
);

-- A queue is made of lanes. Runs of which nothing is declared stand in the lane '', all others in one that says what they count
-- for (umavez.lane_name). Takes look into a queue lane by lane, so that a million runs that may not be taken now are stepped over
-- by one look into the index.
ALTER TABLE umavez.runs ADD COLUMN lane text COLLATE "C" NOT NULL DEFAULT '';

DROP INDEX umavez.runs_ready;
CREATE INDEX runs_ready ON umavez.runs (queue, lane, priority, run_at) WHERE state = 'available';

-- The places that are taken: counted from here, so that none can leak. The predicate says "running" by worker_id (runs_lease_check), so
-- that neither this index nor runs_leased can be read for the other. Runs of the lane '' are not in it.
CREATE INDEX runs_places ON umavez.runs (queue, task) WHERE lane <> '' AND worker_id IS NOT NULL;

ALTER TABLE umavez.audit DROP CONSTRAINT audit_action_check;
ALTER TABLE umavez.audit ADD CONSTRAINT audit_action_check
  CHECK (action IN ('pause', 'resume', 'cancel', 'discard', 'retry', 'forget', 'limit'));

-- Made anew by functions/20_queue.sql, with more parameters and a result that tells of limits.
DROP FUNCTION IF EXISTS umavez.take_runs(uuid, text[], integer, jsonb, bigint, timestamptz, text[]);
-- Its result grows.
DROP FUNCTION IF EXISTS umavez.list_queues(integer);
