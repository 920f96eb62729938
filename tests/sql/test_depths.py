"""What the metrics page asks of the database: right, and as cheap with a million runs as with a thousand."""
import json

LIMIT = 10_000


def depths(sql, queues, limit=LIMIT):
    return {row[0]: row[1:] for row in sql.q("SELECT * FROM umavez.queue_depths(%s, %s)", list(queues), limit)}


def fill(sql, count, queue="default", due="interval '-1 hour'"):
    sql.q(f"""INSERT INTO umavez.runs (run_id, task, args, queue, priority, run_at)
              SELECT gen_random_uuid(), 't.a', '{{}}', %s, 1 + g %% 4, clock_timestamp() + {due} + g * interval '1 microsecond'
                FROM generate_series(1, %s) g""", queue, count)


def test_depths_and_ages_are_told_by_queue(sql):
    sql.register_tasks(json.dumps([{"task": "t.b", "owner": "tenant", "queue": "known"}]))
    fill(sql, 7, "a")
    fill(sql, 3, "a", "interval '1 hour'")
    fill(sql, 2, "a\"b' {c}")
    fill(sql, 9, "nobody's")
    sql.take(limit=2, queues=["a"])                                     # those are nobody's depth any more
    found = depths(sql, ["a", "a\"b' {c}", "empty", "a"])
    assert {name: row[:2] for name, row in found.items()} == {"a": (5, 3), "a\"b' {c}": (2, 0), "empty": (0, 0), "known": (0, 0)}
    assert 3600 <= found["a"][2] < 3700 and found["empty"][2] == 0


def test_counting_stops_at_the_limit(sql):
    fill(sql, 50)
    fill(sql, 50, due="interval '1 hour'")
    assert depths(sql, ["default"], 20)["default"][:2] == (20, 20)
    assert depths(sql, ["default"], 100)["default"][:2] == (50, 50)


def test_many_queues_are_cut(sql):
    assert len(depths(sql, [f"q{n:03}" for n in range(300)])) == 200


def test_a_mark_is_where_counting_begins(sql):
    """What takes do not read again is not read here either; as soon as they do, it counts."""
    fill(sql, 5)
    sql.q("INSERT INTO umavez.marks VALUES ('take:default', array_fill(clock_timestamp(), ARRAY[4]), clock_timestamp(), 'infinity')")
    assert depths(sql, ["default"])["default"] == (0, 0, 0)
    sql.q("UPDATE umavez.marks SET full_at = '-infinity'")
    assert depths(sql, ["default"])["default"][0] == 5


def test_a_million_runs_cost_no_more_than_the_limit(connect, sql):
    """Blocks are counted, with a generic plan and with one for the values at hand; a heap block for each entry that is counted, at
    most, since no VACUUM has been there. The table has some 17,000 blocks, the index some 8,000."""
    fill(sql, 500_000)
    fill(sql, 500_000, due="interval '1 hour'")
    pages = sql.val("SELECT pg_relation_size('umavez.runs') / 8192")
    for statistics in ("never analysed", "analysed"):
        for plans in ("force_generic_plan", "force_custom_plan"):
            one = connect()
            one.q(f"SET plan_cache_mode = {plans}")
            assert depths(one, ["default"])["default"][:2] == (LIMIT, LIMIT)
            read = one.blocks("SELECT * FROM umavez.queue_depths('{default}', 100)")
            assert read < 2 * 2 * 100, f"{read} blocks for 100 runs, {statistics}, {plans}"
            read = one.blocks(f"SELECT * FROM umavez.queue_depths('{{default,other}}', {LIMIT})")
            assert read < 2 * LIMIT * 1.2 < 3 * pages, f"{read} blocks for {LIMIT} runs, {statistics}, {plans}"
        sql.q("ANALYZE umavez.runs")


def nodes(plan):
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def test_the_plan_reads_the_index_of_what_is_ready(connect):
    """The function's own statements, as auto_explain sees them."""
    one = connect()
    fill(one, 20_000)
    one.q("LOAD 'auto_explain'")
    for name, value in {"log_min_duration": 0, "log_nested_statements": "on", "log_format": "json", "log_level": "notice"}.items():
        one.q(f"SET auto_explain.{name} = '{value}'")
    depths(one, ["default"])
    told = [json.loads(notice.split("plan:\n", 1)[1]) for notice in one.connection.notices if "plan:\n" in notice]
    assert not [plan for plan in told if "JIT" in plan], "compiling the plan takes a second, in which settlements wait"
    plans = [plan["Plan"] for plan in told]
    read = [(node["Node Type"], node.get("Index Name")) for plan in plans for node in nodes(plan) if node.get("Relation Name") == "runs"]
    assert len(read) == 3 and set(read) <= {("Index Scan", "runs_ready"), ("Index Only Scan", "runs_ready")}, read
