-- Waiting inside the script's own coroutines (I05).
local sys = require("umavez.sys")

describe("a wait", function()
  it("I05 inside coroutine.wrap reaches the loop, own yields reach the own resumer", function()
    local seen = {}
    local gen = coroutine.wrap(function(first)
      seen[#seen + 1] = first
      for i = 1, 3 do
        sys.sleep(1)
        seen[#seen + 1] = coroutine.yield(i)
        sys.sleep(1)
      end
      return "end"
    end)
    assert.equal(1, gen("a"))
    assert.equal(2, gen("b"))
    assert.equal(3, gen("c"))
    assert.equal("end", gen("d"))
    assert.same({ "a", "b", "c", "d" }, seen)
  end)

  it("I05 passes through nested coroutines, pcall, iterators and metamethods", function()
    local function nested(depth)
      if depth == 0 then
        sys.sleep(1)
        return "bottom"
      end
      return coroutine.wrap(function()
        local ok, value = pcall(nested, depth - 1)
        assert.is_true(ok)
        return value
      end)()
    end
    assert.equal("bottom", nested(20))
    local sum = 0
    for i in coroutine.wrap(function()
      for i = 1, 3 do
        sys.sleep(1)
        coroutine.yield(i)
      end
    end) do
      sum = sum + i
    end
    assert.equal(6, sum)
    local t = setmetatable({}, {
      __index = function(_, k)
        sys.sleep(1)
        return k .. "!"
      end,
      __add = function()
        sys.sleep(1)
        return 7
      end,
    })
    assert.equal("x!", t.x)
    assert.equal(7, t + 1)
    assert.same({ false, "boom" }, { pcall(function()
      sys.sleep(1)
      error("boom", 0)
    end) })
  end)

  it("I05 keeps values with nil in them", function()
    local co = coroutine.create(function(...)
      sys.sleep(1)
      local n = select("#", ...)
      local got = { n = n, coroutine.yield(nil, n, nil) }
      sys.sleep(1)
      return got.n, nil, nil
    end)
    local function pack(...)
      return { n = select("#", ...), ... }
    end
    assert.same({ n = 4, true, nil, 3, nil }, pack(coroutine.resume(co, nil, 1, nil)))
    assert.same({ n = 4, true, 3, nil, nil }, pack(coroutine.resume(co)))
    assert.equal("dead", coroutine.status(co))
    assert.same({ false, "cannot resume dead coroutine" }, { coroutine.resume(co) })
  end)

  it("lets errors of a wrapped coroutine through, with values of any type", function()
    local object = {}
    local gen = coroutine.wrap(function()
      sys.sleep(1)
      error(object)
    end)
    local ok, err = pcall(gen)
    assert.is_false(ok)
    assert.equal(object, err)
  end)

  it("is refused with an explanation below a C function, before anything is sent", function()
    local function refused(fn, ...)
      local ok, err = pcall(fn, ...)
      assert.is_false(ok)
      assert.matches("cannot wait here", err)
      assert.matches("table.sort", err)
    end
    local function compare(a, b)
      sys.sleep(1)
      return a < b
    end
    refused(table.sort, { 3, 2, 1 }, compare)
    refused(string.gsub, "abc", ".", function()
      sys.sleep(1)
    end)
    -- an own coroutine does not help below such a function
    refused(string.gsub, "abc", ".", function()
      return coroutine.wrap(function()
        return coroutine.wrap(function()
          sys.sleep(1)
        end)()
      end)()
    end)
  end)

  it("works in a coroutine that was once resumed below a C function", function()
    local co = coroutine.create(function()
      coroutine.yield()
      sys.sleep(1)
      return "fine"
    end)
    string.gsub("a", ".", function()
      coroutine.resume(co)
    end)
    assert.same({ true, "fine" }, { coroutine.resume(co) })
  end)

  it("cannot be ended by somebody else's resume", function()
    local inner = coroutine.create(function()
      sys.sleep(20)
      return "done"
    end)
    local told
    local outer = coroutine.create(function()
      return coroutine.resume(inner)
    end)
    -- while outer waits for inner, nobody else runs here: so look at it from inside
    local watcher = setmetatable({}, {
      __index = function()
        told = { coroutine.resume(outer) }
      end,
    })
    local _ = watcher.x
    assert.same({ true, true, "done" }, told)
  end)

  it("leaves yields outside of a coroutine an error", function()
    local ok, err = pcall(coroutine.yield, 1)
    assert.is_false(ok)
    assert.matches("outside a coroutine", err)
  end)

  it("survives deep recursion", function()
    local function deep(n)
      return 1 + deep(n + 1)
    end
    local ok, err = pcall(deep, 1)
    assert.is_false(ok)
    assert.matches("stack overflow", err)
    sys.sleep(1)
    local ok2, err2 = pcall(function()
      local function spiral()
        return coroutine.wrap(spiral)()
      end
      return spiral()
    end)
    assert.is_false(ok2)
    assert.is_truthy(err2)
    sys.sleep(1)
  end)
end)
