--- The doctor's checks of the schema: migrations, and drift against what this program's sql/ makes.
--
-- `sql/schema.digests` names each function with the MD5 of its body, each table with that of its columns, and each
-- index, constraint and trigger. It is written and compared by tests/sql/test_schema.py, and says the same on every
-- version of PostgreSQL.
-- @module umavez.doctor.schema

local migrate = require("umavez.migrate")
local shell = require("umavez.shell")

local M = {}

local SHOWN = 5

local DIGESTS = [[
SELECT format('function %s(%s)', p.proname, pg_catalog.oidvectortypes(p.proargtypes)) AS name,
       md5(replace(p.prosrc, e'\r', '')) AS digest
  FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'umavez'::regnamespace
UNION ALL
SELECT format('table %s', c.relname),
       md5((SELECT string_agg(format('%s %s %s', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull), ','
                              ORDER BY a.attname)
              FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))
  FROM pg_catalog.pg_class c
 WHERE c.relnamespace = 'umavez'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
   AND c.relname <> 'migrations'
UNION ALL
SELECT format('index %s', i.relname), CASE WHEN x.indisvalid THEN 'valid' ELSE 'invalid' END
  FROM pg_catalog.pg_index x
  JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
  JOIN pg_catalog.pg_class c ON c.oid = x.indrelid
 WHERE c.relnamespace = 'umavez'::regnamespace AND NOT c.relispartition AND c.relname <> 'migrations'
UNION ALL
SELECT format('constraint %s', o.conname), o.contype::text
  FROM pg_catalog.pg_constraint o JOIN pg_catalog.pg_class c ON c.oid = o.conrelid
 WHERE c.relnamespace = 'umavez'::regnamespace AND NOT c.relispartition AND c.relname <> 'migrations'
   AND o.contype IN ('c', 'f', 'p', 'u')
UNION ALL
SELECT format('trigger %s', t.tgname), 'trigger'
  FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
 WHERE c.relnamespace = 'umavez'::regnamespace AND NOT t.tgisinternal
 ORDER BY 1]]

--- What the database has.
-- @param db umavez.pg's connection
-- @treturn {string,...} lines `DIGEST NAME`, sorted by name
-- @yields
function M.digests(db)
  local lines = {}
  for i, row in ipairs(db:query(DIGESTS)) do
    lines[i] = row.digest .. " " .. row.name
  end
  return lines
end

-- Names to digests, from lines.
local function by_name(lines)
  local map = {}
  for _, line in ipairs(lines) do
    local digest, name = line:match("^(%S+) (.+)$")
    map[name] = digest
  end
  return map
end

local function expected()
  local lines = {}
  for line in (shell.read_file(migrate.sql_dir() .. "/schema.digests") or ""):gmatch("[^\n]+") do
    lines[#lines + 1] = line
  end
  return by_name(lines)
end

local function differences(want, have)
  local found = {}
  for name, digest in pairs(want) do
    if not have[name] then
      found[#found + 1] = name .. " is missing"
    elseif have[name] ~= digest then
      found[#found + 1] = name .. (have[name] == "invalid" and " is invalid" or " is another")
    end
  end
  for name in pairs(have) do
    if not want[name] then
      found[#found + 1] = name .. " is not umavez's"
    end
  end
  table.sort(found)
  return found
end

local function drift(look)
  local found = differences(expected(), by_name(M.digests(look.db)))
  if #found == 0 then
    look:ok("schema", "functions, tables and indexes are those of this program")
    return
  end
  local more = #found > SHOWN and (" and %d more"):format(#found - SHOWN) or ""
  look:error("schema", table.concat(found, "; ", 1, math.min(SHOWN, #found)) .. more,
    "Somebody has changed by hand what the guarantees are built on.",
    "Functions: delete the row of version 0 in umavez.migrations and run `umavez migrate`, which applies them whole. "
    .. "Tables and indexes: undo the change.")
end

local function migrations(look)
  local ok, status = pcall(migrate.status, look.db)
  if not ok then
    if type(status) ~= "table" then
      error(status, 0)
    end
    look:error("migrations", status.message, "This program and this database do not belong together.",
      "Use the program of the database's version.")
  elseif status.missing > 0 then
    look:error("migrations", ("%d are missing, the first is %s"):format(status.missing, status.first_missing),
      "Workers of this version refuse to start.", "Run `umavez migrate`.")
  else
    look:ok("migrations", ("all %d are applied"):format(#status.steps))
    drift(look)
  end
end

M[1] = { name = "schema", database = true, look = migrations }

return M
