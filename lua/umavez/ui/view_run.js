// A run's page: what it is, its life as a time line, its outcome or failure, its ledger row, and what may be done about it.

import { actButton } from "./act.js";
import { read } from "./api.js";
import { facts, h, swap } from "./dom.js";
import { moment, number, plural, t } from "./i18n.js";
import { explain, say } from "./shell.js";
import { owner, state, stateName } from "./view_runs.js";

export const title = (params) => `${t("run.title")} ${(params.id || "").slice(0, 8)}`;
export const every = 3000;
export const load = (params, signal) => read("run", { id: params.id }, signal);

const time = (iso) => h("time", { datetime: iso }, moment(iso));
const json = (value) => h("pre", { tabindex: "0" }, JSON.stringify(value, null, 2));

/** What is known of its life, in the order of time; what has no time of its own stands behind what it followed. */
function events({ run, ledger, history }) {
  const list = [];
  const add = (at, kind, text, after) => list.push({ at, kind, text, order: at || after });
  const live = run.state === "available" || run.state === "running";
  const code = run.outcome?.code || run.failure?.code || "–";

  add(run.enqueued_at, "enqueued", t("life.enqueued"));
  if (ledger && !run.replay && ledger.created_at >= run.enqueued_at) add(ledger.created_at, "claimed", t("life.claimed"));
  if (run.deliveries > 0) add(null, "delivered", plural("life.delivered", run.deliveries), run.enqueued_at);
  for (const act of history)
    add(act.at, "act", t("life.act", { action: t(`action.${act.action}`), who: act.who, reason: act.reason || "–" }));
  if (run.attempt) add(null, "attempts", plural("life.attempts", run.attempt), ledger && !run.replay ? ledger.created_at : run.enqueued_at);
  if (live && run.failure) add(null, "failed", t("life.failed", { code: run.failure.code || "–" }), run.enqueued_at);
  if (run.state === "running") add(null, "held", t("life.held"), "9998");
  if (run.state === "available") add(run.run_at, "due", t(run.deliveries > 0 ? "life.next" : "life.due"));
  if (run.finished_at) {
    const ended = run.state === "completed" ? t(run.replay ? "life.replayed" : "life.completed") : t("life.dead", { code });
    add(run.finished_at, run.state === "completed" ? "completed" : "dead", ended);
  }
  if (run.discarded_at && !history.some((act) => act.action === "discard")) add(run.discarded_at, "act", t("life.discarded"));
  if (ledger && ledger.status !== "processing") add(ledger.expires_at, "expires", t("life.expires"));
  return list.map((e, i) => ({ ...e, i })).sort((a, b) => (a.order < b.order ? -1 : a.order > b.order ? 1 : a.i - b.i));
}

function timeline(data) {
  const now = new Date().toISOString();
  return h("section", { class: "card", "aria-labelledby": "life" }, h("h2", { id: "life" }, t("run.life")),
    h("ol", { class: "life" }, events(data).map((e) => h("li", { class: `${e.kind}${e.at && e.at > now ? " future" : ""}` },
      h("span", { class: "when" }, e.at ? time(e.at) : ""), h("span", { class: "what" }, e.text)))));
}

function failure(run) {
  const f = run.failure || (run.state !== "completed" && run.outcome) || null;
  if (!f) return null;
  const rest = Object.entries(f).filter(([name]) => !["code", "message", "traceback"].includes(name));
  return h("section", { class: "card failure", "aria-labelledby": "failure" },
    h("h2", { id: "failure" }, t(run.finished_at ? "run.failure" : "run.failure.last")),
    h("p", { class: "why" }, h("code", {}, f.code || "error"), " ", f.message || ""),
    facts(rest.map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)])),
    f.traceback ? [h("h3", {}, t("run.traceback")), h("pre", { tabindex: "0" }, f.traceback)] : null);
}

