// The operator's page: for whom the run waits, its six steps, parties, bytes, burnt cohorts.

import { columns } from "./chart.js";
import { bytes, h, p, seconds, table, time } from "./dom.js";

const ROLES = { coordinator: "coordinator", shard: "shard", holder: "key holder", client: "client" };
const PHASES = ["collect", "hold", "open", "prepare", "commit"];
const STATES = { here: "good", away: "bad", silent: "bad", awaited: "warn" };

export const title = "Operator";

export function sections(view) {
  return [
    { id: "now", title: "Now", wide: true, kind: view.blocking.some((each) => each.ill) ? "blocked" : null, data: [view.headline, view.blocking, view.run, view.over], make: now },
    { id: "steps", title: "The six steps of a version", wide: true, data: [view.groups, view.steps], make: steps },
    { id: "timeline", title: "Timeline", data: [view.timeline, view.costs], make: timeline },
    { id: "bytes", title: "Bytes", data: [view.costs, view.up, view.down], make: traffic },
    { id: "parties", title: "Servers and key holders", data: [view.parties, view.move], make: parties },
    { id: "changes", title: "Who came and went", data: view.changes, make: changes },
    { id: "clients", title: "Clients", wide: true, data: [view.clients, view.states, view.clients_title], make: clients },
    { id: "burnt", title: "Burnt cohorts", data: [view.burnt, view.burnt_in_all, view.checkpoint], make: burnt },
  ];
}

function now([headline, blocking, run, over]) {
  const ill = blocking.filter((each) => each.ill);
  const waits = ill.map((each) => h("li", {}, h("strong", {}, each.name), ` (${ROLES[each.role] ?? each.role}) ${each.why}`, each.since === null ? "" : h("span", {}, ", since ", time(each.since))));
  const calm = over ? "Nobody is waited for." : blocking.length ? "All who are waited for are at work." : "Nobody keeps it waiting.";
  return [
    h("p", { class: "headline", id: "headline" }, headline),
    waits.length ? h("ul", { id: "blocking" }, waits) : p(calm, over ? "dim" : "good"),
    run ? p(`run ${run}`, "dim") : null,
  ];
}

function steps([groups, names]) {
  if (groups.length === 0) return [p("There is no run yet.", "dim")];
  return groups.map((group) => {
    const wanted = group.wanted === null ? "" : ` of ${group.wanted}`;
    const items = names.map((name, place) => {
      const at = place + 1 === group.step && group.step < 6;
      const state = at ? "now" : place < group.step ? "done" : null;
      const spoken = at ? " (under way)" : state ? " (done)" : "";
      return h("li", { class: state, "aria-current": at ? "step" : null }, `${place + 1} ${name}${spoken}`);
    });
    const more = group.late_in_all - group.late.length;
    const late = group.late.join(", ") + (more > 0 ? `${group.late.length ? " and " : ""}${more} clients` : "");
    return h("div", {},
      h("h3", {}, `${group.name}: version ${group.version < 0 ? "none yet" : group.version}${wanted}, ${group.phase}`),
      h("ol", { class: "steps" }, items),
      p(group.reason, "dim"),
      late ? p(`waits for the updates of ${late}`) : null);
  });
}

function timeline([cohorts, costs]) {
  const made = [];
  if (cohorts === null) {
    made.push(p("There is no run yet.", "dim"));
  } else {
    const spans = cohorts.filter((each) => each.committed !== null);
    const items = spans.map((each) => {
      const at = [each.began, each.closed, each.held ?? each.closed, each.opened ?? each.held ?? each.closed];
      at.push(each.prepared ?? at[3], each.committed);
      return { label: `${each.group === "all" ? "" : `${each.group} `}${each.version}`, parts: PHASES.map((_, k) => Math.max(0, at[k + 1] - at[k])) };
    });
    made.push(columns("Seconds of each step, by version", items, PHASES, seconds));
  }
  const stages = costs.length ? Object.keys(costs[0].seconds) : [];
  const items = costs.map((cost) => ({ label: label(cost), parts: stages.map((stage) => cost.seconds[stage]) }));
  made.push(columns("Seconds of work by all parties, by version", items, stages, seconds));
  return made;
}

const label = (cost) => (cost.group === "all" ? `${cost.version}` : `${cost.group} ${cost.version}`);

function traffic([costs, up, down]) {
  const items = costs.map((cost) => ({ label: label(cost), parts: [cost.up, cost.down] }));
  return [p(`${bytes(up)} up and ${bytes(down)} down since this page's server began to look.`), columns("Bytes by version", items, ["up", "down"], bytes)];
}

function parties([rows, move]) {
  const state = (row) => h("span", { class: STATES[row.state] ?? null }, row.state);
  return [move ? p(`Blocks move: ${move}`) : null, table("Heartbeats", ["name", "role", "state", "since", ""], rows.map((row) => [row.name, ROLES[row.role] ?? row.role, state(row), time(row.since), row.detail]))];
}

function changes(rows) {
  const text = (row) => `${row.before} for ${seconds(row.seconds)}, then ${row.state}`;
  return [table("Newest first", ["when", "who", "what"], rows.map((row) => [time(row.at), row.party, text(row)]))];
}

function clients([rows, states, unit]) {
  const counts = Object.entries(states).map(([state, number]) => `${number} ${state}`).join(", ");
  return [
    p(counts || "No client has joined yet.", "dim"),
    rows.length ? table(`By state${unit}`, ["client", "state", "since", "updates", "epsilon"], rows.map((row) => [row.name, h("span", { class: row.live ? null : "bad" }, row.state), time(row.since), row.updates, row.epsilon])) : null,
  ];
}

function burnt([rows, inAll, checkpoint]) {
  if (rows === null) return [p("There is no run yet.", "dim")];
  return [
    p(inAll ? `${inAll} cohorts were burnt: charged, and never opened.` : "No cohort was burnt.", inAll ? "warn" : "good"),
    p(checkpoint === null ? "There is no whole checkpoint yet." : `The newest whole checkpoint is number ${checkpoint}.`),
    rows.length ? table("Newest first", ["group", "for version", "clients", "end", "why"], rows.map((row) => [row.group, row.version, row.members, row.ended, row.why])) : null,
  ];
}
