"""A Valkey client in a page: RESP 2, blocking."""
import socket


class RespError(Exception):
    """An error reply; its text starts with the code (`WRONGTYPE …`)."""


class Incomplete(Exception):
    """More octets are needed."""


def encode(*command):
    parts = [p if isinstance(p, bytes) else str(p).encode() for p in command]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def parse(data, at=0):
    """One value of `data` from `at`: (value, end). Errors come as RespError objects, inside arrays too."""
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, line, at = data[at:at + 1], bytes(data[at + 1:end]), end + 2
    if kind == b"+":
        return line, at
    if kind == b"-":
        return RespError(line.decode(errors="replace")), at
    if kind == b":":
        return int(line), at
    if kind == b"$":
        size = int(line)
        if size < 0:
            return None, at
        if len(data) < at + size + 2:
            raise Incomplete
        return bytes(data[at:at + size]), at + size + 2
    if kind == b"*":
        if int(line) < 0:
            return None, at
        values = []
        for _ in range(int(line)):
            value, at = parse(data, at)
            values.append(value)
        return values, at
    raise ValueError(f"not RESP 2: {bytes(kind)!r}")


class Resp:
    def __init__(self, path, timeout=30):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.buffer = bytearray()

    def __call__(self, *command):
        self.socket.sendall(encode(*command))
        value = self.read()
        if isinstance(value, RespError):
            raise value
        return value

    def read(self):
        while True:
            try:
                value, end = parse(self.buffer)
            except Incomplete:
                data = self.socket.recv(1 << 16)
                if not data:
                    raise ConnectionError("Valkey closed the connection")
                self.buffer += data
                continue
            del self.buffer[:end]
            return value

    def close(self):
        self.socket.close()
