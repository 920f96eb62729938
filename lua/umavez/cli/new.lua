--- `umavez new`: the files of a new task.
-- @module umavez.cli.new

local cli = require("umavez.cli")
local manifest = require("umavez.manifest")
local scaffold = require("umavez.scaffold")
local settings = require("umavez.cli.settings")
local shell = require("umavez.shell")
local sys = require("umavez.sys")
local tasks = require("umavez.cli.tasks")

local M = { summary = "write the files of a new task: manifest entry, handler, spec" }

M.examples = {
  "umavez new task payments.refund",
  "umavez new task reports.daily --owner platform",
}
M.settings = { "tasks_dir" }

local KEYWORDS = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat return then true until
  while]]):gmatch("%a+") do
  KEYWORDS[word] = true
end

function M.configure(parser)
  parser:argument("what", "What to make: task."):convert(cli.one_of { "task" })
  parser:argument("name", "The task's name: its folder's and its own, joined by a dot.")
  parser:option("--owner", "Whose its runs are: tenant or platform.", "tenant")
    :convert(cli.one_of { "tenant", "platform" })
  parser:flag("--json", "Print one JSON object.")
end

local function parse_name(full)
  local parts = {}
  for part in (full .. "."):gmatch("([^.]*)%.") do
    if not part:find("^[%a_][%w_]*$") or #part > 64 or KEYWORDS[part] then
      cli.fail("usage", "a task's name is made of parts like payments.refund: letters, digits and _, no word of Lua; "
        .. "found \"%s\"", full)
    end
    parts[#parts + 1] = part
  end
  local name = table.remove(parts)
  return { name = name, full = full, folder = table.concat(parts, "/") }
end

local function same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then
    return a == b or type(a) == "function" and type(b) == "function"
  end
  for k, v in pairs(a) do
    if not same(v, b[k]) then
      return false
    end
  end
  for k in pairs(b) do
    if a[k] == nil then
      return false
    end
  end
  return true
end

-- Only an insertion that adds this task and leaves everything else as it was is taken.
local function extended(text, path, task)
  local new = scaffold.insert(text, task)
  local before, after = manifest.evaluate(text, path), new and manifest.evaluate(new, path)
  if type(before) ~= "table" or type(after) ~= "table" or type(after.tasks) ~= "table" then
    return nil
  end
  local entry = after.tasks[task.name]
  after.tasks[task.name] = nil
  return entry ~= nil and same(before, after) and new or nil
end

local function new_manifest(path, task)
  local text = shell.read_file(path)
  if not text then
    return scaffold.manifest(task)
  end
  local new = extended(text, path, task)
  if not new then
    cli.fail("failed", "%s is not of the usual form (return { tasks = { … } }), so nothing was written; add this to "
      .. "its tasks, and call this again:\n%s", path, scaffold.entry(task))
  end
  return new
end

local function write(path, text)
  local file, why = io.open(path, "wb")
  if not file or not file:write(text) or not file:close() then
    cli.fail("failed", "cannot write %s: %s", path, why or "the file system refuses")
  end
end

-- The files to write, in their order; nothing is written when one of them is in the way.
local function plan(conf, task, found)
  local dir = conf.tasks_dir .. (task.folder == "" and "" or "/" .. task.folder)
  local base = dir .. "/" .. task.name
  local files = { { base .. ".lua", scaffold.handler(task) }, { base .. "_spec.lua", scaffold.spec(task) } }
  for _, file in ipairs(files) do
    if shell.exists(file[1]) then
      cli.fail("failed", "%s is there already; nothing was written", file[1])
    end
  end
  if not found then
    local path = dir .. "/manifest.lua"
    files[#files + 1] = { path, new_manifest(path, task) }
  end
  return dir, files
end

-- A task that is declared, but has no handler, was entered by hand: its files are still wanted.
local function declared(conf, task)
  if not sys.exists(conf.tasks_dir) then
    return nil
  end
  local found = tasks.load(conf)[task.full]
  if found and found.effect then
    cli.fail("failed", "there is a task %s already, declared in %s/manifest.lua", task.full, found.folder)
  end
  return found
end

function M.run(args)
  local task = parse_name(args.name)
  local conf = settings.load(args)
  local found = declared(conf, task)
  task.owner = found and found.owner or args.owner
  local dir, files = plan(conf, task, found)
  local ok, why = shell.run("mkdir -p " .. shell.quote(dir))
  if not ok then
    cli.fail("failed", "cannot make %s: %s", dir, why)
  end
  local paths = require("umavez.json").array {}
  for i, file in ipairs(files) do
    write(file[1], file[2])
    paths[i] = file[1]
  end
  if args.json then
    return cli.print_json { task = task.full, files = paths }
  end
  print(table.concat(paths, "\n"))
  cli.note("%s is there; `umavez test %s` runs its spec", task.full, paths[2])
end

return M
