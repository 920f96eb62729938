--- The names in a table, in an order that is always the same.
-- @module umavez.names

local M = {}

--- @tparam table t keys of any type
-- @treturn {any,...} its keys, sorted as texts
function M.sorted(t)
  local names = {}
  for name in pairs(t) do
    names[#names + 1] = name
  end
  table.sort(names, function(a, b)
    return tostring(a) < tostring(b)
  end)
  return names
end

return M
