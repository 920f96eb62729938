"""The HTTP door from outside: a raw HTTP/1.1 client (any octets, in any pieces), a worker with a door, tokens, door digests.

    door = Door(env)                              # a worker with a door, and a token of tenant 1
    first = door.post("/do", {"key": "E1"}, key="k1")
    assert first.status == 200 and not first.replayed
"""
import hashlib
import json
import os
import socket
import struct
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg2

from .procs import wait_until

PROBLEM = "urn:umavez:problem:"
FAILURE = "urn:umavez:failure:"


class Closed(Exception):
    """The server has closed the connection where an answer was expected."""


class Response:
    """One answer as it came: status, headers (in order, as sent), body octets, the raw head."""

    def __init__(self, status, reason, headers, body, head):
        self.status, self.reason, self.headers, self.body, self.head = status, reason, headers, body, head

    def all(self, name):
        return [v for n, v in self.headers if n.lower() == name.lower()]

    def get(self, name):
        """The header's only value, or None."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times: {values}"
        return values[0] if values else None

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def replayed(self):
        """Both markers, or neither; never with another value than `true`."""
        marks = self.get("X-Idempotent-Replay"), self.get("Idempotent-Replayed")
        assert marks in ((None, None), ("true", "true")), marks
        return marks[0] is not None

    @property
    def problem(self):
        """The end of a problem's type: `key_reused`; None when it is no problem of the door's."""
        if self.get("Content-Type") != "application/problem+json":
            return None
        kind = self.json["type"]
        return kind[len(PROBLEM):] if kind.startswith(PROBLEM) else None

    def __repr__(self):
        return f"<{self.status} {self.body[:300]!r}>"


def octets(value):
    return value if isinstance(value, bytes) else str(value).encode("latin-1")


def request_octets(method, target, headers=(), body=None, *, length=True, host="door.test"):
    """A request's octets. headers: pairs (repeats allowed); length: whether Content-Length is added."""
    lines = [octets(method) + b" " + octets(target) + b" HTTP/1.1"]
    pairs = [(octets(n), octets(v)) for n, v in headers]
    names = {n.lower() for n, _ in pairs}
    if host is not None and b"host" not in names:
        pairs.insert(0, (b"Host", octets(host)))
    if length and body is not None and not names & {b"content-length", b"transfer-encoding"}:
        pairs.append((b"Content-Length", b"%d" % len(body)))
    lines += [n + b": " + v for n, v in pairs]
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def chunked(*pieces):
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


