"""A database that looks like one at work, for pictures and looks: queues, failures, tenants, workers on other hosts, acts."""
import json

FAILURE = {"code": "error", "message": "tasks/payments/pix.lua:14: attempt to index local 'account' (a nil value)", "traceback":
           "stack traceback:\n\ttasks/payments/pix.lua:14: in function 'debit'\n\ttasks/payments/pix.lua:31: in function <tasks/payments/pix.lua:28>"}
SHOWN = "8e03978e-40d5-43dd-bc93-6894a57f9324"


def clear(lab):
    """Takes it away before the auditor looks: none of it has happened."""
    lab.sql("DELETE FROM umavez.finished_runs WHERE task NOT LIKE 'e2.%'")
    lab.sql("DELETE FROM umavez.runs WHERE queue LIKE 'x.%'")
    lab.sql("DELETE FROM umavez.idempotency_keys WHERE attempt = 8")


def lay_out(lab):
    """Gives a failed run with a full life."""
    sql = lab.sql
    sql("""SELECT umavez.register_tasks(%s::jsonb)""", json.dumps([
        {"task": task, "owner": owner, "queue": queue} for task, owner, queue in (
            ("payments.pix", "tenant", "payments"), ("receipts.send", "tenant", "mail"), ("webhooks.receive", "platform", "webhooks"),
            ("reports.monthly_statement_of_every_account", "tenant", "slow"))]))
    sql("""INSERT INTO umavez.idempotency_keys (tenant_id, idempotency_key, request_fingerprint, status, attempt, outcome, expires_at, created_at, updated_at)
           SELECT 1, (SELECT digest FROM umavez.ui_key_digests('order-17', 'payments.pix') LIMIT 1), sha256('x'), 'failed_permanent', 8,
                  '{"code": "error", "message": "attempt to index local ''account''"}', clock_timestamp() + interval '7 days', clock_timestamp() - interval '10 minutes',
                  clock_timestamp() - interval '7 minutes'""")
    sql("""INSERT INTO umavez.finished_runs (run_id, task, tenant_id, queue, priority, status, replay, outcome, failure, args, deliveries, attempt, enqueued_at,
                                             finished_at)
           SELECT gen_random_uuid(), (ARRAY['payments.pix', 'receipts.send', 'webhooks.receive'])[1 + mod(g, 3)], CASE WHEN mod(g, 3) < 2 THEN 1 + mod(g, 2) END,
                  (ARRAY['payments', 'mail', 'webhooks'])[1 + mod(g, 3)], 2, CASE WHEN mod(g, 97) = 5 THEN 'failed_permanent' ELSE 'completed' END, mod(g, 11) = 0,
                  CASE WHEN mod(g, 97) = 5 THEN '{"code": "limit_exceeded"}' ELSE '{"status": 201}' END::jsonb, NULL,
                  CASE WHEN mod(g, 97) = 5 THEN '{}' END::jsonb, 1, 1,
                  at - (20 + 60 * abs(sin(g / 40.0)) + CASE WHEN mod(g, 50) = 0 THEN 300 ELSE mod(g, 17) END) * interval '1 millisecond', at
             FROM (SELECT g, clock_timestamp() - (280 - g * 280.0 / 6000 + 6 * sin(g / 300.0)) * interval '1 second' AS at FROM generate_series(1, 6000) g) s
            ORDER BY at""")
    sql("""INSERT INTO umavez.finished_runs (run_id, task, tenant_id, queue, priority, status, replay, outcome, failure, args, deliveries, attempt, enqueued_at,
                                             finished_at, idempotency_key)
           SELECT %s::uuid, 'payments.pix', 1, 'payments', 2, 'failed_permanent', false, %s::jsonb, %s::jsonb, '{"order": "order-17", "amount_cents": 4990}', 8, 8,
                  clock_timestamp() - interval '11 minutes', clock_timestamp() - interval '7 minutes',
                  (SELECT digest FROM umavez.ui_key_digests('order-17', 'payments.pix') LIMIT 1)""",
        SHOWN, json.dumps({k: FAILURE[k] for k in ("code", "message")}), json.dumps(FAILURE))
    for queue, count, minutes in (("payments", 37, 0), ("mail", 1204, 3), ("slow", 12, 41)):
        sql("""INSERT INTO umavez.runs (run_id, task, tenant_id, args, queue, priority, run_at)
               SELECT gen_random_uuid(), 'receipts.send', 1 + mod(g, 2), '{}', %s, 2, clock_timestamp() - %s * interval '1 minute' + g * interval '1 second'
                 FROM generate_series(1, %s) g""", "x." + queue, minutes, count)
    sql("SELECT umavez.pause_queue('x.slow', 'the bank is down, INC-4711', 'maria (ui token 1)')")
    sql("""INSERT INTO umavez.workers (worker_id, host, pid, version, started_at, seen_at, detail)
           SELECT gen_random_uuid(), h, p, '0.1.0', clock_timestamp() - interval '3 days 4 hours', clock_timestamp() - s * interval '1 second',
                  '{"queues": ["default", "payments", "mail", "webhooks"]}'
             FROM (VALUES ('jobs-1.internal', 4711, 4), ('jobs-1.internal', 4712, 9), ('jobs-2.internal', 910, 300)) w(h, p, s)""")
    sql("SELECT umavez.pause_queue('payments', 'deploying', 'joao@ops-2')")
    sql("SELECT umavez.resume_queue('payments', 'deployed', 'joao@ops-2')")
    sql("SELECT umavez.write_audit('retry', %s, 'the account exists now', 'maria (ui token 1)', %s::jsonb)", SHOWN, json.dumps({"runs": [SHOWN]}))
    return SHOWN
