// The overview: what happens now, from the stream; the charts' past is in live.js.

import { chart } from "./chart.js";
import { h, swap, table } from "./dom.js";
import { bounded, milliseconds, number, percent, rate, seconds, t } from "./i18n.js";
import * as live from "./live.js";

export const title = () => t("nav.overview");
export const every = 0;
export const load = async () => ({});

const series = (...names) => names.map((name) => ({ name, label: name.startsWith("p") ? name : t(`chart.series.${name}`) }));
let parts = null;

function charts() {
  return [
    { id: "throughput", format: rate, series: series("ended", "replayed") },
    { id: "latency", format: milliseconds, tick: (ms) => (ms < 1000 ? milliseconds(ms) : `${number(ms / 1000, 1)} s`), series: series("p50", "p95", "p99") },
    { id: "depth", format: (v) => number(v, v < 3 ? 1 : 0), series: series("due", "later", "running") },
    { id: "failures", format: rate, series: series("failed") },
    { id: "gate", format: percent, top: 100, series: series("hit", "down") },
  ].map((spec) => chart({ ...spec, title: t(`chart.${spec.id}`), unit: t(`chart.${spec.id}.unit`) }));
}

function tile(name, value, { bad, href } = {}) {
  const inner = [h("dt", {}, name), h("dd", { class: bad ? "bad" : null }, href ? h("a", { id: `tile-${href}`, href }, value) : value)];
  return h("div", { class: "tile" }, inner);
}

function tiles({ db }) {
  const sum = (name) => db.queues.reduce((all, q) => all + Number(q[name]), 0);
  const oldest = Math.max(0, ...db.queues.map((q) => Number(q.oldest_s) || 0));
  const cut = db.queues.some((q) => Number(q.due) >= db.bounded_at);
  return [
    tile(t("overview.ended"), rate(db.rates.ended_per_s)),
    tile(t("overview.failed"), rate(db.rates.failed_per_s), { bad: db.rates.failed_per_s > 0 }),
    tile(t("overview.p99"), milliseconds(db.rates.p99_ms)),
    tile(t("overview.waiting"), cut ? `${number(sum("due"))}+` : number(sum("due")), { href: "#/queues" }),
    tile(t("overview.running"), number(sum("running")), { href: "#/runs?state=running" }),
    tile(t("overview.oldest"), oldest ? seconds(oldest) : "–"),
    tile(t("overview.dead"), bounded(db.dead_last_hour, db.bounded_at), { bad: db.dead_last_hour > 0, href: "#/runs?state=failed_permanent" }),
    tile(t("overview.workers"), number(db.workers), { bad: Number(db.workers) === 0, href: "#/workers" }),
  ];
}

function busiest({ db }) {
  return table(t("overview.busiest"), [
    { name: t("tasks.task"), cell: (r) => h("a", { id: `busy-${r.task}`, href: `#/runs?task=${encodeURIComponent(r.task)}` }, r.task) },
    { name: t("tasks.rate"), number: true, cell: (r) => rate(r.ended_per_s) },
    { name: t("overview.failed"), number: true, cell: (r) => rate(r.failed_per_s) },
    { name: t("tasks.p50"), number: true, cell: (r) => milliseconds(r.p50_ms) },
    { name: t("tasks.p99"), number: true, cell: (r) => milliseconds(r.p99_ms) },
  ], db.tasks, t("overview.quiet"));
}

function update() {
  if (!parts || !parts.place.isConnected) return;
  parts.charts.forEach((c) => c.draw(live.points));
  if (!live.last) return;
  swap(parts.tiles, tiles(live.last));
  swap(parts.busiest, h("h2", {}, t("overview.busiest")), busiest(live.last));
}

live.events.addEventListener("overview", update);
addEventListener("resize", update);

export function draw() {
  parts = { charts: charts(), tiles: h("dl", { class: "tiles" }), busiest: h("section", { class: "card" }) };
  parts.place = h("div", { "data-own": true }, parts.tiles, h("div", { class: "charts" }, parts.charts.map((c) => c.element)), parts.busiest);
  requestAnimationFrame(update);
  return parts.place;
}

export function leave() {
  parts = null;
}
