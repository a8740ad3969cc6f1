// The privacy officer's page: the plan explained, what was spent, opened and refused, and by whom.

import { columns } from "./chart.js";
import { also, epsilon, h, list, p, table } from "./dom.js";

export const title = "Privacy officer";

export function sections(view) {
  return [
    { id: "plan", title: "The plan, explained", wide: true, data: view.explanation, make: plan },
    { id: "spent", title: "Epsilon of each client", wide: true, data: [view.clients, view.unit, view.delta], make: spent },
    { id: "growth", title: "Epsilon by version", data: view.costs, make: growth },
    { id: "openings", title: "Openings by key holder", wide: true, data: view.holders, make: openings },
    { id: "logs", title: "Signed audit logs", data: view.logs, make: logs },
    { id: "refused", title: "Refused, or come to nothing", wide: true, data: [view.refused, view.rows], make: refused },
  ];
}

function plan(told) {
  if (told === null) return [p("Not known: no run is founded, its coordinator does not answer and its journal is not at hand, or its plan cannot be explained.", "dim")];
  const price = told.price;
  const bound = (value) => (value === null && told.groups.some((each) => each.values === null) ? "not known before the model is" : epsilon(value));
  return [
    p(`${told.name}: ${told.versions} versions under ${told.cipher}, ${told.shards} shards.`, "headline"),
    h("p", {}, "digest ", h("code", {}, told.digest)),
    h("h3", {}, "Who can open a single update"), list(told.collusion), p(`What they find: ${told.opened}.`),
    table("Who sees what", ["role", "sees", "never sees"], told.sights.map((each) => [each.role, each.sees, each.never])),
    price === null ? p("Nothing is private: the plan adds no noise.", "warn") : table("What privacy spends", ["what", "how much"], [
      ["protected", price.unit], ["against", price.against],
      ["epsilon of one version", bound(price.epsilon_version)], ["epsilon of the run", bound(price.epsilon_run)],
      ["delta", `${price.delta}`], ["budget", `${price.budget}`]]),
    told.remarks.length ? h("div", {}, h("h3", {}, "Notes"), list(told.remarks)) : null,
  ];
}

function spent([clients, unit, delta]) {
  const runs = (each) => each.trouble || Object.entries(each.runs).map(([run, told]) => `${run}: ${told}`).join("; ");
  const all = (each) => !each.ledger ? "its ledger is not at hand" : each.trouble ? "not known" : Object.keys(each.runs).length ? `${epsilon(each.total)}${also(each.exact)}` : "nothing yet";
  return [
    unit === null ? p("What an epsilon is of is not known: neither the coordinator answers nor its journal is at hand.", "dim")
      : p(unit ? `Of ${unit}, at delta ${delta}.` : "Nothing is private: no epsilon bounds what sums and models tell.", unit ? "dim" : "warn"),
    table("By client", ["client", "in this run", "over all runs", "run by run"], clients.map((each) => [each.name, each.epsilon, all(each), runs(each)])),
  ];
}

function growth(costs) {
  const items = costs.map((cost) => ({ label: cost.group === "all" ? `${cost.version}` : `${cost.group} ${cost.version}`, parts: [cost.epsilon] }));
  return [columns("The largest epsilon of all clients, by version", items, ["epsilon"], (value) => value.toFixed(3))];
}

const JOURNAL = "Not known: this is in the coordinator's journal, which is not at hand. Its state folder is given by --state.";

function openings(holders) {
  if (holders === null) return [p(JOURNAL, "dim")];
  return [table("By the coordinator's journal", ["key holder", "helped to open", "refused", "lied", "last reason"], holders.map((each) => [each.name, each.opened, each.refused, each.lied, each.why]))];
}

function logs(checks) {
  if (checks === null) return [p("Name audit logs by --log FILE, and they are verified here: secureps audit-log export makes one.", "dim")];
  return [table("Verified against the kit", ["file", "", "what it says"], checks.map((each) => [each.file, h("span", { class: each.sound ? "good" : "bad" }, each.sound ? "sound" : "not sound"), each.text]))];
}

function refused([rows, journal]) {
  if (rows === null) return [p(JOURNAL, "dim")];
  return [
    p(`The digests of all ${journal} rows of the coordinator's journal fit together.`, "good"),
    table("Newest first", ["when", "what", "who and why"], rows.map((each) => [each.date, each.what, each.text])),
  ];
}
