-- What the gate's entries are bound to.

-- database_identity: tells this database, in this history of its cluster, from every other: an entry of the gate that was made
-- under another identity does not count. The timeline comes from the name of the WAL file that is being written, since the
-- control file shows the old one for a while after a promotion. The ledgers' files change when they are truncated or restored, the
-- start of the server when a base backup is put back. On a standby it raises 25006.
CREATE OR REPLACE FUNCTION umavez.database_identity() RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL RESTRICTED SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION 'this server is a standby' USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  RETURN format('%s:%s:%s:%s:%s:%s',
    (SELECT system_identifier FROM pg_control_system()),
    left(pg_walfile_name(pg_current_wal_lsn()), 8),
    (SELECT oid FROM pg_database WHERE datname = current_database()),
    pg_relation_filenode('umavez.idempotency_keys'), pg_relation_filenode('umavez.platform_idempotency_keys'),
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint);
END $fn$;

CREATE OR REPLACE FUNCTION umavez.gate_secret() RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fn$
  SELECT g.secret FROM umavez.gate g;
$fn$;
