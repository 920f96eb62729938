-- Where `umavez new` puts an entry into a manifest that is there.
local manifest = require("umavez.manifest")
local scaffold = require("umavez.scaffold")

local TASK = { name = "refund", full = "payments.refund", owner = "tenant" }

local function names(text)
  local result = assert(manifest.evaluate(text, "manifest.lua"))
  local out = {}
  for name in pairs(result.tasks) do
    out[#out + 1] = name
  end
  table.sort(out)
  return table.concat(out, " ")
end

describe("scaffold.insert", function()
  for what, text in pairs {
    ["the usual form"] = "return {\n  tasks = {\n    pix = { owner = \"tenant\" },\n  },\n}\n",
    ["no last comma"] = "return {\n  tasks = {\n    pix = { owner = \"tenant\" }\n  }\n}\n",
    ["a comment after the last entry"] = "return { tasks = {\n  pix = { owner = 'tenant' } -- }, }\n -- tasks = {\n} }",
    ["one line"] = "return { tasks = { pix = { owner = \"tenant\" } } }",
    ["strings and comments with braces"] = [==[
-- tasks = { }
--[[ return { tasks = { ]]
return {
  tasks = {
    pix = { owner = "tenant", description = "}} \" tasks = { --", },
    --[=[ } ]] ]=]
  },
}]==],
    ["a key function"] = "return { tasks = { pix = { key = function(a) return a.tasks .. [[}]] end } } }",
    ["a task called tasks"] = "return { tasks = { pix = { owner = \"tenant\" }, tasks = { owner = \"tenant\" } } }",
  } do
    it("finds the place: " .. what, function()
      local before = names(text)
      local after = scaffold.insert(text, TASK)
      assert.equal((before:gsub("^pix", "pix refund")), names(after))
    end)
  end

  it("fills an empty table", function()
    assert.equal("refund", names(scaffold.insert("return { tasks = {} }", TASK)))
    assert.equal("refund", names(scaffold.insert("return {\n  tasks = {\n    -- none\n  },\n}", TASK)))
  end)

  it("keeps the indentation", function()
    local text = scaffold.insert("return {\n  tasks = {\n    pix = {},\n  },\n}\n", TASK)
    assert.matches("\n    pix = {},\n    refund = {\n      description = ", text)
    assert.matches("\n    },\n  },\n}\n$", text)
  end)

  it("gives nothing where there is no such table", function()
    assert.is_nil(scaffold.insert("local tasks = {}\nreturn { tasks = tasks }", TASK))
    assert.is_nil(scaffold.insert("return { [\"tasks\"] = {} }", TASK))
  end)
end)
