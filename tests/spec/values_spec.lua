-- Values both ways between Lua and PostgreSQL (I07, I08), and errors.
local helper = require("helper")
local json = require("umavez.json")
local umavez = require("umavez")

describe("values", function()
  local db

  setup(function()
    db = helper.database("values")
  end)

  teardown(function()
    db:close()
  end)

  local function same(sql_type, value)
    return db:one("SELECT $1::" .. sql_type .. " AS v", value).v
  end

  it("I07 parameters are stored exactly", function()
    db:exec("CREATE TABLE p (a text, b text, c bigint, d bigint, e float8, f boolean, g text)")
    db:exec("INSERT INTO p VALUES ($1, $2, $3, $4, $5, $6, $7)", "'); DROP TABLE p; --", nil, nil, 100000000000000,
      0.1 + 0.2, true, nil)
    local row = db:one("SELECT a, b, c, d::text, e::text, f::text, g, count(*) OVER () AS n FROM p")
    assert.same({ a = "'); DROP TABLE p; --", d = "100000000000000", e = "0.30000000000000004", f = "true", n = 1 },
    row)
    assert.same({ n = 3 }, db:one("SELECT num_nulls($1::text, $2::text, $3::text) AS n", nil, nil, nil))
    assert.same({ n = 2 }, db:one("SELECT num_nulls($1::text, $2::text, $3::text) AS n", umavez.null, "x", nil))
  end)

  it("integers are exact beyond 2^53", function()
    for _, text in ipairs { "0", "-1", "9007199254740991", "9007199254740992", "-9007199254740992" } do
      local v = same("bigint", tonumber(text))
      assert.equal("number", type(v))
      assert.equal(text, ("%.0f"):format(v))
    end
    for _, v in ipairs { 9007199254740993LL, -9223372036854775807LL - 1, 9223372036854775807LL } do
      assert.equal(v, same("bigint", v))
    end
    assert.equal("18446744073709551615", same("numeric", 18446744073709551615ULL))
    assert.equal("1000000000000000000", same("bigint", 1e18) and tostring(same("bigint", 1e18)):gsub("LL", ""))
    assert.equal(32767, same("int2", 32767))
    assert.equal(-2147483648, same("int4", -2147483648))
  end)

  it("floats make the round trip", function()
    for _, v in ipairs { 0.1, 0.1 + 0.2, 1e300, 5e-324, 1.7976931348623157e308, -2.5, 1 / 3 } do
      assert.equal(v, same("float8", v))
    end
    assert.equal(1 / 0, same("float8", 1 / 0))
    assert.equal(-1 / 0, 1 / same("float8", -0.0))
    assert.equal(-1 / 0, same("float8", -1 / 0))
    local nan = same("float8", 0 / 0)
    assert.is_true(nan ~= nan)
  end)

  it("numeric comes as exact text, decimals go in", function()
    assert.equal("1.10", same("numeric", umavez.decimal("1.10")))
    assert.equal("123456789012345678901234567890.5", same("numeric", "123456789012345678901234567890.5"))
  end)

  it("booleans, text, uuid, timestamps", function()
    assert.is_true(same("boolean", true))
    assert.is_false(same("boolean", false))
    assert.equal("é😀", same("text", "é😀"))
    assert.equal("", same("text", ""))
    assert.equal("6a84d184-c40a-4c12-a0f6-1f629c069312", same("uuid", "6a84d184-c40a-4c12-a0f6-1f629c069312"))
    db:exec("SET timezone = 'UTC'")
    assert.equal("2026-01-31 12:00:00.5+00", same("timestamptz", "2026-01-31T12:00:00.5Z"))
    assert.equal("2026-01-31", same("date", "2026-01-31"))
  end)

  it("json both ways, [] {} and null apart", function()
    local v = same("jsonb", umavez.json(json.decode('{"l":[],"o":{},"n":null,"i":9007199254740993,"d":0.1}')))
    assert.equal("[]", json.encode(v.l))
    assert.equal("{}", json.encode(v.o))
    assert.equal(umavez.null, v.n)
    assert.equal(9007199254740993LL, v.i)
    assert.equal(0.1, v.d)
    assert.equal("x", same("json", umavez.json("x")))
    assert.equal(umavez.null, same("jsonb", umavez.json(umavez.null)))
  end)

  it("bytea both ways", function()
    local all = {}
    for i = 0, 255 do
      all[i + 1] = string.char(i)
    end
    all = table.concat(all)
    assert.equal(all, same("bytea", umavez.bytea(all)))
    assert.equal("", same("bytea", umavez.bytea("")))
    db:exec("SET bytea_output = 'escape'")
    assert.equal(all, same("bytea", umavez.bytea(all)))
    db:exec("RESET bytea_output")
  end)

  it("arrays both ways", function()
    local texts = umavez.array({ 'a"b\\c', "NULL", "", " ", "{x,y}", umavez.null, "é" })
    assert.same(texts, same("text[]", texts))
    assert.same({ 1, umavez.null, 3 }, same("int[]", umavez.array({ 1, umavez.null, 3 })))
    assert.same({ { 1, 2 }, { 3, 4 } }, same("int[]", umavez.array({ { 1, 2 }, { 3, 4 } })))
    assert.same({ true, false }, same("boolean[]", umavez.array({ true, false })))
    assert.same({ "a\0b", "\255" }, same("bytea[]", umavez.array({ umavez.bytea("a\0b"), umavez.bytea("\255") })))
    assert.same({ { a = 1 } }, same("jsonb[]", umavez.array({ umavez.json({ a = 1 }) })))
    assert.equal(9007199254740993LL, same("bigint[]", umavez.array({ 9007199254740993LL }))[1])
    assert.equal("[]", json.encode(same("int[]", umavez.array())))
    assert.same({ 7, 8 }, db:one("SELECT '[0:1]={7,8}'::int[] AS v").v)
    assert.same({ a = {} }, db:one("SELECT '{}'::text[] AS a"))
  end)

  it("NULL is an absent key; of equal names the last counts; no columns and no rows are fine", function()
    assert.same({ b = 2 }, db:one("SELECT NULL AS a, 1 AS b, 2 AS b"))
    assert.same({}, db:one("SELECT"))
    assert.is_nil(db:one("SELECT 1 WHERE false"))
    assert.equal("[]", json.encode(db:query("SELECT 1 WHERE false")))
    assert.equal(3, #db:query("SELECT generate_series(1, 3)"))
    assert.equal(3, db:exec("SELECT generate_series(1, 3)"))
    assert.equal(1600, #db:query("SELECT " .. ("1,"):rep(1599) .. "1") * 1600)
  end)

  it("I08 what cannot be a parameter names the parameter", function()
    for _, bad in ipairs { "a\0b", "\255", {}, { 1 }, print, umavez.array({ "a\0b" }), umavez.array({ 1, nil, 3 }),
      umavez.array({ x = 1 }), coroutine.create(print) } do
      local ok, err = pcall(db.query, db, "SELECT $1::text, $2::text", "fine", bad)
      assert.is_false(ok)
      assert.equal("parameter", err.code)
      assert.matches("parameter %$2: ", err.message)
    end
    assert.has_error(function()
      db:query("SELECT 1 \0 + 1")
    end)
    assert.equal(1, db:one("SELECT 1 AS one").one)
  end)

  it("errors are objects with sqlstate, constraint and detail", function()
    db:exec("CREATE TABLE u (a int CONSTRAINT u_once UNIQUE)")
    db:exec("INSERT INTO u VALUES (1)")
    local ok, err = pcall(db.exec, db, "INSERT INTO u VALUES (1)")
    assert.is_false(ok)
    assert.equal("sql", err.code)
    assert.equal("23505", err.sqlstate)
    assert.equal("u_once", err.constraint)
    assert.matches("already exists", err.detail)
    assert.is_false(err.retryable)
    assert.matches("23505", tostring(err))
  end)

  it("a connection that is closed or lost says so", function()
    local other = require("umavez.pg").connect(helper.url)
    local ok, err = pcall(other.exec, other, "SELECT pg_terminate_backend(pg_backend_pid())")
    assert.is_false(ok)
    assert.is_true(err.retryable)
    other:close()
    other:close()
    assert.is_false((pcall(other.exec, other, "SELECT 1")))
    local ok2, err2 = pcall(require("umavez.pg").connect, "postgresql:///x?host=/nonexistent", { timeout_ms = 500 })
    assert.is_false(ok2)
    assert.equal("connect_failed", err2.code)
  end)

  it("a transaction whose error was swallowed raises", function()
    local ok, err = pcall(db.transaction, db, function()
      pcall(db.exec, db, "SELEC")
    end)
    assert.is_false(ok)
    assert.equal("rolled_back", err.code)
    assert.same({ 1, nil, 3 }, { db:transaction(function()
      return 1, nil, 3
    end) })
  end)

  it("a box that nobody waits for is forgotten", function()
    local c, vm = require("umavez.c.pg"), require("umavez.vm")
    for _ = 1, 100 do
      c.send(db.handle, "SELECT 1", 0)
    end
    collectgarbage()
    local box = c.send(db.handle, "SELECT 2 AS two", 0)
    collectgarbage()
    assert.equal(2, c.row(vm.await(box)).two)
  end)
end)
