"""A Valkey of our own that cannot be trusted.

It keeps keys and runs umavez's three scripts (told by their text) as an honest server would, and then answers what its mode says: see MODES. What it
answers with is chosen by a seeded generator; what it has told is counted in `told`. It remembers every value that ever stood at a key, so that it can
hand out old ones, and others'. The mode may change at any time, under load.
"""
import collections
import hashlib
import heapq
import itertools
import os
import random
import selectors
import socket
import threading
import time

from . import procs, resp

MODES = {
    "honest": "answers as Valkey does",
    "evict": "forgets keys at random, at any time",
    "amnesia": "keeps nothing: everybody acquires",
    "acquired": "says acquired to everybody, whatever stands there",
    "held": "answers with an old, authentic processing entry of this key, for ever",
    "stale": "answers with any older, authentic value of this key, with a TTL of its invention",
    "foreign": "answers with an authentic value of another key",
    "forged": "answers with this key's entry, changed: settled, another outcome, another fingerprint, owner, database",
    "relative": "answers with well-signed entries of another timeline",
    "types": "answers with integers, nil, arrays, statuses and errors where strings belong",
    "huge": "answers with megabytes",
    "partial": "sends half of a reply, and the rest much later or never",
    "garbage": "sends random octets",
    "order": "swaps and shifts the replies of a connection",
    "extra": "sends replies that nobody has asked for",
    "late": "answers after the deadline",
    "drip": "sends its replies octet by octet",
    "hashes": "says other scripts' hashes, and that it knows none",
    "refuse": "closes new and old connections",
    "silent": "accepts, and never answers",
}
LIES = [mode for mode in MODES if mode not in ("honest", "refuse", "silent")]


def bulk(data):
    return b"$%d\r\n%s\r\n" % (len(data), data)


def pair(value, pttl):
    return b"*2\r\n" + bulk(value) + b":%d\r\n" % pttl


class _Link:
    def __init__(self, client):
        self.client, self.buffer, self.held = client, bytearray(), None
        self.quiet_until = 0      # partial: nothing goes out before


