// live: the stream of overviews, and the last five minutes of them for the charts.

import { read } from "./api.js";

const WINDOW_MS = 300000;
const AGAIN_MS = 3000;

export const events = new EventTarget(); // "overview": detail is the last; "state"
export let state = "off"; // live, away (of PostgreSQL), off
export let last = null;
export const points = []; // {at, ended, replayed, failed, p50, p95, p99, due, later, running, hit, down}

let source = null;
let again = 0;
let counts = null;

function setState(next) {
  if (next === state) return;
  state = next;
  events.dispatchEvent(new Event("state"));
}

const total = (rows, name) => rows.reduce((sum, row) => sum + Number(row[name]), 0);

/** Shares of the gate's answers since the overview before; the counts begin anew with another worker. */
function gate(worker) {
  const before = counts;
  counts = worker;
  if (!before || before.since_ms !== worker.since_ms) return { hit: null, down: null };
  const delta = {};
  for (const name of Object.keys(worker.gate)) delta[name] = Math.max(0, worker.gate[name] - before.gate[name]);
  const all = Object.values(delta).reduce((a, b) => a + b, 0);
  return all ? { hit: (100 * delta.replay) / all, down: (100 * delta.down) / all } : { hit: null, down: null };
}

function trim() {
  const oldest = Date.now() - WINDOW_MS;
  while (points.length && points[0].at < oldest) points.shift();
}

function take(overview) {
  const { rates, queues } = overview.db;
  last = overview;
  points.push({
    at: Date.now(), ended: rates.ended_per_s, replayed: rates.replayed_per_s, failed: rates.failed_per_s,
    p50: rates.p50_ms ?? null, p95: rates.p95_ms ?? null, p99: rates.p99_ms ?? null,
    due: total(queues, "due"), later: total(queues, "later"), running: total(queues, "running"), ...gate(overview.worker),
  });
  trim();
  setState("live");
  events.dispatchEvent(new CustomEvent("overview", { detail: overview }));
}

/** What the database can tell of the time before the page was opened. */
export async function begin() {
  connect();
  try {
    const history = await read("history");
    const now = Date.now();
    const first = points.length ? points[0].at : now;
    const told = history.from_at ? new Date(history.from_at).getTime() : now;
    const by = new Map(history.slices.map((s) => [Number(s.at) * 1000, s]));
    const older = [];
    for (let at = Math.ceil(Math.max(now - WINDOW_MS, told) / 5000) * 5000; at < first - 5000; at += 5000) {
      const s = by.get(at);
      older.push({
        at, ended: s ? Number(s.ended_per_s) : 0, replayed: s ? Number(s.replayed_per_s) : 0, failed: s ? Number(s.failed_per_s) : 0,
        p50: s ? Number(s.p50_ms) : null, p95: s ? Number(s.p95_ms) : null, p99: s ? Number(s.p99_ms) : null,
        due: null, later: null, running: null, hit: null, down: null,
      });
    }
    points.unshift(...older);
  } catch {
    // the charts begin with now
  }
}

function connect() {
  clearTimeout(again);
  if (source) source.close();
  source = new EventSource("api/stream");
  source.addEventListener("overview", (e) => take(JSON.parse(e.data)));
  source.addEventListener("away", () => setState("away"));
  source.addEventListener("error", () => {
    // Its end after a minute is as it should be: the browser connects again by itself. A refusal ends it for good.
    if (source && source.readyState === EventSource.CLOSED) {
      setState("off");
      again = setTimeout(connect, AGAIN_MS);
    } else {
      again = setTimeout(() => source && source.readyState !== EventSource.OPEN && setState("off"), AGAIN_MS);
    }
  });
}

export function end() {
  clearTimeout(again);
  if (source) source.close();
  source = null;
  counts = null;
}
