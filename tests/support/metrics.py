"""The metrics page, read strictly: Prometheus text, exposition format 0.0.4. What the format does not allow is an AssertionError."""
import re
import shutil
import subprocess

from .http import Connection
from .procs import ROOT
from .servers import umavez_bin

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SERIES = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
_NUMBER = re.compile(r"\+Inf|-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
_UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def _labels(text):
    found, at = {}, 0
    while at < len(text):
        label = _LABEL.match(text, at)
        assert label, f"not a label: {text[at:]!r}"
        assert label[1] not in found, f"the label {label[1]} comes twice: {text!r}"
        found[label[1]] = re.sub(r'\\["\\n]', lambda m: _UNESCAPED[m[0]], label[2])
        at = label.end()
        assert at == len(text) or text[at] == ",", text
        at += 1
    return found


class Family:
    def __init__(self, name, help, kind):
        self.name, self.help, self.kind, self.series = name, help, kind, {}

    def take(self, name, labels, value):
        suffix = name[len(self.name):]
        allowed = ("_bucket", "_sum", "_count") if self.kind == "histogram" else ("",)
        assert name.startswith(self.name) and suffix in allowed, f"{name} stands among the series of {self.name} ({self.kind})"
        key = suffix, frozenset(labels.items())
        assert key not in self.series, f"{name} {labels} comes twice"
        assert self.kind != "counter" or (name.endswith("_total") and value >= 0), (name, value)
        self.series[key] = value

    def check(self):
        assert self.series, f"{self.name} has no series"
        names = {frozenset(n for n, _ in labels if n != "le") for _, labels in self.series}
        assert len(names) == 1, f"{self.name} has series of different labels: {names}"
        if self.kind == "histogram":
            for labels in {labels for suffix, labels in self.series if suffix == "_count"}:
                self._check_histogram(labels)

    def _check_histogram(self, labels):
        buckets = [(float(dict(of)["le"]), value) for (suffix, of), value in self.series.items()
                   if suffix == "_bucket" and frozenset(p for p in of if p[0] != "le") == labels]
        bounds, counts = [b for b, _ in buckets], [c for _, c in buckets]
        assert bounds == sorted(set(bounds)) and bounds[-1] == float("inf"), (self.name, bounds)
        assert counts == sorted(counts) and counts[-1] == self.series["_count", labels], (self.name, counts)
        assert ("_sum", labels) in self.series


class Page:
    """A page's families. value(name, label=…): that one series; total(name, label=…): the sum of all that have these labels."""

    def __init__(self, text):
        self.text, self.families = text, {}
        assert text.endswith("\n") and "\r" not in text
        lines, family = iter(text[:-1].split("\n")), None
        for line in lines:
            if line.startswith("# HELP "):
                name, help = line[len("# HELP "):].split(" ", 1)
                head, name_again, kind = next(lines).rsplit(" ", 2)
                assert (head, name_again) == ("# TYPE", name) and kind in ("counter", "gauge", "histogram"), line
                assert name not in self.families and re.fullmatch(_NAME, name), name
                family = self.families[name] = Family(name, help, kind)
                continue
            series = _SERIES.fullmatch(line)
            assert series and family and _NUMBER.fullmatch(series[3]), f"not a series: {line!r}"
            family.take(series[1], _labels(series[2] or ""), float(series[3].replace("Inf", "inf")))
        for family in self.families.values():
            family.check()

    def _series(self, name):
        for family in self.families.values():
            if name.startswith(family.name) and name[len(family.name):] in ("", "_bucket", "_sum", "_count"):
                for (suffix, labels), value in family.series.items():
                    if family.name + suffix == name:
                        yield dict(labels), value

    def value(self, name, **labels):
        found = [value for of, value in self._series(name) if of == labels]
        assert len(found) == 1, f"{name} {labels}: {found or [of for of, _ in self._series(name)]}"
        return found[0]

    def total(self, name, **labels):
        return sum(value for of, value in self._series(name) if labels.items() <= of.items())

    def rising(self):
        """All that must never fall: counters, and histograms' counts, buckets and sums."""
        return {(family.name + suffix, labels): value for family in self.families.values() if family.kind != "gauge"
                for (suffix, labels), value in family.series.items()}

    def assert_after(self, earlier):
        now = self.rising()
        fallen = {key: (value, now.get(key)) for key, value in earlier.rising().items() if not now.get(key, -1) >= value}
        assert not fallen, fallen


def scrape(port, token=None, connection=None):
    """GET /metrics, parsed."""
    headers = [("Authorization", f"Bearer {token}")] if token else []
    if connection is None:
        with Connection(port) as connection:
            return scrape(port, token, connection)
    answer = connection.request("GET", "/metrics", headers)
    assert (answer.status, answer.get("Content-Type")) == (200, TYPE), answer
    return Page(answer.body.decode())


def table():
    """The code's own table: name → {type, help, by_task, label, values, bounds}."""
    script = ROOT / "tests/support/metrics.lua"
    lines = subprocess.run([umavez_bin(), "exec", script], capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: kind for name, kind in (line.split(" ") for line in lines)}


def promtool(*arguments, input=None):
    """Runs promtool, where it is installed; None elsewhere."""
    if not shutil.which("promtool"):
        return None
    return subprocess.run(["promtool", *map(str, arguments)], input=input, capture_output=True, text=True)
