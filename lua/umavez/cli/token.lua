--- `umavez token`: bearer tokens of the HTTP door.
-- @module umavez.cli.token

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local json = require("umavez.json")
local operator = require("umavez.cli.operator")
local pg = require("umavez.pg")
local settings = require("umavez.cli.settings")
local sys = require("umavez.sys")
local tasks = require("umavez.cli.tasks")

local M = { summary = "make, list and revoke bearer tokens of the HTTP door" }

M.examples = {
  "umavez token create --tenant 7 --scope payments.pix --name shop",
  "umavez token create --platform --scope '*' --expires 2027-01-31",
  "umavez token create --platform --scope metrics --expires 90d",
  "umavez token create --platform --scope ui:write --name maria      (for the dashboard, docs/ui.md)",
  "umavez token list",
  "umavez token revoke 3",
}
M.settings = { "database_url", "connect_timeout", "tasks_dir" }

function M.configure(parser)
  parser:argument("action", "create, list or revoke."):choices({ "create", "list", "revoke" })
  parser:argument("id", "revoke: the token's number, as list shows it."):args("?")
  parser:option("--tenant", "create: the tenant whose requests it sends."):convert(cli.id)
  parser:flag("--platform", "create: for tasks of the platform, not of a tenant.")
  parser:option("--scope", "create: a task (or a route's scope) that it may use; '*' for all. "
    .. "Apart from tasks: metrics, ui, ui:write."):count("*")
  parser:option("--name", "create: who it is for."):default("")
  parser:option("--expires", "create: when it ends: after so long (12h, 90d), or at a time as PostgreSQL reads it; "
    .. "default never.")
  parser:flag("--json", "Print JSON.")
end

-- 256 bits from the kernel.
local function new_token()
  local f = assert(io.open("/dev/urandom", "rb"))
  local octets = f:read(32)
  f:close()
  return "uv_" .. octets:gsub(".", function(c)
    return ("%02x"):format(c:byte())
  end)
end

local function check_scopes(scopes)
  if #scopes == 0 then
    cli.fail("usage", "say what it may do: --scope TASK (again for more), or --scope '*'")
  end
  for _, scope in ipairs(scopes) do
    if scope ~= "*" and (scope == "" or scope:find("[%s,*]")) then
      cli.fail("usage", "--scope: expected one task's name (again for more), or '*' alone, found \"%s\"", scope)
    end
  end
end

-- All that can be seen without a database.
local function check(args)
  if args.action ~= "revoke" and args.id then
    cli.fail("usage", "only revoke takes a token's number, found \"%s\"", args.id)
  elseif args.action == "revoke" and not (args.id and args.id:find("^%d+$")) then
    cli.fail("usage", "name the token's number: umavez token revoke ID (`umavez token list` shows them)")
  elseif args.action ~= "create" then
    for _, name in ipairs { "tenant", "platform", "expires" } do
      if args[name] then
        cli.fail("usage", "--%s is for `umavez token create` only", name)
      end
    end
  elseif args.tenant and args.platform then
    cli.fail("usage", "a token is a tenant's or the platform's: --tenant N or --platform, not both")
  elseif not args.tenant and not args.platform then
    cli.fail("usage", "say whose token it is: --tenant N, or --platform")
  else
    check_scopes(args.scope)
  end
end

local EXPIRES = [[
SELECT t.at::text AS at, t.at <= clock_timestamp() AS past
  FROM (SELECT coalesce(clock_timestamp() + $1::interval, $2::timestamptz) AS at) t]]

local function expiry(db, text)
  local row = text and operator.times(db, EXPIRES, "--expires", text)
  if row and row.past then
    cli.fail("usage", "--expires: %s is over already: the token would never be valid", row.at)
  end
  return row and row.at
end

-- Any name may be a scope, since its route may come later; but say so when only others are known.
local function note_unknown(db, scopes, declared)
  local known = operator.known_tasks(db, declared)
  if #known == 0 then
    return
  end
  for _, scope in ipairs { "metrics", "ui", "ui:write" } do
    known[#known + 1] = scope
  end
  for _, task in pairs(declared) do
    known[#known + 1] = task.http and task.http.scope or nil
  end
  for _, scope in ipairs(scopes) do
    if scope ~= "*" and not cli.contains(known, scope) then
      cli.note("no worker has registered a task %s so far, and no manifest here declares it%s", scope,
        cli.did_you_mean(scope, known))
    end
  end
end

local function create(db, args, conf)
  local expires = expiry(db, args.expires)
  local token = new_token()
  local ok, row = pcall(db.one, db,
    "SELECT umavez.token_create(decode($1, 'hex'), $2, $3::bigint, $4::text[], $5::timestamptz) AS id",
    sys.sha256_hex(token), args.name, args.tenant, pg.array(args.scope), expires)
  if not ok then
    database.check_tenant(row, args.tenant, conf)
    error(row, 0)
  end
  note_unknown(db, args.scope, tasks.declared(conf))
  if args.json then
    cli.print_json { id = row.id, token = token }
  else
    print(token)
    io.stderr:write(("token %s; it is shown this once, only its SHA-256 is stored\n"):format(tostring(row.id)))
  end
end

local LIST = [[
SELECT id, name, tenant_id, to_jsonb(scopes) AS scopes, created_at::text, expires_at::text, revoked_at::text,
       CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN expires_at <= clock_timestamp() THEN 'expired'
            ELSE 'valid' END AS state
  FROM umavez.tokens ORDER BY id]]

local function list(db, args)
  local rows = db:query(LIST)
  if args.json then
    return cli.print_json(json.array(rows))
  end
  local lines = {}
  for _, row in ipairs(rows) do
    lines[#lines + 1] = {
      row.id, row.state, row.tenant_id and "tenant " .. tostring(row.tenant_id) or "platform", row.name,
      table.concat(row.scopes, " "), row.created_at:sub(1, 19), row.expires_at and row.expires_at:sub(1, 19) or "never",
    }
  end
  cli.print_table({ "ID", "STATE", "OWNER", "NAME", "SCOPES", "CREATED", "EXPIRES" }, lines)
end

local function revoke(db, args)
  local id = tonumber(args.id)
  if not db:one("SELECT umavez.token_revoke($1::bigint) AS done", id).done then
    cli.fail("failed", "there is no valid token %d", id)
  end
  if args.json then
    cli.print_json { revoked = id }
  else
    print(("token %d is revoked; workers refuse it within 2 seconds"):format(id))
  end
end

function M.run(args)
  check(args)
  local conf = settings.load(args)
  local db = database.open_migrated(conf)
  local actions = { create = create, list = list, revoke = revoke }
  actions[args.action](db, args, conf)
  db:close()
end

return M
