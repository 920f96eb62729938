"""The floor: how fast PostgreSQL does a gated run when pgbench sends nothing but the needed statements.

  b     plain: BEGIN, claim, effect, settle, delete the run, COMMIT, each awaited
  c2    pipelined into two round trips: BEGIN and claim, then the rest
  c3    into three, as with a handler that reads its statement's answer: BEGIN and claim, effect, the rest
  e50   50 runs a transaction: claim and settlement set-wise, effects one by one
  u3    umavez's own statements on a run's connection, in its three round trips: begin_run, effect, complete_run and reset.
        Without taking the run, Lua and the gate: what lies between u3 and umavez is theirs

b to e50 write the ledger with the plainest statements and take the run by number from a one-column table.
"""
import re
import resource
import subprocess

VARIANTS = {"b": 8, "c2": 16, "c3": 16, "e50": 4, "u3": 16}          # and their numbers of connections
TENANTS = 100

FINGERPRINT = r"'\x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f'"
PAYLOAD = """'{"amount": 100, "kind": "credit"}'"""                  # a space after each colon: pgbench knows `:name`
CLAIM = "INSERT INTO umavez.idempotency_keys (tenant_id, idempotency_key, request_fingerprint, expires_at)"
SETTLE = ("""UPDATE umavez.idempotency_keys SET status = 'completed', outcome = '{"ok": true}', updated_at = clock_timestamp(), """
          "expires_at = now() + interval '1 day' WHERE ")


def _tenant(run):
    return f"1 + (({run} * 2654435761) >> 8) % {TENANTS}"


def _effect(tenant, run):
    return f"INSERT INTO bench_effects (tenant_id, run_id, payload) VALUES ({tenant}, lpad(to_hex({run}::bigint), 32, '0')::uuid, {PAYLOAD});"


def _single(variant):
    key = "sha256(int8send(:id::bigint))"
    claim = f"{CLAIM} VALUES (:t, {key}, {FINGERPRINT}, now() + interval '5 min') ON CONFLICT DO NOTHING RETURNING id"
    effect, remove = _effect(":t", ":id"), "DELETE FROM bench_queue WHERE id = :id;"
    settle = f"{SETTLE}tenant_id = :t AND idempotency_key = {key};"
    trip = (r"\endpipeline", r"\startpipeline")
    if variant == "b":
        return ["BEGIN;", claim + r" \gset led_", effect, SETTLE + "id = :led_id;", remove, "COMMIT;"]
    if variant == "u3":
        begin = f"SELECT verdict, id, attempt FROM umavez.begin_run(:t, {key}, {FINGERPRINT}, 30000, 30000);"
        held = f"(SELECT id FROM umavez.idempotency_keys WHERE tenant_id = :t AND idempotency_key = {key})"
        complete = (f"SELECT outcome FROM umavez.complete_run(lpad(to_hex(:id::bigint), 32, '0')::uuid, :t, {key}, {held}, 1, "
                    """'{"ok": true}', 86400000, true);""")
        reset = ["RESET ALL;", "RESET ROLE;", "SELECT pg_catalog.pg_advisory_unlock_all();"]
        steps = ["BEGIN;", begin, "SAVEPOINT umavez_run;", *trip, effect, *trip, complete, "COMMIT;", *reset]
    else:
        steps = ["BEGIN;", claim + ";", *trip, effect, *(trip if variant == "c3" else ()), settle, remove, "COMMIT;"]
    return [r"\startpipeline", *steps, r"\endpipeline"]


def _batched(size):
    ids = "ARRAY[" + ",".join(f":i{i}::bigint" for i in range(size)) + "]"
    claim = (f"WITH k AS ({CLAIM} SELECT {_tenant('g')}::bigint, sha256(int8send(g)), {FINGERPRINT}, now() + interval '5 min' "
             f"FROM unnest({ids}) g ON CONFLICT DO NOTHING RETURNING id) SELECT array_agg(id) AS ids FROM k \\gset led_")
    return ["BEGIN;", claim, r"\startpipeline", *(_effect(f":t{i}", f":i{i}") for i in range(size)),
            SETTLE + "id = ANY(:led_ids::bigint[]);", f"DELETE FROM bench_queue WHERE id = ANY({ids});", "COMMIT;", r"\endpipeline"]


def _size(variant):
    return int(variant[1:]) if variant[0] == "e" else 1


def script(variant):
    """The pgbench script. Each client walks through numbers of its own."""
    size, lines = _size(variant), [r"\set n :n + 1"]
    if size == 1:
        lines += [r"\set id :client_id * :per + :n", rf"\set t {_tenant(':id')}", *_single(variant)]
    else:
        lines.append(rf"\set id0 :client_id * :per * {size} + (:n - 1) * {size} + 1")
        for i in range(size):
            lines += [rf"\set i{i} :id0 + {i}", rf"\set t{i} {_tenant(f':i{i}')}"]
        lines += _batched(size)
    return "\n".join(lines) + "\n"


def measure(world, variant, runs):
    """One run of a variant, checked. Gives a row."""
    size, clients = _size(variant), VARIANTS[variant]
    per = max(1, runs // size // clients)
    runs = per * size * clients
    with world.database() as db:
        if variant == "u3":
            db.q("""INSERT INTO umavez.runs (run_id, task, tenant_id, args, queue, priority, state, run_at, deliveries, lease_until, worker_id)
                    SELECT bench_run_id(g), 'bench.insert', bench_tenant(g), jsonb_build_object('amount', 100, 'account', g), 'default', 2,
                           'running', now(), 1, now() + interval '1 hour', gen_random_uuid() FROM generate_series(1, %s) g""", runs)
        else:
            db.q("INSERT INTO bench_queue SELECT generate_series(1, %s)", runs)
        world.settle(db)
        path = world.file(f"{variant}.sql", script(variant))
        before, client = world.meter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([world.pg_bin("pgbench"), "-n", "-M", "prepared", "-c", str(clients), "-j", "1", "-t", str(per), "-D", "n=0",
                               "-D", f"per={per}", "-f", path, db.url("postgres")], capture_output=True, text=True, env=world.environment)
        cost, used = world.cost(before, runs), resource.getrusage(resource.RUSAGE_CHILDREN)
        rate = re.search(r"tps = ([\d.]+) \(without", done.stdout)
        if done.returncode or not rate:
            return {"what": f"floor {variant}", "ok": False, "why": (done.stderr or done.stdout).strip()[-400:]}
        row = {"what": f"floor {variant}", "runs": runs, "per_s": float(rate.group(1)) * size, **cost,
               "worker_cpu": (used.ru_utime + used.ru_stime - client.ru_utime - client.ru_stime) * 1e6 / runs}
        return world.check(db, row, effects=runs, queued=0)
