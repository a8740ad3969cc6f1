"""The pages of whoever looks, as one line of JSON. What must not live here: what is in them."""

from __future__ import annotations

import json
from dataclasses import asdict

from secureps.dashboard.access import Viewer
from secureps.dashboard.board import Facts
from secureps.dashboard.officer_view import officer_view
from secureps.dashboard.operator_view import operator_view


def pages(facts: Facts, viewer: Viewer) -> str:
    """What this viewer may see, by page: a client its own, others the operator's, and those who may
    know names the privacy officer's."""
    found: dict[str, object] = {}
    own = viewer.role == "client" and viewer.name == facts.owner
    if own and facts.own is not None:
        found["holder"] = asdict(facts.own)
    if facts.asks:
        seen = operator_view(facts.seen, facts.course, facts.plan, viewer.names)
        found["operator"] = asdict(seen)
    if viewer.names:
        of = (facts.seen, facts.explanation, facts.course, facts.ledgers, facts.logs)
        found["officer"] = asdict(officer_view(*of))
        if facts.acts is not None:
            found["acts"] = [asdict(each) for each in facts.acts]
    # what is wrong with a file may name a client
    found["troubles"] = dict(facts.troubles) if own or viewer.names else {}
    return json.dumps(found, allow_nan=False, separators=(",", ":"))
