// The search: a run's id, a key or its digest, a tenant's id, a task's or a queue's name.

import { read } from "./api.js";
import { h, table } from "./dom.js";
import { moment, t } from "./i18n.js";
import { owner, stateName } from "./view_runs.js";

export const title = () => t("find.title");
export const every = 0;
export const load = (params, signal) => read("find", { q: params.q }, signal);

function keys(rows) {
  return [h("h2", {}, t("find.keys")), table(t("find.keys"), [
    { name: t("find.keys.digest"), cell: (k) => h("a", { id: `key-${k.digest}-${k.tenant}`, href: `#/runs?key=${k.digest}`, title: k.digest },
      h("code", {}, `${k.digest.slice(0, 12)}…`)) },
    { name: t("find.keys.task"), cell: (k) => k.task || "–" },
    { name: t("find.keys.owner"), cell: (k) => owner(k.tenant) },
    { name: t("find.keys.status"), cell: (k) => h("span", { class: `state ${k.status}` }, stateName(k.status)) },
    { name: t("find.keys.updated"), cell: (k) => h("time", { datetime: k.updated_at }, moment(k.updated_at)) },
  ], rows, "")];
}

export function draw(data, params) {
  if (data.run) {
    location.replace(`#/run/${data.run.run_id}`);
    return [];
  }
  const nothing = data.keys.length === 0;
  const named = data.tenant || data.task || data.queue;
  return h("section", { class: "card" }, h("p", {}, t("find.for", { q: params.q || "" })),
    data.tenant ? h("p", {}, h("a", { id: "find-tenant", href: `#/runs?tenant=${data.tenant}` }, t("find.tenant", { id: data.tenant }))) : null,
    data.task ? h("p", {}, h("a", { id: "find-task", href: `#/runs?task=${encodeURIComponent(data.task)}` }, t("find.task", { name: data.task }))) : null,
    data.queue ? h("p", {}, h("a", { id: "find-queue", href: `#/runs?queue=${encodeURIComponent(data.queue)}` }, t("find.queue", { name: data.queue }))) : null,
    nothing ? named ? null : h("p", { class: "empty" }, t("find.nothing")) : keys(data.keys), h("p", { class: "hint" }, t("find.how")));
}
