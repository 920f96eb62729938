"""The door's halves of rows of group F (F04, F08; F07 is in test_g_door.py's G07, F09 in its G05), and TLS."""
import ssl
import subprocess

import pytest

from support.http import Connection, Door, start_door
from support.procs import wait_until
from support.proxy import PgProxy
from support.servers import PgBouncer, clean_environment, umavez_bin
from test_g_door import OWNERS, add_tasks, make_door

# --- F04 --------------------------------------------------------------------------------------------------------------------------


@OWNERS
@pytest.mark.parametrize("failing", [False, True], ids=["completed", "failed"])
def test_F04_a_request_that_the_new_primary_never_had(own_env, owner, failing):
    """Answered, copied to the gate, lost in a failover: the gate's copy is no answer any more, the request is done again, once."""
    env = own_env
    env.pg.settings["wal_keep_size"] = "64MB"
    standby = env.pg.standby()
    proxy = env.closing(PgProxy(env.pg))
    door = make_door(env, owner, database_url=proxy.url(env.db))
    there = standby.database(env.db.name)
    assert door.post(f"/{owner}/do", env.args("warm"), key="warm").status == 200
    body = env.args("E1", [["effect"], ["fail", {"code": "no"}] if failing else ["return", {"status": 201, "n": 1}]], starts=None)
    env.count("E1")
    lsn = env.db.val("SELECT pg_current_wal_lsn()")
    wait_until(lambda: there.val("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", lsn), 30, "the standby follows")
    there.q("ALTER SYSTEM SET primary_conninfo = ''")
    there.q("SELECT pg_reload_conf()")
    wait_until(lambda: there.val("SELECT count(*) FROM pg_stat_wal_receiver") == 0, 30, "the standby lags")
    first = door.post(f"/{owner}/do", body, key="k1")
    assert (first.status, first.replayed) == (422 if failing else 201, False)
    wait_until(lambda: getattr(door.gate(f"d.{owner}_do", "k1"), "state", None) == ("F" if failing else "C"), 20, "the gate is warm")
    assert door.post(f"/{owner}/do", body, key="k1").replayed
    entry = door.gate(f"d.{owner}_do", "k1")
    old = env.pg
    old.stop("kill")
    env.db.close()
    standby.promote()
    env.pg = standby
    env.db = env.gate.db = there
    assert door.ledger(f"d.{owner}_do", "k1") is None, "the standby had the request"
    assert door.gate(f"d.{owner}_do", "k1").raw == entry.raw, "the entry of the old timeline still stands"
    proxy.retarget(standby)
    answers = []

    def answered():
        answers.append(door.post(f"/{owner}/do", body, key="k1"))
        assert answers[-1].status in (first.status, 503), answers
        return answers[-1].status != 503
    wait_until(answered, 60, "the door works with the new primary")
    again = answers[-1]
    assert (again.status, again.replayed) == (first.status, False), "what the new primary never had was replayed"
    assert env.effects("E1") == (0 if failing else 1)
    replay = door.post(f"/{owner}/do", body, key="k1")
    assert (replay.status, replay.body, replay.replayed) == (again.status, again.body, True)
    assert door.ledger(f"d.{owner}_do", "k1").attempt == 1
    old.destroy()


# --- F08 --------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("prepare", ["false", "true"])
def test_F08_requests_through_pgbouncer(env, prepare):
    """Two server connections in transaction mode: new operations, replays and a race, none lost, none twice, none answered with an error."""
    env.audit.allow("sessions")     # the pooler keeps its own
    pooler = env.closing(PgBouncer(env.pg, pool_size=2))
    door = make_door(env, database_url=env.db.url(host=pooler.socket_dir, port=pooler.port), pool_size=10, prepare=prepare)
    firsts = {}
    with door.connect() as c:
        for n in range(200):
            firsts[n] = door.send("POST", "/t/do", env.args(f"k{n}", starts="k"), key=f"k{n}", on=c)
            assert (firsts[n].status, firsts[n].replayed) == (200, False), firsts[n]
        env.valkey.flush()
        for n in range(200):
            again = door.send("POST", "/t/do", env.args(f"k{n}", starts="k"), key=f"k{n}", on=c)
            assert (again.status, again.body, again.replayed) == (200, firsts[n].body, True)
    answers = door.race(50, "/t/patient", env.args("race", [["effect"], ["sleep", 0.2]]), key="race")
    assert {a.status for a in answers} == {200} and len({a.body for a in answers}) == 1 and sum(a.replayed for a in answers) == 49
    queued = door.post("/t/queue", env.args("queued"), key="q")
    assert door.get(queued.get("Location") + "?wait=60").json["state"] == "completed"
    env.audit.allow("ledger_run", "replays_equal")
    assert env.effects() == 202 and env.starts("k") == 200 and env.starts("race") == 1
    assert {r.attempt for r in env.ledger_rows()} == {1}


# --- TLS --------------------------------------------------------------------------------------------------------------------------

def certificate(folder, name="cert", *, days="2"):
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", days, "-subj", "/CN=door.test",
                    "-addext", "subjectAltName=DNS:door.test", "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


