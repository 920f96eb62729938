#!/usr/bin/python3
"""Recomputes the test vectors of docs/keys.md with nothing but hashlib, and compares.

usage: tests/support/digest_vectors.py [docs/keys.md]
"""
import hashlib
import json
import os
import struct
import sys
from decimal import Decimal

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def sized(text):
    octets = text.encode()
    return struct.pack(">I", len(octets)) + octets


def key_digest(task, parts):
    framed = b"umavez.key.v1\0" + sized(task)
    for kind, text in json.loads(parts):
        framed += kind.encode() + sized(text)
    return hashlib.sha256(framed).hexdigest()


def fingerprint(task, canonical):
    octets = canonical.encode()
    return hashlib.sha256(b"umavez.fingerprint.v1\0" + sized(task) + struct.pack(">Q", len(octets)) + octets).hexdigest()


def value(text):
    """For comparing args with their canonical form: numbers by value, those of few digits as doubles."""
    def number(lexeme):
        exact = Decimal(lexeme)
        rounded = exact != exact.to_integral_value() and abs(exact) < 10**9 and len(exact.as_tuple().digits) <= 17
        return Decimal(repr(float(lexeme))) if rounded else exact
    return json.loads(text, parse_int=Decimal, parse_float=number)


def tables(path):
    """Each row of each table whose cells are all `code`: (heading's first words, cells)."""
    heading = None
    with open(path, encoding="utf-8") as page:
        for line in page:
            if not line.startswith("|"):
                heading = None
                continue
            cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            if heading is None:
                heading = cells
            elif all(len(c) > 2 and c[0] == c[-1] == "`" for c in cells):
                yield heading[-1].strip(), [c[1:-1] for c in cells]


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else f"{TOP}/docs/keys.md"
    seen = {"key digest": 0, "fingerprint": 0}
    faults = 0
    for kind, cells in tables(path):
        if kind not in seen:
            continue
        seen[kind] += 1
        if kind == "key digest":
            task, shown, published = cells
            computed = key_digest(task, shown)
        else:
            task, args, shown, published = cells
            computed = fingerprint(task, shown)
            if value(args) != value(shown):
                faults += 1
                print(f"{shown} is not the value of {args}", file=sys.stderr)
        if computed != published:
            faults += 1
            print(f"{kind} of {task} {shown}: {published} is published, {computed} computed", file=sys.stderr)
    if 0 in seen.values():
        faults += 1
        print(f"no vectors: {seen}", file=sys.stderr)
    print(f"{seen['key digest']} key digests, {seen['fingerprint']} fingerprints, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
