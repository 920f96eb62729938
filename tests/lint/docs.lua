--- The parts of the docs that follow from a table: compares them, or writes them with `--write`.
--
--     umavez exec tests/lint/docs.lua [--write]
--
-- A part stands between `<!-- from: WHAT -->` and `<!-- end -->`. Silence means that all is well.
local conf = require("umavez.conf")
local main = require("umavez.cli.main")
local metrics = require("umavez.c.stats").metrics()
local shell = require("umavez.shell")

local function block(text)
  return "```\n" .. text:gsub("%s+$", "") .. "\n```"
end

local makers = {}

function makers.overview()
  return block(main.overview())
end

-- `help: COMMAND`
function makers.help(command)
  return block((main.parser(command):get_help()))
end

function makers.manifest()
  return require("umavez.manifest").docs()
end

function makers.queues()
  return require("umavez.manifest").docs(require("umavez.queues").fields)
end

function makers.args()
  return require("umavez.args").docs()
end

function makers.settings()
  local lines = { "| setting | type | default | environment | what |", "|---|---|---|---|---|" }
  for _, o in ipairs(conf.options()) do
    local values = o.values and (" (" .. o.values:gsub("|", ", ") .. ")") or ""
    lines[#lines + 1] = ("| `%s` | %s%s | %s | `%s` | %s |"):format(o.name, o.type, values,
      o.default == "" and "empty" or "`" .. o.default .. "`", o.env, (o.doc:gsub("|", "\\|")))
  end
  return table.concat(lines, "\n")
end

function makers.metrics()
  local lines = { "| metric | type | labels | what |", "|---|---|---|---|" }
  for _, m in ipairs(metrics) do
    local labels = { m.by_task and "`task`" or nil }
    if m.label ~= "" then
      local values = #m.values > 0 and (" (%s)"):format(table.concat(m.values, ", ")) or ""
      labels[#labels + 1] = ("`%s`%s"):format(m.label, values)
    end
    lines[#lines + 1] = ("| `%s` | %s | %s | %s |"):format(m.name, m.type, table.concat(labels, ", "), m.help)
  end
  return table.concat(lines, "\n")
end

local write = arg[1] == "--write"
local faults, seen = 0, {}

local function fault(...)
  print((...):format(select(2, ...)))
  faults = faults + 1
end

for _, path in ipairs(shell.glob("docs/*.md README.md")) do
  local text = shell.read_file(path)
  local new = text:gsub("(<!%-%- from: ([%a]+):? ?([%w_]*) %-%->\n)(.-)(<!%-%- end %-%->)",
    function(head, name, argument, old, tail)
      local make = makers[name]
      if not make then
        fault("%s: nothing is known of \"%s\"", path, name)
        return nil
      end
      seen[name .. argument] = true
      local body = make(argument) .. "\n"
      if body ~= old and not write then
        fault("%s: \"%s %s\" does not follow its table: `umavez exec tests/lint/docs.lua --write` mends it",
          path, name, argument)
      end
      return head .. body .. tail
    end)
  if write and new ~= text then
    local file = assert(io.open(path, "wb"))
    file:write(new)
    file:close()
  end
end

for _, command in ipairs(main.COMMANDS) do
  if command ~= "help" and command ~= "version" and not seen["help" .. command] then
    fault("docs/cli.md: the command %s is missing", command)
  end
end
for _, name in ipairs { "overview", "settings", "metrics" } do
  if not seen[name] then
    fault("docs: the part \"%s\" is missing", name)
  end
end
-- The dashboard and the rules use metrics that there are; a histogram's by the names of its series.
local known = {}
for _, m in ipairs(metrics) do
  for _, suffix in ipairs(m.type == "histogram" and { "_bucket", "_sum", "_count" } or { "" }) do
    known[m.name .. suffix] = true
  end
end
for _, path in ipairs(shell.glob("contrib/grafana-dashboard.json contrib/alerts.yml docs/metrics.md")) do
  for name in shell.read_file(path):gmatch("%f[%w_](umavez_[%w_]+)") do
    if not known[name] and not (path:match("%.md$") and known[name .. "_sum"]) then
      fault("%s: there is no metric %s", path, name)
    end
  end
end
return faults == 0 and 0 or 1