class TlsConnection(Connection):
    def __init__(self, port, context, host="door.test", timeout=60):
        super().__init__(port, timeout)
        try:
            self.socket = context.wrap_socket(self.socket, server_hostname=host)
        except BaseException:
            self.socket.close()
            raise


@pytest.fixture
def tls(env):
    """A door with TLS, ready; its certificate; a context that trusts it."""
    cert, key = certificate(env.log_dir)
    add_tasks(env)
    worker, port = start_door(env, ready=False, http_tls_cert=cert, http_tls_key=key, http_header_timeout="5s")
    door = Door(env, port=port, worker=worker)
    door.cert, door.key, door.context = cert, key, ssl.create_default_context(cafile=cert)

    def ready():
        with TlsConnection(port, door.context) as c:
            return c.request("GET", "/readyz").status == 200
    wait_until(ready, 60, "the door is ready")
    return door


def over_tls(door, *args, **options):
    with TlsConnection(door.port, door.context) as c:
        c.send(door.octets("POST", *args, **options))
        return c.read()


def test_tls_is_the_same_door(tls, env):
    first = over_tls(tls, "/t/do", env.args("E1"), key="k1")
    again = over_tls(tls, "/t/do", env.args("E1"), key="k1")
    assert (first.status, first.replayed, again.status, again.body, again.replayed) == (200, False, 200, first.body, True)
    with TlsConnection(tls.port, tls.context) as c:                             # kept alive, pipelined, in pieces, a large body
        assert c.socket.version() in ("TLSv1.2", "TLSv1.3")
        octets = b"".join(tls.octets("POST", "/t/do", env.args(f"P{n}"), key=f"p{n}") for n in range(5))
        for at in range(0, len(octets), 97):
            c.send(octets[at:at + 97])
        assert [c.read().status for _ in range(5)] == [200] * 5
        c.send(tls.octets("POST", "/t/do", env.args("big", None, filler="x" * 500_000), key="big"))
        assert c.read().status == 200
    assert env.effects() == 7
    assert tls.key.read_text().splitlines()[1] not in tls.worker.text()


def test_tls_bad_handshakes(tls, env):
    """Plain HTTP, old versions, garbage, a client that does not trust, one that says nothing: each is ended, none is answered, the others are served."""
    def plain(data):
        with tls.connect() as c:
            c.send(data)
            c.socket.settimeout(60)
            got = c.socket.recv(1 << 16)
            while got and not got.startswith(b"\x15"):                          # a TLS alert at most
                assert not got.startswith(b"HTTP/"), got
                got = c.socket.recv(1 << 16)
    for data in (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", tls.octets("POST", "/t/do", env.args("E1"), key="k1"), b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
                 b"\x80\x2e\x01\x00\x02" + b"\0" * 44, b"\xff" * 500):
        try:
            plain(data)
        except ConnectionResetError:
            pass
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning):
            old.minimum_version = old.maximum_version = version
        with pytest.raises((ssl.SSLError, OSError)):
            TlsConnection(tls.port, old)
    stranger = ssl.create_default_context()                                     # the certificate is its own issuer: not trusted
    with pytest.raises(ssl.SSLCertVerificationError):
        TlsConnection(tls.port, stranger)
    with pytest.raises(ssl.SSLCertVerificationError):
        TlsConnection(tls.port, tls.context, host="elsewhere.test")
    with tls.connect() as c:                                                    # connects and says nothing
        c.socket.settimeout(60)
        assert c.closed(60)
    assert env.effects() == 0 and over_tls(tls, "/t/do", env.args("E1"), key="k1").status == 200


def test_tls_files_that_cannot_be_used(env):
    """The worker does not start, and names the setting, what is wrong and what was expected; never the key's text."""
    cert, key = certificate(env.log_dir)
    other_cert, other_key = certificate(env.log_dir, "other")
    broken, empty = env.log_dir / "broken.pem", env.log_dir / "empty.pem"
    broken.write_text(cert.read_text().replace("M", "#"))
    empty.write_text("")
    add_tasks(env)
    for files in ((cert, other_key), (other_cert, key), (broken, key), (cert, empty), (cert, env.log_dir / "missing.pem"), (env.log_dir / "missing.pem", key),
                  (cert, None), (None, key)):
        settings = {f"UMAVEZ_HTTP_TLS_{n}": str(f) for n, f in zip(("CERT", "KEY"), files) if f}
        done = subprocess.run([str(umavez_bin()), "worker", "--http", "127.0.0.1:0"], capture_output=True, text=True, timeout=120, cwd=env.log_dir,
                              env={**clean_environment(), "DATABASE_URL": env.db.url(), "UMAVEZ_TASKS_DIR": str(env.tasks.dir), "UMAVEZ_WORKERS": "1", **settings})
        said = done.stdout + done.stderr
        assert done.returncode != 0 and any(word in said for word in ("certificate", "tls", "missing.pem")), (files, said)
        assert key.read_text().splitlines()[1] not in said and other_key.read_text().splitlines()[1] not in said
