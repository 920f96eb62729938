--- Where the program's Lua side begins: `umavez exec FILE` runs a script, everything else is the command line.
-- @module umavez.start

local function exec(path, ...)
  local fn, err = loadfile(path)
  if not fn then
    io.stderr:write("umavez exec: ", err, "\n")
    return 1
  end
  _G.arg = { [-1] = "umavez", [0] = path, ... }
  return fn(...)
end

--- Run a command line.
-- @tparam string ... the arguments after the program's name
-- @return the exit code
-- @yields
return function(...)
  local first, path = ...
  if first == "exec" and path and path:sub(1, 1) ~= "-" then
    return exec(select(2, ...))
  end
  return require("umavez.cli.main").main({ ... })
end
