// The data holder's page: its epsilon against its budget, what left its machine, who could open that.

import { also, bytes, epsilon, h, list, p, table } from "./dom.js";

export const title = "Data holder";

export function sections(view) {
  return [
    { id: "budget", title: "My epsilon against my budget", wide: true, data: [view.epsilon, view.budget, view.delta, view.unit, view.unsafe, view.total, view.exact, view.own_budget, view.own_delta, view.ledger_trouble, view.plan], make: budget },
    { id: "runs", title: "Over all runs", wide: true, data: [view.runs, view.run], make: runs },
    { id: "open", title: "Who could open an update of mine", wide: true, data: [view.open, view.holders, view.threshold, view.sees], make: open },
    { id: "sent", title: "What left this machine", wide: true, data: [view.updates, view.count, view.bytes], make: sent },
  ];
}

function gauge(label, value, most) {
  if (value === null || most === null) return null;
  return h("meter", { min: 0, max: most, high: 0.8 * most, value: Math.min(value, most), "aria-label": `${label}: ${value.toFixed(3)} of ${most}` });
}

function budget([spent, planned, delta, unit, unsafe, total, exact, own, ownDelta, trouble, plan]) {
  const made = [];
  if (unsafe) made.push(p("An update was made from a seed that everybody may know: nothing bounds what it tells.", "bad"));
  if (planned === null) made.push(p(`The plan ${plan} trains without privacy: no epsilon bounds what sums and models tell.`, "warn"));
  else made.push(p(`In this run: epsilon ${epsilon(spent)} of the plan's ${planned}, at delta ${delta}, of ${unit}.`, "headline"), gauge("epsilon of this run", spent, planned));
  if (trouble) made.push(p(`What all runs spent is not known, for the ledger cannot be read: ${trouble}`, "bad"));
  else made.push(p(`Over all runs: epsilon ${epsilon(total)}${own === null ? "; no budget of your own is set (--budget)" : ` of your own ${own}`}, at delta ${ownDelta}${also(exact)}.`, exact ? "warn" : null), gauge("epsilon of all runs", total, own));
  return made;
}

function runs([rows, own]) {
  return [table("As the ledger has them", ["run", "what it spent", ""], Object.entries(rows).map(([run, told]) => [h("code", {}, run), told, run === own ? "this run" : ""]))];
}

function open([who, holders, threshold, sees]) {
  return [
    p("These could, and nobody else:"),
    list(who),
    holders.length ? p(`The key holders are ${holders.join(", ")}; ${threshold} of them must agree to open a sum.`) : null,
    table("Who sees what", ["role", "sees", "never sees"], sees),
  ];
}

function submission({ purpose, group, version }) {
  if (purpose === "founding") return [`first model, ${group}, in the clear`, "no records"];
  if (group === "evaluation") return [`metrics, evaluation ${version + 1}`, "held-out records"];
  return [`update, ${group}`, `version ${version}`];
}

function sent([updates, count, size]) {
  return [
    p(`${count} submissions, ${bytes(size)}, all signed. Updates and metrics are sealed, each under a key of its own, if the plan encrypts; a first model is not.`),
    table("Newest first", ["when", "what", "made from", "bytes", "what became of it"], updates.map((each) => [each.date, ...submission(each), bytes(each.bytes), each.outcome])),
  ];
}
