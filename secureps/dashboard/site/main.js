// Shows the news of the server, and rebuilds only the sections whose data has changed.

import * as acts from "./acts.js";
import * as holder from "./holder.js";
import * as officer from "./officer.js";
import * as operator from "./operator.js";
import { h, p } from "./dom.js";

const PAGES = { operator, officer, holder };
const EVERY = 1000;
const REACHED = ".scroll, summary, button, select, input";

const page = document.getElementById("page");
const link = document.getElementById("link");
const built = new Map();
let news = null;

function chosen() {
  const there = Object.keys(PAGES).filter((name) => news[name]);
  const wanted = location.hash.slice(1);
  return there.includes(wanted) ? wanted : news.holder ? "holder" : there[0];
}

function show() {
  if (news === null) return;
  const name = chosen();
  const there = Object.keys(PAGES).filter((each) => news[each]);
  keep("nav", there, () => {
    document.getElementById("pages").replaceChildren(...there.map((each) => h("a", { href: `#${each}` }, PAGES[each].title)));
  });
  for (const each of document.getElementById("pages").children) {
    if (each.hash === `#${name}`) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  if (name === undefined) {
    keep("empty", news.troubles, () => page.replaceChildren(p("There is nothing to show yet."), ...troubles()));
    return;
  }
  document.title = `secureps: ${PAGES[name].title}`;
  const sections = PAGES[name].sections(news[name]);
  if (news.acts && name === (news.holder ? "holder" : "operator")) {
    sections.push({ id: "acts", title: "Act", wide: true, data: [news.acts, news.operator?.paused ?? "", news.holder?.standing ?? ""], make: acts.section });
  }
  sections.push({ id: "troubles", title: "What cannot be read", wide: true, data: Object.entries(news.troubles), make: troubles });
  if (page.dataset.page !== name) {
    page.replaceChildren(...sections.map((each) => h("section", { id: each.id, "aria-labelledby": `${each.id}-title` })));
    page.dataset.page = name;
    for (const each of [...built.keys()].filter((id) => id !== "nav")) built.delete(each);
  }
  for (const each of sections) {
    keep(each.id, [each.data, each.kind], () => {
      const whole = document.getElementById(each.id);
      whole.className = [each.wide ? "wide" : "", each.kind ?? ""].join(" ").trim();
      whole.hidden = each.id === "troubles" && each.data.length === 0;
      renew(whole, [h("h2", { id: `${each.id}-title` }, each.title), ...each.make(each.data).filter((part) => part !== null)]);
    });
  }
}

// Replaces the parts of a section, and restores focus, open details and scroll positions.
function renew(whole, parts) {
  const all = (kind) => [...whole.querySelectorAll(kind)];
  const focused = all(REACHED).indexOf(document.activeElement);
  const open = all("details").map((each) => each.open);
  const left = all(".scroll").map((each) => each.scrollLeft);
  whole.replaceChildren(...parts);
  all("details").forEach((each, place) => { each.open = open[place] ?? false; });
  all(".scroll").forEach((each, place) => { each.scrollLeft = left[place] ?? 0; });
  if (focused >= 0) all(REACHED)[focused]?.focus({ preventScroll: true });
}

function troubles() {
  return Object.entries(news.troubles).map(([name, why]) => p(`${name}: ${why}`, "bad"));
}

// Rebuilds a part only if its data has changed, so that its focus is kept otherwise.
function keep(id, data, build) {
  const now = JSON.stringify(data);
  if (built.get(id) === now) return;
  built.set(id, now);
  build();
}

// Announces to screen readers whom the run waits for, when that changes.
function speak() {
  const spoken = document.getElementById("spoken");
  const waits = (news.operator?.blocking ?? []).filter((each) => each.ill).map((each) => `${each.name} ${each.why}`);
  const text = waits.length ? `waits for ${waits.join("; ")}` : "";
  if (spoken.textContent !== text) spoken.textContent = text;
}

function linked(text, broken) {
  if (link.textContent !== text) link.textContent = text;
  link.classList.toggle("broken", broken);
}

// Asks for news every second, and says why there are none.
async function look() {
  try {
    const answer = await fetch("/news");
    if (answer.ok) {
      news = await answer.json();
      linked("connected", false);
      speak();
      show();
    } else {
      linked("this server lets this browser in no more: open the address that it printed last", true);
    }
  } catch {
    linked("no connection to this page's server; it is tried again", true);
  }
  setTimeout(look, EVERY);
}

window.addEventListener("hashchange", show);
look();
