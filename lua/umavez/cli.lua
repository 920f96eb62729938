--- What the commands share: exit codes, errors that a user sees, tables and JSON on standard output.
-- @module umavez.cli

local distance = require("umavez.distance")

local M = {}

--- Exit codes, documented in docs/cli.md.
M.EXIT = { ok = 0, failed = 1, usage = 2, config = 3, database = 4, crash_loop = 5, unwell = 6 }

--- Raise an error that the user sees as a message, without a traceback.
-- @tparam string kind a name of EXIT
-- @tparam string format for string.format
-- @param ... its values
function M.fail(kind, format, ...)
  local message = select("#", ...) > 0 and format:format(...) or format
  error({ exit = M.EXIT[kind], message = message }, 0)
end

--- Refuse a --limit that is no count.
-- @tparam number|nil limit what argparse made of it
function M.check_limit(limit)
  if not limit or limit < 1 or limit % 1 ~= 0 then
    M.fail("usage", "--limit must be a whole number from 1")
  end
end

--- An error's exit code and message: ours, or a binding's error object.
-- @tparam table err
-- @treturn int
-- @treturn string
function M.describe(err)
  local message = tostring(err.message or err.code or "failed")
  local sqlstate = err.sqlstate
  if sqlstate and sqlstate ~= "" then
    message = ("%s (SQLSTATE %s)"):format(message, sqlstate)
  end
  if err.detail and err.detail ~= "" then
    message = message .. "\n" .. tostring(err.detail)
  end
  if sqlstate == "42501" and not err.exit then
    message = message .. "\nThe role of database_url lacks a right: GRANT umavez_operator TO it (for a worker "
      .. "umavez_worker), see docs/ledger.md; `umavez migrate` is for the schema's owner."
  end
  return err.exit or err.code == "bad_option" and M.EXIT.config or M.EXIT.failed, message
end

--- @treturn boolean whether the list holds the value
function M.contains(list, value)
  for _, item in ipairs(list) do
    if item == value then
      return true
    end
  end
  return false
end

--- Name the nearest of the known words.
-- @tparam string word
-- @tparam {string,...} known
-- @treturn string `; did you mean "…"?`, or nothing when none is near
function M.did_you_mean(word, known)
  local best, best_distance = nil, math.max(2, math.floor(#word / 3)) + 1
  for _, candidate in ipairs(known) do
    local part = #word > 2 and (candidate:sub(1, #word) == word or candidate:sub(-#word - 1) == "." .. word)
    local d = part and 1 or distance(word, candidate)
    if d < best_distance then
      best, best_distance = candidate, d
    end
  end
  return best and ("; did you mean \"%s\"?"):format(best) or ""
end

-- Bytes that begin a character: what a terminal gives a column, near enough.
local function width(text)
  return select(2, text:gsub("[^\128-\191]", ""))
end

--- For an option of argparse: accept finite numbers only.
-- @tparam string text
-- @treturn number|nil
-- @treturn string|nil why not
function M.number(text)
  local value = text:find("^[%d.+-][%d.eE+-]*$") and tonumber(text)
  if value and value - value == 0 then
    return value
  end
  return nil, ("expected a number, found \"%s\""):format(text)
end

--- For an option of argparse: accept the id of a row only.
-- @tparam string text
-- @treturn string|nil
-- @treturn string|nil why not
function M.id(text)
  if text:find("^%d+$") and #text <= 19 then
    return text
  end
  return nil, ("expected an id (a whole number), found \"%s\""):format(text)
end

--- For an option of argparse: accept certain words only, and say which one was found.
-- @tparam {string,...} words
-- @treturn function
function M.one_of(words)
  return function(value)
    if M.contains(words, value) then
      return value
    end
    return nil, ("expected one of %s, found \"%s\"%s"):format(table.concat(words, ", "), value,
      M.did_you_mean(value, words))
  end
end

--- Print rows as columns.
-- @tparam {string,...} heads
-- @tparam {table,...} rows arrays of cells; nil (false in the middle of a row) shows as "-"; columns of numbers are
-- set to the right
function M.print_table(heads, rows)
  local widths, numeric, text = {}, {}, { heads }
  for i, row in ipairs(rows) do
    text[i + 1] = {}
    for c = 1, #heads do
      local cell = row[c]
      if cell == nil or cell == false then
        cell = "-"
      end
      text[i + 1][c] = tostring(cell)
      numeric[c] = numeric[c] ~= false and (type(cell) == "number" or cell == "-")
    end
  end
  for _, row in ipairs(text) do
    for c, cell in ipairs(row) do
      widths[c] = math.max(widths[c] or 0, width(cell))
    end
  end
  for _, row in ipairs(text) do
    local line = {}
    for c, cell in ipairs(row) do
      local padding = (" "):rep(widths[c] - width(cell))
      line[c] = numeric[c] and padding .. cell or cell .. padding
    end
    print((table.concat(line, "  "):gsub(" +$", "")))
  end
end

--- Print names and values, one a line.
-- @tparam {table,...} pairs arrays of name and value; a value that is nil leaves its line out
function M.print_fields(fields)
  for _, field in ipairs(fields) do
    if field[2] ~= nil then
      local value = tostring(field[2]):gsub("\n", "\n" .. (" "):rep(16))
      print(("%-15s %s"):format(field[1], value))
    end
  end
end

--- Print a value as one line of JSON.
function M.print_json(value)
  print(require("umavez.json").encode(value))
end

--- Write a note to standard error.
function M.note(format, ...)
  io.stderr:write("umavez: ", format:format(...), "\n")
end

return M
