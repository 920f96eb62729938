"""Key digests, fingerprints and gate entries, computed here a second time from the documented formats."""
import hashlib
import hmac
import json
import os
import struct
from dataclasses import dataclass, replace

from .resp import RespError


def key_digest(task, *parts, run_id=None):
    """SHA-256 over the framed key. Parts: str, int, bool, or (type letter, text); with run_id: the default key."""
    framed = b"umavez.key.v1\0" + _sized(task.encode())
    if run_id is not None:
        parts = (("r", str(run_id)),)
    for part in parts:
        if isinstance(part, tuple):
            kind, text = part
        elif isinstance(part, bool):
            kind, text = "b", "true" if part else "false"
        elif isinstance(part, int):
            kind, text = "n", str(part)
        else:
            kind, text = "s", part
        framed += kind.encode() + _sized(text.encode())
    return hashlib.sha256(framed).digest()


def _sized(octets):
    return struct.pack(">I", len(octets)) + octets


def canonical(value):
    """RFC 8785 for what the tests enqueue: no floats."""
    if isinstance(value, dict):
        members = sorted(value.items(), key=lambda kv: kv[0].encode("utf-16-be"))
        return "{" + ",".join(f"{canonical(k)}:{canonical(v)}" for k, v in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    assert not isinstance(value, float), "floats are the product's business"
    return json.dumps(value, ensure_ascii=False)


def fingerprint(task, args):
    text = canonical(args).encode()
    return hashlib.sha256(b"umavez.fingerprint.v1\0" + _sized(task.encode()) + struct.pack(">Q", len(text)) + text).digest()


@dataclass
class Entry:
    """A gate entry `uv3:S:fingerprint:dbid:ledger id:attempt:time:token:run_id:hmac:outcome`."""
    state: str
    fingerprint: str
    dbid: str
    ledger_id: int
    attempt: int
    time_ms: int
    token: str
    run_id: str
    hmac: str
    outcome: str
    owner: str = ""
    key: str = ""
    pttl: int = None
    raw: bytes = b""

    def signed_text(self):
        return (f"uv3:{self.state}:{self.fingerprint}:{self.dbid}:{self.ledger_id:019d}:{self.attempt:010d}:{self.time_ms:016d}:"
                f"{self.token}:{self.run_id}:")

    def sign(self, secret):
        text = f"{self.owner}:{self.key}:{self.signed_text()}{self.outcome}".encode()
        return hmac.new(secret, text, hashlib.sha256).hexdigest()

    def valid(self, secret):
        return hmac.compare_digest(self.hmac, self.sign(secret))

    def encode(self):
        return f"{self.signed_text()}{self.hmac}:{self.outcome}".encode()


def parse_entry(raw, owner, key):
    """The entry, or None when it is not well-formed."""
    try:
        fields = raw.decode().split(":", 10)
        version, state, finger, dbid, ledger_id, attempt, time_ms, token, run_id, mac, outcome = fields
    except (UnicodeDecodeError, ValueError):
        return None
    widths = [3, 1, 64, 16, 19, 10, 16, 32, 36, 64]
    if version != "uv3" or state not in "PCF" or [len(f) for f in fields[:10]] != widths:
        return None
    return Entry(state, finger, dbid, int(ledger_id), int(attempt), int(time_ms), token, run_id, mac, outcome, owner, key, raw=raw)


class Gate:
    """The gate's keys in a Valkey, as database `db` signs them."""

    def __init__(self, valkey, db, prefix="umavez"):
        self.valkey, self.db, self.prefix = valkey, db, prefix

    def name(self, digest, tenant=None):
        return f"{self.prefix}:gate:{{{self.owner(tenant)}:{digest.hex()}}}"

    @staticmethod
    def owner(tenant):
        return "p" if tenant is None else f"t{tenant}"

    def secret(self):
        return bytes(self.db.val("SELECT umavez.gate_secret()"))

    def dbid(self):
        return hashlib.sha256(self.db.val("SELECT umavez.database_identity()").encode()).hexdigest()[:16]

    def entry(self, task, args, digest, tenant=None, *, state="P", fingerprint_hex=None, token=None, run_id=None, ledger_id=0, attempt=0,
              outcome="{}", dbid=None, time_ms=None):
        """A well-formed, signed entry, by default `processing` with a token of nobody's."""
        if time_ms is None:
            time_ms = self.db.val("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint") + (0 if state == "P" else 3_600_000)
        new = Entry(state, fingerprint_hex or fingerprint(task, args).hex(), dbid or self.dbid(), ledger_id, attempt, time_ms,
                    token or os.urandom(16).hex(), run_id or "00000000-0000-4000-8000-000000000000", "", outcome,
                    self.owner(tenant), digest.hex())
        return replace(new, hmac=new.sign(self.secret()))

    def put(self, digest, value, tenant=None, px=None):
        """Stores an Entry or raw octets at the key."""
        raw = value.encode() if isinstance(value, (Entry, str)) else value
        self.valkey("SET", self.name(digest, tenant), raw, *(["PX", px] if px else []))
        return raw

    def raw(self, digest, tenant=None):
        """The value's octets; None when there is none, or none that is a string."""
        try:
            return self.valkey("GET", self.name(digest, tenant))
        except RespError as error:
            if "WRONGTYPE" in str(error):
                return None
            raise

    def get(self, digest, tenant=None):
        """The well-formed entry with its PTTL, or None."""
        raw = self.raw(digest, tenant)
        found = raw and parse_entry(raw, self.owner(tenant), digest.hex())
        if found:
            found.pttl = self.pttl(digest, tenant)
        return found

    def pttl(self, digest, tenant=None):
        return self.valkey("PTTL", self.name(digest, tenant))

    def all(self):
        """(name, owner, key hex, raw value or None when of another type, pttl) of every gate key."""
        found = []
        for name in self.valkey.keys(f"{self.prefix}:gate:*"):
            owner, _, key = name[len(self.prefix) + 7:-1].partition(":")
            try:
                raw = self.valkey("GET", name)
            except RespError:
                raw = None
            pttl = self.valkey("PTTL", name)
            if pttl != -2:
                found.append((name, owner, key, raw, pttl))
        return found
