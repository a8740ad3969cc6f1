// The operator's page: scores, for whom the run waits, its six steps, parties, bytes.

import { columns } from "./chart.js";
import { bytes, h, p, seconds, table, time } from "./dom.js";

const ROLES = { coordinator: "coordinator", shard: "shard", holder: "key holder", client: "client" };
const PHASES = ["collect", "hold", "open", "prepare", "commit"];
const STATES = { here: "good", away: "bad", silent: "bad", awaited: "warn" };
const NOT_KNOWN = "Not known: the coordinator has not answered, and its journal is not at hand.";
const CHARTS = 4;

export const title = "Operator";

export function sections(view) {
  return [
    { id: "now", title: "Now", wide: true, kind: view.blocking.some((each) => each.ill) ? "blocked" : null, data: [view.headline, view.blocking, view.run, view.calm, view.fresh], make: now },
    { id: "scores", title: "Scores", wide: true, data: view.scores, make: scores },
    { id: "steps", title: "The six steps of a version", wide: true, data: [view.groups, view.steps, view.asked, view.over], make: steps },
    { id: "timeline", title: "Timeline", data: [view.timeline, view.costs, view.asked], make: timeline },
    { id: "bytes", title: "Bytes", data: [view.costs, view.up, view.down, view.whole], make: traffic },
    { id: "clients", title: "Clients", wide: true, data: [view.clients, view.states, view.clients_title, view.asked], make: clients },
    { id: "parties", title: "Servers and key holders", wide: true, data: [view.parties, view.move, view.fresh, view.over], make: parties },
    { id: "changes", title: "Who came and went", data: view.changes, make: changes },
    { id: "burnt", title: "Burnt cohorts", data: [view.burnt, view.burnt_in_all, view.checkpoint, view.asked], make: burnt },
  ];
}

function now([headline, blocking, run, calm, fresh]) {
  const ill = blocking.filter((each) => each.ill);
  const waits = ill.map((each) => h("li", {}, h("strong", {}, each.name), ` (${ROLES[each.role] ?? each.role}) ${each.why}`, each.since === null ? "" : h("span", {}, ", since ", time(each.since))));
  return [
    h("p", { class: "headline", id: "headline" }, headline),
    waits.length ? h("ul", { id: "blocking" }, waits) : calm ? p(calm, fresh ? "good" : "dim") : null,
    run ? p(`run ${run}`, "dim") : null,
  ];
}

// One row per version, one column per metric; +- is one standard deviation of the noise.
function scores({ judged, noise, notes, nothing }) {
  if (nothing) return [p(nothing, "dim"), ...notes.map((note) => p(note, "dim"))];
  const named = (kind) => [...new Set(judged.flatMap((each) => Object.keys(each[kind])))];
  const own = named("held_out").map((name) => ["held_out", name, `held-out ${name}`]);
  const all = [...own, ...named("federated").map((name) => ["federated", name, `the federation's ${name}`])];
  const cell = (kind, name, value) => value === undefined ? "" : figure(value) + (kind === "federated" && name in noise ? ` +- ${figure(noise[name])}` : "");
  const rows = judged.map((each) => [each.version, ...all.map(([kind, name]) => cell(kind, name, each[kind][name])), each.best ? "best" : ""]);
  const charts = all.map(([kind, name, head]) => {
    const items = judged.toReversed().filter((each) => name in each[kind]).map((each) => ({ label: `${each.version}`, parts: [each[kind][name]] }));
    return items.some((each) => !(each.parts[0] >= 0)) ? null : columns(head, items, [head], figure);
  });
  return [
    ...notes.map((note) => p(note, "dim")),
    table("By version, newest first", ["version", ...all.map(([, , head]) => head), ""], rows),
    h("div", { class: "charts" }, charts.filter((each) => each !== null).slice(0, CHARTS)),
  ];
}

// Four decimals, or the first digits of a smaller number.
const figure = (value) => (typeof value !== "number" ? `${value}` : value === 0 || Math.abs(value) >= 0.001 ? value.toFixed(4) : value.toPrecision(3));

const noRun = (asked) => p(asked ? "No run is founded." : NOT_KNOWN, "dim");

function steps([groups, names, asked, over]) {
  if (groups.length === 0) return [noRun(asked)];
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
      h("h3", {}, `${group.name}: version ${group.version < 0 ? (over ? "none" : "none yet") : group.version}${wanted}, ${group.phase}`),
      h("ol", { class: "steps" }, items),
      p(group.reason, "dim"),
      late && !over ? p(`waits for the updates of ${late}`) : null);
  });
}

function timeline([cohorts, costs, asked]) {
  const made = [];
  if (cohorts === null) {
    made.push(noRun(asked));
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

function traffic([costs, up, down, whole]) {
  if (up === null) return [p("Not known: what parties send is reported to whoever asks while a run goes on.", "dim")];
  const items = costs.map((cost) => ({ label: label(cost), parts: [cost.up, cost.down] }));
  return [p(`${bytes(up)} up and ${bytes(down)} down ${whole ? "in all trained versions" : "since this page's server began to look"}.`), columns("Bytes by version", items, ["up", "down"], bytes)];
}

function parties([rows, move, fresh, over]) {
  const state = (row) => h("span", { class: STATES[row.state] ?? null }, row.state);
  return [move ? p(`Blocks move: ${move}`) : null, table(fresh ? "Heartbeats" : over ? "The run has ended" : "Who is there now is not known", ["name", "role", "state", "since", ""], rows.map((row) => [row.name, ROLES[row.role] ?? row.role, state(row), time(row.since), row.detail]))];
}

function changes(rows) {
  const text = (row) => `${row.before} for ${seconds(row.seconds)}, then ${row.state}`;
  return [table("Since this page's server began to look, newest first", ["when", "who", "what"], rows.map((row) => [time(row.at), row.party, text(row)]))];
}

function clients([rows, states, unit, asked]) {
  const counts = Object.entries(states).map(([state, number]) => `${number} ${state}`).join(", ");
  return [
    p(counts || (asked ? "No client has joined." : NOT_KNOWN), "dim"),
    rows.length ? table(`By state${unit}`, ["client", "state", "since", "updates", "epsilon"], rows.map((row) => [row.name, h("span", { class: row.live === false ? "bad" : null }, row.state), time(row.since), row.updates, row.epsilon])) : null,
  ];
}

function burnt([rows, inAll, checkpoint, asked]) {
  if (rows === null) return [noRun(asked)];
  return [
    p(inAll ? `${inAll} cohorts were burnt: charged, and never opened.` : "No cohort was burnt.", inAll ? "warn" : "good"),
    p(checkpoint === null ? "There is no whole checkpoint." : `The newest whole checkpoint is number ${checkpoint}.`),
    rows.length ? table("Newest first", ["group", "for version", "clients", "end", "why"], rows.map((row) => [row.group, row.version, row.members, row.ended, row.why])) : null,
  ];
}
