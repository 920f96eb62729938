"""PostgreSQL, PgBouncer and Valkey servers of the tests' own, to be stopped, killed and frozen.

A cluster is copied from a template that is made once a session (initdb, migrations, the tests' own tables), so a private one costs
less than a second. Durability against a power cut is not what the tests are about: fsync is off, crashes of processes lose nothing by it.
"""
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psycopg2
import psycopg2.extras

from . import procs
from .procs import ROOT, wait_until
from .resp import Resp, RespError

SUPPORT = Path(__file__).resolve().parent
TEMPLATE_DB = "uv_template"
WORKER_ROLE = "app_worker"

SETTINGS = {
    "fsync": "off", "full_page_writes": "off", "synchronous_commit": "on", "shared_buffers": "64MB",
    "max_connections": "300", "listen_addresses": "", "unix_socket_permissions": "0777", "timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%u@%d %a ", "log_lock_waits": "on", "max_wal_size": "512MB", "autovacuum_naptime": "5s",
}


def pg_bin(tool):
    """PostgreSQL's server programs are not on Debian's PATH; UMAVEZ_TEST_PGBIN names another directory."""
    given = os.environ.get("UMAVEZ_TEST_PGBIN")
    dirs = [Path(given)] if given else sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name), reverse=True)
    for directory in dirs:
        if (directory / tool).exists():
            return str(directory / tool)
    found = shutil.which(tool)
    if not found:
        raise RuntimeError(f"{tool} not found: install postgresql or set UMAVEZ_TEST_PGBIN")
    return found


def umavez_bin():
    return Path(os.environ.get("UMAVEZ_BIN", ROOT / "build" / "umavez"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# --- PostgreSQL ------------------------------------------------------------------------------------------------------------

class Cluster:
    """One PostgreSQL server. `start` after any way of ending it; the data directory stays until `destroy`."""

    def __init__(self, directory, *, tcp=False, settings=None, env=None):
        self.dir = Path(directory)
        self.env = {**os.environ, **env} if env else None    # of the server
        self.data = self.dir / "data"
        self.socket_dir = self.dir
        self.port = free_port() if tcp else 5432
        self.tcp = tcp
        self.settings = {**SETTINGS, **(settings or {})}
        if tcp:
            self.settings["listen_addresses"] = "127.0.0.1"
        self.log = self.dir / "postgres.log"
        self.process = None
        self.lives = 0        # how often it was started

    @classmethod
    def create(cls, **options):
        """A private cluster, copied from the session's template, not yet started."""
        template = template_dir()
        cluster = cls(procs.private_dir("pg-"), **options)
        procs.run(["cp", "-a", "--reflink=auto", template / "data", cluster.data])
        return cluster

    @property
    def pid(self):
        return self.process.pid

    def start(self, wait=True, **settings):
        assert not self.running(), "already running"
        self.settings.update({k: str(v) for k, v in settings.items()})
        argv = [pg_bin("postgres"), "-D", self.data, "-k", self.socket_dir, "-p", self.port]
        for name, value in self.settings.items():
            argv += ["-c", f"{name}={value}"]
        with open(self.log, "ab") as log:
            self.process = procs.spawn(argv, death_signal=signal.SIGQUIT, stdout=log, env=self.env)
        self.lives += 1
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout=60):
        def answers():
            if self.process.poll() is not None:
                raise RuntimeError("postgres ended at its start:\n" + self.log.read_text(errors="replace")[-2000:])
            try:
                psycopg2.connect(self.dsn("postgres")).close()
                return True
            except psycopg2.OperationalError:
                return False
        wait_until(answers, timeout, "PostgreSQL accepts connections")

    def running(self):
        return self.process is not None and self.process.poll() is None

    def stop(self, mode="fast"):
        """mode: smart, fast, immediate, or kill (SIGKILL of the postmaster; its children notice and go)."""
        if not self.running():
            return
        children = procs.children_of(self.pid)
        sig = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}[mode]
        self.process.send_signal(sig)
        self.process.wait(timeout=60)
        try:  # a new postmaster refuses to start while an old backend is attached to the shared memory
            wait_until(lambda: not any(map(procs.alive, children)), 20 if mode == "kill" else 5)
        except AssertionError:
            for pid in children:
                procs.send(pid, signal.SIGKILL)
            wait_until(lambda: not any(map(procs.alive, children)), 20, "old backends gone")

    def restart(self, mode="fast", **settings):
        self.stop(mode)
        self.start(**settings)

    def freeze(self):
        """SIGSTOP of the postmaster and all its children: the kernel still acknowledges packets, nobody answers."""
        procs.send(self.pid, signal.SIGSTOP)
        for pid in procs.children_of(self.pid):
            procs.send(pid, signal.SIGSTOP)

    def thaw(self):
        for pid in procs.children_of(self.pid):
            procs.send(pid, signal.SIGCONT)
        procs.send(self.pid, signal.SIGCONT)

    def destroy(self):
        if self.running():
            self.thaw()
            self.stop("immediate")
        procs.remove_dir(self.dir)

    def dsn(self, dbname, role="postgres"):
        return f"host={self.socket_dir} port={self.port} dbname={dbname} user={role} connect_timeout=10"

    def database(self, name=None):
        """A new database, copied from the migrated template; with a name: that one, which exists."""
        if name:
            return Database(self, name)
        name = "uv_" + os.urandom(5).hex()
        admin = Database(self, "postgres")
        for attempt in range(50):
            try:
                admin.q(f'CREATE DATABASE {name} TEMPLATE {TEMPLATE_DB}')
                break
            except psycopg2.errors.ObjectInUse:  # autovacuum looks at the template now and then
                if attempt == 49:
                    raise
                time.sleep(0.1)
        admin.close()
        return Database(self, name)

    def log_text(self):
        return self.log.read_text(errors="replace")

    def standby(self, **options):
        """A streaming standby of this cluster (asynchronous), started."""
        other = Cluster(procs.private_dir("sb-"), **options)
        procs.run([pg_bin("pg_basebackup"), "-D", other.data, "-R", "-X", "stream", "-c", "fast",
                   "-d", f"host={self.socket_dir} port={self.port} user=postgres"])
        other.start()
        return other

    def promote(self):
        Database(self, "postgres").q("SELECT pg_promote(true, 60)")


