--- The files of a new task: its entry in a manifest, its handler, its spec.
-- @module umavez.scaffold

local M = {}

local ENTRY = [[
@NAME@ = {
  description = "what @TASK@ is for",
  owner = "@OWNER@",
  key = { "reference" }, -- runs of one reference are one operation; without a key, only redeliveries of a run are
  args = {
    reference = { type = "string", required = true, min = 1 },
  },
},]]

local MANIFEST = [[
-- The tasks of this folder; docs/manifest.md lists the fields.
return {
  tasks = {
@ENTRY@
  },
}
]]

local HANDLER = [[
-- What is done here through ctx.sql commits together with the outcome, or not at all; docs/tasks.md is the guide.
---@param ctx umavez.Ctx
---@param args table
return function(ctx, args)
  ctx.log:info("@TASK@ begins", { reference = args.reference })
  -- ctx.sql:exec("INSERT INTO @NAME@s (reference) VALUES ($1)", args.reference)
  return { reference = args.reference }
end
]]

local SPEC = [[
-- `umavez test` runs this; docs/testing.md is the guide.
local t = require("umavez.testing")

describe("@TASK@", function()
  it("does its work once, though a worker dies and the operation comes twice", function()
    t:crash_at("before_commit")
    local first, second, again = t:deliver_twice("@TASK@", { reference = "r-1" }@OPTIONS@)
    assert.same({ reference = "r-1" }, first)
    assert.same(first, second)
    assert.is_true(again.replay)
    -- t:assert_effects_once("SELECT FROM @NAME@s WHERE reference = $1", "r-1")
  end)

  it("wants a reference that is a text", function()
    local outcome = t:run("@TASK@", { reference = 7 }@OPTIONS@)
    assert.equal("args_invalid", outcome.code)
  end)
end)
]]

local function filled(text, task)
  local values = { NAME = task.name, TASK = task.full, OWNER = task.owner,
    OPTIONS = task.owner == "tenant" and ", { tenant = 1 }" or "" }
  return (text:gsub("@(%u+)@", values))
end

local function indented(text, indent)
  return indent .. text:gsub("\n", "\n" .. indent)
end

--- The entry of a manifest.
-- @tparam table task name, full (with the folder's names), owner
-- @treturn string
function M.entry(task)
  return filled(ENTRY, task)
end

--- A manifest with this task alone.
function M.manifest(task)
  return (MANIFEST:gsub("@ENTRY@", function() return indented(M.entry(task), "    ") end))
end

--- A handler, and its spec.
function M.handler(task) return filled(HANDLER, task) end
function M.spec(task) return filled(SPEC, task) end

-- The end of a string or comment that begins at `at`, or nil when none does.
local function skip(text, at)
  local dashes, level = text:match("^(%-?%-?)%[(=*)%[", at)
  if level and dashes ~= "-" then
    local _, stop = text:find("]" .. level .. "]", at, true)
    return stop or #text
  elseif text:find("^%-%-", at) then
    return (text:find("\n", at, true) or #text + 1) - 1
  end
  local quote = text:match("^[\"']", at)
  if not quote then
    return nil
  end
  local stop = at + 1
  while stop <= #text and text:sub(stop, stop) ~= quote do
    stop = stop + (text:sub(stop, stop) == "\\" and 2 or 1)
  end
  return stop
end

-- Where `tasks = {` of the table that the manifest returns ends: the place of its `}`, and of the last thing before it.
local function find_tasks(text)
  local at, depth, inside, last = 1, 0, nil, nil
  while at <= #text do
    local stop = skip(text, at)
    local comment = stop and text:sub(at, at + 1) == "--"
    local char = text:sub(at, at)
    if not stop and depth == 1 and not inside and text:find("^tasks%s*=%s*{", at)
      and not text:sub(at - 1, at - 1):find("[%w_.]")
    then
      stop = select(2, text:find("^tasks%s*=%s*{", at))
      depth, inside = 2, true
    elseif not stop and char == "{" then
      depth = depth + 1
    elseif not stop and char == "}" then
      if inside and depth == 2 then
        return at, last
      end
      depth = depth - 1
    end
    stop = stop or at
    if not comment and char:find("%S") then
      last = stop
    end
    at = stop + 1
  end
end

--- Put a task's entry into a manifest's text, at the end of its tasks. The caller checks what came of it.
-- @tparam string text
-- @tparam table task
-- @treturn string|nil nil when the place cannot be found
function M.insert(text, task)
  local close, last = find_tasks(text)
  if not close then
    return nil
  end
  local line_start = 1
  for newline in text:sub(1, close - 1):gmatch("()\n") do
    line_start = newline + 1
  end
  local indent = text:match("^[ \t]*", line_start)
  local comma = text:sub(last, last):find("[{,;]") and "" or ","
  local rest = text:sub(last + 1, close - 1):gsub("%s+$", "")
  return text:sub(1, last) .. comma .. rest .. "\n" .. indented(M.entry(task), indent .. "  ") .. "\n" .. indent
    .. text:sub(close)
end

return M
