"""The dashboard's API: what it tells, what it does, who is let in, what is refused."""
import json
import os
import re
import signal
import time

import pytest

from support.http import Connection, make_token, request_octets, start_door
from support import snippets
from support.procs import wait_until
from support.servers import PgBouncer
from support.ui import Dashboard, Stream

XSS = "<img src=x onerror=alert(1)>\"'&</script>\u2028"


@pytest.fixture
def ui(lab):
    return Dashboard(lab)


# --- what it tells and does -----------------------------------------------------------------------------------------------------------

def test_pages(ui, lab):
    done = lab.enqueue("e2.t_run", {"lua": "effect() return {}"})
    lab.done(done)
    dead = lab.enqueue("e2.t_once", {"e1": "dead", "lua": f"error({json.dumps(XSS, ensure_ascii=False)})"})
    lab.done(dead)
    seen = ui.get("overview").json
    assert seen["workers"] >= 1 and seen["dead_last_hour"] == 1 and seen["rates"]["ended_per_s"] > 0
    assert {"default"} <= {row["queue"] for row in ui.get("queues").json["rows"]}
    assert {"e2.t_run", "e2.p_key"} <= {row["task"] for row in ui.get("tasks").json["rows"]}
    assert any(row["task"] == "maintenance.purge" and row["next_slot"] for row in ui.get("schedules").json["rows"]) or \
        ui.get("schedules").json["rows"] == []
    assert ui.get("workers").json["rows"][0]["alive"] and ui.get("audit").json["rows"] == []
    rows = ui.get("runs").json["rows"]
    assert [(row["run_id"], row["state"]) for row in rows] == [(dead, "failed_permanent"), (done, "completed")]
    assert [row["run_id"] for row in ui.get("runs?state=failed_permanent&task=e2.t_once&tenant=1").json["rows"]] == [dead]
    run = ui.get(f"run?id={dead}").json
    assert run["run"]["outcome"]["code"] == "error" and XSS in run["run"]["failure"]["message"] and "traceback" in run["run"]["failure"]
    assert run["ledger"]["status"] == "failed_permanent" and run["args"] is None
    assert ui.get(f"run?id={dead}&args=1").json["args"]["e1"] == "dead"
    found = ui.get("find?q=dead").json
    assert [(key["task"], key["tenant"]) for key in found["keys"]] == [("e2.t_once", "1")]
    assert [row["run_id"] for row in ui.get(f"runs?key={found['keys'][0]['digest']}").json["rows"]] == [dead]
    assert ui.get(f"find?q={done}").json["run"]["task"] == "e2.t_run"


def test_acts_and_the_audit(ui, lab):
    assert ui.act("pause", "e2_elsewhere", "a look").json == {"result": "changed"}
    waiting = lab.enqueue("e2.t_elsewhere", {"lua": "effect() return {}"})
    assert ui.get("queues").json["rows"][[r["queue"] for r in ui.get("queues").json["rows"]].index("e2_elsewhere")]["reason"] == "a look"
    assert ui.act("cancel", waiting, "not wanted").json == {"result": "cancelled"}
    lab.done(waiting)
    assert ui.act("retry", waiting, "wanted after all").json == {"result": "changed"}
    assert ui.act("resume", "e2_elsewhere", "done").json == {"result": "changed"}
    assert lab.until(lambda: (lab.finished(waiting) or waiting) and lab.finished(waiting) and lab.finished(waiting).status == "completed")
    lab.allow("settled_effect")
    dead = lab.enqueue("e2.t_once", {"e1": "dead", "lua": "error('never')"})
    lab.done(dead)
    assert ui.act("discard", dead, "known").json == {"result": "changed"} and ui.act("discard", dead).json == {"result": "unchanged"}
    rows = ui.get("audit").json["rows"]
    assert [row["action"] for row in rows] == ["discard", "resume", "retry", "cancel", "pause"]
    assert {row["os_user"] for row in rows} == {f"maria (ui token {ui.session['token_id']})"} and {row["db_user"] for row in rows} == {"app_operator"}
    assert [h["action"] for h in ui.get(f"run?id={waiting}").json["history"]] == ["cancel", "retry"]
    assert "maria (ui token" in lab.cli("audit").out


