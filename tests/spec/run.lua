--- Runs busted inside our own binary: `build/umavez exec tests/spec/run.lua [busted's arguments and files]`.
--
-- Specs that need PostgreSQL get a private server for the time of this run, or the one of UMAVEZ_TEST_DATABASE_URL
-- (role with CREATEDB). Each such file makes a database of its own by tests/spec/helper.lua.
local here = arg[0]:match("^(.*)/[^/]*$") or "."
package.path = here .. "/?.lua;" .. package.path

local helper = require("helper")

local files = false
for _, a in ipairs(arg) do
  files = files or a:sub(1, 1) ~= "-"
end
if not files then
  table.insert(arg, here)
end
table.insert(arg, "--output=" .. (os.getenv("UMAVEZ_TEST_OUTPUT") or "plainTerminal"))
table.insert(arg, "--pattern=_spec%.lua$")

-- busted leaves by os.exit, or, when something failed, by an error without a value.
local exit = os.exit
os.exit = function(code) -- luacheck: ignore 122
  helper.stop()
  exit(code)
end

helper.start()
local ok, err = pcall(require("busted.runner"), { standalone = false })
helper.stop()
if not ok and err ~= nil then
  io.stderr:write(tostring(err), "\n")
end
return ok and 0 or 1
