"""docs/http.md: its problem table is the program's, its vectors are right, its examples give what they show."""
import hashlib
import hmac
import json
import re
import shlex

from support.http import Door, door_fingerprint, door_key, request_octets
from support.procs import ROOT
from support.taskset import TaskSet

PAGE = (ROOT / "docs" / "http.md").read_text()
SECRET = "the docs' secret"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def rows(heading):
    """The cells of the table whose head line begins like this."""
    lines = PAGE[PAGE.index(heading):].splitlines()[2:]
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip().strip("`") for cell in line.strip().strip("|").split(" | ")]


def test_the_problem_table():
    header = (ROOT / "runtime" / "core" / "door_problem.h").read_text()
    table = re.findall(r'X\(\w+, "(\w+)", (\d+), "([^"]*)"\)', header)
    assert len(table) > 20
    assert list(map(tuple, rows("| type: `urn:umavez:problem:`"))) == table


def test_the_situations_name_known_problems():
    names = {r[0] for r in rows("| type: `urn:umavez:problem:`")}
    for row in rows("| situation |"):
        for name in re.findall(r"\b[a-z]+_[a-z_]+\b", row[2]):
            assert name in names or name.startswith(("outcome_", "args_")), name


def test_the_digest_vectors():
    checked = 0
    for owner, task, key, digest in rows("| owner | task | key |"):
        assert door_key(task, key, None if owner == "p" else int(owner[1:])).hex() == digest
        checked += 1
    for method, target, body, digest in rows("| method | target | body |"):
        assert door_fingerprint(method, target, body.encode()).hex() == digest
        checked += 1
    assert checked == 12


def test_the_ledger_holds_these_digests(env):
    """The same vectors, as the program computes them."""
    handler = "return function() return {} end"
    env.tasks.add("shop.pay", handler=handler, http={"path": "/payments"})
    env.tasks.add("shop.refund", handler=handler, http={"path": "/orders/{order_id}/refunds"})
    env.audit.allow("settled_effect")
    door = Door(env, tenant=7)
    body = '{"end_to_end_id":"E1","amount_cents":10000}'.encode()
    for target, octets, task, key in (("/payments", body, "shop.pay", "k1"), ("/payments?x=1", body, "shop.pay", "k2"),
                                      ("/orders/a%2Fb/refunds", b"{}", "shop.refund", "k1")):
        assert door.post(target, octets, key=key).status == 200
        row = door.ledger(task, key)
        assert bytes(row.request_fingerprint).hex() in [r[3] for r in rows("| method | target | body |")]
    digests = {bytes(r.idempotency_key).hex() for r in env.ledger_rows()}
    assert {d for o, t, k, d in rows("| owner | task | key |") if (o, k) == ("t7", "k1")} <= digests


def curl(door, line, variables):
    """Performs a documented curl line (the options that the page uses) with the tests' own client."""
    for name, value in variables.items():
        line = line.replace(f"${name}", value)
    words = shlex.split(line)[1:]
    url, headers, data, at = None, [], None, 0
    while at < len(words):
        word = words[at]
        if word == "-H":
            at += 1
            headers.append(tuple(words[at].split(": ", 1)))
        elif word == "-d":
            at += 1
            data = words[at].encode()
        elif word != "-i":
            assert url is None and word.startswith("http://127.0.0.1:8080/"), word
            url = word[len("http://127.0.0.1:8080"):]
        at += 1
    method = "GET" if data is None else "POST"
    with door.connect() as connection:
        connection.send(request_octets(method, url, headers, data))
        return connection.read(method)


def alike(shown, got):
    """`…` stands for anything."""
    return re.fullmatch(".*?".join(map(re.escape, shown.split("…"))), got, re.S)


def same_body(shown, got):
    """Octet for octet, or, where `…` hides values, alike as JSON whatever the members' order."""
    if alike(shown, got):
        return True
    a, b = json.loads(shown), json.loads(got)
    return a.keys() == b.keys() and all(alike(json.dumps(a[k], ensure_ascii=False), json.dumps(b[k], ensure_ascii=False)) for k in a)


def test_the_examples(env):
    tasks = TaskSet()
    (tasks.dir / "shop").mkdir()
    names = set()
    for text in blocks("lua"):
        path = re.match(r"-- tasks/(shop/\w+\.lua)\n", text).group(1)
        (tasks.dir / path).write_text(text)
        names.add(path)
    assert len(names) == 5
    env.db.q("CREATE TABLE shop (id bigint GENERATED ALWAYS AS IDENTITY, what text NOT NULL); GRANT INSERT, SELECT ON shop TO umavez_worker")
    env.audit.allow("settled_effect", "ledger_run", "replays_equal")
    try:
        door = Door(env, tenant=7, env={"UMAVEZ_TASKS_DIR": str(tasks.dir), "GITHUB_WEBHOOK_SECRET": SECRET})
        variables = {"TOKEN": door.token, "SIGNATURE": hmac.new(SECRET.encode(), b'{"action":"opened"}', hashlib.sha256).hexdigest()}
        done = 0
        for block in blocks("console"):
            for example in re.split(r"^\$ ", block, flags=re.M)[1:]:
                line, shown = example.split("\n", 1)
                head, body = shown.rstrip("\n").split("\n\n", 1)
                status, *headers = head.split("\n")
                answer = curl(door, line, variables)
                assert str(answer.status) == status.split()[1], (line, answer)
                for header in headers:
                    name, value = header.split(": ", 1)
                    assert answer.get(name) is not None and alike(value, answer.get(name)), (line, header, answer.headers)
                assert answer.replayed == any(h.startswith("X-Idempotent-Replay") for h in headers), line
                assert same_body(body, answer.body.decode()), (body, answer.body)
                if answer.status == 202:
                    variables["RUN"] = answer.json["run_id"]
                done += 1
        assert done == 12
        assert [r.what for r in env.db.q("SELECT what FROM shop ORDER BY id")] == ["E1", "refund of 7", "report of 2027-01", "hook opened"]
    finally:
        tasks.destroy()


def test_the_settings_exist():
    settings = (ROOT / "docs" / "configuration.md").read_text()
    for name in set(re.findall(r"`(http_\w+)`", PAGE)) - {"http_version"}:
        assert f"| `{name}` |" in settings, name
