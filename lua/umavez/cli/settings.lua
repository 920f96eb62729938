--- The settings of a command: umavez.lua, then the environment, then its flags; later ones win.
-- @module umavez.cli.settings

local cli = require("umavez.cli")
local conf = require("umavez.conf")
local shell = require("umavez.shell")

local M = {}

local function flag_of(name)
  return "--" .. name:gsub("_", "-")
end

local function describe(option)
  local default = option.default ~= "" and ("; default %s"):format(option.default) or ""
  local values = option.values and (" (%s)"):format(option.values:gsub("|", ", ")) or ""
  return ("%s%s%s [%s]"):format(option.doc:gsub("^%l", string.upper), values, default, option.env)
end

--- Give a command the flags of its settings.
-- @param parser argparse's
-- @tparam {string,...}|string names of settings, or "all"
function M.add_flags(parser, names)
  if #names == 0 then
    return
  end
  parser:option("--config", "The file with the settings; default umavez.lua, where it is there [UMAVEZ_CONFIG].")
    :argname("FILE")
  for _, option in ipairs(conf.options()) do
    if names == "all" or cli.contains(names, option.name) then
      parser:option(flag_of(option.name), describe(option)):argname("VALUE"):target("setting_" .. option.name)
    end
  end
end

-- umavez.lua is data: it returns a table, and sees nothing of the program.
local function load_file(settings, path)
  local text = shell.read_file(path)
  if not text then
    cli.fail("config", "cannot read the settings' file %s", path)
  end
  local chunk, why = loadstring(text, "@" .. path)
  if not chunk or text:byte(1) == 27 then
    cli.fail("config", "%s", why or (path .. ": compiled code is not accepted"))
  end
  local ok, values = pcall(setfenv(chunk, {}))
  if not ok then
    cli.fail("config", "%s", type(values) == "string" and values or path .. ": raised an error")
  elseif type(values) ~= "table" then
    cli.fail("config", "%s: expected a table (return { … }), found %s", path, type(values))
  end
  for name, value in pairs(values) do
    if type(name) ~= "string" then
      cli.fail("config", "%s: expected names of settings, found a position (%s)", path, tostring(name))
    end
    settings:set(name, value, path)
  end
end

--- The settings, from everywhere.
-- @tparam table args what argparse gave
-- @return umavez.conf's settings
function M.load(args)
  local settings = conf.new()
  local ok, err = pcall(function()
    local path = args.config or os.getenv("UMAVEZ_CONFIG")
    if path and path ~= "" then
      load_file(settings, path)
    elseif shell.read_file("umavez.lua") then
      load_file(settings, "umavez.lua")
    end
    settings:load_env()
    for _, option in ipairs(conf.options()) do
      local value = args["setting_" .. option.name]
      if value then
        settings:set(option.name, value, flag_of(option.name))
      end
    end
  end)
  if not ok then
    if type(err) == "table" and not err.exit then
      cli.fail("config", "%s", err.message)
    end
    error(err, 0)
  end
  return settings
end

--- The list of settings, for `umavez help settings`.
-- @treturn string
function M.describe()
  local lines = { "Settings stand in umavez.lua (return { pool_size = 20 }), are overridden by the environment,",
    "and that by flags.", "" }
  for _, option in ipairs(conf.options()) do
    lines[#lines + 1] = ("%s (%s, default %s)"):format(option.name, option.type,
      option.default == "" and "empty" or option.default)
    lines[#lines + 1] = ("   %s%s"):format(option.doc, option.values and ": " .. option.values:gsub("|", ", ") or "")
    lines[#lines + 1] = ("   %s, %s"):format(option.env, flag_of(option.name))
  end
  return table.concat(lines, "\n")
end

return M
