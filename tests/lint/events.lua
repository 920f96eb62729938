--- Every event that the program can log stands in the tables under "## Log" of docs/operations.md, and nothing else.
--
--     umavez exec tests/lint/events.lua
--
-- The names are read from the calls in the sources. Silence means that all is well.
local shell = require("umavez.shell")
local sorted = require("umavez.names").sorted

-- Which argument of a call is the event's name.
local CALLS = { log_kv = 2, log_err = 2, log_pairs = 2, log_run = 2, log_end = 3, log_failure = 2, tell = 3,
  runner_trouble = 2, trouble_tell = 2, runner_finish = 3, say = 1 }

-- The arguments of the call whose opening parenthesis is at `from`.
local function arguments(text, from)
  local list, depth, start, i = {}, 0, from + 1, from
  while i <= #text do
    local c = text:sub(i, i)
    if c == "\"" then
      i = text:find("[^\\]\"", i) + 1
    elseif c == "(" or c == "{" then
      depth = depth + 1
    elseif c == ")" or c == "}" then
      depth = depth - 1
    end
    if depth == 0 or depth == 1 and c == "," then
      list[#list + 1] = text:sub(start, i - 1)
      start = i + 1
      if depth == 0 then
        return list
      end
    end
    i = i + 1
  end
  return list
end

local used = {}
for _, path in ipairs(shell.glob("runtime/*/*.c lua/umavez/cli/*.lua")) do
  local text = shell.read_file(path)
  for name, at in text:gmatch("%f[%w_]([%w_]+)()%(") do
    for word in ((CALLS[name] and arguments(text, at)[CALLS[name]]) or ""):gmatch("\"([a-z][a-z_]+)\"") do
      used[word] = path
    end
  end
end

local told = {}
local section = shell.read_file("docs/operations.md"):match("\n## Log\n(.-)\n## ")
for cell in section:gmatch("\n| (`[^|]*) |") do
  for word in cell:gmatch("`([a-z][a-z_]+)`") do
    if told[word] then
      print(("docs/operations.md: the event %s stands in two rows"):format(word))
    end
    told[word] = true
  end
end

for _, word in ipairs(sorted(used)) do
  if not told[word] then
    print(("%s: the event %s is missing under \"Log\" in docs/operations.md"):format(used[word], word))
  end
end
for _, word in ipairs(sorted(told)) do
  if not used[word] then
    print(("docs/operations.md: nothing logs the event %s"):format(word))
  end
end
