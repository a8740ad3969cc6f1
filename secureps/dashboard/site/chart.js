// A chart of stacked columns, followed by its figures as a table for those who cannot see it.

import { h, p, svg, table } from "./dom.js";

const WIDTH = 420, HEIGHT = 170, LEFT = 60, BOTTOM = 20, TOP = 12, SHOWN = 24;

// items: [{ label, parts }], oldest first; names: of the parts; format: formats one figure.
export function columns(title, items, names, format) {
  const shown = items.slice(-SHOWN);
  if (shown.length === 0) return p(`${title}: no figures`, "dim");
  const total = (item) => item.parts.reduce((sum, part) => sum + part, 0);
  const most = Math.max(...shown.map(total)) || 1;
  const room = (WIDTH - LEFT) / Math.max(shown.length, 8);
  const tall = HEIGHT - BOTTOM - TOP;
  const column = (item, place) => {
    let top = HEIGHT - BOTTOM;
    const x = LEFT + place * room;
    const bars = item.parts.map((part, kind) => {
      const height = (tall * part) / most;
      top -= height;
      return svg("rect", { class: `c${kind}`, x: x + room * 0.12, y: top, width: room * 0.76, height },
        svg("title", {}, `${item.label}: ${names[kind]} ${format(part)}`));
    });
    const every = Math.ceil(shown.length / 12);
    const label = place % every ? null : svg("text", { x: x + room / 2, y: HEIGHT - 5, "text-anchor": "middle" }, item.label);
    return svg("g", {}, bars, label);
  };
  const last = shown[shown.length - 1];
  const picture = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${shown.length} columns, the highest ${format(most)}, the last ${format(total(last))}` },
    svg("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }),
    svg("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: TOP, y2: TOP, "stroke-dasharray": "3 4" }),
    svg("text", { x: LEFT - 6, y: TOP + 4, "text-anchor": "end" }, format(most)),
    shown.map(column));
  const legend = names.length < 2 ? null : h("ul", { class: "legend" }, names.map((name, kind) => h("li", {},
    svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { class: `c${kind}`, width: 10, height: 10 })), name)));
  const figures = h("details", {}, h("summary", {}, "Figures"),
    table(title, ["", ...names], shown.map((item) => [item.label, ...item.parts.map(format)])));
  return h("div", {}, h("h3", {}, title), picture, legend, figures);
}
