// What may be done, where the dashboard was begun for that: each asks once more before it is done.

import { h, p, table } from "./dom.js";

export function section(done) {
  return [
    p("Each is signed and written to acts.jsonl before it is done."),
    h("p", {}, button("End the run in order", "end", "End this run? secureps resume goes on with it."), " ", button("Export the newest model", "export", "Write the newest model to exported.safetensors?")),
    table("What was begun here", ["when", "by whom", "what"], done.toReversed().map((each) => [each.date, each.who, each.what])),
  ];
}

function button(text, what, question) {
  const made = h("button", { type: "button" }, text);
  made.addEventListener("click", async () => {
    if (!confirm(question)) return;
    const answer = await fetch(`/act/${what}`, { method: "POST" });
    alert((await answer.text()).trim());
  });
  return made;
}
