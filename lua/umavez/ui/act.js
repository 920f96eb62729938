// act: the buttons that change something, each behind a dialog that says what it does and asks for a reason.

import * as api from "./api.js";
import { h } from "./dom.js";
import { t } from "./i18n.js";
import { explain, say } from "./shell.js";

function dialog(action, target, label, done) {
  const reason = h("textarea", { id: "act-reason", name: "reason", required: true, maxlength: 500, rows: 3 });
  const fault = h("p", { role: "alert", class: "fault" });
  const go = h("button", { id: "act-go", type: "submit", class: "primary" }, t(`action.${action}`));
  const box = h("dialog", { id: "act", "aria-labelledby": "act-title", "aria-describedby": "act-what" },
    h("form", { onsubmit: async (e) => {
      e.preventDefault();
      go.disabled = true;
      fault.textContent = "";
      try {
        const { result } = await api.act(action, target, reason.value.trim());
        box.close();
        say(t(`act.result.${result}`), !["changed", "cancelled", "asked"].includes(result));
        done();
      } catch (error) {
        fault.textContent = explain(error);
        go.disabled = false;
      }
    } },
    h("h2", { id: "act-title" }, t(`act.${action}`, { target })),
    label ? h("p", { class: "target" }, label) : null,
    h("p", { id: "act-what" }, t(`act.${action}.what`)),
    h("label", { for: "act-reason" }, t("act.reason")), reason, fault,
    h("div", { class: "buttons" }, h("button", { id: "act-back", type: "button", onclick: () => box.close() }, t("act.back")), go)));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  reason.focus();
}

/** A button for an act; nothing where the session may not act. label: what it is about, under the dialog's heading. */
export function actButton(context, action, target, { id, label, name } = {}) {
  if (!context.session.may_act) return null;
  return h("button", { type: "button", id: id || `act-${action}`, class: action === "cancel" || action === "discard" ? "danger" : null,
    "aria-haspopup": "dialog", "aria-label": name || null, onclick: () => dialog(action, target, label, context.again) }, t(`action.${action}`));
}
