"""The harness itself: servers, proxies, signals."""
import psycopg2
import pytest

from support import procs, resp
from support.keys import Entry, key_digest, parse_entry
from support.proxy import PgProxy, ValkeyProxy
from support.servers import PgBouncer, WORKER_ROLE


@pytest.fixture
def table(own_pg):
    database = own_pg.database()
    database.q("CREATE TABLE t (i int)")
    database.q("GRANT ALL ON t TO PUBLIC")
    yield database
    database.close()


def _through(proxy, database):
    return psycopg2.connect(host=str(proxy.host), port=proxy.port, dbname=database.name, user=WORKER_ROLE)


@pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
def test_cluster_comes_back_after_any_end(table, mode):
    table.q("INSERT INTO t VALUES (1)")
    table.cluster.stop(mode)
    with pytest.raises((psycopg2.OperationalError, psycopg2.InterfaceError)):
        table.q("SELECT 1")
    table.cluster.start()
    assert table.val("SELECT count(*) FROM t") == 1


def test_cluster_frozen_answers_nobody_until_thawed(table):
    table.cluster.freeze()
    try:
        with pytest.raises(psycopg2.OperationalError):
            psycopg2.connect(table.cluster.dsn(table.name).replace("connect_timeout=10", "connect_timeout=2"))
    finally:
        table.cluster.thaw()
    assert table.val("SELECT 1") == 1


def test_standby_follows_and_is_promoted(table):
    standby = table.cluster.standby()
    try:
        table.q("INSERT INTO t VALUES (7)")
        there = standby.database(table.name)
        procs.wait_until(lambda: there.val("SELECT count(*) FROM t") == 1, 30)
        table.cluster.stop("kill")
        standby.promote()
        there.q("INSERT INTO t VALUES (8)")
        there.close()
    finally:
        standby.destroy()


def test_pgbouncer_pools_transactions(table):
    pooler = PgBouncer(table.cluster, pool_size=1)
    try:
        clients = [psycopg2.connect(host=str(pooler.socket_dir), port=pooler.port, dbname=table.name, user=WORKER_ROLE) for _ in range(3)]
        pids = set()
        for c in clients:
            c.autocommit = True
            with c.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                pids.add(cursor.fetchone())
        assert len(pids) == 1
    finally:
        pooler.destroy()


def test_proxy_cuts_before_commit(table):
    proxy = PgProxy(table.cluster)
    proxy.cut_before_commit(after="INSERT INTO t")
    connection = _through(proxy, table)
    connection.cursor().execute("SELECT 1")
    connection.commit()
    connection.cursor().execute("INSERT INTO t VALUES (1)")
    with pytest.raises(psycopg2.Error):
        connection.commit()
    proxy.wait_fired(5)
    assert table.val("SELECT count(*) FROM t") == 0
    proxy.close()


def test_proxy_cuts_after_commit(table):
    proxy = PgProxy(table.cluster)
    proxy.cut_after_commit()
    connection = _through(proxy, table)
    connection.cursor().execute("INSERT INTO t VALUES (1)")
    with pytest.raises(psycopg2.Error):
        connection.commit()
    assert table.val("SELECT count(*) FROM t") == 1
    proxy.close()


def test_proxy_follows_prepared_statements(table):
    """Named statements in the extended protocol, as pgbench sends them: the COMMIT's Execute is recognised."""
    from support.servers import pg_bin
    proxy = PgProxy(table.cluster)
    proxy.cut_before_commit(after="INSERT INTO t")
    script = table.cluster.dir / "script"
    script.write_text("BEGIN;\nINSERT INTO t VALUES (1);\nCOMMIT;\n")
    with pytest.raises(RuntimeError):
        procs.run([pg_bin("pgbench"), "-n", "-M", "prepared", "-t", "1", "-f", script, "-h", proxy.host, "-p", proxy.port, "-U", WORKER_ROLE, table.name])
    proxy.wait_fired(5)
    assert table.val("SELECT count(*) FROM t") == 0
    proxy.close()


def test_proxy_stalls_and_resumes(table):
    proxy = PgProxy(table.cluster)
    connection = _through(proxy, table)
    connection.autocommit = True
    proxy.stall()
    import threading
    answered = threading.Event()

    def ask():
        connection.cursor().execute("SELECT 1")
        answered.set()
    thread = threading.Thread(target=ask)
    thread.start()
    assert not answered.wait(0.5)
    proxy.resume()
    assert answered.wait(10)
    proxy.cut_all()
    with pytest.raises(psycopg2.Error):
        connection.cursor().execute("SELECT 1")
    assert proxy.connections() == 0
    proxy.close()


def test_valkey_proxy_swallows_and_replaces(valkey):
    proxy = ValkeyProxy(valkey)
    client = resp.Resp(proxy.listen, 1)
    assert client("SET", "a", "1") == b"OK"
    proxy.swallow(lambda event: event.name() == "SET")
    with pytest.raises(OSError):
        client("SET", "a", "2")
    proxy.wait_fired(5)
    assert valkey("GET", "a") == b"2"
    proxy.answer(b"-OOM command not allowed\r\n")
    other = resp.Resp(proxy.listen, 5)
    with pytest.raises(resp.RespError, match="OOM"):
        other("GET", "a")
    proxy.answer(None)
    assert other("GET", "a") == b"2"
    proxy.close()


def test_valkey_stops_freezes_restarts(valkey):
    valkey("SET", "a", "1")
    valkey.freeze()
    with pytest.raises(OSError):
        valkey.client(timeout=0.3)("GET", "a")
    valkey.thaw()
    assert valkey("GET", "a") == b"1"
    valkey.restart()
    assert valkey("GET", "a") is None


def test_entry_survives_its_own_encoding():
    digest = key_digest("t.effect", "k")
    entry = Entry("C", "0" * 64, "1" * 16, 7, 2, 1700000000000, "2" * 32, "00000000-0000-4000-8000-000000000000", "3" * 64, '{"a": ":"}', "t1", digest.hex())
    parsed = parse_entry(entry.encode(), "t1", digest.hex())
    assert (parsed.outcome, parsed.ledger_id, parsed.attempt) == ('{"a": ":"}', 7, 2)
    assert parse_entry(entry.encode()[:-12][:200], "t1", digest.hex()) is None
    signed = parsed.sign(b"secret")
    parsed.hmac = signed
    assert parsed.valid(b"secret") and not parsed.valid(b"other")
