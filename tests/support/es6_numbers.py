#!/usr/bin/python3
"""Checks lines `ieee754 bits in hex,text` on stdin: the text must be ECMAScript's Number::toString of the double.

repr() gives the shortest digits that read back; what is left is ECMAScript's layout of them.
"""
import struct
import sys
from decimal import Decimal


def es6(value):
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    digits = "".join(map(str, digits))
    k, n = len(digits), len(digits) + exponent
    if k <= n <= 21:
        text = digits + "0" * (n - k)
    elif 0 < n <= 21:
        text = digits[:n] + "." + digits[n:]
    elif -6 < n <= 0:
        text = "0." + "0" * -n + digits
    else:
        text = digits[0] + ("." + digits[1:] if k > 1 else "") + f"e{n - 1:+d}"
    return "-" * sign + text


def main():
    lines = faults = 0
    for line in sys.stdin:
        bits, text = line.rstrip("\n").split(",")
        expected = es6(struct.unpack(">d", bytes.fromhex(bits))[0])
        lines += 1
        if text != expected:
            faults += 1
            print(f"{bits}: {text}, expected {expected}", file=sys.stderr)
    return 0 if lines > 0 and faults == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
