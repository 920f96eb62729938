"""When schedules are due, against an independent reading by Python's zoneinfo; and what a tick enqueues.

Rows of the cases here: H07 (the races; e2e/test_h_schedules.py has the workers), H08.
"""
import hashlib
import json
import os
import random
import struct
import uuid
import zoneinfo
from datetime import timedelta

import pytest

from support import procs
from support.procs import wait_until
from support.schedules import DAY, changes, declare, slots, utc

ALL = """WITH RECURSIVE s(at) AS (SELECT umavez.next_slot(%s::jsonb, %s) UNION ALL
         SELECT umavez.next_slot(%s::jsonb, at) FROM s WHERE at <= %s) SELECT at FROM s WHERE at <= %s"""

ZONES = ["America/Sao_Paulo", "Australia/Lord_Howe", "Europe/Dublin", "America/New_York", "America/Havana", "Africa/Casablanca",
         "Asia/Tehran", "Pacific/Apia", "Pacific/Chatham", "Asia/Kathmandu"]


def from_database(sql, declared, start, end):
    text = json.dumps(declared)
    return [row[0] for row in sql.q(ALL, text, start, text, end, end)]


def same(found, expected):
    odd = sorted(set(found) ^ set(expected))
    assert found == expected, f"{len(odd)} differ: {[str(moment) for moment in odd[:10]]}"


@pytest.mark.parametrize("tz", ZONES)
def test_H08_twenty_years(sql, tz, long):
    """A job with named hours, twenty years long; every quarter of an hour, and every minute of named hours, around changes of offset."""
    named, quarters, odd = declare({"cron": "30 0,2,23 * * *", "tz": tz}, {"cron": "*/15 * * * *", "tz": tz}, {"cron": "*/7 0-3,22-23 * * *", "tz": tz})
    start, end = utc("2008-01-01"), utc("2028-01-01")
    same(from_database(sql, named, start, end), slots(tz, start, end, minutes=[30], hours=[0, 2, 23]))
    for moment in changes(tz, 2008, 2027)[0 if long else -2:]:
        start, end = moment - DAY, moment + 2 * DAY
        same(from_database(sql, quarters, start, end), slots(tz, start, end, minutes=range(0, 60, 15), every_hour=True))
        same(from_database(sql, odd, start, end), slots(tz, start, end, minutes=range(0, 60, 7), hours=[0, 1, 2, 3, 22, 23]))


def any_cron(rng):
    def items(low, high, names=()):
        first, last = sorted((rng.randint(low, high), rng.randint(low, high)))
        return rng.choice([str(first), f"{first}-{last}", f"{first}-{last}/{rng.randint(1, 5)}", f"*/{rng.randint(1, high)}", *names])
    fields = [rng.choice(["0", items(0, 59), ",".join(items(0, 59) for _ in range(2))]), rng.choice(["*", items(0, 23)]),
              rng.choice(["*", "*", items(1, 28), items(1, 31) + ",28", "L"]), rng.choice(["*", "*", items(1, 12, ["jan-mar,dec"])]),
              rng.choice(["*", "*", items(0, 6, ["fri-sun", "mon"])])]
    return " ".join(fields)


def test_any_expression_in_any_zone_at_any_time_has_a_later_slot(sql, long):
    """Nothing hangs; the next slot is later than the moment asked for, and is the first one that zoneinfo finds in the ten days after it."""
    rng = random.Random(int(os.environ.get("UMAVEZ_TEST_SEED", 8)))
    known = {row[0] for row in sql.q("SELECT name FROM pg_timezone_names")}
    refused = ("posix", "right", "localtime", "Factory", "CET", "EET", "MET", "WET")      # the last four: by lua/umavez/schedule.lua
    zones = sorted(name for name in known & zoneinfo.available_timezones() if not name.startswith(refused))
    drawn = [{"cron": any_cron(rng), "tz": rng.choice(zones)} for _ in range(2000 if long else 150)]
    found = 0
    declared_all = [one for at in range(0, len(drawn), 500) for one in declare(*drawn[at:at + 500])]
    for given, declared in zip(drawn, declared_all, strict=True):
        start = utc("1990-01-01") + timedelta(seconds=rng.randrange(48 * 365 * 86400))
        slot = sql.val("SELECT umavez.next_slot(%s::jsonb, %s)", json.dumps(declared), start)
        assert slot > start, (given, start, slot)
        sets = {name: declared[name] for name in ("minutes", "hours", "days", "months", "weekdays", "either", "every_hour", "last_day")}
        expected = slots(given["tz"], start, start + 10 * DAY, **sets)
        assert slot == expected[0] if expected else slot > start + 10 * DAY, (given, start, slot, expected[:1])
        found += bool(expected)
    assert found > len(drawn) / 3


