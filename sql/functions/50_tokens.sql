-- token_lookup: who a token belongs to, by its SHA-256. No row: unknown, revoked or expired. scopes is a JSON array.
CREATE OR REPLACE FUNCTION umavez.token_lookup(p_digest bytea) RETURNS TABLE (tenant_id bigint, scopes text)
LANGUAGE sql STABLE PARALLEL SAFE ROWS 1 SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT t.tenant_id, to_jsonb(t.scopes)::text
    FROM umavez.tokens t
   WHERE t.digest = p_digest AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp());
$fn$;

-- token_create, token_revoke: for the command line. The caller makes the token and hands over its digest.
CREATE OR REPLACE FUNCTION umavez.token_create(
  p_digest bytea, p_name text, p_tenant bigint, p_scopes text[], p_expires_at timestamptz DEFAULT NULL) RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  INSERT INTO umavez.tokens (digest, name, tenant_id, scopes, expires_at)
  VALUES (p_digest, p_name, p_tenant, p_scopes, p_expires_at) RETURNING id;
$fn$;

CREATE OR REPLACE FUNCTION umavez.token_revoke(p_id bigint) RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  WITH revoked AS (
    UPDATE umavez.tokens SET revoked_at = clock_timestamp() WHERE id = p_id AND revoked_at IS NULL RETURNING 1
  )
  SELECT EXISTS (SELECT 1 FROM revoked);
$fn$;

-- run_state: what has become of a run, for its own owner (p_tenant NULL: the platform). live: it has not ended. answer: JSON.
CREATE OR REPLACE FUNCTION umavez.run_state(p_run uuid, p_tenant bigint) RETURNS TABLE (live boolean, answer text)
LANGUAGE sql STABLE PARALLEL SAFE ROWS 1 SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $fn$
  SELECT true, jsonb_build_object('run_id', r.run_id, 'task', r.task, 'state', r.state, 'deliveries', r.deliveries,
                                  'enqueued_at', r.enqueued_at, 'run_at', r.run_at)::text
    FROM umavez.runs r WHERE r.run_id = p_run AND r.tenant_id IS NOT DISTINCT FROM p_tenant
  UNION ALL
  (SELECT false, jsonb_build_object('run_id', f.run_id, 'task', f.task, 'state', f.status, 'replay', f.replay,
                                    'deliveries', f.deliveries, 'enqueued_at', f.enqueued_at, 'finished_at', f.finished_at,
                                    'outcome', f.outcome)::text
     FROM umavez.finished_runs f WHERE f.run_id = p_run AND f.tenant_id IS NOT DISTINCT FROM p_tenant
    ORDER BY f.finished_at DESC LIMIT 1)
  LIMIT 1;
$fn$;