def test_the_stream(ui, lab):
    stream = Stream(ui)
    assert stream.status == 200 and "text/event-stream" in stream.head and "content-security-policy" in stream.head
    first = stream.event()
    assert first["db"]["workers"] >= 1 and set(first["worker"]["gate"]) >= {"acquired", "replay", "down"}
    lab.done(lab.enqueue("e2.t_run", {"lua": "effect() return {}"}))
    wait_until(lambda: stream.event()["worker"]["results"]["completed"] == 1, 20, "the run to be told")
    stream.close()
    assert ui.get("session").status == 200


def test_a_stream_beats_while_it_waits(ui, lab):
    stream = Stream(ui)
    stream.event()
    blocker = lab.env.db.connect(autocommit=False)
    try:
        with blocker.cursor() as cursor:
            cursor.execute("LOCK TABLE umavez.workers IN ACCESS EXCLUSIVE MODE")
        while b": beat" not in stream.text:
            assert stream.more()
        stream.event("away")
    finally:
        blocker.rollback()
        blocker.close()
    stream.event()


def test_streams_are_bounded_and_end_with_the_drain(lab):
    ui = Dashboard(lab, workers=1)
    streams = [Stream(ui) for _ in range(32)]
    assert {stream.status for stream in streams} == {200}
    refused = Stream(ui)
    assert refused.status == 503
    for stream in streams[:5]:
        stream.close()
    def again():
        new = Stream(ui)
        streams.append(new)
        return new.status == 200
    wait_until(again, 20, "room for another stream")
    last = streams[-1]
    last.event()
    ui.worker.process.send_signal(signal.SIGTERM)
    assert last.ends()
    assert ui.worker.process.wait(60) == 0, ui.worker.tail()


def test_a_reload_keeps_sessions_and_ends_streams(lab):
    ui = Dashboard(lab, workers=1)
    stream = Stream(ui)
    stream.event()
    ui.worker.process.send_signal(signal.SIGHUP)
    assert stream.ends()
    ui.worker.wait_event("reloaded", timeout=90)
    wait_until(lambda: ui.get("session").status == 200, 30, "the session to be known")
    assert Stream(ui).event()["db"]["workers"] >= 1


# --- who is let in ----------------------------------------------------------------------------------------------------------------------

PROTECTED = ["session", "overview", "history", "queues", "tasks", "schedules", "workers", "audit", "runs", "run?id=1", "find?q=1", "stream", "nonsense"]


def test_off_unless_told_otherwise(lab):
    _, port = start_door(lab.env)
    with Connection(port) as c:
        assert c.request("GET", "/ui/").status == 404 and c.request("GET", "/ui/api/session").status == 404


def test_nothing_without_a_session(ui):
    for page in PROTECTED:
        assert ui.get(page, cookie=None).problem == "unauthenticated", page
    assert ui.act("pause", "default", cookie=None).status == 401 and ui.send("POST", "/ui/api/logout", {}, cookie=None, csrf=ui.csrf).status == 401


def forged(cookie):
    number, end, nonce, mac = cookie.split(".")
    yield f"{int(number) + 1}.{end}.{nonce}.{mac}"
    yield f"{number}.{int(end) + 3600}.{nonce}.{mac}"
    yield f"{number}.{end}.{nonce[::-1]}.{mac}"
    yield f"{number}.{end}.{nonce}.{'0' * 64}"
    yield f"{number}.{end}.{nonce}.{mac[:-2]}"
    yield from ("", ".", "...", "x" * 5000, f"{cookie}.", f"0{cookie}x", "9" * 15 + "." + cookie.split(".", 1)[1], "%00", cookie.upper())