class Database:
    """A database seen by the test, as superuser, on an autocommit connection that is made anew after a restart."""

    def __init__(self, cluster, name):
        self.cluster, self.name = cluster, name
        self._connection, self._life = None, None

    def url(self, role=WORKER_ROLE, *, host=None, port=None, **parameters):
        """DATABASE_URL for a worker; host and port of a proxy or pooler instead of the server's own."""
        query = {"host": host or self.cluster.socket_dir, "port": port or self.cluster.port, **parameters}
        return f"postgresql://{role}@/{self.name}?" + "&".join(f"{k}={v}" for k, v in query.items())

    def connect(self, role="postgres", autocommit=True):
        """A connection of the caller's own."""
        connection = psycopg2.connect(self.cluster.dsn(self.name, role), cursor_factory=psycopg2.extras.NamedTupleCursor,
                                      application_name="test")
        connection.autocommit = autocommit
        return connection

    def q(self, sql, *params):
        """Rows as named tuples; [] for a statement without any. `%s` are parameters; without parameters `%` is literal."""
        if self._connection is None or self._connection.closed or self._life != self.cluster.lives:
            self.close()
            self._connection, self._life = self.connect(), self.cluster.lives
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(sql, params or None)
                return cursor.fetchall() if cursor.description else []
        except psycopg2.Error as error:
            if self._connection.closed or type(error) is psycopg2.DatabaseError:   # how psycopg2 reports some losses
                self._connection.close()
                self._connection = None
                raise psycopg2.OperationalError(str(error)) from error
            raise

    def one(self, sql, *params):
        rows = self.q(sql, *params)
        return rows[0] if rows else None

    def val(self, sql, *params):
        row = self.one(sql, *params)
        return row[0] if row else None

    def close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def drop(self):
        self.close()
        if self.cluster.running():
            admin = Database(self.cluster, "postgres")
            admin.q(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)")
            admin.close()