@pytest.mark.parametrize("tz,cron,start,expected", [
    # 00:30 is missing on 4 November 2018: at the first moment after the gap (01:00 -02)
    ("America/Sao_Paulo", "30 0 * * *", "2018-11-03", ["2018-11-03T03:30", "2018-11-04T03:00", "2018-11-05T02:30"]),
    # 23:30 comes twice on 17 February 2018: the first time (-02)
    ("America/Sao_Paulo", "30 23 * * *", "2018-02-17", ["2018-02-17T01:30", "2018-02-18T01:30", "2018-02-19T02:30"]),
    # half an hour forward from 02:00 on 4 October 2020, and back at 02:00 on 5 April 2020
    ("Australia/Lord_Howe", "15 2 * * *", "2020-10-02T16:00", ["2020-10-03T15:30", "2020-10-04T15:15"]),
    ("Australia/Lord_Howe", "45 1 * * *", "2020-04-03T15:00", ["2020-04-04T14:45", "2020-04-05T15:15"]),
    ("Australia/Lord_Howe", "*/15 * * * *", "2020-04-04T14:20", ["2020-04-04T14:30", "2020-04-04T14:45", "2020-04-04T15:00", "2020-04-04T15:15", "2020-04-04T15:30"]),
    # Ireland's winter time is the negative one: 02:00 to 01:00 on 25 October 2020
    ("Europe/Dublin", "30 1 * * *", "2020-10-24T12:00", ["2020-10-25T00:30", "2020-10-26T01:30"]),
    ("Europe/Dublin", "30 * * * *", "2020-10-24T23:45", ["2020-10-25T00:30", "2020-10-25T01:30", "2020-10-25T02:30"]),
    # Samoa had no 30 December 2011
    ("Pacific/Apia", "0 12 * * *", "2011-12-29T00:00", ["2011-12-29T22:00", "2011-12-30T10:00", "2011-12-30T22:00"]),
    ("UTC", "0 0 L * *", "2024-01-31T12:00", ["2024-02-29", "2024-03-31", "2024-04-30"]),
    ("UTC", "0 0 29 2 *", "2096-03-01", ["2104-02-29", "2108-02-29"]),
    ("UTC", "0 0 13 * fri", "2026-11-01", ["2026-11-06", "2026-11-13", "2026-11-20"]),
    ("UTC", "0 0 */2 * fri", "2026-11-01", ["2026-11-13", "2026-11-27"]),
])
def test_H08_known_moments(sql, tz, cron, start, expected):
    moment = utc(start)
    for slot in expected:
        moment = sql.next_slot(json.dumps(declare({"cron": cron, "tz": tz})[0]), moment)
        assert str(moment.astimezone()) == str(utc(slot).astimezone())


def test_every_counts_from_1970(sql):
    declared = json.dumps(declare({"every": 90_000})[0])
    assert sql.next_slot(declared, utc("2026-01-01T00:00:00")) == utc("2026-01-01T00:01:30")
    assert sql.next_slot(declared, utc("2026-01-01T00:01:29.999999")) == utc("2026-01-01T00:01:30")
    assert sql.next_slot(declared, utc("2026-01-01T00:01:30")) == utc("2026-01-01T00:03:00")


def test_the_run_id_follows_from_task_tenant_and_slot(sql):
    slot = utc("2026-12-01T12:00:00")
    for task, tenant in (("reports.daily", None), ("ação.x", 7), ("a", -1)):
        name = task.encode()
        text = b"umavez.slot.v1\0" + struct.pack(">I", len(name)) + name + (b"\0" if tenant is None else b"\1" + struct.pack(">q", tenant))
        digest = bytearray(hashlib.sha256(text + struct.pack(">q", int(slot.timestamp()) * 1_000_000)).digest()[:16])
        digest[6], digest[8] = digest[6] & 15 | 128, digest[8] & 63 | 128
        assert str(sql.slot_run_id(task, tenant, slot)) == str(uuid.UUID(bytes=bytes(digest)))
    assert str(sql.slot_run_id("reports.daily", None, slot)) in (procs.ROOT / "docs/schedules.md").read_text()


# --- ticks --------------------------------------------------------------------------------------------------------------------------