def test_forged_sessions(ui):
    for cookie in forged(ui.cookie):
        assert ui.get("session", cookie=cookie).status == 401, cookie
    twice = ui.send("GET", "/ui/api/session", cookie=None, headers=[("Cookie", f"umavez_ui={ui.cookie}; umavez_ui={ui.cookie}")])
    assert twice.status == 401
    among = ui.send("GET", "/ui/api/session", cookie=None, headers=[("Cookie", f"a=1;umavez_ui={ui.cookie}; b=umavez_ui=7")])
    assert among.status == 200


def test_a_session_ends_with_its_time(lab):
    ui = Dashboard(lab)
    number, end, nonce, mac = ui.cookie.split(".")
    assert 8 * 3600 - 60 < int(end) - time.time() < 8 * 3600 + 60 and "Max-Age=28800" in ui.set_cookie
    signing = bytes.fromhex(lab.value("SELECT signing FROM umavez.ui_token(%s, NULL)", int(number)))
    import hmac
    def signed(end):
        text = f"{number}.{end}.{nonce}"
        return text + "." + hmac.new(signing, b"umavez.ui.session.v1\0" + text.encode(), "sha256").hexdigest()
    assert signed(end) == ui.cookie                                # so the one below fails by its time alone
    assert ui.get("session", cookie=signed(int(time.time()) + 60)).status == 200
    assert ui.get("session", cookie=signed(int(time.time()) - 60)).problem == "unauthenticated"


def test_a_session_ends_with_its_token(ui, lab):
    lab.sql("SELECT umavez.token_revoke(%s)", ui.session["token_id"])
    wait_until(lambda: ui.get("session").status == 401, 20, "the session to end")


def test_the_cookies_attributes(lab):
    ui = Dashboard(lab)
    assert re.fullmatch(r"umavez_ui=[0-9a-f.]+; Path=/ui; Max-Age=28800; HttpOnly; SameSite=Strict", ui.set_cookie)
    assert ui.token not in ui.cookie
    out = ui.send("POST", "/ui/api/logout", {}, csrf=ui.csrf)
    assert out.get("Set-Cookie").startswith("umavez_ui=; Path=/ui; Max-Age=0;")


def test_which_tokens_open_it(ui, lab):
    for tenant, scopes in ((None, ("*",)), (None, ("metrics",)), (1, ("ui", "ui:write")), (1, ("*",))):
        assert ui.log_in(make_token(lab.env, tenant, scopes)).problem == "unauthenticated", (tenant, scopes)
    reader = ui.log_in(make_token(lab.env, None, ("ui",)))
    assert reader["may_act"] is False and ui.get("overview").status == 200
    assert ui.act("pause", "default").problem == "forbidden" and ui.get("audit").json["rows"] == []
    assert ui.log_in(make_token(lab.env, None, ("ui:write",)))["may_act"] is True


def test_guessing_is_bounded(ui):
    answers = [ui.log_in(f"uv_{n:064x}") for n in range(15)]
    assert [a.status for a in answers[:10]] == [401] * 10 and answers[-1].problem == "too_many_tries"
    assert 1 <= int(answers[-1].get("Retry-After")) <= 6
    assert ui.log_in(ui.token).status == 429, "the right token would tell a guesser that it is right"
    assert ui.get("session").status == 200


