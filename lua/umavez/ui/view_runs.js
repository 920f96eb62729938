// The list of runs: filters in the address, the newest first, further back on demand. A look into the history reads a bounded part of it;
// where nothing fits, it goes on by itself until something does, or somebody stops it.

import { read } from "./api.js";
import { h, swap, table } from "./dom.js";
import { milliseconds, moment, plural, t } from "./i18n.js";
import { explain, say } from "./shell.js";

export const STATES = ["", "completed", "failed_permanent", "discarded", "running", "available"];
const FILTERS = ["state", "task", "queue", "tenant", "key"];
const ENOUGH = 50;

export const title = () => t("runs.title");
export const every = 5000;

const wanted = (params) => Object.fromEntries(FILTERS.map((name) => [name, params[name]]));
let walk = 0; // counts the walks back: a page that is left, or drawn again, ends its own
let walking = false;

export function leave() {
  walk++;
  walking = false;
}

const KNOWN_MS = 60000;
let known = { at: -KNOWN_MS, tasks: [], queues: [] }; // what the filters offer; it hardly changes

async function offers(signal) {
  if (performance.now() - known.at >= KNOWN_MS) {
    const [tasks, queues] = await Promise.all([read("tasks", {}, signal), read("queues", {}, signal)]);
    known = { at: performance.now(), tasks: tasks.rows.map((r) => r.task), queues: queues.rows.map((r) => r.queue) };
  }
  return known;
}

export async function load(params, signal) {
  if (walking) throw new DOMException("walking", "AbortError");
  const [runs, { tasks, queues }] = await Promise.all([read("runs", wanted(params), signal), offers(signal)]);
  return { runs, tasks, queues };
}

function choice(name, value, options, label) {
  const known = options.includes(value) || !value ? options : [...options, value];
  return h("div", { class: "field" }, h("label", { for: `f-${name}` }, t(`runs.${name}`)),
    h("select", { id: `f-${name}`, name }, known.map((o) => h("option", { value: o, selected: o === (value || "") }, label(o)))));
}

function text(name, value, attributes = {}) {
  return h("div", { class: "field" }, h("label", { for: `f-${name}` }, t(`runs.${name}`)),
    h("input", { id: `f-${name}`, name, type: "text", value: value || "", autocomplete: "off", spellcheck: "false", ...attributes }));
}

export const stateName = (state) => t(`state.${state || "ended"}`);

function filters(params, data) {
  const any = (o) => o || t("runs.any");
  return h("form", { class: "filters card", role: "search", "aria-label": t("runs.filters"), onsubmit: (e) => {
    e.preventDefault();
    const chosen = new URLSearchParams([...new FormData(e.target)].map(([k, v]) => [k, v.trim()]).filter(([, v]) => v));
    const next = `#/runs${chosen.size ? `?${chosen}` : ""}`;
    if (location.hash === next) dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = next;
  } },
  choice("state", params.state, STATES, stateName), choice("task", params.task, ["", ...data.tasks], any),
  choice("queue", params.queue, ["", ...data.queues], any),
  text("tenant", params.tenant, { placeholder: t("runs.tenant.hint"), pattern: "[0-9]+|platform", size: 8 }),
  text("key", params.key, { pattern: "[0-9a-fA-F]{64}", maxlength: 64, size: 12 }),
  h("div", { class: "buttons" }, h("button", { id: "f-go", type: "submit", class: "primary" }, t("runs.apply")),
    h("a", { id: "f-clear", class: "button", href: "#/runs" }, t("runs.clear"))));
}

export function state(row) {
  return [h("span", { class: `state ${row.state}` }, stateName(row.state)), row.replay ? h("span", { class: "badge" }, t("replay")) : null];
}

export const owner = (tenant) => (tenant === null || tenant === undefined ? t("owner.platform") : t("run.tenant", { id: tenant }));

function list(rows) {
  const live = rows.some((r) => r.run_at);
  return table(t("runs.title"), [
    { name: t("runs.run"), cell: (r) => h("a", { id: `run-${r.run_id}`, href: `#/run/${r.run_id}`, title: r.run_id }, h("code", {}, r.run_id.slice(0, 8))) },
    { name: t("runs.task"), wide: true, cell: (r) => r.task },
    { name: t("runs.tenant"), cell: (r) => owner(r.tenant) },
    { name: t("runs.state"), cell: state },
    { name: t("runs.code"), cell: (r) => (r.code ? h("code", {}, r.code) : "–") },
    { name: t("runs.deliveries"), number: true, cell: (r) => String(r.deliveries) },
    { name: t(live ? "runs.due" : "runs.when"), cell: (r) => h("time", { datetime: r.finished_at || r.run_at }, moment(r.finished_at || r.run_at)) },
    { name: t("runs.took"), number: true, cell: (r) => (r.finished_at ? milliseconds(new Date(r.finished_at) - new Date(r.enqueued_at)) : "–") },
  ], rows, t("runs.none"));
}

/** The list and what stands under it; rows are added as it is walked back. */
function history(params, first) {
  const mine = ++walk;
  const rows = [...first.rows];
  const place = h("div", { class: "card" });
  const foot = h("div", { class: "foot" });
  let next = first.next;
  let backTo = first.back_to;

  async function back() {
    const enough = rows.length + ENOUGH;
    walking = true;
    try {
      while (next && rows.length < enough && mine === walk && walking) {
        swap(foot, h("span", {}, t("runs.looking", { when: backTo ? moment(backTo) : "–" })),
          h("button", { type: "button", id: "stop", onclick: () => { walking = false; } }, t("runs.stop")));
        const page = await read("runs", { ...wanted(params), cursor: next });
        rows.push(...page.rows);
        next = page.next;
        backTo = page.back_to || backTo;
        if (page.rows.length) swap(place, list(rows));
      }
    } catch (error) {
      if (mine === walk) say(explain(error), true);
    }
    if (mine === walk) draw();
  }

  function draw() {
    swap(place, list(rows));
    swap(foot, h("span", {}, plural("runs.shown", rows.length), ". ", next && backTo ? t("runs.back", { when: moment(backTo) }) : "",
      first.more ? t("runs.first") : ""),
    next ? h("button", { type: "button", id: "further", onclick: back }, t("runs.further")) : null);
  }
  draw();
  if (rows.length === 0 && next) back();
  return h("section", { "data-own": true }, place, foot);
}

export function draw(data, params) {
  walking = false;
  return [filters(params, data), history(params, data.runs)];
}
