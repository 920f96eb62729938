-- Requests: runs that no queue holds (the HTTP door's). Their claim is settled like any other; a settled one leaves the same trace in
-- umavez.finished_runs, with the queue 'http'. A retryable failure leaves only the ledger's row: the client comes again, or not.

CREATE OR REPLACE FUNCTION umavez.finish_request(
  p_run uuid, p_task text, p_tenant bigint, p_key bytea, p_attempt integer, p_status text, p_outcome jsonb, p_failure jsonb,
  p_args jsonb, p_age_ms bigint, p_traceparent text) RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  INSERT INTO umavez.finished_runs (run_id, task, tenant_id, queue, priority, status, replay, outcome, failure, args, deliveries,
                                    attempt, idempotency_key, enqueued_at, finished_at, traceparent)
  VALUES (p_run, p_task, p_tenant, 'http', 2, p_status, false, coalesce(p_outcome, '{}'), p_failure,
          CASE WHEN p_status <> 'completed' THEN p_args END, 1, p_attempt, p_key,
          clock_timestamp() - p_age_ms * interval '1 millisecond', clock_timestamp(), p_traceparent);
$fn$;

CREATE OR REPLACE FUNCTION umavez.complete_request(
  p_run uuid, p_task text, p_tenant bigint, p_key bytea, p_id bigint, p_attempt integer, p_outcome jsonb, p_retention_ms bigint,
  p_history boolean, p_age_ms bigint, p_traceparent text, OUT outcome text, OUT remaining_ms bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
BEGIN
  SELECT c.outcome, c.remaining_ms INTO outcome, remaining_ms
    FROM umavez.complete(p_tenant, p_id, p_attempt, p_outcome, p_retention_ms) c;
  IF p_history THEN
    PERFORM umavez.finish_request(p_run, p_task, p_tenant, p_key, p_attempt, 'completed', p_outcome, NULL, NULL, p_age_ms,
                                  p_traceparent);
  END IF;
END $fn$;

CREATE OR REPLACE FUNCTION umavez.fail_request(
  p_run uuid, p_task text, p_tenant bigint, p_key bytea, p_id bigint, p_attempt integer, p_permanent boolean, p_outcome jsonb,
  p_failure jsonb, p_args jsonb, p_retention_ms bigint, p_age_ms bigint, p_traceparent text,
  OUT outcome text, OUT remaining_ms bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
BEGIN
  SELECT f.outcome, f.remaining_ms INTO outcome, remaining_ms
    FROM umavez.fail(p_tenant, p_id, p_attempt, CASE WHEN p_permanent THEN 'failed_permanent' ELSE 'failed_retryable' END,
                     p_outcome, p_retention_ms) f;
  IF p_permanent THEN
    PERFORM umavez.finish_request(p_run, p_task, p_tenant, p_key, p_attempt, 'failed_permanent', p_outcome, p_failure, p_args,
                                  p_age_ms, p_traceparent);
  END IF;
END $fn$;
