-- Roles. Both are group roles without login: GRANT umavez_worker TO the role that the worker logs in as.
--   umavez_worker    what a worker needs: the functions below, and to read which version of the schema this is. No table of umavez
--                    is open to it, so a handler cannot get past the functions; the application's tables are granted by the
--                    application.
--   umavez_operator  the command line: reads everything but the gate's secret, enqueues and purges, pauses queues, cancels,
--                    retries and discards runs, forgets keys; what it does so is audited, and it cannot change the audit.
-- Whoever only enqueues needs USAGE on the schema and EXECUTE on umavez.enqueue or umavez.enqueue_many.
-- Where this role may not create roles and they are not there, nothing is granted, and it says so; grants that others have made
-- are left as they are.

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA umavez FROM PUBLIC;

DO $roles$
DECLARE
  v_role text;
BEGIN
  FOREACH v_role IN ARRAY ARRAY['umavez_worker', 'umavez_operator'] LOOP
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = v_role) THEN
      BEGIN
        EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
      EXCEPTION
        WHEN duplicate_object OR unique_violation THEN NULL;     -- somebody else was quicker
        WHEN insufficient_privilege THEN
          RAISE NOTICE 'role % is missing and may not be created here: create it and migrate again', v_role;
      END;
    END IF;
    CONTINUE WHEN NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = v_role);
    EXECUTE format('GRANT USAGE ON SCHEMA umavez TO %I', v_role);
    IF to_regclass('umavez.migrations') IS NOT NULL THEN
      EXECUTE format('GRANT SELECT ON umavez.migrations TO %I', v_role);
    END IF;
    EXECUTE format('GRANT EXECUTE ON FUNCTION
      umavez.enqueue(text, jsonb, bigint, uuid, timestamptz, text, integer, text), umavez.enqueue_many(jsonb),
      umavez.purge_keys(integer), umavez.purge_finished(interval), umavez.make_partitions(integer),
      umavez.database_identity(), umavez.schedule_slots(jsonb, integer) TO %I', v_role);
  END LOOP;

  IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'umavez_worker') THEN
    GRANT EXECUTE ON FUNCTION
      umavez.register_tasks(jsonb), umavez.tick_schedules(jsonb, boolean), 
      umavez.take_runs(uuid, text[], integer, jsonb, bigint, timestamptz, text[], integer[]), umavez.declare_limits(jsonb),
      umavez.list_limits(),
      umavez.reap_runs(integer), umavez.renew_runs(uuid, uuid[], bigint[]), umavez.release_runs(uuid, uuid[], bigint[], text[]),
      umavez.release_orphans(uuid, uuid[]), umavez.hold_run(uuid),
      umavez.bury_worker(uuid, uuid[], jsonb), umavez.renew_worker(uuid, bigint), umavez.last_failure(uuid),
      umavez.sleep_begin(), umavez.sleep_end(), umavez.wake(), umavez.held_orders(uuid[]),
      umavez.worker_beat(uuid, text, integer, text, jsonb), umavez.worker_gone(uuid), umavez.purge_audit(interval, integer),
      umavez.end_run(uuid, text, jsonb, jsonb, bytea, integer), umavez.reschedule_run(uuid, bigint, jsonb),
      umavez.put_off_run(uuid, jsonb, integer),
      umavez.begin_run(bigint, bytea, bytea, bigint, bigint), umavez.claim(bigint, bytea, bytea, bigint),
      umavez.complete(bigint, bigint, integer, jsonb, bigint), umavez.fail(bigint, bigint, integer, text, jsonb, bigint),
      umavez.renew(bigint, bigint, integer, bigint), umavez.release(bigint, bigint, integer),
      umavez.complete_run(uuid, bigint, bytea, bigint, integer, jsonb, bigint, boolean),
      umavez.begin_runs(bigint[], bytea[], bytea[], bigint),
      umavez.begin_turn(bigint, bigint), umavez.reset_session(), umavez.temporary_left(),
      umavez.forget_runs(bigint[], bigint[]),
      umavez.complete_runs(uuid[], bigint[], bytea[], bigint[], jsonb[], bigint, boolean),
      umavez.fail_run(uuid, bigint, bytea, bigint, integer, boolean, jsonb, jsonb, bigint, bigint, boolean),
      umavez.fail_lost_run(uuid, uuid, bigint, bytea, bytea, boolean, jsonb, jsonb, bigint, bigint, boolean),
      umavez.complete_request(uuid, text, bigint, bytea, bigint, integer, jsonb, bigint, boolean, bigint, text),
      umavez.fail_request(uuid, text, bigint, bytea, bigint, integer, boolean, jsonb, jsonb, jsonb, bigint, bigint, text),
      umavez.ack_replay(uuid, bigint, bytea, bytea, boolean),
      umavez.ack_replays(uuid[], bigint[], bytea[], bytea[], boolean), umavez.resolve_commit(uuid, bigint, bytea, bigint, integer),
      umavez.token_lookup(bytea), umavez.run_state(uuid, bigint), umavez.queue_depths(text[], integer),
      umavez.gate_secret()
      TO umavez_worker;
  END IF;

  IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'umavez_operator') THEN
    GRANT SELECT ON umavez.idempotency_keys, umavez.platform_idempotency_keys, umavez.tasks, umavez.runs, umavez.finished_runs,
      umavez.finished_runs_default, umavez.marks, umavez.purge_zones, umavez.schedules, umavez.audit, umavez.paused_queues,
      umavez.cancellations, umavez.workers, umavez.limits TO umavez_operator;
    GRANT SELECT (id, name, tenant_id, scopes, created_at, expires_at, revoked_at) ON umavez.tokens TO umavez_operator;
    GRANT EXECUTE ON FUNCTION umavez.retry_run(uuid), umavez.token_revoke(bigint), umavez.queue_depths(text[], integer),
      umavez.pause_queue(text, text, text), umavez.resume_queue(text, text, text), umavez.list_queues(integer),
      umavez.cancel_run(uuid, text, text), umavez.discard_runs(uuid[], text, text), umavez.retry_runs(uuid[], text, text, text),
      umavez.failed_runs(text, timestamptz, uuid, timestamptz, integer), umavez.forget_key(bigint, bytea, text, text),
      umavez.recent_ends(integer), umavez.list_limits(), umavez.set_limit(text, text, integer, text, text), umavez.recent_rates(integer), umavez.dead_runs(integer), umavez.list_workers(boolean),
      umavez.list_schedules(text), umavez.list_audit(text, text, bigint, integer), umavez.run_details(uuid),
      umavez.ledger_row(bigint, bytea), umavez.ui_read(text, jsonb), umavez.ui_act(jsonb, text), umavez.ui_token(bigint, bytea),
      umavez.token_create(bytea, text, bigint, text[], timestamptz) TO umavez_operator;
  END IF;
END $roles$;

-- Each migration leaves a week of partitions ahead; the task maintenance.purge keeps making them.
DO $ahead$ BEGIN PERFORM umavez.make_partitions(7); END $ahead$;