def test_what_the_docs_say_opens_it(lab):
    worker, grant, token = snippets.one("docs/ui.md", "umavez worker").text.splitlines()
    arguments = re.sub(r"#.*", "", worker).split()[2:]
    arguments[arguments.index("--http") + 1] = "127.0.0.1:0"
    create = snippets.one("docs/ui.md", "CREATE ROLE").text
    lab.sql("DROP ROLE IF EXISTS app_ui")
    lab.sql(create)
    try:
        port = int(lab.env.worker(arguments=arguments, ui_database_url=lab.env.db.url("app_ui")).wait_event("door_open")["port"])
        ui = Dashboard.__new__(Dashboard)
        ui.__dict__.update(lab=lab, port=port, host=f"127.0.0.1:{port}", cookie=None, csrf=None)
        made = lab.cli(*re.sub(r"#.*", "", token).split()[1:])
        assert made.code == 0, made
        wait_until(lambda: isinstance(ui.log_in(made.out.strip()), dict), 30, "to be let in")
        assert ui.get("session").json["name"] == "maria" and ui.get("overview").status == 200
        assert ui.act("pause", "default").problem == "forbidden"
    finally:
        for one in lab.env.all_workers:
            one.terminate()
        lab.sql("DROP ROLE app_ui")
    assert "GRANT umavez_operator TO app_worker" in grant
    lab.sql("BEGIN; GRANT umavez_operator TO app_worker; ROLLBACK")


# --- what is refused ----------------------------------------------------------------------------------------------------------------------

def test_reading_only(lab):
    ui = Dashboard(lab, mode="read")
    assert ui.session["mode"] == "read" and ui.session["may_act"] is False
    assert ui.act("pause", "default").problem == "forbidden"
    assert lab.value("SELECT count(*)::int FROM umavez.audit") == 0 == lab.value("SELECT count(*)::int FROM umavez.paused_queues")


def test_acts_need_the_sessions_own_token(ui, lab):
    other = Dashboard.__new__(Dashboard)
    other.__dict__.update(ui.__dict__)
    other.log_in(ui.token)
    for csrf in (None, "", "0" * 64, ui.csrf[:-1], ui.csrf.upper(), other.csrf):
        assert ui.act("pause", "default", csrf=csrf).problem == "forbidden", csrf
    assert ui.send("POST", "/ui/api/logout", {}, csrf=other.csrf).status == 403
    assert lab.value("SELECT count(*)::int FROM umavez.audit") == 0


@pytest.mark.parametrize("origin, headers", [
    (None, []), ("null", []), ("http://evil.example", []), ("https://evil.example:1", []), ("http://127.0.0.1", []), ("", []),
    ("own", [("Sec-Fetch-Site", "cross-site")]), ("own", [("Sec-Fetch-Site", "same-site")]), ("own", [("Sec-Fetch-Site", "none")]),
    ("own", [("Origin", "http://evil.example")])])
def test_acts_come_from_our_own_page(ui, lab, origin, headers):
    assert ui.act("pause", "default", origin=origin, headers=headers).problem == "forbidden"
    assert ui.log_in(ui.token, origin=origin, headers=headers).problem == "forbidden"
    assert lab.value("SELECT count(*)::int FROM umavez.audit") == 0


def test_reading_from_other_pages(ui):
    assert ui.get("overview", headers=[("Sec-Fetch-Site", "cross-site")]).status == 403
    assert ui.get("overview", origin="http://evil.example").status == 403
    assert ui.get("overview", headers=[("Sec-Fetch-Site", "same-origin")]).status == 200


def test_behind_a_proxy(lab):
    ui = Dashboard.__new__(Dashboard)
    Dashboard.log_in, original = (lambda self, token, **o: original(self, token, origin="https://jobs.example.org", **o)), Dashboard.log_in
    try:
        ui.__init__(lab, ui_origin="https://jobs.example.org")
    finally:
        Dashboard.log_in = original
    assert ui.set_cookie.endswith("; Secure")
    assert ui.act("pause", "default").status == 403 and ui.act("pause", "default", origin="https://jobs.example.org").status == 200


