--- The manual page umavez(1), as roff on standard output, from the same tables as docs/cli.md.
--
--     umavez exec contrib/man.lua > umavez.1
--
-- A command's part follows the text of its `--help`, whose shape `umavez.cli.main` fixes: paragraphs at the margin,
-- entries three columns in, their explanations further in. tests/lint/man holds the page against that text.
local conf = require("umavez.conf")
local main = require("umavez.cli.main")
local version = require("umavez.version")

local out = {}

local function put(...)
  out[#out + 1] = table.concat({ ... })
end

local SPECIAL = { ["\\"] = "\\e", ["-"] = "\\-", ["'"] = "\\(aq", ["`"] = "\\(ga", ["^"] = "\\(ha", ["~"] = "\\(ti" }

-- Text as roff shows it unchanged: nothing in it is a request or an escape.
local function plain(text)
  text = text:gsub("[\\'`^~-]", SPECIAL):gsub("…", "...")
  return (text:gsub("^%.", "\\&."))
end

local function bold(text)
  return "\\fB" .. plain(text) .. "\\fR"
end

local function section(name)
  put(".SH ", name)
end

local function example(lines)
  put(".EX")
  for _, line in ipairs(lines) do
    put(plain(line))
  end
  put(".EE")
end

local function entry(head, text)
  put(".TP")
  put(bold(head))
  put(text == "" and "\\&" or plain(text))
end

-- The parts of a help text: { usage = lines, summary = lines, Arguments = lines, Options = lines, examples = lines }.
local function parts_of(help)
  local parts, name = {}, "usage"
  for line in (help .. "\n"):gmatch("(.-)\n") do
    if line == "" then
      name = name == "usage" and "summary" or ""
    elseif line:match("^%a[%a ]*:$") then
      name = line:sub(1, -2)
    else
      local part = name ~= "" and name or "rest"
      parts[part] = parts[part] or {}
      table.insert(parts[part], line)
    end
  end
  return parts
end

-- An entry and its explanation stand on one line with two spaces or more between them, or the explanation on the next.
local function put_entries(lines)
  local head, text
  local function flush()
    if head then
      entry(head, text)
    end
  end
  for _, line in ipairs(lines or {}) do
    local own = line:match("^   (%S.*)$")
    if own then
      flush()
      local left, right = own:match("^(.-)  +(.*)$")
      head, text = left or own, right or ""
    else
      text = text .. (text == "" and "" or " ") .. line:match("^%s*(.-)%s*$")
    end
  end
  flush()
end

local function put_command(name)
  local parser, command = main.parser(name)
  local parts = parts_of(parser:get_help())
  put(".SS umavez ", plain(name))
  put(plain((command.summary:gsub("^%l", string.upper))), ".")
  put(".PP")
  local usage = table.concat(parts.usage, " "):gsub("%s+", " "):gsub("^Usage: ", "")
  put(plain((usage)))
  put_entries(parts.Arguments)
  put_entries(parts.Options)
  if command.examples then
    put(".PP")
    put("Examples:")
    put(".PP")
    example(command.examples)
  end
end

local function put_settings()
  section("SETTINGS")
  put("A setting stands in ", bold("umavez.lua"), ", is overridden by its environment variable, and that by its flag (",
    bold("pool_size"), " is ", bold("--pool-size"), ").")
  for _, o in ipairs(conf.options()) do
    local values = o.values and (" (" .. o.values:gsub("|", ", ") .. ")") or ""
    local default = o.default == "" and "empty" or o.default
    put(".TP")
    put(bold(o.name), " [", bold(o.env), "]")
    put(plain(("%s%s, default %s. %s"):format(o.type, values, default, o.doc)))
  end
end

put(".\\\" Made by contrib/man.lua from the program's own tables.")
put((".TH UMAVEZ 1 \"\" \"umavez %s\" \"User Commands\""):format(version))
put(".nh")
put(".ad l")
section("NAME")
put("umavez \\- job worker for tasks in Lua whose effects happen once")
section("SYNOPSIS")
put(bold("umavez"), " \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]")
section("DESCRIPTION")
put [[
Runs tasks written in Lua (LuaJIT), with PostgreSQL as queue and ledger and Valkey in front of it.
The queue delivers each message at least once; the effect, its row in the ledger and the removal from
the queue commit in one transaction, so that the effect happens once.
.PP
Standard output carries what was asked for; notes and errors go to standard error.]]
section("COMMANDS")
for _, name in ipairs(main.COMMANDS) do
  put_command(name)
end
put_settings()
section("EXIT STATUS")
for line in main.overview():match("exit codes:\n(.*)$"):gmatch("[^\n]+") do
  entry(line:match("^%s*(%d+)%s+(.*)$"))
end
section("FILES")
entry("umavez.lua", "The settings: in the working directory, or where UMAVEZ_CONFIG or --config says. The packaged "
  .. "service reads /etc/umavez/umavez.lua.")
entry("tasks/", "The tasks: a folder with a manifest.lua and handlers for each part of their names (tasks_dir).")
entry("/etc/umavez/environment", "Variables of the packaged service, DATABASE_URL among them; mode 0600.")
section("SEE ALSO")
put(bold("psql"), "(1), ", bold("systemd.service"), "(5), and the documentation in share/doc/umavez.")

io.write(table.concat(out, "\n"), "\n")
