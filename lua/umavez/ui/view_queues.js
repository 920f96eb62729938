// The queues: how deep, since when, what is paused; pause and resume.

import { actButton } from "./act.js";
import { read } from "./api.js";
import { h, table } from "./dom.js";
import { bounded, number, seconds, t } from "./i18n.js";

export const title = () => t("queues.title");
export const every = 10000;
export const load = (params, signal) => read("queues", {}, signal);
/** What the stream tells of it. */
export const live = ({ db }) => ({ bounded_at: db.bounded_at, rows: db.queues });

export function draw(data, params, context) {
  const state = (q) => (q.paused_at ? h("span", { class: "state paused" }, t("queues.paused", { who: q.paused_by, reason: q.reason || "–" }))
    : h("span", { class: "state completed" }, t("queues.served")));
  const columns = [
    { name: t("queues.queue"), cell: (q) => h("a", { id: `queue-${q.queue}`, href: `#/runs?state=available&queue=${encodeURIComponent(q.queue)}`,
      "aria-label": t("queues.runs", { queue: q.queue }) }, q.queue) },
    { name: t("queues.due"), number: true, cell: (q) => bounded(q.due, data.bounded_at) },
    { name: t("queues.later"), number: true, cell: (q) => bounded(q.later, data.bounded_at) },
    { name: t("queues.running"), number: true, cell: (q) => bounded(q.running, data.bounded_at) },
    { name: t("queues.oldest"), number: true, cell: (q) => (q.oldest_s === null ? "–" : seconds(q.oldest_s)) },
    { name: t("queues.limit"), cell: (q) => [q.places === null ? (q.fair ? "" : "–") : t("limit", { used: number(q.used), places: number(q.places) }),
      q.fair ? h("span", { class: "badge" }, t("queues.fair")) : null] },
    { name: t("queues.state"), wide: true, cell: state },
  ];
  if (context.session.may_act)
    columns.push({ name: t("queues.acts"), cell: (q) => {
      const action = q.paused_at ? "resume" : "pause";
      return actButton(context, action, q.queue, { id: `act-${q.queue}`, name: `${t(`action.${action}`)}: ${q.queue}` });
    } });
  return h("div", { class: "card" }, table(t("queues.title"), columns, data.rows, t("queues.none")));
}
