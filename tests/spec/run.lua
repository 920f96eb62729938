--- Runs busted inside our own binary: `build/umavez exec tests/spec/run.lua [busted's arguments and files]`.
--
-- Specs that need PostgreSQL take its URL from UMAVEZ_TEST_DATABASE_URL, and are pending without it. Each such file
-- gets a database of its own from tests/spec/helper.lua.
local here = arg[0]:match("^(.*)/[^/]*$") or "."
package.path = here .. "/?.lua;" .. package.path

local files = false
for _, a in ipairs(arg) do
  files = files or a:sub(1, 1) ~= "-"
end
if not files then
  table.insert(arg, here)
end
table.insert(arg, "--output=" .. (os.getenv("UMAVEZ_TEST_OUTPUT") or "plainTerminal"))
table.insert(arg, "--pattern=_spec%.lua$")

-- When something failed, busted leaves by an error without a value.
local ok, err = pcall(require("busted.runner"), { standalone = false })
if not ok and err ~= nil then
  io.stderr:write(tostring(err), "\n")
end
return ok and 0 or 1