class HostileValkey:
    """`url` goes to a worker; `mode` is set by the test. sign(owner, key, entry octets) → an entry of another timeline, signed by the database's secret."""

    def __init__(self, seed=1, sign=None):
        self.random, self.sign = random.Random(seed), sign
        self.mode = "honest"
        self.told = collections.Counter()
        self.store, self.past, self.scripts = {}, collections.defaultdict(list), {}
        self.error = None
        self._due, self._number = [], itertools.count()
        self._links, self._done = {}, False
        self.path = procs.private_dir("hv-") / "valkey.sock"
        self.url = f"unix://{self.path}?db=0"
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        os.chmod(self.path, 0o777)
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True, name="hostile")
        self._thread.start()

    def close(self):
        self._done = True
        self._thread.join(10)
        for link in list(self._links.values()):
            self._drop(link)
        self._listener.close()
        procs.remove_dir(self.path.parent)
        assert self.error is None, self.error
        return True

    # --- the thread ------------------------------------------------------------------------------------------------------------

    def _run(self):
        try:
            while not self._done:
                wait = min(0.05, max(0, self._due[0][0] - time.monotonic())) if self._due else 0.05
                for key, _ in self._selector.select(wait):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fd in self._links:
                        self._read(self._links[key.fd])
                while self._due and self._due[0][0] <= time.monotonic():
                    _, _, link, data = heapq.heappop(self._due)
                    self._out(link, data)
                if self.mode == "refuse":
                    for link in list(self._links.values()):
                        self.told["refuse"] += 1
                        self._drop(link)
        except Exception as error:  # noqa: BLE001: the test that closes us hears of it
            self.error = error

    def _accept(self):
        client, _ = self._listener.accept()
        if self.mode == "refuse":
            client.close()
            return
        client.settimeout(5)
        self._links[client.fileno()] = _Link(client)
        self._selector.register(client, selectors.EVENT_READ)

    def _drop(self, link):
        if self._links.pop(link.client.fileno(), None):
            self._selector.unregister(link.client)
            link.client.close()

    def _read(self, link):
        try:
            data = link.client.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop(link)
            return
        link.buffer += data
        while link.client.fileno() >= 0:
            try:
                command, end = resp.parse(link.buffer)
            except resp.Incomplete:
                return
            del link.buffer[:end]
            self._answer(link, [part if isinstance(part, bytes) else b"" for part in command])

    def _out(self, link, data):
        if link.client.fileno() < 0:
            return
        try:
            link.client.sendall(data)
        except OSError:
            self._drop(link)

    def _later(self, seconds, link, data):
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._number), link, data))

    # --- an honest server --------------------------------------------------------------------------------------------------------

    def _get(self, key):
        value, ends = self.store.get(key, (None, 0))
        return (value, ends) if value is not None and ends > time.monotonic() else (None, 0)

    def _set(self, key, value, px):
        self.store[key] = (value, time.monotonic() + px / 1000)
        if b":gate:" in key and value not in self.past[key]:
            self.past[key] = self.past[key][-30:] + [value]

    def _script(self, text, key, args):
        value, ends = self._get(key)
        if b"return '+'" in text:
            entry, px, run_id = args
            if value is not None and not (value.startswith(b"uv") and value[4:6] == b"P:" and run_id in value[:260]):
                return pair(value, int((ends - time.monotonic()) * 1000) + 1)
            self._set(key, entry, int(px))
            return b"$1\r\n+\r\n"
        if b"PEXPIRE" in text:
            token, px = args
            if value is None or value[4:6] != b"P:" or token not in value[:260]:
                return b":0\r\n"
            if px == b"0":
                del self.store[key]
            else:
                self._set(key, value, int(px))
            return b":1\r\n"
        self._set(key, args[0], int(args[1]))
        return b":1\r\n"

    def _honest(self, command):
        """(the reply, the key of a gate's script or None, is it an acquire)"""
        name = command[0].upper()
        if name in (b"EVAL", b"EVALSHA"):
            text = command[1] if name == b"EVAL" else self.scripts.get(command[1].lower())
            if text is None:
                return b"-NOSCRIPT No matching script. Please use EVAL.\r\n", command[3], False
            self.scripts[hashlib.sha1(text).hexdigest().encode()] = text
            return self._script(text, command[3], command[4:]), command[3], b"return '+'" in text
        if name == b"SCRIPT":
            sha = hashlib.sha1(command[2]).hexdigest().encode()
            self.scripts[sha] = command[2]
            return bulk(sha), None, False
        if name == b"SET":
            self._set(command[1], command[2], int(command[4]) if len(command) > 4 else 1000)
        return b"+OK\r\n", None, False

    # --- and what it says --------------------------------------------------------------------------------------------------------

    def _answer(self, link, command):
        mode, rnd = self.mode, self.random
        if mode == "evict" and self.store:
            for key in rnd.sample(list(self.store), min(len(self.store), rnd.randint(0, 5))):
                del self.store[key]
                self.told[mode] += 1
        if mode == "amnesia" and self.store:
            self.told[mode] += 1
            self.store.clear()
        reply, key, acquire = self._honest(command)
        if mode in ("evict", "amnesia", "honest", "refuse") or (key is None and rnd.random() < 0.9 and mode != "hashes"):
            self._out(link, reply)      # a login or a probe is mostly let through: behind a shut breaker nobody hears a lie
            return
        self._lie(link, mode, reply, key, acquire, command)

    def _lie(self, link, mode, reply, key, acquire, command):
        rnd = self.random
        lie = None
        if mode in ("acquired", "held", "stale", "foreign", "forged", "relative"):
            lie = self._value(mode, key) if acquire else None
            self._out(link, lie or reply)
        elif mode == "types":
            lie = rnd.choice([b":1\r\n", b":-1\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"$0\r\n\r\n", b"+OK\r\n", b"-ERR no\r\n", b"-WRONGTYPE no\r\n",
                              b"*2\r\n:1\r\n:2\r\n", b"*2\r\n$-1\r\n:5\r\n", b"*2\r\n$3\r\nuv1\r\n$1\r\n5\r\n", b"*3\r\n:1\r\n:2\r\n:3\r\n",
                              b"*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", b"-NOSCRIPT no\r\n", b"$1\r\n-\r\n", b"-OOM no\r\n", b"-BUSY no\r\n", b"-LOADING no\r\n"])
            self._out(link, lie)
        elif mode == "huge":
            size = rnd.choice([20_000, 300_000, 2_000_000, 9_000_000])
            lie = rnd.choice([lambda: bulk(b"x" * size), lambda: pair(self._grown(key, size), 5000),
                              lambda: b"*%d\r\n" % (size // 50) + b":1\r\n" * (size // 50), lambda: b"-ERR " + b"e" * size + b"\r\n"])()
            self._out(link, lie)
        elif mode == "partial":
            lie = reply[:rnd.randint(1, len(reply) - 1)]
            self._out(link, lie)
            if rnd.random() < 0.5:
                self._later(rnd.uniform(0.05, 1.5), link, reply[len(lie):])
        elif mode == "garbage":
            lie = rnd.randbytes(rnd.choice([1, 20, 3000]))
            self._out(link, lie)
        elif mode == "order":
            if link.held is None:
                link.held = reply
            else:
                lie = reply
                self._out(link, reply + link.held if rnd.random() < 0.5 else reply)
                link.held = None if rnd.random() < 0.5 else link.held
        elif mode == "extra":
            lie = rnd.choice([b":1\r\n", b"+OK\r\n", b"$1\r\n+\r\n", b"*0\r\n", reply, b"-ERR unasked\r\n", b">2\r\n+push\r\n:1\r\n"])
            if rnd.random() < 0.5:
                self._out(link, reply + lie)
            else:
                self._out(link, reply)
                self._later(rnd.uniform(0, 0.2), link, lie)
        elif mode == "late":
            lie = reply
            self._later(rnd.uniform(0.05, 1.2), link, reply)
        elif mode == "drip":
            lie = reply
            for at in range(min(len(reply), 400)):
                self._later(at * 0.01, link, reply[at:at + 1] if at < 399 else reply[at:])
        elif mode == "hashes":
            if command[0].upper() == b"SCRIPT":
                lie = bulk(rnd.choice(list(self.scripts)) if rnd.random() < 0.7 else rnd.randbytes(20).hex().encode())
            elif command[0].upper() == b"EVALSHA" and rnd.random() < 0.5:
                lie = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
            self._out(link, lie or reply)
        else:
            lie = reply     # silent
        if lie:
            self.told[mode] += 1

    def _grown(self, key, size):
        past = self.past.get(key)
        return (past[-1] if past else b"uv3:C:") + b"x" * size

    def _value(self, mode, key):
        """A lie in answer to an acquire; None where there is nothing to lie with."""
        rnd, past = self.random, self.past.get(key, [])
        if mode == "acquired":
            return b"$1\r\n+\r\n"
        pttl = rnd.choice([-1, 0, 1, 50, 900, 10_000, 10 ** 9])
        if mode == "held":
            old = [v for v in past if v[4:6] == b"P:"]
            return pair(rnd.choice(old), rnd.randint(1, 900)) if old else None
        if mode == "stale":
            return pair(rnd.choice(past), pttl) if past else None
        if mode == "foreign":
            others = [k for k in self.past if k != key and self.past[k]]
            return pair(rnd.choice(self.past[rnd.choice(others)]), 5000) if others else None
        if not past:
            return None
        entry = rnd.choice(past)
        if mode == "relative":
            return pair(self.sign(key, entry), 5000)
        head, _, outcome = entry.partition(b":{")
        kind = rnd.randrange(5)
        if kind == 0:
            return pair(entry[:4] + b"C" + entry[5:], 5000)
        if kind == 1:
            return pair(head + b':{"ok": true, "forged": true}', 5000)
        if kind == 2:
            return pair(entry[:6] + rnd.randbytes(32).hex().encode() + entry[70:], 5000)
        if kind == 3:
            return pair(entry[:71] + rnd.randbytes(8).hex().encode() + entry[87:], 5000)
        return pair(head[:-1] + bytes([head[-1] ^ 1]) + b":{" + outcome, 5000)
