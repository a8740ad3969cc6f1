// Acts, if the dashboard was started with --act. Each asks for confirmation.

import { h, p, table } from "./dom.js";

let chosen = "";
let why = "";
let budget = "";

const RUN = [
  ["end", "End the run in order", "End this run? secureps resume goes on with it."],
  ["export", "Export the newest model", "Write the newest model to exported.safetensors?"],
];

export function section([acts, paused, standing]) {
  const offered = (what) => acts.offered.includes(what);
  const made = [p("Each asks once more, and is signed and on record before it is done.")];
  if (offered("leave")) made.push(...ofMine(standing));
  else if (offered("pause")) made.push(...asked(acts.clients, paused));
  const own = RUN.filter(([what]) => offered(what)).map(([what, text, question]) => button(text, what, () => question));
  if (own.length) made.push(h("p", { class: "acts" }, own));
  if (acts.done.length) made.push(table("What was begun in this folder", ["when", "by whom", "what"], acts.done.toReversed().map((each) => [each.date, each.who, each.what])));
  return made;
}

// Acts that the coordinator does.
function asked(clients, paused) {
  const here = clients.filter(([, out]) => !out), out = clients.filter(([, left]) => left);
  const run = paused
    ? button("Go on", "go-on", () => "Go on with this run?", reason)
    : button("Pause", "pause", () => "Pause this run? No version is begun until it goes on; what is sent is kept.", reason);
  return [
    paused ? p(paused, "warn") : null,
    h("p", { class: "acts" }, h("label", {}, "Why ", field())),
    h("p", { class: "acts" }, run, button("Make a checkpoint", "checkpoint", () => "Make a checkpoint of all that is committed?", reason)),
    here.length ? ofClient("Leave out", "leave-out", here, (name) => `Leave ${name} out? Nobody waits for it, and nothing of it is taken.`) : null,
    out.length ? ofClient("Take back", "take-back", out, (name) => `Take ${name} back? It is asked again from the next version on.`) : null,
  ].filter((part) => part !== null);
}

// Acts of a data holder upon its own client.
function ofMine(standing) {
  if (standing === "leaves") return [p("This client leaves the run.", "warn")];
  const run = standing === "paused"
    ? button("Go on", "go-on", () => "Train in this run again?")
    : button("Pause", "pause", () => "Train no more until you go on? What is sealed is sent.");
  const number = h("input", { type: "number", min: 0, step: "any", autocomplete: "off" });
  number.value = budget;
  number.addEventListener("input", () => { budget = number.value; });
  return [
    standing ? p("This client is paused: it trains nothing.", "warn") : null,
    h("p", { class: "acts" }, run, button("Leave the run", "leave", () => "Leave this run? The client ends; started again, it joins again.")),
    h("p", { class: "acts" }, h("label", {}, "My budget, epsilon ", number),
      button("Lower it", "lower-budget", () => `Lower your budget to ${number.value}? It is never raised again on this page.`, () => ({ budget: number.value }))),
  ].filter((part) => part !== null);
}

const reason = () => ({ reason: why });

function field() {
  const made = h("input", { type: "text", maxlength: 200, autocomplete: "off" });
  made.value = why;
  made.addEventListener("input", () => { why = made.value; });
  return made;
}

function ofClient(text, what, clients, question) {
  const names = clients.map(([name]) => name);
  const list = h("select", {}, names.map((name) => h("option", { value: name, selected: name === chosen }, name)));
  list.addEventListener("change", () => { chosen = list.value; });
  return h("p", { class: "acts" }, h("label", {}, "Client ", list), button(text, what, () => question(list.value), () => ({ client: list.value, ...reason() })));
}

export function button(text, what, question, of = () => ({})) {
  const made = h("button", { type: "button" }, text);
  made.addEventListener("click", async () => {
    if (!confirm(question())) return;
    const answer = await fetch(`/act/${what}?${new URLSearchParams(of())}`, { method: "POST" });
    alert((await answer.text()).trim());
  });
  return made;
}