def test_what_is_no_request(ui):
    post = {"csrf": ui.csrf}
    assert ui.send("POST", "/ui/api/act", b"{", **post).problem == "body_invalid"
    assert ui.send("POST", "/ui/api/act", b"[]", **post).problem == "body_invalid"
    assert ui.send("POST", "/ui/api/act", b'{"action":"pause\\u0000"}', **post).status == 400
    assert ui.send("POST", "/ui/api/act", b'{"a":"\xff"}', **post).problem == "body_invalid"
    assert ui.send("POST", "/ui/api/act", b'{"a":"' + b"x" * 20000 + b'"}', **post).problem == "body_too_large"
    assert ui.send("POST", "/ui/api/act", {"action": "pause"}, content_type="text/plain", **post).problem == "unsupported_media_type"
    assert ui.send("POST", "/ui/api/login", b"{}", cookie=None).problem == "bad_request"
    assert ui.send("POST", "/ui/api/login", {"token": {"a": 1}}, cookie=None).problem == "bad_request"
    for action, target, reason in (("pause", "q", ""), ("drop", "q", "x"), ("cancel", "'; DROP TABLE umavez.runs; --", "x"), ("pause", "q", "x" * 501)):
        assert ui.act(action, target, reason).problem == "bad_request", action
    for query in ("runs?state=x", "runs?cursor=pg_class:1", "runs?tenant=1%27", "run?id=7", "runs?a=%zz", "runs?A=1", "runs?a=%00", "runs?a=%ff",
                  "runs?" + "&".join(f"{c}=1" for c in "abcdefghijklmnopq"), "audit?cursor=x", f"find?q={'x' * 3000}"):
        assert ui.get(query).problem == "bad_request", query
    assert ui.get("nonsense").problem == "not_found" and ui.get("run?id=00000000-0000-0000-0000-000000000000").problem == "not_found"
    for method, target in (("POST", "/ui/api/session"), ("GET", "/ui/api/act"), ("GET", "/ui/api/login"), ("DELETE", "/ui/api/runs"), ("POST", "/ui/"), ("PUT", "/ui/app.js")):
        answer = ui.send(method, target, {} if method != "GET" else None)
        assert answer.problem == "method_not_allowed" and answer.get("Allow"), (method, target)


@pytest.mark.parametrize("path", ["../ui.lua", "..%2fvm.lua", "%2e%2e/vm.lua", "..", "api", "api/../app.js", "app.js/", "app.js%00.css", "/etc/passwd", "//app.js",
                                  "APP.JS", "app.js?x", "a" * 3000, ".", "index.html/.."])
def test_only_its_own_files(ui, path):
    with Connection(ui.port) as c:
        c.send(request_octets("GET", "/ui/" + path, host=ui.host))
        answer = c.read("GET")
    if path == "app.js?x":
        assert answer.status == 200 and answer.get("Content-Type") == "text/javascript; charset=utf-8"
    else:
        assert answer.status == 404, answer


def test_every_answer_is_guarded(ui):
    answers = [ui.send("GET", "/ui"), ui.send("GET", "/ui/"), ui.send("GET", "/ui/app.js"), ui.send("GET", "/ui/nothing"), ui.get("overview"),
               ui.get("overview", cookie=None), ui.act("pause", "default", csrf="x"), ui.get("nonsense")]
    for answer in answers:
        policy = answer.get("Content-Security-Policy")
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy and "*" not in policy
        assert answer.get("X-Content-Type-Options") == "nosniff" and answer.get("Referrer-Policy") == "no-referrer"
        assert answer.get("Cache-Control") == ("no-cache" if answer in answers[:3] else "no-store"), answer
    assert answers[0].status == 308 and answers[0].get("Location") == "/ui/"
    tag = answers[2].get("ETag")
    again = ui.send("GET", "/ui/app.js", headers=[("If-None-Match", tag)])
    assert again.status == 304 and again.body == b"" and again.get("ETag") == tag
    head = ui.send("HEAD", "/ui/app.js")
    assert head.status == 200 and head.body == b""


