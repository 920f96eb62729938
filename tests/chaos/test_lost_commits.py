"""F04 whole: PostgreSQL loses commits that it had acknowledged, by a failover to an asynchronous standby that lagged, or by a restore to an earlier point.

What is gone from the ledger is gone with its effects; what Valkey still holds of it is not handed out (G8), at the queue and at the door, from the first
answer on and before any checkpoint; then the load goes on.
"""
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.cluster import Backup, Pair
from support.http import Closed, Door, door_key
from support.procs import wait_until

KEYS = 15


def ask(door, owner, key):
    """Until there is a final answer; gives it and how many were none."""
    begun, refused = time.monotonic(), 0
    while time.monotonic() - begun < 60:
        try:
            answer = door.post(f"/{owner}", {"key": key}, key=key)
        except (Closed, OSError):
            answer = None
        if answer is not None and answer.status == 200:
            return answer, refused
        assert answer is None or answer.status in (409, 500, 503), answer
        refused += 1
        time.sleep(0.05)
    raise AssertionError(f"no answer for {key} within a minute")


def add_tasks(env):
    for name, owner in (("t", "tenant"), ("p", "platform")):
        env.tasks.add(f"l.{name}_queue", owner=owner, key=["key"], lease="3s", timeout="10s", retry={"max_attempts": 20})
        env.tasks.add(f"l.{name}_door", owner=owner, lease="3s", timeout="10s", http={"method": "POST", "path": f"/{name}"})


class Load:
    """Keys of a group, sent to queue and door, for a tenant and for the platform."""

    def __init__(self, env, doors):
        self.env, self.doors = env, doors
        self.answers, self.rows = {}, {}

    def _each(self, group):
        return [(owner, f"{group}{number}") for owner in "tp" for number in range(KEYS)]

    def send(self, group):
        """(answers of the door by (owner, key), finished rows of the queue by (owner, key))"""
        runs = {each: self.env.enqueue(f"l.{each[0]}_queue", {"key": each[1]}) for each in self._each(group)}
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda each: ask(self.doors[each[0]], *each), self._each(group)))
        rows = {str(row.run_id): row for row in self.env.wait_finished(list(runs.values()), 90)}
        return {each: answer for each, (answer, _) in zip(self._each(group), found)}, {each: rows[run] for each, run in runs.items()}

    def first(self, group):
        self.answers[group], self.rows[group] = self.send(group)
        assert not any(answer.replayed for answer in self.answers[group].values()) and not any(row.replay for row in self.rows[group].values())

    def warm(self, group):
        """Waits for the copies in the gate."""
        def settled(owner, key):
            tenant = 1 if owner == "t" else None
            entries = [self.env.gate.get(door_key(f"l.{owner}_door", key, tenant), tenant), self.env.gate.get(self.env.digest(f"l.{owner}_queue", key), tenant)]
            return all(entry is not None and entry.state == "C" for entry in entries)
        wait_until(lambda: all(settled(*each) for each in self._each(group)), 30, "the gate is warm")

    def same(self, group):
        """Kept by PostgreSQL: the first answer, as a replay."""
        answers, rows = self.send(group)
        for each, answer in answers.items():
            assert answer.replayed and answer.body == self.answers[group][each].body, (each, answer)
            assert rows[each].replay and rows[each].outcome == self.rows[group][each].outcome, each

    def anew(self, group):
        """Lost by PostgreSQL: a new operation, and its answer."""
        answers, rows = self.send(group)
        for each, answer in answers.items():
            assert not answer.replayed and answer.body != self.answers[group][each].body, (each, answer)
            assert not rows[each].replay and rows[each].outcome != self.rows[group][each].outcome, each
        self.answers[group], self.rows[group] = answers, rows

    def effects(self):
        return self.env.db.val("SELECT count(*) FROM effects WHERE task LIKE 'l.%'")


def start(env, **settings):
    add_tasks(env)
    doors = {"t": Door(env, pool_size=6, **settings)}
    doors["p"] = Door(env, tenant=None, pool_size=6, **settings)
    env.worker(pool_size=6, **settings)
    return Load(env, doors)


def test_F04_failover_that_lost_the_last_commits(own_env):
    env = own_env
    pair = env.closing(Pair(env))
    load = start(env, database_url=pair.url())
    load.first("kept")
    pair.caught_up()
    pair.lag()
    load.first("lost")
    load.warm("lost")
    open_calls = ThreadPoolExecutor(2)      # callers that ask all through the failover
    through = [open_calls.submit(ask, load.doors[owner], owner, "lost0") for owner in "tp"]
    lost = pair.fail_over()
    assert len(lost) == 2 * KEYS and load.effects() == 4 * KEYS
    assert len(env.gate.all()) >= 8 * KEYS, "Valkey holds the copies of what is lost"
    promoted = time.monotonic()
    for future in through:
        future.result()
    for owner in "tp":     # asked while the old primary still lived, or after: a key has one effect where it counts
        load.answers["lost"][owner, "lost0"] = ask(load.doors[owner], owner, "lost0")[0]
    before = load.effects()
    assert before == 4 * KEYS + 2
    answers, rows = load.send("lost")
    first = time.monotonic() - promoted
    for each, answer in answers.items():
        if each[1] == "lost0":
            assert answer.replayed and answer.body == load.answers["lost"][each].body
        else:
            assert not answer.replayed and answer.body != load.answers["lost"][each].body, (each, answer)
        assert not rows[each].replay and rows[each].outcome != load.rows["lost"][each].outcome, each
    load.answers["lost"], load.rows["lost"] = answers, rows
    assert env.db.val("SELECT timeline_id FROM pg_control_checkpoint()") == 1, "a checkpoint has been made"
    pair.let_checkpoints()
    load.same("kept")
    load.same("lost")
    load.first("new")
    assert load.effects() == 12 * KEYS
    print(f"{4 * KEYS} keys kept, {4 * KEYS} lost and done again, the last of them {first:.1f} s after the promotion; {load.effects()} effects")


@pytest.mark.parametrize("kind", ["copy", "pitr"])
def test_G8_restore_to_an_earlier_point(own_env, kind):
    """The files of the stopped cluster have even their timeline in common with what they replace."""
    env = own_env
    backup = env.closing(Backup(env, kind))
    load = start(env)
    load.first("kept")
    backup.take()
    load.first("lost")
    load.warm("lost")
    lost = backup.restore()
    assert len(lost) == 2 * KEYS and load.effects() == 4 * KEYS
    load.anew("lost")
    load.same("kept")
    load.same("lost")
    load.first("new")
    assert load.effects() == 12 * KEYS
    print(f"{kind}: {4 * KEYS} keys kept, {4 * KEYS} lost and done again; {load.effects()} effects")
