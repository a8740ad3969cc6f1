// Makes elements. A text stays text, whatever it contains: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export const p = (text, kind = null) => h("p", { class: kind }, text);

export const list = (texts) => h("ul", {}, texts.map((text) => h("li", {}, text)));

// Rows of texts, numbers and elements. A table wider than the page scrolls, also by keyboard.
export function table(title, heads, rows) {
  if (rows.length === 0) return p(`${title}: none`, "dim");
  const kind = (each) => (typeof each === "number" ? "number" : null);
  const cell = (each) => h("td", { class: kind(each) }, each instanceof Node ? each : String(each));
  const whole = h("table", {},
    h("caption", {}, title),
    h("thead", {}, h("tr", {}, heads.map((head, place) => h("th", { scope: "col", class: kind(rows[0][place]) }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell)))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, whole);
}

export function time(unix) {
  if (unix === null || unix === undefined) return "";
  const date = new Date(1000 * unix);
  return h("time", { datetime: date.toISOString() }, date.toLocaleTimeString());
}

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit += 1; }
  return `${unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

export function seconds(count) {
  if (count < 1) return `${Math.round(1000 * count)} ms`;
  if (count < 120) return `${count.toFixed(1)} s`;
  return count < 7200 ? `${(count / 60).toFixed(1)} min` : `${(count / 3600).toFixed(1)} h`;
}

export const also = (exact) => (exact ? `, and ${exact}` : "");

export const epsilon = (value) => (value === null ? "nothing bounds it" : value.toFixed(3));
