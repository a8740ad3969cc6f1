// What may be done, where the dashboard was begun for that: each asks once more before it is done.

import { h, p, table } from "./dom.js";

export function section([done, clients]) {
  const leaving = h("select", { id: "leaving" }, clients.map((name) => h("option", { value: name }, name)));
  const out = () => act(`leave-out?client=${encodeURIComponent(leaving.value)}`, `Leave ${leaving.value} out of this run, for good?`);
  return [
    p("Each is signed and written to acts.jsonl before it is done."),
    h("p", {}, button("End the run in order", () => act("end", "End this run? secureps resume goes on with it.")), " ", button("Export the newest model", () => act("export", "Write the newest model to exported.safetensors?"))),
    clients.length ? h("p", {}, h("label", { for: "leaving" }, "Client "), leaving, " ", button("Leave it out", out)) : null,
    table("What was begun here", ["when", "by whom", "what", "client"], done.toReversed().map((each) => [each.date, each.who, each.what, each.client])),
  ];
}

function button(text, press) {
  const made = h("button", { type: "button" }, text);
  made.addEventListener("click", press);
  return made;
}

async function act(what, question) {
  if (!confirm(question)) return;
  const answer = await fetch(`/act/${what}`, { method: "POST" });
  alert((await answer.text()).trim());
}
