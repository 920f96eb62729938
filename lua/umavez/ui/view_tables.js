// Pages that are one table each: tasks, schedules, workers, audit.

import { read } from "./api.js";
import { h, swap, table } from "./dom.js";
import { bounded, milliseconds, moment, number, rate, seconds, t } from "./i18n.js";
import { explain, say } from "./shell.js";

const time = (iso) => h("time", { datetime: iso }, moment(iso));
const runsOf = (task, more = "") => `#/runs?task=${encodeURIComponent(task)}${more}`;

const tasks = {
  title: () => t("tasks.title"),
  every: 5000,
  load: (params, signal) => read("tasks", {}, signal),
  draw: (data) => h("div", { class: "card" }, table(t("tasks.title"), [
    { name: t("tasks.task"), cell: (r) => h("a", { id: `task-${r.task}`, href: runsOf(r.task) }, r.task) },
    { name: t("tasks.owner"), cell: (r) => t(`owner.${r.owner}`) },
    { name: t("tasks.queue"), cell: (r) => r.queue },
    { name: t("tasks.rate"), number: true, cell: (r) => rate(r.ended_per_s || 0) },
    { name: t("tasks.p50"), number: true, cell: (r) => milliseconds(r.p50_ms) },
    { name: t("tasks.p99"), number: true, cell: (r) => milliseconds(r.p99_ms) },
    { name: t("tasks.limit"), number: true, cell: (r) => (r.places === null ? "–" : t("limit", { used: number(r.used), places: number(r.places) })) },
    { name: t("tasks.dead"), number: true, cell: (r) => (Number(r.dead) ? h("a", { id: `dead-${r.task}`, class: "bad",
      href: runsOf(r.task, "&state=failed_permanent") }, bounded(r.dead, data.bounded_at)) : "0") },
  ], data.rows, t("tasks.none"))),
};

const schedules = {
  title: () => t("schedules.title"),
  every: 10000,
  load: (params, signal) => read("schedules", {}, signal),
  draw: (data) => h("div", { class: "card" }, table(t("schedules.title"), [
    { name: t("schedules.task"), cell: (r) => h("a", { id: `schedule-${r.task}`, href: runsOf(r.task) }, r.task) },
    { name: t("schedules.spec"), cell: (r) => [h("code", {}, r.spec), r.each_tenant ? ` ${t("schedules.each")}` : ""] },
    { name: t("schedules.tz"), cell: (r) => r.tz || "–" },
    { name: t("schedules.missed"), cell: (r) => r.missed || "–" },
    { name: t("schedules.last"), cell: (r) => (r.last_slot ? time(r.last_slot) : t("schedules.notyet")) },
    { name: t("schedules.next"), cell: (r) => (r.next_slot ? time(r.next_slot) : t("schedules.never")) },
  ], data.rows, t("schedules.none"))),
};

const workers = {
  title: () => t("workers.title"),
  every: 5000,
  load: (params, signal) => read("workers", {}, signal),
  draw: (data) => h("div", { class: "card" }, table(t("workers.title"), [
    { name: t("workers.host"), cell: (r) => r.host },
    { name: t("workers.pid"), number: true, cell: (r) => String(r.pid) },
    { name: t("workers.version"), cell: (r) => r.version },
    { name: t("workers.up"), number: true, cell: (r) => h("span", { title: moment(r.started_at) }, seconds(r.up_s)) },
    { name: t("workers.held"), number: true, cell: (r) => number(r.held) },
    { name: t("workers.queues"), wide: true, cell: (r) => (r.queues || r.http || "–").replaceAll(",", ", ") },
    { name: t("workers.seen"), cell: (r) => h("span", { class: `state ${r.alive ? "completed" : "failed_permanent"}` },
      `${t(r.alive ? "workers.alive" : "workers.silent")}, ${t("workers.ago", { span: seconds(r.seen_s) })}`) },
  ], data.rows, t("workers.none"))),
};

const ACTIONS = ["pause", "resume", "cancel", "discard", "retry", "forget", "limit"];

function target(row) {
  const uuid = /^[0-9a-f-]{36}$/.test(row.target);
  return uuid ? h("a", { id: `audit-${row.id}`, href: `#/run/${row.target}` }, h("code", {}, row.target)) : h("code", {}, row.target);
}

const auditTable = (rows) => table(t("audit.title"), [
  { name: t("audit.when"), cell: (r) => time(r.at) },
  { name: t("audit.action"), cell: (r) => (ACTIONS.includes(r.action) ? t(`action.${r.action}`) : r.action) },
  { name: t("audit.target"), wide: true, cell: target },
  { name: t("audit.reason"), wide: true, cell: (r) => r.reason || "–" },
  { name: t("audit.who"), cell: (r) => r.os_user || "–" },
  { name: t("audit.role"), cell: (r) => r.db_user },
], rows, t("audit.none"));

const audit = {
  title: () => t("audit.title"),
  every: 0,
  tools: (params) => h("div", { class: "tools" }, h("label", { for: "audit-action", class: "sr" }, t("audit.action")),
    h("select", { id: "audit-action", onchange: (e) => {
      location.hash = `#/audit${e.target.value ? `?action=${e.target.value}` : ""}`;
    } }, h("option", { value: "" }, t("audit.all")), ACTIONS.map((a) => h("option", { value: a, selected: params.action === a }, t(`action.${a}`))))),
  load: (params, signal) => read("audit", { action: params.action }, signal),
  draw(data, params) {
    const rows = data.rows;
    let next = data.next;
    const place = h("div", { class: "card", "data-own": true });
    const draw = () => swap(place, auditTable(rows), next ? h("button", { type: "button", id: "more", onclick: more }, t("more")) : null);
    async function more() {
      try {
        const page = await read("audit", { action: params.action, cursor: next });
        rows.push(...page.rows);
        next = page.next;
        draw();
      } catch (error) {
        say(explain(error), true);
      }
    }
    draw();
    return place;
  },
};

export const views = { tasks, schedules, workers, audit };
