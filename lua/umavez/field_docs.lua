--- The fields of tasks and queues (umavez.manifest, umavez.queues) as Markdown.
-- @module umavez.field_docs

local function rows(fields, prefix, out)
  for _, field in ipairs(fields) do
    local name = prefix .. field.name
    if field.later then
      out[#out + 1] = ("| `%s` | | | reserved: comes with a later version |"):format(name)
    elseif field.fields then
      rows(field.fields, name .. ".", out)
    else
      local default = field.required and "required" or field.default ~= nil and ("`%s`"):format(tostring(field.default))
        or ""
      out[#out + 1] = ("| `%s` | %s | %s | %s |"):format(name, field.type, default, field.doc)
    end
  end
end

--- @tparam table fields
-- @treturn string a table
return function(fields)
  local out = { "| field | type | default | meaning |", "|---|---|---|---|" }
  rows(fields, "", out)
  return table.concat(out, "\n")
end