def template_dir():
    """The session's template cluster: initialised, migrated, with the tests' tables. Made once, by whoever comes first."""
    target = procs.base_dir() / "template"
    with open(procs.base_dir() / "template.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _make_template(procs.base_dir() / "template.new")
            os.rename(procs.base_dir() / "template.new", target)
    return target


def _make_template(directory):
    procs.remove_dir(directory)
    directory.mkdir()
    procs.own(directory)
    procs.run([pg_bin("initdb"), "-D", directory / "data", "-U", "postgres", "--auth=trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"])
    with open(directory / "data" / "pg_hba.conf", "a") as hba:
        hba.write("local replication all trust\n")
    cluster = Cluster(directory)
    cluster.start()
    try:
        admin = Database(cluster, "postgres")
        admin.q(f"CREATE DATABASE {TEMPLATE_DB}")
        migrate(cluster.database(TEMPLATE_DB))
        admin.q(f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'umavez_worker') THEN CREATE ROLE umavez_worker NOLOGIN; END IF; END $$")
        admin.q(f"CREATE ROLE {WORKER_ROLE} LOGIN IN ROLE umavez_worker")
        database = cluster.database(TEMPLATE_DB)
        database.q((SUPPORT / "app.sql").read_text())
        database.close()
        admin.close()
    finally:
        cluster.stop("fast")
    (directory / "postgres.log").unlink(missing_ok=True)


def migrate(database):
    """`umavez migrate`, or, where the program is not built, the migrations by psql."""
    binary, script = umavez_bin(), SUPPORT / "apply_sql.sh"
    env = {**clean_environment(), "DATABASE_URL": database.url("postgres")}
    if binary.exists() and os.environ.get("UMAVEZ_TEST_MIGRATE") != "psql":
        procs.run([binary, "migrate"], drop=False, env=env)
    elif script.exists():
        procs.run(["sh", script, database.url("postgres")], drop=False, env=env)
    else:
        raise RuntimeError(f"neither {binary} nor {script}: build first (make)")


def clean_environment():
    """Our environment without what would configure umavez or libpq behind a test's back; workers leave schedules alone unless told otherwise."""
    return {"UMAVEZ_SCHEDULES": "false"} | {k: v for k, v in os.environ.items()
            if (k == "UMAVEZ_TEST_SHARE" or not k.startswith(("PG", "UMAVEZ_"))) and k not in ("DATABASE_URL", "VALKEY_URL")}


# --- PgBouncer -------------------------------------------------------------------------------------------------------------

class PgBouncer:
    """A pooler in front of a cluster, on a unix socket of its own (`socket_dir`, port 6432)."""

    def __init__(self, cluster, *, mode="transaction", pool_size=2, **settings):
        self.dir = procs.private_dir("pb-")
        self.socket_dir, self.port = self.dir, 6432
        options = {"listen_addr": "", "listen_port": self.port, "unix_socket_dir": self.dir, "auth_type": "any",
                   "pool_mode": mode, "default_pool_size": pool_size, "max_client_conn": 200,
                   "server_reset_query": "", "logfile": self.dir / "pgbouncer.log", **settings}
        text = f"[databases]\n* = host={cluster.socket_dir} port={cluster.port} user={WORKER_ROLE}\n[pgbouncer]\n"
        text += "".join(f"{k} = {v}\n" for k, v in options.items())
        (self.dir / "pgbouncer.ini").write_text(text)
        binary = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        self.process = procs.spawn([binary, self.dir / "pgbouncer.ini"])

        def answers():
            if self.process.poll() is not None:
                log = self.dir / "pgbouncer.log"
                raise RuntimeError("pgbouncer ended: " + (log.read_text() if log.exists() else ""))
            with socket.socket(socket.AF_UNIX) as s:
                return s.connect_ex(str(self.dir / f".s.PGSQL.{self.port}")) == 0
        wait_until(answers, 30, "PgBouncer accepts connections")

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def destroy(self):
        self.stop()
        procs.remove_dir(self.dir)


# --- Valkey ----------------------------------------------------------------------------------------------------------------

def valkey_bin():
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name) or (f"/usr/bin/{name}" if os.path.exists(f"/usr/bin/{name}") else None)
        if found:
            return found
    raise RuntimeError("neither valkey-server nor redis-server is installed")


class Valkey:
    """One Valkey (or Redis >= 7) server of a test's own, without persistence: a restart loses everything."""

    def __init__(self, *, tcp=False, **settings):
        self.dir = procs.private_dir("vk-")
        self.socket = self.dir / "valkey.sock"
        self.port = free_port() if tcp else 0
        self.settings = {"save": "", "appendonly": "no", "maxmemory-policy": "noeviction", "enable-debug-command": "yes",
                         "busy-reply-threshold": "50", **settings}
        self.process = None
        self._client = None

    def start(self, wait=True):
        assert not self.running(), "already running"
        argv = [valkey_bin(), "--port", self.port, "--bind", "127.0.0.1", "--unixsocket", self.socket, "--unixsocketperm", "777",
                "--dir", self.dir, "--daemonize", "no"]
        for name, value in self.settings.items():
            argv += [f"--{name}", value]
        with open(self.dir / "valkey.log", "ab") as log:
            self.process = procs.spawn(argv, stdout=log)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout=30):
        def answers():
            if self.process.poll() is not None:
                raise RuntimeError("valkey ended at its start:\n" + (self.dir / "valkey.log").read_text(errors="replace")[-2000:])
            try:
                return self("PING") == b"PONG"
            except (OSError, RespError):
                return False
        wait_until(answers, timeout, "Valkey answers")

    def running(self):
        return self.process is not None and self.process.poll() is None

    @property
    def url(self):
        """VALKEY_URL for a worker."""
        return f"unix://{self.socket}?db=0"

    def client(self, timeout=30):
        """A connection of the caller's own."""
        return Resp(str(self.socket), timeout)

    def __call__(self, *command):
        """Runs a command, returns its reply (bytes, int, None or list); an error reply raises RespError."""
        if self._client is None:
            self._client = self.client()
        try:
            return self._client(*command)
        except OSError:
            self._client.close()
            self._client = None
            raise

    def configure(self, **settings):
        for name, value in settings.items():
            self("CONFIG", "SET", name.replace("_", "-"), value)

    def flush(self):
        self("FLUSHALL")

    def keys(self, pattern="*"):
        return [k.decode() for k in self("KEYS", pattern)]

    def stop(self, sig=signal.SIGKILL):
        if self.running():
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(sig)
            self.process.wait(timeout=30)
        if self._client:
            self._client.close()
            self._client = None

    def restart(self):
        self.stop()
        self.start()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def destroy(self):
        self.stop()
        procs.remove_dir(self.dir)