TEN_DAYS = 10 * 86_400_000      # no test meets the end of one


class Ticker:
    def __init__(self, sql, **fields):
        self.sql, self.declared = sql, declare({"task": "t.x", **fields})

    def tick(self, fresh=False, sql=None):
        rows = (sql or self.sql).q("SELECT event, task, slot, until, slots, runs, lag_ms, error, wait_ms FROM umavez.tick_schedules(%s::jsonb, %s)",
                                   json.dumps(self.declared), fresh)
        assert rows[-1].event == "wait"
        self.wait_ms = rows[-1].wait_ms
        return rows[:-1]

    def age(self, interval):
        """As if nobody had looked for that long."""
        self.sql.q("UPDATE umavez.schedules SET seen_at = seen_at - %s::interval, last_slot = NULL, next_slot = umavez.next_slot(declared, clock_timestamp() - %s::interval)",
                   interval, interval)

    def runs(self):
        return self.sql.q("SELECT * FROM umavez.runs ORDER BY run_at, tenant_id")


def test_a_new_schedule_begins_now(sql):
    t = Ticker(sql, cron="0 0 1 1 *")
    assert [row.event for row in t.tick(True)] == ["declared"]
    assert t.tick() == [] and t.runs() == [] and t.wait_ms == 30_000


@pytest.mark.parametrize("missed,events,runs", [("skip", ["skipped"], 0), ("once", ["skipped", "enqueued"], 1), ("all", ["enqueued"], 3)])
def test_missed_slots(sql, missed, events, runs):
    t = Ticker(sql, every=TEN_DAYS, missed=missed)
    t.tick(True)
    t.age("30 days")
    told = t.tick()
    assert [row.event for row in told] == events and len(t.runs()) == runs
    if runs:
        last = t.runs()[-1]
        assert told[-1].runs == runs and told[-1].lag_ms > 0
        assert str(last.run_id) == str(sql.slot_run_id("t.x", None, last.run_at)) and last.args == {}
    row = sql.q("SELECT last_slot, next_slot FROM umavez.schedules")[0]
    assert row.next_slot - row.last_slot == timedelta(days=10)
    assert t.tick() == [] and len(t.runs()) == runs


def test_a_late_slot_within_the_minute_is_not_missed(sql):
    t = Ticker(sql, every=1000, missed="skip")
    t.tick(True)
    t.age("5 seconds")
    assert [row.event for row in t.tick()] == ["skipped", "enqueued"] and len(t.runs()) == 1


def test_years_of_missed_minutes_cost_little(sql):
    t = Ticker(sql, cron="* * * * *", tz="Europe/Dublin")
    t.tick(True)
    t.age("9 years")
    blocks = sql.blocks("SELECT * FROM umavez.tick_schedules(%s::jsonb, false)", (json.dumps(t.declared),))
    assert len(t.runs()) == 1 and blocks < 20_000
    everything = Ticker(sql, cron="* * * * *", tz="Europe/Dublin", missed="all")
    everything.tick(True)
    everything.age("1 day")
    assert everything.tick()[0].slots == 100 and everything.wait_ms == 0


def test_each_tenant_gets_a_run(sql):
    sql.q("INSERT INTO public.tenants (id) SELECT g FROM generate_series(1000, 13000) g")
    tenants = sql.val("SELECT count(*) FROM public.tenants")
    t = Ticker(sql, every=TEN_DAYS, tenants="each", args={"a": 1}, slot_arg="at", missed="all")
    t.tick(True)
    t.age("10 days")
    told = [t.tick()[0] for _ in range(3)]
    assert [row.runs for row in told] == [5000, 5000, tenants - 10_000] and [row.slots for row in told] == [0, 0, 1]
    runs = t.runs()
    assert len(runs) == tenants == len({run.tenant_id for run in runs}) == len({run.run_id for run in runs})
    assert runs[0].args == {"a": 1, "at": runs[0].run_at.astimezone(tz=utc("2020-01-01").tzinfo).strftime("%Y-%m-%dT%H:%M:%SZ")}
    assert str(runs[0].run_id) == str(sql.slot_run_id("t.x", runs[0].tenant_id, runs[0].run_at))


