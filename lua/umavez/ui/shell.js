// shell: what stands around every page: header, navigation, search, the place for messages. And the log-in.

import * as api from "./api.js";
import { h } from "./dom.js";
import { LANGUAGES, language, setLanguage, t } from "./i18n.js";
import * as live from "./live.js";

export const PAGES = ["overview", "runs", "queues", "tasks", "schedules", "workers", "audit"];

/** A message for all, screen readers too; nothing of what changes by itself is told here. */
export function say(text, bad = false) {
  const place = document.getElementById("message");
  if (!place) return;
  place.textContent = text;
  place.className = bad ? "message bad" : "message";
  clearTimeout(say.timer);
  say.timer = setTimeout(() => place.replaceChildren(), bad ? 20000 : 8000);
}

/** In words, whatever a question ended with. */
export function explain(error) {
  if (!(error instanceof api.Refused)) return t("fault.away");
  if (error.status === 404) return t("fault.nothing");
  return t(error.status >= 500 ? "fault.unavailable" : "fault.other", { detail: error.message });
}

function languages(redraw) {
  return h("div", { class: "languages", role: "group", "aria-label": t("language") }, Object.entries(LANGUAGES).map(([name, l]) =>
    h("button", { type: "button", id: `language-${name}`, lang: name, title: l.name, "aria-label": l.name, "aria-pressed": String(name === language),
      onclick: () => {
        setLanguage(name);
        redraw();
        document.getElementById(`language-${name}`)?.focus();
      } }, name.toUpperCase())));
}

const brand = () => h("span", { class: "brand" }, h("img", { src: "icon.svg", alt: "", width: 24, height: 24 }), "umavez");

function search() {
  return h("form", { class: "search", role: "search", onsubmit: (e) => {
    e.preventDefault();
    const q = e.target.elements.q.value.trim();
    if (q) location.hash = `#/find?q=${encodeURIComponent(q)}`;
  } },
  h("label", { for: "q", class: "sr" }, t("search.label")),
  h("input", { id: "q", name: "q", type: "search", placeholder: t("search.hint"), autocomplete: "off", spellcheck: "false", maxlength: 1000 }),
  h("button", { id: "q-go", type: "submit" }, t("search")));
}

function state() {
  const dot = h("span", { id: "live", class: "dot" });
  const draw = () => {
    dot.className = `dot ${live.state}`;
    dot.textContent = t(`live.${live.state === "live" ? "on" : live.state}`);
  };
  draw();
  return { dot, draw };
}

let drawState = () => {};
live.events.addEventListener("state", () => drawState());

export function markPage(page) {
  for (const link of document.querySelectorAll("nav a")) {
    if (link.id === `nav-${page}`) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ inline: "nearest", block: "nearest" });
    } else link.removeAttribute("aria-current");
  }
}

/** Draws the frame; gives the element for pages. */
export function frame(session, redraw) {
  const main = h("main", { id: "main", tabindex: "-1" });
  const { dot, draw } = state();
  drawState = draw;
  document.body.replaceChildren(
    h("a", { class: "skip", href: "#main", onclick: (e) => {
      e.preventDefault();
      main.focus();
    } }, t("skip")),
    h("header", {},
      h("div", { class: "bar" }, brand(), dot, search(),
        h("div", { class: "who" }, h("span", { class: "name" }, session.name || `#${session.token_id}`),
          session.may_act ? null : h("span", { class: "badge", title: t("readonly.why") }, t("readonly")),
          h("button", { type: "button", id: "logout", onclick: async () => {
            await api.logout().catch(() => {});
            location.reload();
          } }, t("logout")), languages(redraw))),
      h("nav", { "aria-label": t("nav") }, h("ul", {}, PAGES.map((page) =>
        h("li", {}, h("a", { id: `nav-${page}`, href: `#/${page}` }, t(`nav.${page}`))))))),
    h("div", { id: "message", role: "status", "aria-live": "polite", class: "message" }),
    main);
  return main;
}

/** The log-in. done is called with the session. */
export function loginPage(done, why) {
  const fault = h("p", { id: "login-fault", role: "alert", class: "fault" }, why ? t(why) : "");
  const token = h("input", { id: "token", name: "token", type: "password", required: true, autocomplete: "current-password", spellcheck: "false",
    "aria-describedby": "login-how" });
  const go = h("button", { id: "login-go", type: "submit", class: "primary" }, t("login.go"));
  const form = h("form", { class: "card login", onsubmit: async (e) => {
    e.preventDefault();
    go.disabled = true;
    fault.textContent = "";
    try {
      done(await api.login(token.value.trim()));
    } catch (error) {
      const refused = error instanceof api.Refused;
      if (refused && error.status === 401) fault.textContent = t("login.refused");
      else if (refused && error.status === 429) fault.textContent = t("login.toomany", { n: error.retryAfter });
      else fault.textContent = explain(error);
      go.disabled = false;
      token.select();
      token.focus();
    }
  } },
  h("h1", {}, t("login.title")),
  h("label", { for: "token" }, t("login.token")), token,
  h("div", { id: "login-how", class: "hint" }, h("p", {}, t("login.how")),
    h("code", {}, "umavez token create --platform --scope ui --name maria")),
  fault, go);
  document.body.replaceChildren( h("header", {}, h("div", { class: "bar" }, brand(), h("div", { class: "who" }, languages(() => loginPage(done, why))))),
    h("main", { id: "main" }, form));
  document.title = `${t("login.title")} · umavez`;
  token.focus();
}
