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

/** Replaces what is in a container; who had the focus there has it again, by its id. */
export function swap(container, ...nodes) {
  const focused = container.contains(document.activeElement) ? document.activeElement.id : "";
  container.replaceChildren(...nodes.flat(Infinity).filter((n) => n !== null && n !== undefined && n !== false));
  const again = focused && document.getElementById(focused);
  if (again) again.focus({ preventScroll: true });
}

/** Whether somebody reads or works in there just now, so that it had better stay as it is. */
export function isBusy(container) {
  const selection = document.getSelection();
  const selecting = selection && !selection.isCollapsed && container.contains(selection.anchorNode);
  const open = document.querySelector("dialog[open]");
  const control = document.activeElement;
  return Boolean(selecting || open || (container.contains(control) && /^(SELECT|INPUT|TEXTAREA)$/.test(control.tagName)));
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
