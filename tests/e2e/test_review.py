"""What a review has found, one test a fault."""
import signal
import subprocess
import time

import pytest

from lab import OWNERS, SLACK, TASKS, TENANT, digest, fingerprint
from support.proxy import PgProxy
from support.servers import clean_environment, umavez_bin


@OWNERS
@pytest.mark.parametrize("sqlstate", ["25006", "57P02", "57P03"])
def test_an_sqlstate_of_the_servers_raised_by_a_function_is_charged(lab, owner, sqlstate):
    """It was taken for a server that goes away: the run came again five times a second, uncharged, for ever."""
    lab.worker()
    lua = f"start() ctx.sql:exec([[DO $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '{sqlstate}'; END $$]]) return {{}}"
    run = lab.enqueue(owner.task("twice"), {"e1": "E1", "lua": lua}, owner)
    end = lab.done(run)
    assert (end.status, end.outcome["code"], end.outcome["sqlstate"], end.deliveries) == ("failed_permanent", "sql", sqlstate, 2)
    assert lab.starts() == 2


def test_a_backlog_of_a_limited_task_does_not_hold_up_other_tasks(lab):
    """A take filled all places of the worker with runs of the one task, of which one could start."""
    lab.env.tasks.add("e2.t_one", owner="tenant", lease="30s", timeout="60s", concurrency=1,
                      handler="return function(ctx, args) ctx:sleep('60s') return {} end\n")
    for n in range(30):
        lab.sql("SELECT umavez.enqueue('e2.t_one', %s::jsonb, tenant_id => 1)", f'{{"n": {n}}}')
    worker = lab.worker(pool_size=4, drain_timeout="100ms")
    lab.until(lambda: lab.value("SELECT count(*) FROM umavez.runs WHERE state = 'running'") >= 4, 20, "the backlog to be taken")
    begun = time.monotonic()
    run = lab.enqueue("e2.t_run", {"lua": "start() effect() return {}"})
    assert lab.done(run).status == "completed"
    assert time.monotonic() - begun < 5 + SLACK
    lab.settle(worker)
    lab.sql("DELETE FROM umavez.runs WHERE task = 'e2.t_one'")


@OWNERS
def test_a_retry_after_the_end_of_time_is_an_error(lab, owner):
    """PostgreSQL could not add it to the time; the run could not be given back, and no other run of the worker with it."""
    lab.worker()
    run = lab.enqueue(owner.task("twice"), {"e1": "E1", "lua": "start() return ctx:retry { after = 1e15 }"}, owner)
    end = lab.done(run)
    assert (end.status, end.outcome["code"], end.deliveries) == ("failed_permanent", "error", 2)


@OWNERS
def test_args_deeper_than_the_reader_goes_end_with_a_code_of_the_interface(lab, owner):
    lab.worker()
    run = lab.enqueue_text(owner.task("run"), '{"lua": "return {}", "deep": %s1%s}' % ("[" * 200, "]" * 200), owner)
    end = lab.done(run)
    assert (end.status, end.outcome["code"], lab.starts()) == ("failed_permanent", "key_error", 0)


@pytest.mark.skipif("asan" in str(umavez_bin()), reason="a sanitizer reports a crash in its own way")
def test_a_crash_tells_the_signal_the_run_and_the_stack(lab):
    """A worker ended with -11 in the fault run, and nothing said where."""
    lab.allow("worker_death")
    lab.latch("go")
    worker = lab.worker()
    run = lab.enqueue("e2.t_crash", {"e1": "E1", "lua": "start() reached('go') wait('go') effect() return {}"})
    lab.reached("go")
    worker.process.send_signal(signal.SIGSEGV)
    assert worker.process.wait(30) == -signal.SIGSEGV
    complaint = worker.complaint().splitlines()
    assert complaint[0].endswith("has crashed, ended with -11") and complaint[1] == f"umavez: crash: SIGSEGV, pid {worker.pid}", complaint
    assert f"umavez: crash: note: {run} handler" in complaint
    assert any("/umavez(loop_run+" in line for line in complaint[complaint.index("umavez: crash: stack:"):]), complaint
    assert not worker.try_freeze()
    lab.worker()
    lab.open("go")
    assert (lab.done(run).status, lab.effects("E1"), lab.starts()) == ("completed", 1, 2)


