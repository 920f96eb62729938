"""Proxies in front of PostgreSQL and Valkey that cut, stall and swallow where a test says.

Each runs a thread of its own and listens on a unix socket. A rule looks at every message and answers PASS, CUT (close both sides; the message does not
go on) or DROP (the message vanishes, the connection lives); a Valkey rule may answer with octets that replace the reply.
"""
import os
import re
import selectors
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass, field

from . import procs, resp
from .procs import wait_until

PASS, CUT, DROP = "pass", "cut", "drop"
_BEGIN = re.compile(r"\s*(begin|start\s+transaction)\b", re.I)
_COMMIT = re.compile(r"\s*(commit|end)\b", re.I)


class _Link:
    """A client's connection and the server's behind it."""

    def __init__(self, number, client, server):
        self.number, self.client, self.server = number, client, server
        self.in_buffer = {client: bytearray(), server: bytearray()}    # read, not yet understood
        self.out_buffer = {client: bytearray(), server: bytearray()}   # to be written
        self.protocol = None
        self.closing = False
        self.held = False        # what the server says waits here, until release(); also when the server is gone

    def other(self, side):
        return self.server if side is self.client else self.client


class Proxy:
    """What both protocols share: listening, forwarding, cut_all, stall, resume."""

    def __init__(self, target, listen):
        self.target, self.listen = str(target), str(listen)
        self.rule = None                 # a function of an event, or None: everything passes, unparsed
        self.fired = threading.Event()   # set by the rule makers below when they struck
        self.refuse = False              # new connections are closed at once
        self.links = {}
        self.stalled = False
        self.total = 0
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.listen)
        os.chmod(self.listen, 0o777)
        self._listener.listen(256)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._done = False
        self.error = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="proxy")
        self._thread.start()

    # --- for tests -----------------------------------------------------------------------------------------------------------

    def cut_all(self):
        """Closes every connection at once, with what is on its way."""
        with self._lock:
            for link in set(self.links.values()):
                self._close(link)
        self._wake()

    def stall(self):
        """Drops packets: nothing is forwarded any more, new connections get no answer."""
        with self._lock:
            self.stalled = True
        self._wake()

    def resume(self):
        """Lets what was held, and everything new, go on."""
        with self._lock:
            self.stalled = False
        self._wake()

    def release(self):
        """Lets go what held connections were to hear; those whose server is gone meanwhile end with it."""
        with self._lock:
            for link in set(self.links.values()):
                if link.held:
                    link.held = False
                    self._flush(link, link.client)
                    if link.server not in self.links:
                        self._close(link)
        self._wake()

    def wait_fired(self, timeout=60):
        assert self.fired.wait(timeout), "the proxy's rule never struck"
        if self.error:
            raise self.error

    def connections(self):
        with self._lock:
            return len(set(self.links.values()))

    def close(self):
        self._done = True
        self._wake()
        self._thread.join(10)
        with self._lock:
            for link in set(self.links.values()):
                self._close(link)
            self._listener.close()
        procs.remove_dir(os.path.dirname(self.listen))
        return True

    # --- the thread ------------------------------------------------------------------------------------------------------------

    def _wake(self):
        os.write(self._wake_w, b"x")

    def _run(self):
        while not self._done:
            events = self._selector.select(timeout=1)
            with self._lock:
                for key, mask in events:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj == self._wake_r:
                        os.read(self._wake_r, 4096)
                        self._after_wake()
                    elif key.fileobj in self.links:
                        self._serve(self.links[key.fileobj], key.fileobj, mask)

    def _accept(self):
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        if self.refuse:
            client.close()
            return
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self.target)
        except OSError:
            server.close()
            client.close()
            return
        self.total += 1
        link = _Link(self.total, client, server)
        for sock in (client, server):
            sock.setblocking(False)
            self.links[sock] = link
            if not self.stalled:
                self._selector.register(sock, selectors.EVENT_READ)
        self.opened(link)

    def _after_wake(self):
        for link in set(self.links.values()):
            self._interest(link)

    def _interest(self, link):
        for sock in (link.client, link.server):
            if sock not in self.links:
                continue
            writes = link.out_buffer[sock] and not (link.held and sock is link.client)
            want = 0 if self.stalled else selectors.EVENT_READ | (selectors.EVENT_WRITE if writes else 0)
            known = self._selector.get_map().get(sock.fileno()) if sock.fileno() >= 0 else None
            if want and known is None:
                self._selector.register(sock, want)
            elif want and known.events != want:
                self._selector.modify(sock, want)
            elif not want and known is not None:
                self._selector.unregister(sock)

    def _close(self, link):
        for sock in (link.client, link.server):
            if sock in self.links:
                self._close_side(sock)

    def _close_side(self, sock):
        del self.links[sock]
        try:
            self._selector.unregister(sock)
        except (KeyError, ValueError):
            pass
        sock.close()

    def _serve(self, link, sock, mask):
        if mask & selectors.EVENT_WRITE:
            self._flush(link, sock)
        if mask & selectors.EVENT_READ and sock in self.links:
            try:
                data = sock.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data and link.held and sock is link.server:
                self._close_side(sock)
                return
            if not data:
                for side in (link.client, link.server):   # what is understood still goes out
                    if side in self.links and side is not sock:
                        self._flush(link, side)
                self._close(link)
                return
            try:
                verdict = self.take(link, sock, data)
            except Exception as error:  # noqa: BLE001: a broken rule must fail its test, not hang it
                self.error = error
                self.fired.set()
                verdict = CUT
            if verdict == CUT:
                self._close(link)
        for side in (link.client, link.server):
            if side in self.links and link.out_buffer[side]:
                self._flush(link, side)
        if link.client in self.links:
            self._interest(link)

    def _flush(self, link, sock):
        if link.held and sock is link.client:
            return
        try:
            while link.out_buffer[sock]:
                sent = sock.send(link.out_buffer[sock])
                del link.out_buffer[sock][:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._close(link)

    # --- for the protocols -----------------------------------------------------------------------------------------------------

    def opened(self, link):
        pass

    def take(self, link, sock, data):
        raise NotImplementedError


@dataclass
class PgEvent:
    """One message. side: client or server; kind: its type octet; sql: of Query, Parse, Bind, Describe and Execute; tag: of CommandComplete."""
    link: int
    side: str
    kind: str
    sql: str = ""
    tag: str = ""
    payload: bytes = b""
    history: list = field(default_factory=list)   # the SQL this connection has executed since its last BEGIN, that included


class PgProxy(Proxy):
    """In front of a PostgreSQL unix socket. `host` and `port` go into Database.url."""

    def __init__(self, cluster):
        directory = procs.private_dir("px-")
        self.host, self.port = directory, 5432
        super().__init__(self.socket_of(cluster), directory / ".s.PGSQL.5432")

    @staticmethod
    def socket_of(cluster):
        return cluster.socket_dir / f".s.PGSQL.{cluster.port}"

    def retarget(self, cluster):
        """The address now leads to another server; existing connections are cut."""
        self.target = str(self.socket_of(cluster))
        self.cut_all()

    def url(self, db):
        """DATABASE_URL through this proxy."""
        return db.url(host=self.host, port=self.port)

    def cut_before_commit(self, after="", count=1, then=None):
        """Arms: the next `count` connections that would send a COMMIT, having executed SQL that matches `after`, are cut instead.

        then: called (in the proxy's thread) at the last of them.
        """
        def hit(event):
            return event.side == "client" and event.kind in "EQ" and _COMMIT.match(event.sql) and _seen(event, after)
        self._arm(hit, count, then)

    def cut_after_commit(self, after="", count=1, then=None):
        """Arms: the server has committed (CommandComplete COMMIT was read), but the client never hears of it."""
        def hit(event):
            return event.side == "server" and event.kind == "C" and event.tag == "COMMIT" and _seen(event, after)
        self._arm(hit, count, then)

    def hold_commit(self, after=""):
        """Arms: the server has committed, but the next connection that would hear of it hears nothing until release()."""
        def rule(event):
            if not self.fired.is_set() and event.side == "server" and event.kind == "C" and event.tag == "COMMIT" and _seen(event, after):
                next(link for link in set(self.links.values()) if link.number == event.link).held = True
                self.fired.set()
            return PASS
        self._begin(rule)

    def cut_when(self, pattern, count=1, then=None):
        """Arms: cut when the client executes SQL that matches."""
        expression = re.compile(pattern, re.I | re.S)
        self._arm(lambda event: event.side == "client" and event.kind in "EQ" and expression.search(event.sql), count, then)

    def _begin(self, rule):
        """From now on. What has been sent so far is not meant by `after`: the answer to an earlier COMMIT may still be on its way."""
        with self._lock:
            self.fired.clear()
            for link in set(self.links.values()):
                link.protocol["history"] = []
            self.rule = rule

    def _arm(self, hit, count, then):
        left = [count]

        def rule(event):
            if left[0] > 0 and hit(event):
                left[0] -= 1
                if left[0] == 0:
                    if then:
                        then()
                    self.fired.set()
                return CUT
            return PASS
        self._begin(rule)

    def opened(self, link):
        link.protocol = {"started": False, "statements": {}, "portals": {}, "history": []}

    def take(self, link, sock, data):
        buffer = link.in_buffer[sock]
        buffer += data
        if sock is link.client:
            return self._from_client(link, buffer)
        return self._from_server(link, buffer)

    def _from_client(self, link, buffer):
        state, out = link.protocol, link.out_buffer[link.server]
        while True:
            if not state["started"]:
                if len(buffer) < 8:
                    return PASS
                size, code = struct.unpack_from(">II", buffer)
                if len(buffer) < size:
                    return PASS
                if code in (80877103, 80877104):       # SSLRequest, GSSENCRequest: not here
                    del buffer[:size]
                    link.out_buffer[link.client] += b"N"
                    continue
                out += buffer[:size]
                del buffer[:size]
                state["started"] = True
                continue
            if len(buffer) < 5:
                return PASS
            size = struct.unpack_from(">I", buffer, 1)[0] + 1
            if len(buffer) < size:
                return PASS
            message = bytes(buffer[:size])
            del buffer[:size]
            event = self._client_event(link, message)
            verdict = self.rule(event) if self.rule else PASS
            if verdict == CUT:
                return CUT
            if verdict == PASS:
                out += message

    def _client_event(self, link, message):
        state, kind, body = link.protocol, chr(message[0]), message[5:]
        sql = ""
        if kind == "Q":
            sql = body[:-1].decode(errors="replace")
        elif kind == "P":
            name, text = body.split(b"\0", 2)[:2]
            sql = state["statements"][name] = text.decode(errors="replace")
        elif kind == "B":
            portal, name = body.split(b"\0", 2)[:2]
            sql = state["portals"][portal] = state["statements"].get(name, "")
        elif kind == "E":
            sql = state["portals"].get(body.split(b"\0", 1)[0], "")
        event = PgEvent(link.number, "client", kind, sql, payload=body, history=list(state["history"]) if self.rule else [])
        if kind in "QE" and sql:
            if _BEGIN.match(sql):
                state["history"].clear()
            state["history"].append(sql)
            del state["history"][:-50]
        return event

    def _from_server(self, link, buffer):
        state, out = link.protocol, link.out_buffer[link.client]
        at, forwarded = 0, 0
        verdict = PASS
        while len(buffer) - at >= 5:
            size = struct.unpack_from(">I", buffer, at + 1)[0] + 1
            if len(buffer) - at < size:
                break
            if buffer[at] == 0x43:                     # CommandComplete
                tag = bytes(buffer[at + 5:at + size - 1]).decode()
                if self.rule:
                    verdict = self.rule(PgEvent(link.number, "server", "C", tag=tag, history=list(state["history"])))
            elif self.rule:
                verdict = self.rule(PgEvent(link.number, "server", chr(buffer[at]), payload=bytes(buffer[at + 5:at + size]),
                                            history=list(state["history"])))
            if verdict == CUT:
                return CUT
            if verdict == DROP:
                out += buffer[forwarded:at]
                forwarded = at + size
                verdict = PASS
            at += size
        out += buffer[forwarded:at]
        del buffer[:at]
        return PASS


def _seen(event, after):
    return not after or any(re.search(after, sql, re.I | re.S) for sql in event.history)


@dataclass
class ValkeyEvent:
    """A reply with the command that it answers. command: list of octet strings; reply: the raw octets."""
    link: int
    number: int
    command: list
    reply: bytes

    def name(self):
        return self.command[0].upper().decode(errors="replace")

    def mentions(self, *texts):
        return all(any((t.encode() if isinstance(t, str) else t) in part for part in self.command) for t in texts)


class ValkeyProxy(Proxy):
    """In front of a Valkey's unix socket. `url` goes to a worker."""

    def __init__(self, valkey):
        directory = procs.private_dir("vx-")
        super().__init__(valkey.socket, directory / "valkey.sock")
        self.url = f"unix://{self.listen}?db=0"
        self.replies = 0

    def swallow(self, match, count=1):
        """Arms: the next `count` replies to commands for which match(event) holds never arrive."""
        left = [count]
        self.fired.clear()

        def rule(event):
            if left[0] > 0 and match(event):
                left[0] -= 1
                if left[0] == 0:
                    self.fired.set()
                return DROP
            return PASS
        self.rule = rule

    def answer(self, reply):
        """Every command gets this reply instead of its own; None ends that."""
        self.rule = (lambda event: reply) if reply is not None else None

    def opened(self, link):
        link.protocol = {"commands": deque()}

    def take(self, link, sock, data):
        buffer = link.in_buffer[sock]
        buffer += data
        from_client = sock is link.client
        out = link.out_buffer[link.other(sock)]
        at = 0
        while True:
            try:
                value, end = resp.parse(buffer, at)
            except resp.Incomplete:
                del buffer[:at]
                return PASS
            message = bytes(buffer[at:end])
            at = end
            if from_client:
                link.protocol["commands"].append([p if isinstance(p, bytes) else str(p).encode() for p in value] if isinstance(value, list) else [b""])
                out += message
                continue
            self.replies += 1
            command = link.protocol["commands"].popleft() if link.protocol["commands"] else [b""]
            verdict = self.rule(ValkeyEvent(link.number, self.replies, command, message)) if self.rule else PASS
            if verdict == CUT:
                return CUT
            if verdict == PASS:
                out += message
            elif isinstance(verdict, bytes):
                out += verdict


def wait_connected(proxy, count=1, timeout=30):
    wait_until(lambda: proxy.connections() >= count, timeout, f"{count} connections through the proxy")
