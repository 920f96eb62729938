// dom: elements from data. Text is always a text node: what comes from the database can never become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** An element; attributes that are null or false are left out, `onclick` and the like are listeners. */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// What has listeners of its own, or a state: kept only when all of it is equal, or (data-own) never.
const WHOLE = "button, a, input, select, textarea, details, svg, form";

function renew(old, next) {
  const own = next instanceof Element && next.matches("[data-own]");
  if (!own && old.isEqualNode(next)) return;
  const alike = old instanceof Element && next instanceof Element && old.tagName === next.tagName;
  if (own || !alike || next.matches(WHOLE)) {
    old.replaceWith(next);
    return;
  }
  for (const { name } of [...old.attributes]) if (!next.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  renewChildren(old, [...next.childNodes]);
}

function renewChildren(container, next) {
  const old = [...container.childNodes];
  next.forEach((node, i) => (i < old.length ? renew(old[i], node) : container.append(node)));
  old.slice(next.length).forEach((node) => node.remove());
}

/**
 * Puts nodes into a container in place of what is there. What is there and equal stays, so that a click or a reader in the middle of it
 * is not lost; who had the focus in what is replaced has it again, by its id.
 */
export function swap(container, ...nodes) {
  const focused = container.contains(document.activeElement) ? document.activeElement.id : "";
  renewChildren(container, nodes.flat(Infinity).filter((n) => n !== null && n !== undefined && n !== false));
  const again = focused && document.getElementById(focused);
  if (again && again !== document.activeElement) again.focus({ preventScroll: true });
}

// A press that has not ended is a click that is still to come.
let pressed = false;
addEventListener("pointerdown", () => { pressed = true; }, true);
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => setTimeout(() => { pressed = false; }), true);

/** Whether somebody reads or works in there just now, so that it had better stay as it is. */
export function isBusy(container) {
  const selection = document.getSelection();
  const selecting = selection && !selection.isCollapsed && container.contains(selection.anchorNode);
  const open = document.querySelector("dialog[open]");
  const control = document.activeElement;
  return Boolean(pressed || selecting || open || (container.contains(control) && /^(SELECT|INPUT|TEXTAREA)$/.test(control.tagName)));
}

/**
 * A table. columns: {name, cell(row), number, wide}; rows: data; id(row): what its row is known by.
 * The roles are said because narrow screens lay it out as cards.
 */
export function table(caption, columns, rows, empty, rowClass) {
  if (rows.length === 0) return h("p", { class: "empty" }, empty);
  return h("div", { class: "scroll" },
    h("table", { role: "table" },
      h("caption", { class: "sr" }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" },
        columns.map((c) => h("th", { role: "columnheader", scope: "col", class: c.number ? "number" : null }, c.name)))),
      h("tbody", { role: "rowgroup" }, rows.map((row) =>
        h("tr", { role: "row", class: rowClass ? rowClass(row) : null }, columns.map((c, i) =>
          h(i ? "td" : "th", { role: i ? "cell" : "rowheader", scope: i ? null : "row", "data-name": c.name,
            class: [c.number ? "number" : "", c.wide ? "wide" : ""].join(" ").trim() || null }, c.cell(row))))))));
}

/** Pairs of a name and what it is; those whose value is null are left out. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter((p) => p && p[1] !== null && p[1] !== undefined && p[1] !== "")
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}
