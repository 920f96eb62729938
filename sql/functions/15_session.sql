-- What a worker's session is put back to between two runs, so that nothing that functions have left in it reaches the next one. Both run
-- with the caller's rights (RESET ROLE would be refused otherwise) and without settings of their own, which would undo what they reset;
-- each is one statement where plain SQL needs three or more.

-- temporary_left: whether the session has temporary objects: relations, types, functions, …. Whatever a schema holds depends on it.
CREATE OR REPLACE FUNCTION umavez.temporary_left() RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $fn$
BEGIN
  IF pg_catalog.pg_my_temp_schema() OPERATOR(pg_catalog.=) 0 THEN
    RETURN false;
  END IF;
  RETURN EXISTS (SELECT FROM pg_catalog.pg_depend d
                  WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass::pg_catalog.oid
                    AND d.refobjid OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema());
END $fn$;

-- reset_session: at the end of a transaction. Frees session-level advisory locks, too. True: there is something that is rare and dearer
-- to undo than a new connection is to open: temporary objects, LISTEN, held cursors, statements that were prepared by SQL (the worker's
-- own are not).
CREATE OR REPLACE FUNCTION umavez.reset_session() RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $fn$
BEGIN
  RESET ALL;
  RESET ROLE;
  PERFORM pg_catalog.pg_advisory_unlock_all();
  RETURN umavez.temporary_left() OR EXISTS (SELECT FROM pg_catalog.pg_listening_channels())
      OR EXISTS (SELECT FROM pg_catalog.pg_cursor() c WHERE c.is_holdable)
      OR EXISTS (SELECT FROM pg_catalog.pg_prepared_statement() p WHERE p.from_sql);
END $fn$;

-- begin_turn: before a run in a transaction that several share. RESET ALL undoes the settings of the transaction, too: they are made
-- anew. True: a run before has left a temporary object.
CREATE OR REPLACE FUNCTION umavez.begin_turn(p_tenant bigint, p_idle_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $fn$
DECLARE
  v_set text;
BEGIN
  RESET ALL;
  RESET ROLE;
  v_set := pg_catalog.set_config('umavez.tenant_id', coalesce(p_tenant::pg_catalog.text, ''), true);
  v_set := pg_catalog.set_config('idle_in_transaction_session_timeout', p_idle_ms::pg_catalog.text, true);
  IF pg_catalog.current_setting('server_version_num')::pg_catalog.int4 OPERATOR(pg_catalog.>=) 140000 THEN
    v_set := pg_catalog.set_config('client_connection_check_interval', '500ms', true);
  END IF;
  RETURN umavez.temporary_left();
END $fn$;
