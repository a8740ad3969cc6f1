"""A plan as text: the same bytes for the same plan, whatever the file looked like."""

from __future__ import annotations

import json
from typing import Any

from secureps.config.plan import PlanSection

LATER = ("adaptive", "codec", "feedback", "pull_bits", "sparse", "tier", "versions")
"""Keys of a group that are left out where they say nothing."""


def canonical(section: PlanSection, initial_digest: str) -> str:
    """JSON that the run id binds, without who takes part on this machine.

    Without keys that say nothing the text is that of before they were known, and so are run ids.
    """
    body = section.model_dump(mode="json", exclude={"federation"})
    for key in ("work", "scaling", "take_over_after"):
        if body[key] is None:
            del body[key]
    if body["replicas"] == 1:
        del body["replicas"], body["shards_wait"]
    if body["keep"] == 3:
        del body["keep"]
    if not body["frozen"]:
        del body["frozen"]
    for group in body["group"]:
        if group["outcome"] == "model":
            del group["outcome"]
        for key in LATER:
            if not group[key]:
                del group[key]
    evaluation = body["evaluation"] or {}
    for rule in (*(group["rule"] for group in body["group"]), evaluation.get("rule")):
        if rule is not None and rule.get("fraction") == 1:
            del rule["fraction"]
    text = {"plan": body, "initial_digest": initial_digest}
    return json.dumps(text, sort_keys=True, separators=(",", ":"))


def different_keys(own: str, other: str) -> tuple[str, ...]:
    """The keys by which two plans' texts differ, `group.0.clip` for one; none if they agree.

    The path of `initial` is not compared: each machine has its own. Its digest is.
    """

    def flat(value: Any, path: str) -> dict[str, Any]:
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            return {k: v for key, item in items for k, v in flat(item, f"{path}.{key}").items()}
        return {path.removeprefix(".plan").removeprefix("."): value}

    mine, theirs = flat(json.loads(own), ""), flat(json.loads(other), "")
    missing = object()
    keys = sorted((mine.keys() | theirs.keys()) - {"initial"})
    return tuple(k for k in keys if mine.get(k, missing) != theirs.get(k, missing))
