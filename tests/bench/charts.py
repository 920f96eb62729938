"""Rows into charts: plain SVG, readable on light and dark pages, each figure also in a table of docs/benchmarks.md."""
import html
import math
import statistics

from .report import percentile

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 70, 150, 36, 48
COLOURS = ("#2f6db5", "#c2571a", "#3a8f4b", "#8a4fa8")
STYLE = ("text{font:12px sans-serif;fill:#555}.t{font-size:14px;font-weight:bold}.g{stroke:#888;stroke-opacity:.3}"
         "@media(prefers-color-scheme:dark){text{fill:#bbb}}")


def _ticks(most):
    """Round steps from 0 to at least `most`."""
    step = 10 ** math.floor(math.log10(most or 1))
    step = next(step * f for f in (0.2, 0.5, 1, 2) if most / (step * f) <= 6)
    return [step * n for n in range(math.ceil(most / step) + 1)]


def _number(value):
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def chart(title, x_label, y_label, series):
    """series: {name: [(x, y), …]}, all with the same xs, which stand at equal distances."""
    xs = [x for x, _ in next(iter(series.values()))]
    ticks = _ticks(max(y for points in series.values() for _, y in points))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(place, y):
        return LEFT + wide * (place / max(1, len(xs) - 1)), TOP + high * (1 - y / ticks[-1])
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}"><style>{STYLE}</style>',
           f'<text class="t" x="{LEFT}" y="20">{html.escape(title)}</text>']
    for tick in ticks:
        y = at(0, tick)[1]
        out.append(f'<line class="g" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                   f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    for place, x in enumerate(xs):
        label = x if isinstance(x, str) else _number(x)
        out.append(f'<text x="{at(place, 0)[0]:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{html.escape(label)}</text>')
    out.append(f'<text x="{LEFT + wide / 2}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(x_label)}</text>'
               f'<text x="16" y="{TOP + high / 2}" text-anchor="middle" transform="rotate(-90 16 {TOP + high / 2})">{html.escape(y_label)}</text>')
    for n, (name, points) in enumerate(series.items()):
        colour, places = COLOURS[n % len(COLOURS)], [at(place, y) for place, (_, y) in enumerate(points)]
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        out.append(f'<line x1="{WIDTH - RIGHT + 16}" x2="{WIDTH - RIGHT + 34}" y1="{TOP + 10 + 20 * n}" y2="{TOP + 10 + 20 * n}" stroke="{colour}" stroke-width="3"/>'
                   f'<text x="{WIDTH - RIGHT + 40}" y="{TOP + 14 + 20 * n}">{html.escape(name)}</text>')
    return "".join(out) + "</svg>\n"


def _medians(rows, field, key):
    """[(x, median of the field over the passes), …] in the order of x."""
    found = {}
    for row in rows:
        found.setdefault(row[key], []).append(field(row))
    return [(x, statistics.median(values)) for x, values in sorted(found.items())]


def charts(results):
    """{file name: SVG} of what was measured."""
    good, made = [r for r in results.rows if r["ok"]], {}
    sizes = [r for r in good if r.get("group") == "connections for handlers"]
    if len({r["x"] for r in sizes}) > 1:
        made["connections.svg"] = chart("Throughput against connections", "connections for handlers (pool_size)", "runs a second",
                                        {"umavez": _medians(sizes, lambda r: r["rate"], "x")})
    depths = [r for r in good if r.get("group") == "draining a deep queue"]
    if len({r["x"] for r in depths}) > 1:
        made["depth.svg"] = chart("Throughput against queue depth", "runs queued", "runs a second",
                                  {"umavez": _medians(depths, lambda r: r["rate"], "x")})
    loads = [r for r in good if "load" in r]
    if len({r["load"] for r in loads}) > 1:
        made["load.svg"] = chart("Latency against load", "runs enqueued a second", "ms, enqueued to ended", {
            f"p{share * 100:g}": _medians(loads, lambda r, s=share: percentile(r["loaded"], s), "load") for share in (0.5, 0.95, 0.99)})
    held = [r for r in good if "cpu_steps" in r]
    if held:
        seconds = len(held[0]["cpu_steps"])
        series = {}
        for what in dict.fromkeys(r["what"] for r in held):
            steps = [r["cpu_steps"] for r in held if r["what"] == what]
            series[what.split(" for ")[0]] = [(f"{n + 1}/{seconds}", statistics.median(s[n] for s in steps)) for n in range(seconds)]
        made["horizon.svg"] = chart("A transaction holds the vacuum horizon", "part of the time", "PostgreSQL's CPU, µs a run", series)
    return made