def test_hostile_text_stays_text(ui, lab):
    """What anybody may put into the queue comes back as JSON strings, and from nowhere as markup."""
    lab.sql("SELECT umavez.enqueue(%s, %s::jsonb, queue => %s)", XSS, json.dumps({XSS: XSS}), XSS)
    run = ui.get("runs?state=available").json["rows"][0]
    assert (run["task"], run["queue"]) == (XSS, XSS)
    answer = ui.get(f"run?id={run['run_id']}&args=1")
    assert answer.get("Content-Type") == "application/json" and answer.json["args"] == {XSS: XSS}
    assert XSS in [row["queue"] for row in ui.get("queues").json["rows"]]
    assert ui.act("pause", XSS, XSS).json == {"result": "changed"}
    assert ui.get("audit").json["rows"][0]["reason"] == XSS
    lab.sql("DELETE FROM umavez.runs")


# --- and when things are away ----------------------------------------------------------------------------------------------------------------

def test_a_role_that_is_no_operator_is_told(lab):
    worker, port = start_door(lab.env, ui="read")
    ui = Dashboard.__new__(Dashboard)
    ui.__dict__.update(lab=lab, port=port, host=f"127.0.0.1:{port}", cookie=None, csrf=None)
    token = make_token(lab.env, None, ("ui",))
    wait_until(lambda: "away" not in ui.log_in(token).json["detail"], 30, "its connection")
    answer = ui.log_in(token)
    assert answer.problem == "unavailable" and "umavez_operator" in answer.json["detail"]
    assert "umavez_operator" in worker.wait_event("ui_not_allowed")["hint"]


def test_a_connection_that_cannot_be_is_told(lab):
    worker, port = start_door(lab.env, ui="read", ui_database_url=lab.env.db.url("nobody_at_all"))
    assert "nobody_at_all" in worker.wait_event("ui_not_connected")["message"]
    assert lab.done(lab.enqueue("e2.t_run", {"lua": "effect() return {}"})).status == "completed"
    assert not [line for line in worker.text().splitlines() if "postgres_down" in line]


def test_a_slow_question_harms_nobody(ui, lab):
    """A page's question that waits is ended after its time; meanwhile handlers run, and the door answers."""
    slow_question(ui, lab)


def test_through_a_pooler(own_lab):
    """PgBouncer in transaction mode: nothing rests on the session, the time-out of statements neither."""
    own_lab.sql("GRANT umavez_operator TO app_worker")
    own_lab.allow("sessions")
    pooler = own_lab.env.closing(PgBouncer(own_lab.env.pg, pool_size=4))
    ui = Dashboard(own_lab, ui_database_url=own_lab.env.db.url(host=pooler.socket_dir, port=pooler.port))
    assert ui.act("pause", "default").json == {"result": "changed"} and ui.act("resume", "default").json == {"result": "changed"}
    assert ui.get("overview").json["workers"] == 1 and Stream(ui).event()["db"]["workers"] == 1
    slow_question(ui, own_lab)


def slow_question(ui, lab):
    blocker = lab.env.db.connect(autocommit=False)
    with blocker.cursor() as cursor:
        cursor.execute("LOCK TABLE umavez.audit IN ACCESS EXCLUSIVE MODE")
    try:
        with Connection(ui.port) as slow:
            slow.send(request_octets("GET", "/ui/api/audit", [("Host", ui.host), ("Cookie", f"umavez_ui={ui.cookie}")]))
            assert lab.done(lab.enqueue("e2.t_run", {"lua": "effect() return {}"})).status == "completed"
            answer = slow.read("GET")
            assert answer.problem == "unavailable" and "took too long" in answer.json["detail"]
    finally:
        blocker.rollback()
        blocker.close()
    assert ui.get("audit").status == 200


def test_postgresql_goes_and_comes_back(own_lab):
    ui = Dashboard(own_lab)
    stream = Stream(ui)
    stream.event()
    own_lab.env.pg.stop("immediate")
    stream.event("away")
    assert ui.get("overview").problem == "unavailable"
    own_lab.env.pg.start()
    wait_until(lambda: ui.get("overview").status == 200, 60, "the dashboard's connection")
    assert Stream(ui).event()["db"]["database"]
