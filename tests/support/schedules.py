"""An independent reading of cron schedules: every matching time of the wall clock is turned into moments by Python's zoneinfo."""
import json
import subprocess
from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from . import procs
from .servers import clean_environment, umavez_bin

UTC = timezone.utc
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)

DECLARE = """local json, schedule = require("umavez.json"), require("umavez.schedule")
for _, s in ipairs(json.decode(arg[1])) do print(json.encode(schedule.declared(s.task or "t.x", s))) end"""


def declare(*schedules):
    """What the program tells the database of these schedules (cron, tz, missed …; every in milliseconds)."""
    script = procs.private_dir("dc-") / "declare.lua"
    script.write_text(DECLARE)
    given = [{"missed": "once", **({} if "every" in s else {"tz": "UTC"}), **s} for s in schedules]
    out = subprocess.run([umavez_bin(), "exec", str(script), json.dumps(given)], check=True, capture_output=True, text=True, env=clean_environment())
    procs.remove_dir(script.parent)
    return [json.loads(line) for line in out.stdout.splitlines()]


def transition_after(zone, moment):
    """The first moment after the change of offset within the two days around `moment`."""
    low, high = moment - DAY, moment + DAY
    before = low.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == before else (low, middle)
    return high.replace(microsecond=0)


def moments(wall, zone, every_hour):
    """When a time of the wall clock is due."""
    found = []
    for fold in (0, 1):
        moment = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None) == wall and moment not in found:
            found.append(moment)
    if every_hour or not found:
        return found if every_hour else [transition_after(zone, wall.replace(tzinfo=zone).astimezone(UTC))]
    return [min(found)]


def slots(tz, start, end, *, minutes=range(60), hours=range(24), days=range(1, 32), months=range(1, 13), weekdays=range(7), either=False,
          every_hour=False, last_day=False):
    """All slots later than start, up to end."""
    zone, out, day = ZoneInfo(tz), set(), (start - 3 * DAY).date()
    while day <= (end + 3 * DAY).date():
        of_month = day.day in days or last_day and (day + DAY).day == 1
        of_week = day.isoweekday() % 7 in weekdays
        if day.month in months and (of_month or of_week if either else of_month and of_week):
            for hour in hours:
                for minute in minutes:
                    out.update(moments(datetime(day.year, day.month, day.day, hour, minute), zone, every_hour))
        day += DAY
    return sorted(moment for moment in out if start < moment <= end)


def changes(tz, first_year, last_year):
    """The days at which a zone's offset changes."""
    zone, found, moment = ZoneInfo(tz), [], datetime(first_year, 1, 1, tzinfo=UTC)
    while moment.year <= last_year:
        if moment.astimezone(zone).utcoffset() != (moment + DAY).astimezone(zone).utcoffset():
            found.append(moment)
        moment += DAY
    return found


def utc(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


__all__ = ["declare", "slots", "changes", "utc", "date", "DAY", "MINUTE"]
