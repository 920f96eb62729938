-- What a handler may send (I02, I03).
local c = require("umavez.c.run")

local function refused(sql, pattern)
  local ok, err = pcall(c.guard, sql)
  assert.is_false(ok, "passed: " .. sql)
  assert.equal("statement_refused", err.code)
  if pattern then
    assert.matches(pattern, err.message)
  end
end

local function passes(sql)
  local ok, err = pcall(c.guard, sql)
  assert.is_true(ok, ("refused: %s: %s"):format(sql, tostring(err)))
end

describe("the statement guard", function()
  it("I02 refuses transaction control, however it is written", function()
    for _, sql in ipairs {
      "COMMIT", "commit", "CoMmIt", "COMMIT;", "  COMMIT  ", "/* x */ rollback", "-- x\nEND", "--\rEND", "BEGIN",
      "BEGIN ISOLATION LEVEL SERIALIZABLE", "START TRANSACTION", "SAVEPOINT s", "RELEASE SAVEPOINT s", "RELEASE s",
      "ROLLBACK TO SAVEPOINT s", "ROLLBACK TO s", "ABORT", "END TRANSACTION", "COMMIT AND CHAIN", "COMMIT WORK",
      "PREPARE TRANSACTION 'x'", "COMMIT PREPARED 'x'", "ROLLBACK PREPARED 'x'", "SET TRANSACTION READ ONLY",
      "/* /* nested */ */ COMMIT", "/**/commit/**/", "\t\n\r\f\v COMMIT", ";COMMIT", " ; ; commit", "commit/*x",
      "END;",
      "commit--", "-- a\n-- b\n/* c */ -- d\nCOMMIT", "/*/**/*/COMMIT", "COMMIT\0",
    } do
      refused(sql)
    end
  end)

  it("I02 refuses more than one statement, and sees where one ends", function()
    for _, sql in ipairs {
      "SELECT 1; COMMIT", "SELECT 1;SELECT 2", "SELECT ';'; COMMIT", "SELECT $$;$$; COMMIT", "SELECT $a$;$a$; COMMIT",
      "SELECT 1 /* ; */; COMMIT", "SELECT 1 -- ;\n; COMMIT", "SELECT E'\\'; COMMIT --'; COMMIT",
      "SELECT '\\'; COMMIT",
      "SELECT \"a;b\"; COMMIT", "SELECT U&'\\0041'; COMMIT", "SELECT B'0'; COMMIT", "SELECT 'a''; b'; COMMIT",
      "SELECT $1; COMMIT", "SELECT a$b$; COMMIT --$b$", "SELECT 1;/* */COMMIT", "SELECT 1 ; -- x\n COMMIT",
      "SELECT $é$x$é$; COMMIT", "SELECT 'x'::text; COMMIT", "SELECT N'x'; COMMIT", "SELECT e'\\\\'; COMMIT",
    } do
      refused(sql, "more than one statement")
    end
    for _, sql in ipairs {
      "SELECT 1;", "SELECT 1; ; ", "SELECT 1; -- end", "SELECT ';COMMIT'", "SELECT $$;COMMIT$$",
      "SELECT $a$ ; $b$ ; $a$",
      "SELECT E'\\';COMMIT'", "SELECT \"a;COMMIT\"", "SELECT 1 /* ;COMMIT */", "SELECT 1 --;COMMIT",
      "SELECT 'a'';COMMIT'",
      "SELECT /* /* ; */ ; */ 1", "SELECT 1 -- '\n", "SELECT U&'d\\0061t;'", "SELECT '\\'", "SELECT $1",
      "SELECT a$1 FROM t",
      "SELECT x FROM t WHERE a = $1 AND b = $2", "SELECT $$it's$$", "SELECT '$$', ';', '$$'", "SELECT 1 AS \"x'y\"",
    } do
      passes(sql)
    end
  end)

  it("I03 refuses what leaves state in the session", function()
    for _, sql in ipairs {
      "SET x = 1", "SET SESSION x = 1", "SET ROLE joe", "SET SESSION AUTHORIZATION joe", "SET LOCAL ROLE joe",
      "SET a.b TO 'c'",
      "SET LOCAL SESSION AUTHORIZATION joe", "SET LOCAL umavez.tenant_id = '8'",
      "SET LOCAL \"umavez\".tenant_id = '8'",
      "SET LOCAL idle_in_transaction_session_timeout = 0", "SET TIME ZONE 'UTC'",
      "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
      "RESET ALL", "RESET x", "DISCARD ALL", "LISTEN c", "UNLISTEN *", "PREPARE p AS SELECT 1", "EXECUTE p",
      "DEALLOCATE ALL",
      "DECLARE c CURSOR WITH HOLD FOR SELECT 1", "DECLARE c SCROLL CURSOR /* */ with hold FOR SELECT 1", "LOAD 'x'",
      "CREATE TEMP TABLE t (a int)", "CREATE TEMPORARY TABLE t (a int)", "create local temp table t (a int)",
      "CREATE GLOBAL TEMPORARY TABLE t (a int)", "CREATE OR REPLACE TEMP VIEW v AS SELECT 1",
      "CREATE TEMP SEQUENCE s",
      "CREATE TABLE pg_temp.t (a int)", "CREATE TABLE \"pg_temp\".t (a int)",
      "CREATE FUNCTION pg_temp.f() RETURNS int AS $$ $$",
      "SELECT 1 INTO TEMP t", "SELECT 1 AS a INTO TEMPORARY TABLE t FROM x",
      "WITH w AS (SELECT 1) SELECT * INTO TEMP t FROM w",
      "SELECT 1 INTO LOCAL TEMP t", "EXPLAIN ANALYZE CREATE TEMP TABLE t AS SELECT 1", "EXPLAIN ANALYZE EXECUTE p",
      "EXPLAIN (ANALYZE, BUFFERS) CREATE TEMP TABLE t AS SELECT 1", "EXPLAIN (ANALYZE) EXECUTE p", "/* */ set x = 1",
      "COPY t FROM STDIN", "COPY t TO STDOUT", "COPY (SELECT 1) TO STDOUT (FORMAT csv)",
    } do
      refused(sql)
    end
  end)

  it("lets ordinary statements pass", function()
    for _, sql in ipairs {
      "SELECT 1", "(SELECT 1) UNION (SELECT 2)", "WITH x AS (INSERT INTO t VALUES (1) RETURNING a) SELECT * FROM x",
      "INSERT INTO t (a) VALUES ($1) ON CONFLICT DO NOTHING", "UPDATE t SET a = 1", "DELETE FROM t", "VALUES (1)",
      "TABLE t",
      "MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE", "LOCK TABLE t", "NOTIFY c", "TRUNCATE t", "CALL p()",
      "DO $$ BEGIN NULL; END $$", "SET LOCAL statement_timeout = '1s'", "SET LOCAL work_mem = '64MB'",
      "SET CONSTRAINTS ALL IMMEDIATE", "CREATE TABLE t (a int)", "CREATE INDEX ON t (temp)", "SHOW all",
      "FETCH 1 FROM c",
      "DECLARE c CURSOR FOR SELECT 1", "DECLARE c CURSOR WITHOUT HOLD FOR SELECT 1", "INSERT INTO temp VALUES (1)",
      "WITH x AS (INSERT INTO temp VALUES (1) RETURNING *) SELECT * FROM x", "SELECT temp FROM weather",
      "SELECT begin, commit FROM t", "SELECT CASE WHEN true THEN 1 END", "EXPLAIN SELECT 1",
      "EXPLAIN (FORMAT json) SELECT 1",
      "EXPLAIN ANALYZE VERBOSE SELECT 1", "SELECT a INTO t2 FROM t", "\"commit\"", "SELECT * FROM \"set\"",
      "CREATE TABLE temp (a int)", "COPY t FROM '/tmp/x'", "SELECT 1 @@ 2, a->>'b', c #>> '{d}', -1 - -2",
      "SELECT 1e10, .5, 0x1F",
      "COMMENT ON TABLE t IS 'x'", "SELECT 'é', \"ü\", $ö$ß$ö$",
    } do
      passes(sql)
    end
  end)

  it("refuses what is empty or not closed, naming it", function()
    refused("", "empty")
    refused("  -- nothing", "empty")
    refused(";", "empty")
    refused("SELECT 'a", "string that is not closed")
    refused("SELECT \"a", "quoted name that is not closed")
    refused("SELECT $$a", "dollar%-quoted string that is not closed")
    refused("SELECT /* a", "comment that is not closed")
    refused("/* /* */", "comment that is not closed")
    -- found by fuzzing
    refused("SET LOCAL; COMMIT", "more than one statement")
    refused("EXPLAIN (ANALYZE, \"BUFFERS) SELECT 1", "quoted name that is not closed")
    refused("EXPLAIN (ANALYZE; COMMIT", "more than one statement")
    refused("SET LOCAL \"work_mem = '64MB'", "quoted name that is not closed")
    refused("SET LOCAL /* work_mem = '64MB'", "comment that is not closed")
    refused("SELECT 1\0; COMMIT", "NUL")
  end)

  it("ends on any octets", function()
    math.randomseed(7)
    local parts = { "'", '"', "$$", "$a$", "/*", "*/", "--", "\n", ";", "E'", "\\", "COMMIT", "a", "(", ")", " ",
    "\255", "U&'",
      "$1", "BEGIN", "CREATE TEMP", "$" }
    for _ = 1, 20000 do
      local text = {}
      for i = 1, math.random(12) do
        text[i] = parts[math.random(#parts)]
      end
      pcall(c.guard, table.concat(text))
    end
  end)

  it("splits scripts into statements", function()
    local split = require("umavez.pg").statements
    local function texts(sql)
      local out = {}
      for i, s in ipairs(split(sql)) do
        out[i] = s[1]
      end
      return out
    end
    assert.same({}, texts(" ; -- x\n ;"))
    assert.same({ "SELECT 1", "SELECT ';'", "SELECT $$ ; $$" }, texts("SELECT 1; SELECT ';'; SELECT $$ ; $$"))
    assert.same({ "CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2)", "x" },
      texts("CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2); x"))
    local body = "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END"
    assert.same({ body, "SELECT 3" }, texts(body .. "; SELECT 3;"))
    assert.same({ "U&\"x\"", "\"y" }, texts("U&\"x\"; \"y")) -- found by fuzzing: the whole name
    local statements = split("\n\nSELECT 1;\n\nSELECT 2")
    assert.equal(3, statements[1][2])
    assert.equal(5, statements[2][2])
  end)
end)
