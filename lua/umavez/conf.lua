--- The settings of a process, from the program's one table of options.
--
-- A settings object answers to the options' names: `settings.pool_size`, `settings.queues`. Durations are numbers of
-- milliseconds there (`settings.lease`), lists are arrays.
-- @module umavez.conf

local c = require("umavez.c.conf")

local M = {}

local methods = {}

--- Set one option from text. Later calls win.
-- @function settings:set
-- @tparam string name hyphens count as underscores
-- @tparam string|number|boolean|table value an array for a list
-- @tparam string source where it was written, for messages: `"umavez.lua"`, `"--pool-size"`
-- @raise error object: unknown_option, bad_option
function methods.set(self, name, value, source)
  if type(value) == "table" then
    local items = {}
    for i, item in ipairs(value) do
      items[i] = tostring(item)
    end
    value = table.concat(items, ",")
  end
  c.set(self.handle, name, tostring(value), source)
end

--- Take the options' environment variables.
-- @function settings:load_env
-- @raise error object: unknown_option, bad_option
function methods.load_env(self)
  c.load_env(self.handle)
end

--- An option's value as it would be written (secrets included).
-- @function settings:text
-- @tparam string name
-- @treturn string
function methods.text(self, name)
  return c.text(self.handle, name)
end

--- Where an option's value came from.
-- @function settings:source
-- @tparam string name
-- @treturn string `"default"` when nobody set it
function methods.source(self, name)
  return c.source(self.handle, name)
end

local meta = {
  __index = function(self, name)
    local method = methods[name]
    if method ~= nil then
      return method
    end
    return c.get(self.handle, name)
  end,
  __newindex = function(_, name)
    error(("set options with settings:set(%q, value, source)"):format(tostring(name)), 2)
  end,
}

--- New settings, every option at its default.
-- @treturn table
function M.new()
  return setmetatable({ handle = c.new() }, meta)
end

--- The table of options.
-- @treturn table array of `{ name, type, default, env, values?, min?, max?, doc }`
M.options = c.options

--- A URL or keyword string without its password, fit for messages and logs.
-- @function redact
-- @tparam string url
-- @treturn string
M.redact = c.redact

return M
