// chart: lines over the last five minutes, as SVG, with their figures as a table beside them.

import { h, svg } from "./dom.js";
import { clock, t } from "./i18n.js";

const WINDOW_MS = 300000;
const HEIGHT = 132;
const LEFT = 52;
const BOTTOM = 20;
const TOP = 8;

/** A round number above value, so that the axis reads well. */
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= value);
}

function path(points, name, x, y) {
  let d = "";
  let pen = false;
  for (const p of points) {
    if (p[name] === null || p[name] === undefined) {
      pen = false;
      continue;
    }
    d += `${pen ? "L" : "M"}${x(p.at).toFixed(1)} ${y(p[name]).toFixed(1)}`;
    pen = true;
  }
  return d;
}

const known = (points, name) => points.map((p) => p[name]).filter((v) => v !== null && v !== undefined);
const newest = (points, name) => known(points, name).at(-1);

function lines(chart, points, width) {
  const now = Date.now();
  const most = Math.max(0, ...chart.series.flatMap((s) => known(points, s.name)));
  const top = chart.top || ceiling(most);
  const x = (at) => LEFT + ((width - LEFT - 6) * (at - now + WINDOW_MS)) / WINDOW_MS;
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
  return [
    [0, 0.5, 1].map((part) => [
      svg("line", { class: "grid", x1: LEFT, x2: width - 6, y1: y(top * part), y2: y(top * part) }),
      svg("text", { class: "tick", x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" }, (chart.tick || chart.format)(top * part)),
    ]),
    (width < 420 ? [4, 2, 0] : [4, 3, 2, 1, 0]).map((minutes) => svg("text", { class: "tick", x: x(now - minutes * 60000), y: HEIGHT - 4,
      "text-anchor": minutes ? "middle" : "end" }, minutes ? `−${minutes} min` : clock(now).slice(0, 5))),
    chart.series.map((s, i) => svg("path", { class: `line s${i}`, d: path(points, s.name, x, y) })),
  ];
}

function figures(chart, points) {
  const step = Math.max(1, Math.floor(points.length / 12));
  const rows = points.filter((_, i) => (points.length - 1 - i) % step === 0).slice(-12).reverse();
  return h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, t("chart.time")),
    chart.series.map((s) => h("th", { scope: "col", class: "number" }, s.label)))),
  h("tbody", {}, rows.map((p) => h("tr", {}, h("th", { scope: "row" }, clock(p.at)),
    chart.series.map((s) => h("td", { class: "number" }, p[s.name] === null || p[s.name] === undefined ? "–" : chart.format(p[s.name])))))));
}

/**
 * A chart that draws itself again when told: {id, title, unit, format, tick, top, series: [{name, label}]} → {element, draw(points)}.
 * The table is made only while it is open.
 */
export function chart(spec) {
  const drawing = svg("svg", { class: "plot", role: "img", height: HEIGHT });
  const legend = h("ul", { class: "legend" });
  const holder = h("div", { class: "tableholder" });
  const details = h("details", { id: `${spec.id}-table` }, h("summary", { id: `${spec.id}-summary` }, t("chart.table")), holder);
  let shown = [];
  const table = () => holder.replaceChildren(details.open ? figures(spec, shown) : "");
  details.addEventListener("toggle", table);
  const element = h("section", { class: "card chart", "aria-labelledby": `${spec.id}-title` },
    h("h2", { id: `${spec.id}-title` }, spec.title, " ", h("small", {}, spec.unit)), legend, drawing, details);
  return {
    element,
    draw(points) {
      const width = Math.max(240, Math.floor(element.clientWidth - 24) || 320);
      shown = points;
      const values = spec.series.map((s) => `${s.label} ${newest(points, s.name) === undefined ? "–" : spec.format(newest(points, s.name))}`);
      drawing.setAttribute("width", width);
      drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      drawing.setAttribute("aria-label", points.length ? t("chart.now", { title: spec.title, values: values.join(", ") }) : t("chart.none"));
      drawing.replaceChildren(...lines(spec, points, width).flat(3));
      legend.replaceChildren(...spec.series.map((s, i) => h("li", {},
        svg("svg", { class: "key", width: 22, height: 8, "aria-hidden": "true" }, svg("path", { class: `line s${i}`, d: "M1 4H21" })), ` ${values[i]}`)));
      if (details.open && !details.contains(document.activeElement)) table();
    },
  };
}