class Connection:
    """One TCP connection. send() takes any octets; answers are read exactly, one at a time."""

    def __init__(self, port, timeout=60):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def reset(self):
        """Closes with RST: what a vanished client looks like."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)
        return self

    def _more(self):
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Closed(f"after {self.buffer[:200]!r}")
        self.buffer += data

    def _until(self, mark):
        while mark not in self.buffer:
            self._more()
        head, self.buffer = self.buffer.split(mark, 1)
        return head

    def _exactly(self, n):
        while len(self.buffer) < n:
            self._more()
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    def read(self, method="POST", *, interim=False):
        """The next final answer; with interim, the next of any kind."""
        while True:
            head = self._until(b"\r\n\r\n")
            lines = head.split(b"\r\n")
            version, status, reason = (lines[0].split(b" ", 2) + [b""])[:3]
            assert version in (b"HTTP/1.1", b"HTTP/1.0"), lines[0]
            headers = []
            for line in lines[1:]:
                name, colon, value = line.partition(b":")
                assert colon and name == name.strip(), line
                headers.append((name.decode("latin-1"), value.strip().decode("latin-1")))
            answer = Response(int(status), reason.decode("latin-1"), headers, b"", head)
            if 100 <= answer.status < 200:
                if interim:
                    return answer
                continue
            answer.body = self._body(answer, method)
            return answer

    def _body(self, answer, method):
        if method == "HEAD" or answer.status in (204, 304):
            return b""
        if "chunked" in (answer.get("Transfer-Encoding") or ""):
            body = b""
            while True:
                size = int(self._until(b"\r\n").split(b";")[0], 16)
                body += self._exactly(size)
                assert self._until(b"\r\n") == b""
                if size == 0:
                    return body
        length = answer.get("Content-Length")
        if length is not None:
            return self._exactly(int(length))
        body = b""
        try:
            while True:
                self._more()
        except Closed:
            body, self.buffer = self.buffer, b""
        return body

    def closed(self, timeout=20):
        """True when the server closes (without further octets) within the time-out."""
        self.socket.settimeout(timeout)
        try:
            return self.buffer == b"" and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except socket.timeout:
            return False

    def request(self, method, target, headers=(), body=None, **options):
        self.send(request_octets(method, target, headers, body, **options))
        return self.read(method)


# --- digests, computed a second time ----------------------------------------------------------------------------------------------

def _part(data):
    return struct.pack(">I", len(data)) + data


def door_key(task, key, tenant=None):
    owner = b"p" if tenant is None else b"t%d" % tenant
    return hashlib.sha256(b"umavez.door.key.v1\0" + _part(owner) + _part(octets(task)) + _part(octets(key))).digest()


def door_fingerprint(method, target, body=b""):
    return hashlib.sha256(b"umavez.door.request.v1\0" + _part(octets(method)) + _part(octets(target))
                          + struct.pack(">Q", len(body)) + body).digest()


# --- tokens, workers --------------------------------------------------------------------------------------------------------------

def make_token(env, tenant=1, scopes=("*",), name="test", expires=None):
    """A token in SQL; its text. Only the digest is in the database."""
    token = "uv_" + os.urandom(32).hex()
    env.db.q("SELECT umavez.token_create(%s, %s, %s, %s::text[], %s::timestamptz)",
             psycopg2.Binary(hashlib.sha256(token.encode()).digest()), name, tenant, list(scopes), expires)
    return token


def start_door(env, /, *, ready=True, **settings):
    """A worker with a door on a free port of its own: (worker, port)."""
    worker = env.worker(**{"http_listen": "127.0.0.1:0", **settings})
    port = int(worker.wait_event("door_open")["port"])
    if ready:
        wait_ready(port, worker)
    return worker, port


def wait_ready(port, worker=None, timeout=60):
    def look():
        assert worker is None or worker.running(), f"the worker has ended:\n{worker.tail()}"
        try:
            with Connection(port) as c:
                return c.request("GET", "/readyz").status == 200
        except (OSError, Closed):
            return False
    wait_until(look, timeout, lambda: "the door is ready" + (f":\n{worker.tail()}" if worker else ""))


class Door:
    """A worker with a door, and requests to it by one owner. Each request has a connection of its own unless `on` names one."""

    def __init__(self, env, /, *, tenant=1, scopes=("*",), port=None, worker=None, **settings):
        self.env, self.tenant = env, tenant
        self.worker, self.port = (worker, port) if port else start_door(env, **settings)
        self.token = make_token(env, tenant, scopes)

    def as_owner(self, tenant, scopes=("*",)):
        """The same door, another owner."""
        return Door(self.env, tenant=tenant, scopes=scopes, port=self.port, worker=self.worker)

    def connect(self, timeout=60):
        return Connection(self.port, timeout)

    def headers(self, key=None, token="own", content_type="application/json", more=()):
        pairs = []
        token = self.token if token == "own" else token
        if token is not None:
            pairs.append(("Authorization", f"Bearer {token}"))
        if key is not None:
            pairs.append(("Idempotency-Key", key))
        if content_type is not None:
            pairs.append(("Content-Type", content_type))
        return pairs + list(more)

    def octets(self, method, target, body=None, *, key=None, token="own", content_type="application/json", headers=(), **options):
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body, ensure_ascii=False).encode()
        return request_octets(method, target, self.headers(key, token, content_type if body is not None else None, headers), body,
                              **options)

    def send(self, method, target, body=None, *, on=None, timeout=60, **options):
        data = self.octets(method, target, body, **options)
        if on is not None:
            on.send(data)
            return on.read(method)
        with self.connect(timeout) as connection:
            connection.send(data)
            return connection.read(method)

    def post(self, target, body=None, **options):
        return self.send("POST", target, body, **options)

    def get(self, target, **options):
        return self.send("GET", target, **options)

    def later(self, *args, **options):
        """post in a thread: a future."""
        pool = ThreadPoolExecutor(1)
        future = pool.submit(self.post, *args, **options)
        pool.shutdown(wait=False)
        return future

    def race(self, count, *args, **options):
        """`count` equal requests, sent at one moment, each on a connection of its own: their answers."""
        data = self.octets("POST", *args, **options)
        connections = [self.connect() for _ in range(count)]
        barrier = threading.Barrier(count)

        def one(connection):
            barrier.wait()
            connection.send(data)
            return connection.read("POST")
        try:
            with ThreadPoolExecutor(count) as pool:
                return list(pool.map(one, connections))
        finally:
            for connection in connections:
                connection.close()

    def ledger(self, task, key):
        """The ledger's row of a door key (with xmin and ctid), or None."""
        digest = psycopg2.Binary(door_key(task, key, self.tenant))
        if self.tenant is None:
            return self.env.db.one("SELECT *, xmin::text, ctid::text FROM umavez.platform_idempotency_keys WHERE idempotency_key = %s", digest)
        return self.env.db.one("SELECT *, xmin::text, ctid::text FROM umavez.idempotency_keys WHERE tenant_id = %s AND idempotency_key = %s",
                               self.tenant, digest)

    def gate(self, task, key):
        """The gate's entry of a door key, or None."""
        return self.env.gate.get(door_key(task, key, self.tenant), self.tenant)

    def untouched(self):
        """Neither ledger holds a row, nor the gate an entry."""
        return self.env.ledger_rows() == [] and self.env.gate.all() == []


def new_key():
    return str(uuid.uuid4())


def timed(call):
    """(result, seconds)."""
    begun = time.monotonic()
    result = call()
    return result, time.monotonic() - begun
