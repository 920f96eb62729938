--- HTTP routes of the manifests that no request could tell apart. core/door_route.c, which serves them, refuses the
-- same; here it is found by `umavez check` and at every worker's start, door or not, and names the file.
-- @module umavez.routes

local sorted = require("umavez.names").sorted

local M = {}

-- Two routes are one when only the names of their parameters differ.
local function shape(http)
  return http.method .. " " .. http.path:gsub("{[^/]*}", "{}")
end

--- @tparam table found checked tasks by name
-- @tparam function report called with the later task of each pair, and the fault
function M.check(found, report)
  local first = {}
  for _, name in ipairs(sorted(found)) do
    local http = found[name].http
    local key = http and http.method and http.path and shape(http)
    if key and first[key] then
      report(found[name], { task = name, field = "http.path",
        message = ("is the route of %s, too (%s %s)"):format(first[key], http.method, http.path),
        expected = "a path or a method of its own" })
    elseif key then
      first[key] = name
    end
  end
end

return M
