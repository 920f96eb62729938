--- The demo: real input, delivered several times each, out of order and at once, to workers of which one is killed,
-- while Valkey is away for a part of the time. What came of it is counted in SQL.
-- @module umavez.demo

local cli = require("umavez.cli")
local dev = require("umavez.dev")
local input = require("umavez.demo_input")
local migrate = require("umavez.migrate")
local pg = require("umavez.pg")
local sys = require("umavez.sys")

local M = {}

local DATABASE = "umavez_demo"
local WORKERS, COPIES, WAVES = 2, 6, 24
local KILL_AT, RESTART_AT, VALKEY_DOWN_AT, VALKEY_UP_AT = 6, 9, 12, 18
local WAVE_MS, PATIENCE_MS = 200, 180000

-- The effect tables of the example tasks, with what makes an effect the same as another.
local EFFECTS = {
  { task = "payments.pix", tbl = "payments", key = "tenant_id || ' ' || end_to_end_id" },
  { task = "receipts.send", tbl = "receipts", key = "payment_id::text" },
  { task = "webhooks.receive", tbl = "webhook_deliveries", key = "delivery_id::text" },
}

-- A trigger counts every handler that gets to its INSERT, in a sequence: a rollback does not take that back. It also
-- makes an effect last a moment, so that the kill meets some that are under way.
local SCHEMA = [[
CREATE SCHEMA demo;
CREATE TABLE demo.messages (n bigint PRIMARY KEY, task text NOT NULL, tenant_id bigint, key text NOT NULL,
                            args jsonb NOT NULL);
CREATE TABLE demo.deliveries (run_id uuid NOT NULL, n bigint NOT NULL REFERENCES demo.messages, wave int NOT NULL);
CREATE FUNCTION demo.handler_runs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM nextval(TG_ARGV[0]);
  PERFORM pg_sleep(0.01 + random() * 0.05);
  RETURN NEW;
END $$;]]

local DELIVER = [[
WITH copies AS (SELECT gen_random_uuid() AS run_id, n, random() AS r FROM demo.messages, generate_series(1, $1::int))
INSERT INTO demo.deliveries SELECT run_id, n, ntile($2::int) OVER (ORDER BY r) FROM copies]]

local ENQUEUE = [[
SELECT umavez.enqueue_many((
  SELECT jsonb_agg(jsonb_build_object('run_id', run_id, 'task', task, 'tenant_id', tenant_id, 'args', args) ORDER BY run_id)
    FROM demo.deliveries JOIN demo.messages USING (n) WHERE wave = $1::int)) AS new]]

--- What is printed at the end, and what anyone can run: counts of what the database holds, nothing else.
M.AUDIT = [[
WITH effects AS (
@EFFECTS@
), expected AS (                                    -- what must have happened, by the input
  SELECT task, key FROM demo.messages
  UNION ALL SELECT 'receipts.send', id::text FROM payments
), finished AS (
  SELECT task, sum(deliveries) AS deliveries, count(*) AS runs, count(*) FILTER (WHERE replay) AS replays,
         count(*) FILTER (WHERE status <> 'completed') AS failed
    FROM umavez.finished_runs GROUP BY task
)
SELECT task,
       (SELECT count(*) FROM expected e WHERE e.task = t.task) AS messages,
       runs,
       deliveries,
       (SELECT CASE WHEN last_value = 1 AND NOT is_called THEN 0 ELSE last_value END FROM pg_catalog.(SEQ)) AS handler_runs,
       (SELECT count(*) FROM effects f WHERE f.task = t.task) AS effects,
       replays,
       (SELECT count(*) - count(DISTINCT key) FROM effects f WHERE f.task = t.task) AS duplicates,
       (SELECT count(*) FROM expected e WHERE e.task = t.task
           AND NOT EXISTS (SELECT FROM effects f WHERE f.task = e.task AND f.key = e.key))
       + (SELECT count(*) FROM umavez.runs r WHERE r.task = t.task) + failed AS lost
  FROM finished t ORDER BY task;]]

return M
