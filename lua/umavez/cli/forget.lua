--- `umavez forget`: remove a settled key, so that its operation can be done anew.
-- @module umavez.cli.forget

local cli = require("umavez.cli")
local database = require("umavez.cli.database")
local operator = require("umavez.cli.operator")
local valkey = require("umavez.valkey")

local M = { summary = "remove a settled key, so that its operation can be done anew" }

M.examples = {
  "umavez forget --run 0b8f1f5e-6a7e-4b1c-9d4e-3c2a1f0e9d8c --reason 'paid out to the wrong account, INC-4711'",
  "umavez forget 9f86d081…0a08 --tenant 7 --reason '…'     a key by its digest, as `umavez show` prints it",
}
M.settings = { "database_url", "connect_timeout", "valkey_url", "valkey_prefix" }

function M.configure(parser)
  parser:argument("key", "The key's digest, 64 hexadecimal digits."):args("?")
  parser:option("--run", "The key of this run, which has ended."):argname("RUN_ID")
  parser:option("--tenant", "With a digest: the tenant whose key it is."):argname("ID")
  parser:flag("--platform", "With a digest: it is the platform's key.")
  operator.add_reason(parser)
  parser:flag("--without-valkey", "Go on though Valkey cannot be reached; a copy there is handed out until it ends.")
  parser:flag("--json", "Print one JSON object.")
end

local function check(args)
  if (args.key ~= nil) == (args.run ~= nil) then
    cli.fail("usage", "name one key: umavez forget DIGEST (--tenant ID | --platform) | --run RUN_ID")
  elseif args.key and not (#args.key == 64 and args.key:find("^%x+$")) then
    cli.fail("usage", "a key's digest has 64 hexadecimal digits, found \"%s\"", args.key)
  elseif args.key and (args.tenant ~= nil) == (args.platform == true) then
    cli.fail("usage", "say whose key it is: --tenant ID or --platform")
  elseif args.run and (args.tenant or args.platform) then
    cli.fail("usage", "--run says whose key it is: without --tenant and --platform")
  elseif args.tenant and not args.tenant:find("^%d+$") then
    cli.fail("usage", "--tenant must be an id, found \"%s\"", args.tenant)
  elseif not args.reason or args.reason == "" then
    cli.fail("usage", "a key is forgotten with a reason: --reason TEXT")
  elseif args.run then
    database.check_uuid(args.run)
  end
end

local KEY_OF = [[
SELECT tenant_id::text AS tenant, encode(idempotency_key, 'hex') AS key FROM umavez.finished_runs
 WHERE run_id = $1::uuid ORDER BY finished_at DESC LIMIT 1]]

local function key_of_run(db, run_id)
  local row = db:one(KEY_OF, run_id)
  if row and row.key then
    return row.key, row.tenant
  elseif row then
    cli.fail("failed", "run %s ended without a key: there is nothing to forget", run_id)
  elseif db:one("SELECT 1 FROM umavez.runs WHERE run_id = $1::uuid", run_id) then
    cli.fail("failed", "run %s has not ended: cancel it first (`umavez cancel %s`)", run_id, run_id)
  end
  cli.fail("failed", "there is no run %s (it may have been purged; name the key by its digest)", run_id)
end

-- The gate is reached before anything is changed: a copy that stays there would be handed out at the door.
local function open_gate(conf, args)
  if conf.valkey_url == "" or args.without_valkey then
    return nil
  end
  local gate, why = valkey.connect(conf)
  if not gate then
    cli.fail("failed", "Valkey cannot be reached (%s), so that a copy of the outcome could not be removed; nothing was "
      .. "changed. Start it, or say --without-valkey", why)
  end
  return gate
end

local REFUSED = {
  live = "the key is in use: a run or a request is at work with it, or holds its lease; nothing was changed",
  open = "the key is not settled (failed_retryable): its next run claims it anyhow; nothing was changed",
}

function M.run(args)
  check(args)
  local db, conf = operator.open(args)
  local key, tenant = args.key and args.key:lower(), args.tenant
  if args.run then
    key, tenant = key_of_run(db, args.run)
  end
  local gate = open_gate(conf, args)
  local state = db:one("SELECT umavez.forget_key($1::bigint, decode($2, 'hex'), $3, $4) AS state", tenant, key,
    args.reason, operator.actor()).state
  local copy, why
  if gate and not REFUSED[state] then
    copy, why = gate:forget_key(tenant, key)
  end
  if args.json then
    cli.print_json { key = key, tenant_id = tenant, state = state, gate_entry_removed = copy }
  elseif not REFUSED[state] then
    print(state == "forgotten" and ("the key %s is forgotten%s"):format(key, copy and ", its copy in Valkey too" or "")
      or ("there is no key %s%s"):format(key, copy and "; a copy in Valkey was removed" or ""))
  end
  if why then
    cli.fail("failed", "the copy in Valkey could not be removed (%s): call this again, or wait until it ends", why)
  elseif REFUSED[state] then
    cli.fail("failed", "%s", REFUSED[state])
  end
  return state == "absent" and cli.EXIT.failed or cli.EXIT.ok
end

return M
