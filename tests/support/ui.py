"""The dashboard from outside: a worker that serves it, its API as a browser's page would call it.

    ui = Dashboard(lab)                     # a worker with ui = write, an operator's role, a token that may act, logged in
    assert ui.get("overview").json["workers"] == 1
    ui.act("pause", "default", "a reason")
"""
import contextlib
import json

import psycopg2

from .http import Connection, make_token, start_door
from .procs import wait_until

ROLE = "app_operator"


def operator_url(env):
    """Of a role that is an umavez_operator and nothing else."""
    with contextlib.suppress(psycopg2.errors.DuplicateObject, psycopg2.errors.UniqueViolation):     # another test's
        env.db.q(f"CREATE ROLE {ROLE} LOGIN IN ROLE umavez_operator")
    return env.db.url(ROLE)


class Dashboard:
    def __init__(self, lab, mode="write", scopes=("ui", "ui:write"), name="maria", **settings):
        settings.setdefault("ui_database_url", operator_url(lab.env))
        self.lab = lab
        self.worker, self.port = start_door(lab.env, ui=mode, **settings)
        self.host = f"127.0.0.1:{self.port}"
        self.token = make_token(lab.env, None, scopes, name)
        self.cookie = self.csrf = None
        # its connection comes up by itself, and is none of the door's readiness
        wait_until(lambda: getattr(self.log_in(self.token), "status", 200) != 503, 30, "the dashboard to reach PostgreSQL")
        self.session = self.get("session").json

    def send(self, method, target, body=None, *, cookie="own", csrf=None, origin="own", headers=(), on=None, content_type="application/json"):
        pairs = [("Host", self.host)]
        cookie = self.cookie if cookie == "own" else cookie
        if cookie is not None:
            pairs.append(("Cookie", f"umavez_ui={cookie}"))
        if body is not None:
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            pairs.append(("Content-Type", content_type))
        if origin == "own":
            origin = f"http://{self.host}" if method == "POST" else None
        if origin is not None:
            pairs.append(("Origin", origin))
        if csrf is not None:
            pairs.append(("X-CSRF-Token", csrf))
        if on is not None:
            return on.request(method, target, pairs + list(headers), body)
        with Connection(self.port) as connection:
            return connection.request(method, target, pairs + list(headers), body)

    def log_in(self, token, **options):
        """The session, or the refusal."""
        answer = self.send("POST", "/ui/api/login", {"token": token}, cookie=None, **options)
        if answer.status != 200:
            return answer
        self.set_cookie = answer.get("Set-Cookie")
        self.cookie = self.set_cookie.split(";")[0].split("=", 1)[1]
        self.csrf = answer.json["csrf"]
        return answer.json

    def get(self, page, **options):
        return self.send("GET", f"/ui/api/{page}", **options)

    def act(self, action, target, reason="because", **options):
        options.setdefault("csrf", self.csrf)
        return self.send("POST", "/ui/api/act", {"action": action, "target": str(target), "reason": reason}, **options)


class Stream:
    """Server-sent events, read as they come."""

    def __init__(self, ui, cookie="own"):
        self.connection = Connection(ui.port)
        cookie = ui.cookie if cookie == "own" else cookie
        self.connection.send(f"GET /ui/api/stream HTTP/1.1\r\nHost: {ui.host}\r\nCookie: umavez_ui={cookie}\r\n\r\n".encode())
        head = self.connection._until(b"\r\n\r\n")
        self.status = int(head.split(b" ")[1])
        self.head = head.decode().lower()
        self.text = b""

    def more(self):
        """The next piece; False at the end."""
        size = int(self.connection._until(b"\r\n"), 16)
        self.text += self.connection._exactly(size)
        self.connection._until(b"\r\n")
        return size > 0

    def event(self, name="overview"):
        """The data of the next event of that name."""
        while True:
            while b"\n\n" not in self.text:
                assert self.more(), "the stream has ended"
            block, self.text = self.text.split(b"\n\n", 1)
            fields = dict(line.split(": ", 1) for line in block.decode().splitlines() if not line.startswith(":"))
            if fields.get("event") == name:
                return json.loads(fields["data"])

    def ends(self):
        while self.more():
            pass
        return True

    def close(self):
        self.connection.close()
