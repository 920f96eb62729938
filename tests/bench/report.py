"""Rows into figures: medians with their spread, ratios pass by pass, a table for people and the same in Markdown."""
import os
import platform
import statistics


def percentile(values, share):
    """The value that `share` of the sorted values do not exceed."""
    return values[min(len(values) - 1, int(share * len(values)))]


def spread(values, form):
    """`median (least–greatest)`."""
    values = list(values)
    middle = form.format(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({form.format(min(values))}–{form.format(max(values))})"


def table(head, rows):
    widths = [max(len(str(r[i])) for r in [head, *rows]) for i in range(len(head))]
    line = "  ".join("{:<%d}" % w for w in widths)
    return "\n".join(line.format(*map(str, r)).rstrip() for r in [head, ["-" * w for w in widths], *rows])


def markdown(head, rows):
    return "\n".join("| " + " | ".join(map(str, r)) + " |" for r in [head, ["---"] * len(head), *rows])


def machine():
    model = platform.processor() or "?"
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), model)
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) // 1024 // 1024
    return f"{os.cpu_count()} × {model}, {memory} GB, {platform.system()} {platform.release()}"


class Results:
    """All rows of one invocation, in their order."""

    def __init__(self):
        self.rows = []

    def add(self, row, rep):
        row["rep"] = rep
        self.rows.append(row)
        return row

    def bad(self):
        return [r for r in self.rows if not r["ok"]]

    def good(self, what):
        return [r for r in self.rows if r["what"] == what and r["ok"]]

    def names(self, with_field):
        return list(dict.fromkeys(r["what"] for r in self.rows if r["ok"] and with_field in r))

    def ratios(self, what, base):
        """This one's speed divided by the other's, pass by pass."""
        other = {r["rep"]: r["per_s"] for r in self.good(base)}
        return [r["per_s"] / other[r["rep"]] for r in self.good(what) if r["rep"] in other]

    def throughput(self):
        head = ["runs per second", "median (spread)", "× b", "× c2", "× c3", "× e50", "client µs", "PG µs", "Valkey µs", "WAL B"]
        lines = []
        for name in self.names("per_s"):
            rows = self.good(name)
            cells = [name, spread((r["per_s"] for r in rows), "{:.0f}")]
            for base in ("b", "c2", "c3", "e50"):
                quotients = self.ratios(name, "floor " + base)
                cells.append(f"{statistics.median(quotients):.2f}" if quotients else "")
            cells += [f"{statistics.median(r[field] for r in rows):.0f}" for field in ("worker_cpu", "pg_cpu", "valkey_cpu", "wal")]
            lines.append(cells)
        return head, lines

    def latencies(self):
        head = ["enqueue to committed effect, ms", "p50", "p95", "p99", "most", "runs"]
        lines = []
        for name in self.names("times"):
            rows = self.good(name)
            cells = [spread((percentile(r["times"], share) for r in rows), "{:.1f}") for share in (0.5, 0.95, 0.99)]
            lines.append([name, *cells, spread((r["times"][-1] for r in rows), "{:.1f}"), sum(r["runs"] for r in rows)])
        return head, lines

    def tenants(self):
        head = ["a small tenant's ten runs, enqueued to ended, ms", "p50", "p99", "most", "runs"]
        lines = []
        for name in self.names("waits"):
            rows = self.good(name)
            cells = [spread((percentile(r["waits"], share) for r in rows), "{:.1f}") for share in (0.5, 0.99)]
            lines.append([name, *cells, spread((r["waits"][-1] for r in rows), "{:.1f}"), sum(r["runs"] for r in rows)])
        return head, lines

    def loads(self):
        head = ["enqueued to ended at a steady load, ms", "p50", "p95", "p99", "runs"]
        lines = []
        for name in self.names("loaded"):
            rows = self.good(name)
            lines.append([name, *(spread((percentile(r["loaded"], share) for r in rows), "{:.1f}") for share in (0.5, 0.95, 0.99)), sum(r["runs"] for r in rows)])
        return head, lines

    def footprint(self):
        head = ["worker", "figure"]
        idle, loaded = self.good("idle"), [r for r in self.rows if r["ok"] and r["what"] == "umavez, 1 worker"]
        lines = []
        if idle:
            lines += [["idle: CPU of the worker, % of a core", spread((r["cpu"] for r in idle), "{:.2f}")],
                      ["idle: CPU of PostgreSQL, % of a core", spread((r["pg_cpu_share"] for r in idle), "{:.2f}")],
                      ["idle: transactions a second", spread((r["transactions"] for r in idle), "{:.1f}")],
                      ["idle: resident memory, MB", spread((r["rss"] for r in idle), "{:.1f}")]]
        if loaded:
            lines.append(["most resident memory while draining, MB", spread((r["rss"] for r in loaded), "{:.1f}")])
        return head, lines

    def grown(self):
        """A table for each group of growth.py."""
        for group in dict.fromkeys(r["group"] for r in self.rows if r["ok"] and "group" in r):
            lines = []
            for name in dict.fromkeys(r["what"] for r in self.rows if r["ok"] and r.get("group") == group):
                rows = self.good(name)
                base = {r["rep"]: r["rate"] for r in self.good(rows[0]["base"])}
                quotients = [r["rate"] / base[r["rep"]] for r in rows if r["rep"] in base]
                lines.append([name, spread((r["rate"] for r in rows), "{:.0f}"), f"{statistics.median(quotients):.2f}" if quotients else "",
                              *(f"{statistics.median(r[field] for r in rows):.0f}" for field in ("pg_cpu", "wal"))])
            yield [group, "per second, median (spread)", "× the first row", "PG µs", "WAL B"], lines

    def horizon(self):
        head = ["vacuum horizon", "PG µs a run, first fifth → last", "p50 ms", "p99 ms", "backlog at the end"]
        lines = []
        for name in self.names("cpu_end"):
            rows = self.good(name)

            def change(a, b, form, rows=rows):
                return " → ".join(form.format(statistics.median(r[field] for r in rows)) for field in (a, b))
            lines.append([name, change("cpu_start", "cpu_end", "{:.0f}"), change("p50_start", "p50_end", "{:.1f}"),
                          change("p99_start", "p99_end", "{:.1f}"), max(r["backlog"] for r in rows)])
        return head, lines

    def tables(self):
        return [t for t in (self.throughput(), *self.grown(), self.horizon(), self.tenants(), self.latencies(), self.loads(), self.footprint()) if t[1]]
