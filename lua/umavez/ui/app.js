// app: which page the address means, and when it is drawn anew. A page is {load(params, signal) → data, draw(data, params, again) → nodes,
// every: milliseconds or 0, live(overview) → data}: what the stream of overviews tells of it is drawn as it comes. Addresses are #/PAGE/ID?filters, so that the server knows one page.

import * as api from "./api.js";
import { h, isBusy, swap } from "./dom.js";
import { t } from "./i18n.js";
import * as live from "./live.js";
import { explain, frame, loginPage, markPage } from "./shell.js";
import * as find from "./view_find.js";
import * as overview from "./view_overview.js";
import * as queues from "./view_queues.js";
import * as run from "./view_run.js";
import * as runs from "./view_runs.js";
import * as tables from "./view_tables.js";

const VIEWS = { overview, runs, run, queues, find, ...tables.views };

let session = null;
let main = null;
let current = null; // {view, params, controller, text, timer}

function address() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, id] = (path || "overview").split("/");
  const params = Object.fromEntries(new URLSearchParams(query || ""));
  if (id) params.id = decodeURIComponent(id);
  return { page: page in VIEWS ? page : "overview", params };
}

function leave() {
  if (!current) return;
  current.controller.abort();
  clearTimeout(current.timer);
  current.view.leave?.();
  current = null;
}

function show(nodes, place) {
  swap(place, nodes);
}

/** quietly: somebody reads already, and is not to be disturbed without need. */
function present(mine, data, quietly) {
  const text = JSON.stringify(data);
  if (mine !== current || (quietly && (text === mine.text || isBusy(mine.place)))) return;
  mine.text = text;
  show(mine.view.draw(data, mine.params, { session, again: () => refresh(mine, false) }), mine.place);
}

async function refresh(mine, quietly) {
  if (quietly && isBusy(mine.place)) return;
  try {
    present(mine, await mine.view.load(mine.params, mine.controller.signal), quietly);
  } catch (error) {
    if (mine !== current || error.name === "AbortError" || quietly) return;
    if (!(error instanceof api.Refused) && !(error instanceof TypeError)) throw error;
    mine.text = "";
    show(h("p", { class: "fault", role: "alert" }, explain(error)), mine.place);
  }
}

function every(mine) {
  if (!mine.view.every) return;
  mine.timer = setTimeout(async () => {
    if (mine !== current) return;
    if (!document.hidden) await refresh(mine, true);
    every(mine);
  }, mine.view.every);
}

async function navigate(event) {
  leave();
  const { page, params } = address();
  const view = VIEWS[page];
  const title = view.title(params);
  const place = h("div", { id: "view", class: `view ${page}` }, h("p", { class: "loading" }, t("loading")));
  const heading = h("h1", { tabindex: "-1" }, title);
  const mine = { view, params, controller: new AbortController(), text: "", place };
  current = mine;
  document.title = `${title} · umavez`;
  markPage(page === "run" ? "runs" : page);
  main.replaceChildren(h("div", { class: "heading" }, heading, view.tools ? view.tools(params) : null), place);
  if (event) heading.focus({ preventScroll: true });
  if (event) scrollTo(0, 0);
  await refresh(mine, false);
  if (mine === current) every(mine);
}

function start(opened) {
  session = opened;
  main = frame(session, () => start(session));
  if (live.state === "off") live.begin();
  navigate();
}

function ask(why) {
  leave();
  live.end();
  session = null;
  loginPage((opened) => {
    live.end();
    start(opened);
  }, why);
}

live.events.addEventListener("overview", ({ detail }) => {
  if (current?.view.live && !document.hidden && current.text) present(current, current.view.live(detail), true);
});
api.events.addEventListener("ended", () => ask(session ? "login.ended" : null));
addEventListener("hashchange", (event) => session && navigate(event));

async function open() {
  try {
    start(await api.session());
  } catch (error) {
    if (error instanceof api.Refused && error.status === 401) return;
    document.body.replaceChildren(h("main", { id: "main" }, h("p", { class: "fault", role: "alert" }, explain(error))));
    setTimeout(open, 3000);
  }
}
open();
