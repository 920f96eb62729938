--- README.pt-BR.md says what README.md says: the same outline, the same code, commands, links, tables and figures.
--
--     umavez exec tests/lint/languages.lua
--
-- What is compared are the parts that no translation changes. Silence means that all is well.
local shell = require("umavez.shell")

local function matches(text, pattern)
  local list = {}
  for found in text:gmatch(pattern) do
    list[#list + 1] = found
  end
  return list
end

-- Of a text without its code: 6,500 and 6.500 are one figure.
local function figures(text)
  local list = {}
  for found in text:gmatch("%d[%d.,]*") do
    list[#list + 1] = (found:gsub("[.,]", ""))
  end
  table.sort(list)
  return list
end

local function sorted(list)
  table.sort(list)
  return list
end

local function parts(path)
  local text = shell.read_file(path)
  local code = {}
  local prose = text:gsub("\n```([^\n]*\n.-\n)```", function(block)
    code[#code + 1] = block
    return "\n"
  end)
  prose = prose:gsub("\n%[?[^\n]*README[^\n]*\n", "\n")                -- the line that names the other language
  local outline = {}
  for line in prose:gmatch("[^\n]+") do
    outline[#outline + 1] = line:match("^#+ ") or line:match("^|") or line:match("^%- ")
  end
  return {
    { "code blocks", code }, { "outline (headings, rows of tables, points)", outline },
    { "commands and names in `…`", sorted(matches(prose, "`[^`\n]+`")) },
    { "links", sorted(matches(prose, "%]%([^)]+%)")) },
    { "comments", matches(prose, "<!%-%- .- %-%->") },
    { "figures", figures((prose:gsub("`[^`\n]+`", ""):gsub("%]%([^)]+%)", ""))) },
  }
end

local function shown(item)
  return item and ("%q"):format(item:sub(1, 80)) or "nothing more"
end

local english, other = parts("README.md"), parts("README.pt-BR.md")
for i, part in ipairs(english) do
  local mine, theirs = part[2], other[i][2]
  for k = 1, math.max(#mine, #theirs) do
    if mine[k] ~= theirs[k] then
      print(("README.pt-BR.md: its %s are not those of README.md: found %s, there is %s"):format(
        part[1], shown(theirs[k]), shown(mine[k])))
      break
    end
  end
end
for path, link in pairs { ["README.md"] = "](README.pt-BR.md)", ["README.pt-BR.md"] = "](README.md)" } do
  if not shell.read_file(path):find(link, 1, true) then
    print(path .. ": the link to the other language is missing")
  end
end
