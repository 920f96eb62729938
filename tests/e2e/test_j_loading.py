"""A child that hangs while it loads: its settings, a manifest, a handler's file. Nobody's lease hangs on it, so nothing but its supervisor
finds it: it is killed after load_timeout, named, and replaced ever more slowly; at a reload the old ones go on.
"""
import os
import signal

import pytest

from support.procs import wait_until
from test_j_supervisor import LAB, hang_up

HANGS = {"compiled": "while true do end", "interpreted": "jit.off(true, true) while true do end",
         "blocked": "os.execute('while :; do sleep 1; done')",
         "required": "require('e2.hanging')"}


def spoil(lab, code):
    (lab.env.tasks.dir / "e2" / "hanging.lua").write_text("local function forever() while true do end end jit.off(forever) forever()")
    (lab.env.tasks.dir / "e2" / "late.lua").write_text(f"{code} return function() end")


@pytest.mark.parametrize("code", HANGS)
def test_J03_a_reload_whose_code_never_comes_back_changes_nothing(lab, code):
    lab.env.tasks.add("e2.late", handler="return function() return { version = 1 } end")
    lab.allow("worker_death", "settled_effect")
    worker = lab.worker(workers=2, load_timeout="2s")
    children = worker.wait_children(2)
    spoil(lab, HANGS[code])
    hang_up(worker)
    failed = worker.wait_event("reload_failed", timeout=60)
    assert "load_timeout" in failed["why"] and "late.lua (e2.late)" in failed["why"] and "signal 9" in failed["how"]
    killed, = worker.events("child_killed")
    assert killed["loading"].endswith("e2/late.lua (e2.late)") and int(killed["ms"]) >= 2000
    if code == "interpreted":
        assert "late.lua:1" in killed["traceback"]
    if code == "required":
        assert "hanging.lua:1" in killed["traceback"]
    assert sorted(worker.children()) == sorted(children), "the old children go on"
    assert lab.done(lab.enqueue("e2.t_run", {"lua": "effect() return {}"})).status == "completed"
    lab.env.tasks.add("e2.late", handler="return function() return { version = 2 } end")
    hang_up(worker)
    worker.wait_event("reloaded")
    assert lab.done(lab.enqueue("e2.late", {})).outcome == {"version": 2}


def test_a_child_that_never_comes_back_from_loading_is_replaced_ever_more_slowly(lab):
    lab.env.tasks.add("e2.late", handler="return function() return { version = 1 } end")
    lab.allow("worker_death", "exit_status", "settled_effect")
    worker = lab.worker(workers=2, load_timeout="500ms")
    first, second = worker.wait_children(2)
    spoil(lab, HANGS["compiled"])
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: len(worker.events("child_killed")) == 3, 60, lambda: worker.tail())
    died = worker.events("child_died")[1:]
    assert all(event["loading"].endswith("late.lua (e2.late)") and "run_id" not in event and "task" not in event for event in died)
    waits = [int(event["next_start_ms"]) for event in died]
    assert 100 <= waits[0] <= 200 and 200 <= waits[1] <= 400, waits
    assert lab.done(lab.enqueue("e2.t_run", {"lua": "effect() return {}"})).status == "completed", "the other one works"
    lab.env.tasks.add("e2.late", handler="return function() return { version = 2 } end")
    assert second in worker.wait_children(2)


def test_settings_that_never_come_back_are_named(lab):
    conf = lab.env.log_dir / "umavez-test.lua"
    conf.write_text("return {}")
    lab.allow("worker_death", "settled_effect")
    worker = lab.worker(workers=1, load_timeout="1s", env={"UMAVEZ_CONFIG": str(conf)})
    child, = worker.wait_children(1)
    conf.write_text("while true do end return {}")
    hang_up(worker)
    assert "while loading the settings" in worker.wait_event("reload_failed", timeout=60)["why"]
    assert worker.children() == [child]


def test_a_first_child_that_never_comes_back_from_loading_ends_the_worker(lab):
    lab.env.tasks.add("e2.late")
    spoil(lab, HANGS["compiled"])
    lab.allow("worker_death", "exit_status", "settled_effect")
    worker = lab.worker(workers=1, load_timeout="300ms")
    assert worker.process.wait(60) == 5
    assert len(worker.events("child_killed")) == 5 and "died again and again before it was ready" in worker.text()


def test_a_database_that_is_waited_for_is_no_hanging_code(own_env):
    own_env.pg.stop()
    worker = own_env.worker(workers=1, load_timeout="200ms", connect_timeout="100ms")
    wait_until(lambda: len(worker.events("database_away")) > 0, 60, lambda: worker.tail())
    child, = worker.children()
    looks = len(worker.events())
    own_env.pg.start()
    assert worker.wait_children(1) == [child] and looks
    assert not worker.events("child_killed")
