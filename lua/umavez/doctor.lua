--- What `umavez doctor` looks at, and what a finding is.
--
-- A check is a function that gets `look` (below) and reports findings through it. A check that raises is itself a
-- finding: others go on. Nothing is changed by any of them, nothing waits for a lock, and every count is bounded.
--
--     look.db        umavez.pg's connection, or nil      look.conf     the settings
--     look.old_s     what counts as a long transaction
--     look:error(check, found, why, fix)                 look:warning(…)   look:info(…)   look:ok(check, found)
-- @module umavez.doctor

local M = {}

--- From worst to best.
M.SEVERITIES = { "error", "warning", "info", "ok" }

local CHECKS = { "machine", "postgres", "schema", "queue", "valkey" }

local Look = {}
Look.__index = Look

for _, severity in ipairs { "error", "warning", "info" } do
  Look[severity] = function(self, check, found, why, fix)
    self.findings[#self.findings + 1] = { severity = severity, check = check, found = found, why = why, fix = fix }
  end
end

--- Report that all is well.
function Look:ok(check, found)
  self.findings[#self.findings + 1] = { severity = "ok", check = check, found = found }
end

local function why_it_failed(err)
  if type(err) ~= "table" then
    error(err, 0)                                                -- our fault
  end
  return tostring(err.message or err.code)
end

-- One check. A server that refuses to show something is no reason to hide the rest.
local function try(look, name, check)
  local ok, err = pcall(check, look)
  if not ok then
    look:info(name, "could not be looked at: " .. why_it_failed(err), "A check that is not made finds nothing.",
      "Give this role the right to look (umavez_operator, pg_monitor), or run the doctor as another one.")
  end
end

--- Look at everything.
-- @param db umavez.pg's connection; nil when there is none
-- @tparam table conf the settings
-- @tparam number old_s what counts as a long transaction, in seconds
-- @treturn {table,...} findings: severity, check, found, why, fix; the worst first
-- @yields
function M.examine(db, conf, old_s)
  local look = setmetatable({ db = db, conf = conf, old_s = old_s, findings = {} }, Look)
  for _, name in ipairs(CHECKS) do
    for _, check in ipairs(require("umavez.doctor." .. name)) do
      if db or not check.database then
        try(look, check.name, check.look)
      end
    end
  end
  local sorted = {}
  for _, severity in ipairs(M.SEVERITIES) do
    for _, finding in ipairs(look.findings) do
      if finding.severity == severity then
        sorted[#sorted + 1] = finding
      end
    end
  end
  return sorted
end

return M