@pytest.mark.parametrize("statement", ["to_regclass", "FROM umavez.migrations"])
def test_a_worker_waits_for_a_database_that_goes_away_while_it_looks_at_it(lab, statement):
    """It waited for one that was away, but ended with 1 when the connection was lost between the connect and the answer."""
    proxy = lab.env.closing(PgProxy(lab.env.pg))
    proxy.cut_when(statement)
    worker = lab.worker(database_url=proxy.url(lab.env.db))
    proxy.wait_fired()
    worker.wait_line("PostgreSQL is away .*the worker waits for it")
    assert lab.done(lab.enqueue("e2.t_run", {"lua": "start() effect() return {}"})).status == "completed"
    assert worker.running()


def test_a_row_that_somebody_else_has_locked_stops_nobody(lab):
    """An operator's long UPDATE holds a run that a worker gives back (its key is busy): renewals and takes go on beside it."""
    task, args = TENANT.task("key"), {"e1": "E1", "lua": "start() effect() return {}"}
    lab.foreign(TENANT, digest(task, "E1"), fingerprint(task, args), seconds=3600)
    lab.allow("ledger_run", "accounted", "processing", "leases")
    held = lab.enqueue(task, args)
    worker = lab.worker(lease="2s")
    lab.busy(held)
    other = lab.env.db.connect(autocommit=False)
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT 1 FROM umavez.runs WHERE run_id = %s::uuid FOR UPDATE", (held,))
        lab.latch("a")
        long = lab.enqueue(TENANT.task("run"), {"e1": "long", "lua": "start() effect() reached('a') wait('a') return {}"})
        lab.reached("a")
        for n in range(30):
            assert lab.done(lab.enqueue(TENANT.task("run"), {"e1": f"E{n}", "lua": "effect() return {}"})).status == "completed"
        lab.open("a")
        assert (lab.done(long).deliveries, lab.starts()) == (1, 1)
        assert worker.events("postgres_down") == []
    finally:
        other.rollback()
        other.close()
    lab.sql("DELETE FROM umavez.runs WHERE run_id = %s::uuid", held)


@pytest.mark.parametrize("waits", ["ctx:sleep('600s')", "ctx.sql:one('SELECT pg_sleep(600)')"], ids=["sleeps", "statement"])
def test_F03_a_restart_charges_nobody_not_even_a_last_attempt(own_lab, waits):
    """max_attempts 1, and PostgreSQL restarts under the handler: whatever it was waiting for, it is done again, as if it had not begun."""
    lab = own_lab
    lab.env.tasks.add("e2.t_last", owner="tenant", retry={"max_attempts": 1}, timeout="15m", lease="30s", handler=(TASKS / "lab.lua").read_text())
    lab.worker()
    run = lab.enqueue("e2.t_last", {"e1": "E1", "lua": f"local n = start() effect() if n == 1 then {waits} end return {{ n = n }}"})
    lab.until(lambda: lab.starts() == 1 and lab.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") > 0, 30, "the handler's start")
    lab.env.pg.stop("fast")
    lab.env.pg.start()
    end = lab.done(run, 90)
    assert (end.status, end.outcome, lab.effects()) == ("completed", {"n": 2}, 1)


def test_an_option_of_enqueue_that_is_none(lab):
    """`delay` for `after` was passed over: the child was due at once."""
    lab.worker()
    end = lab.done(lab.enqueue(TENANT.task("once"), {"e1": "E1", "lua": "start() ctx:enqueue('e2.t_run', {}, { delay = '5m' }) return {}"}))
    assert (end.status, end.outcome["code"], lab.value("SELECT count(*) FROM umavez.runs")) == ("failed_permanent", "error", 0)
    assert 'unknown option "delay"' in end.outcome["message"]


@pytest.mark.parametrize("flags,wanted", [(["--http-tls-cert", "/nope"], "http_tls_key is not set"),
                                          (["--http-tls-cert", "/nope", "--http-tls-key", "/nope"], "http_tls_cert: cannot read /nope")], ids=["one", "unreadable"])
def test_a_fault_of_the_tls_settings_is_a_fault_of_the_settings(lab, flags, wanted):
    """It ended with 1, which a service manager answers with another start, and named no setting."""
    done = subprocess.run([str(umavez_bin()), "worker", "--http", "127.0.0.1:0", "--tasks-dir", str(lab.env.tasks.dir), *flags], capture_output=True, text=True,
                          timeout=60, env={**clean_environment(), "DATABASE_URL": lab.env.db.url()})
    assert done.returncode == 3 and wanted in done.stdout + done.stderr, done
