--- Databases for `umavez test`: one that is migrated once and kept as a template, and a fresh copy of it for each call.
--
--     umavez_test_t_<digest>      the template: the application's schema, umavez's, the tasks'; the digest is theirs
--     umavez_test_<pid>_<hex>     a call's own copy; dropped at its end, or by the next call when it was killed
--
-- Between tests nothing is dropped: `umavez_testing.reset()` puts the rows and the sequences back to what they were in
-- the template. What workers register at their start (umavez.tasks) stays.
-- @module umavez.testing.database

local migrate = require("umavez.migrate")
local pg = require("umavez.pg")
local shell = require("umavez.shell")
local sys = require("umavez.sys")

local M = {}

-- Foreign keys and triggers must not see how rows are put back: session_replication_role, which a superuser may set.
local RESET = [[
CREATE SCHEMA umavez_testing;
CREATE TABLE umavez_testing.tables (tbl regclass PRIMARY KEY, copy regclass, columns text);
CREATE TABLE umavez_testing.sequences (seq regclass PRIMARY KEY, value bigint NOT NULL, called boolean NOT NULL);

CREATE FUNCTION umavez_testing.reset() RETURNS void LANGUAGE plpgsql AS $fn$
DECLARE t record; s record;
BEGIN
  PERFORM set_config('session_replication_role', 'replica', true);
  FOR t IN SELECT * FROM umavez_testing.tables LOOP
    EXECUTE format('DELETE FROM %s', t.tbl);
    IF t.copy IS NOT NULL THEN
      EXECUTE format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %2$s FROM %s', t.tbl, t.columns, t.copy);
    END IF;
  END LOOP;
  FOR s IN SELECT * FROM umavez_testing.sequences LOOP
    PERFORM setval(s.seq, s.value, s.called);
  END LOOP;
END $fn$;

-- What is stored now is what reset() brings back.
CREATE FUNCTION umavez_testing.keep() RETURNS void LANGUAGE plpgsql AS $fn$
DECLARE t record; s record; v_any boolean; v_copy text; v_value bigint; v_called boolean;
BEGIN
  FOR t IN SELECT c.oid::regclass AS tbl, c.oid, n.nspname, c.relname,
                  (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute a
                    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '') AS columns
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname NOT LIKE 'pg\_%'
              AND n.nspname NOT IN ('information_schema', 'umavez_testing')
              AND (n.nspname, c.relname) NOT IN (('umavez', 'migrations'), ('umavez', 'tasks'))
  LOOP
    v_copy := NULL;
    EXECUTE format('SELECT EXISTS (SELECT FROM %s)', t.tbl) INTO v_any;
    IF v_any THEN
      v_copy := 'umavez_testing.copy_' || t.oid;
      EXECUTE format('CREATE TABLE %s AS SELECT %s FROM %s', v_copy, t.columns, t.tbl);
    END IF;
    INSERT INTO umavez_testing.tables VALUES (t.tbl, v_copy::regclass, t.columns);
  END LOOP;
  FOR s IN SELECT c.oid::regclass AS seq FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relkind = 'S' AND n.nspname <> 'umavez_testing'
  LOOP
    EXECUTE format('SELECT last_value, is_called FROM %s', s.seq) INTO v_value, v_called;
    INSERT INTO umavez_testing.sequences VALUES (s.seq, v_value, v_called);
  END LOOP;
END $fn$;]]

--- A URL (or keyword string) with another database in it.
function M.with_database(url, name)
  if url:match("^postgres") then
    local head, tail = url:match("^(postgres%w*://[^/?]*)/?[^?]*(.*)$")
    return head .. "/" .. name .. tail
  end
  return url .. " dbname=" .. name
end

local function build_template(stage, admin, name)
  local new = name .. "_new"
  admin:exec("DROP DATABASE IF EXISTS " .. new .. " WITH (FORCE)")
  admin:exec("CREATE DATABASE " .. new)
  local db = pg.connect(M.with_database(stage.server_url, new))
  local ok, err = pcall(function()
    for _, file in ipairs(stage.first) do
      migrate.run_script(db, file.path, file.text)
    end
    migrate.run(db, stage.conf, function() end)
    for _, file in ipairs(stage.schemas) do
      migrate.run_script(db, file.path, file.text)
    end
    db:script(RESET)
    db:query("SELECT umavez_testing.keep()")
  end)
  db:close()
  if not ok then
    error(err, 0)
  end
  admin:exec(("ALTER DATABASE %s RENAME TO %s"):format(new, name))
end

local function template_name(stage)
  local parts = { stage.conf.tenants_table, RESET }
  for _, step in ipairs(migrate.steps()) do
    parts[#parts + 1] = step.checksum
  end
  for _, files in ipairs { stage.first, stage.schemas } do
    parts[#parts + 1] = #files
    for _, file in ipairs(files) do
      parts[#parts + 1] = file.text
    end
  end
  return "umavez_test_t_" .. sys.sha256_hex(table.concat(parts, "\n")):sub(1, 16)
end

-- What killed calls have left, and templates of other texts; nothing that anybody is connected to.
local function drop_strays(admin, template)
  local rows = admin:query([[SELECT datname FROM pg_database d WHERE datname LIKE 'umavez\_test\_%' AND datname <> $1
    AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.datname = d.datname AND a.backend_type = 'client backend')]],
    template)
  for _, row in ipairs(rows) do
    local pid = tonumber(row.datname:match("^umavez_test_(%d+)_%x+$"))
    local running = pid and shell.cmdline(pid) or "" -- another program may have the number by now
    if not running:find("umavez%S* .*test") then
      pcall(admin.exec, admin, "DROP DATABASE IF EXISTS " .. row.datname)
    end
  end
end

--- Make a fresh database.
-- @tparam table stage server_url, conf (tenants_table), first and schemas: SQL files before and after umavez's own
-- (path and text of each)
-- @treturn string its name
-- @treturn boolean whether the template had to be made
-- @yields
function M.create(stage)
  local admin = pg.connect(stage.server_url)
  local template, built = template_name(stage), false
  local name = ("umavez_test_%d_%s"):format(sys.getpid(), sys.uuid():sub(1, 8))
  admin:query("SELECT pg_advisory_lock(hashtextextended('umavez.test', 0))")
  if not admin:one("SELECT FROM pg_database WHERE datname = $1", template) then
    drop_strays(admin, template)
    build_template(stage, admin, template)
    built = true
  end
  admin:exec(("CREATE DATABASE %s TEMPLATE %s"):format(name, template))
  drop_strays(admin, template)
  admin:close()
  return name, built
end

--- Drop a database.
-- @yields
function M.drop(stage, name)
  local admin = pg.connect(stage.server_url)
  admin:exec("DROP DATABASE IF EXISTS " .. name .. " WITH (FORCE)")
  admin:close()
end

return M