function ledgerPart({ run, ledger }) {
  const key = run.key_digest;
  return h("section", { class: "card", "aria-labelledby": "ledger" }, h("h2", { id: "ledger" }, t("run.ledger")),
    key ? facts([[t("run.key"), [h("code", { class: "long" }, key), " ",
      h("a", { id: "same-key", href: `#/runs?key=${key}` }, t("run.key.runs"))]]]) : h("p", { class: "empty" }, t("run.ledger.unknown")),
    ledger ? [facts([
      [t("run.ledger.id"), String(ledger.id)],
      [t("run.ledger.status"), h("span", { class: `state ${ledger.status}` }, stateName(ledger.status))],
      [t("run.ledger.attempt"), String(ledger.attempt)],
      [t("run.ledger.created"), time(ledger.created_at)], [t("run.ledger.updated"), time(ledger.updated_at)],
      [t("run.ledger.expires"), [time(ledger.expires_at), ledger.expired ? ` (${t("run.ledger.expired")})` : ""]],
      [t("run.ledger.fingerprint"), h("code", { class: "long" }, ledger.fingerprint)],
    ]), h("h3", {}, t("run.ledger.outcome")), json(ledger.outcome)] : key ? h("p", { class: "empty" }, t("run.ledger.none")) : null);
}

function args({ run }) {
  const place = h("div", {});
  const show = async () => {
    try {
      swap(place, json((await read("run", { id: run.run_id, args: "1" })).args));
    } catch (error) {
      say(explain(error), true);
    }
  };
  place.append(h("p", { class: "hint" }, t(run.args_kept ? "run.args.why" : "run.args.gone")),
    run.args_kept ? h("button", { type: "button", id: "show-args", onclick: show }, t("run.args.show")) : "");
  return h("section", { class: "card", "data-own": true, "aria-labelledby": "args" }, h("h2", { id: "args" }, t("run.args")), place);
}

function acts(run, context) {
  const live = run.state === "available" || run.state === "running";
  const failed = run.state === "failed_permanent";
  const wanted = [live && "cancel", failed && "retry", failed && !run.discarded_at && "discard"].filter(Boolean);
  return h("div", { class: "buttons acts", role: "group", "aria-label": t("run.acts") },
    wanted.map((action) => actButton(context, action, run.run_id, { label: t("act.target", { target: run.run_id }) })),
    navigator.clipboard ? h("button", { type: "button", id: "copy", onclick: async () => {
      await navigator.clipboard.writeText(run.run_id);
      say(t("run.copied"));
    } }, t("run.copy")) : null);
}

export function draw(data, params, context) {
  const { run, cancellation, paused } = data;
  const shown = run.discarded_at ? "discarded" : run.state;
  return [
    h("section", { class: "card" }, acts(run, context),
      cancellation ? h("p", { class: "note" }, t("run.cancelling", { who: cancellation.asked_by, reason: cancellation.reason || "–" })) : null,
      paused ? h("p", { class: "note" }, t("run.paused", { who: paused.paused_by, reason: paused.reason || "–" })) : null,
      facts([
        [t("run.title"), h("code", { class: "long" }, run.run_id)], [t("run.state"), state({ ...run, state: shown })],
        [t("run.task"), h("a", { id: "its-task", href: `#/runs?task=${encodeURIComponent(run.task)}` }, run.task)],
        [t("run.owner"), owner(run.tenant_id)], [t("run.queue"), run.queue], [t("run.priority"), String(run.priority)],
        [t("run.deliveries"), number(run.deliveries)], [t("run.attempt"), run.attempt && number(run.attempt)],
        [t("run.busy"), run.busy ? number(run.busy) : null], [t("run.crashes"), run.crashes ? number(run.crashes) : null],
        [t("run.lease"), run.lease_until && time(run.lease_until)], [t("run.worker"), run.worker_id && h("code", { class: "long" }, run.worker_id)],
        [t("run.traceparent"), run.traceparent && h("code", { class: "long" }, run.traceparent)],
      ])),
    h("div", { class: "columns" }, timeline(data),
      h("div", {}, failure(run),
        run.outcome && run.state === "completed" ? h("section", { class: "card", "aria-labelledby": "outcome" },
          h("h2", { id: "outcome" }, t("run.outcome")), json(run.outcome)) : null,
        ledgerPart(data), args(data))),
  ];
}