def test_H07_many_at_once_enqueue_a_slot_once(connect, background, sql):
    t = Ticker(sql, every=1000, missed="all")
    t.tick(True)
    t.age("60 seconds")
    others = [connect() for _ in range(8)]
    end = sql.val("SELECT clock_timestamp() + interval '5 seconds'")

    def race(other):
        while other.val("SELECT clock_timestamp() < %s", end):
            assert not [row for row in t.tick(True, other) if row.event == "failed"]
    for thread in [background(race, other) for other in others]:
        thread.result()
    t.tick()
    moments = [run.run_at for run in t.runs()]
    assert len(moments) >= 60 and moments == [moments[0] + timedelta(seconds=n) for n in range(len(moments))]
    assert moments[-1] == sql.val("SELECT last_slot FROM umavez.schedules")


def test_a_slot_that_is_rolled_back_is_due_again(connect, sql):
    t = Ticker(sql, every=TEN_DAYS)
    t.tick(True)
    t.age("10 days")
    other = connect(autocommit=False)
    assert t.tick(sql=other)[-1].event == "enqueued"
    assert t.tick() == [] and 0 < t.wait_ms <= 250          # somebody is at it
    other.rollback()
    assert t.tick()[-1].event == "enqueued" and len(t.runs()) == 1


def test_a_change_takes_over_and_loses_no_common_slot(sql):
    old, new = Ticker(sql, cron="0 * * * *"), Ticker(sql, cron="* * * * *")
    old.tick(True)
    old.age("3 minutes")
    assert [row.event for row in new.tick(True)] == ["declared", "skipped", "enqueued"]
    assert old.tick() == [] and sql.val("SELECT declared->>'text' FROM umavez.schedules") == "* * * * *"
    # A worker that comes back with the old one takes the row; those with the new one have it again when nobody has looked for two minutes.
    old.tick(True)
    assert new.tick() == [] and sql.val("SELECT declared->>'text' FROM umavez.schedules") == "0 * * * *"
    sql.q("UPDATE umavez.schedules SET seen_at = seen_at - interval '2 minutes'")
    assert new.tick()[0].event == "declared" and sql.val("SELECT declared->>'text' FROM umavez.schedules") == "* * * * *"


def test_other_args_leave_the_slots_alone(sql):
    old, new = Ticker(sql, every=TEN_DAYS), Ticker(sql, every=TEN_DAYS, args={"a": 1})
    old.tick(True)
    old.age("10 days")
    assert [row.event for row in new.tick(True)] == ["declared", "enqueued"] and new.runs()[0].args == {"a": 1}


def test_other_args_in_the_middle_of_a_slot_repeat_no_tenant(sql):
    sql.q("INSERT INTO public.tenants (id) SELECT g FROM generate_series(1000, 7000) g")
    tenants = sql.val("SELECT count(*) FROM public.tenants")
    old, new = (Ticker(sql, every=TEN_DAYS, tenants="each", args={"n": n}) for n in (1, 2))
    old.tick(True)
    old.age("10 days")
    assert old.tick()[-1].runs == 5000
    sql.q("DELETE FROM umavez.runs")                                        # as if they had ended
    assert [row.event for row in new.tick(True)] == ["declared", "enqueued"]
    assert {run.args["n"] for run in new.runs()} == {2} and len(new.runs()) == tenants - 5000


def test_a_schedule_that_fails_is_told_and_stops_no_other(sql):
    t = Ticker(sql, every=TEN_DAYS)
    t.declared.insert(0, {**t.declared[0], **declare({"cron": "@hourly", "tz": "UTC"})[0], "task": "t.bad", "tz": "Nowhere/City", "every_ms": None})
    told = t.tick(True)
    assert [(row.task, row.event) for row in told] == [("t.bad", "failed"), ("t.x", "declared")] and "Nowhere/City" in told[0].error


def test_a_lock_is_waited_for_elsewhere(connect, sql):
    t = Ticker(sql, every=TEN_DAYS, tenants="each")
    other = Ticker(sql, every=7_200_000, tenants="each")
    t.tick(True)
    t.age("10 days")
    holder = connect(autocommit=False)
    holder.q("SELECT FROM umavez.schedules FOR UPDATE")
    assert [row.event for row in other.tick(True)] == ["busy"] and other.wait_ms <= 1000          # a change
    holder.rollback()
    holder.q("DELETE FROM public.tenants WHERE id = 2")
    assert [row.event for row in t.tick()] == ["busy"] and not t.runs()                            # a tenant
    holder.rollback()
    assert [row.event for row in t.tick()] == ["enqueued"]


def test_who_waits_is_woken(sql):
    t = Ticker(sql, every=1000)
    t.tick(True)
    wait_until(lambda: [row for row in t.tick() if row.event == "enqueued"], 30, "a slot")
    assert t.wait_ms <= 1000
