"""The pages of whoever looks, as one line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from secureps.dashboard.access import Viewer
from secureps.dashboard.board import Facts
from secureps.dashboard.observation import Seen, with_journal
from secureps.dashboard.officer_view import officer_view
from secureps.dashboard.operator_view import ROWS, operator_view


def pages(facts: Facts, viewer: Viewer) -> str:
    """What this viewer may see, by page: a client its own, others the operator's, and those who may
    know names the privacy officer's."""
    found: dict[str, object] = {}
    own = viewer.role == "client" and viewer.name == facts.owner
    if own and facts.own is not None:
        found["holder"] = asdict(facts.own)
    seen, more = with_journal(facts.seen, facts.recalled), (facts.plan, facts.report)
    if facts.asks or facts.course is not None:
        shown = operator_view(seen, facts.course, facts.plan, viewer.names, facts.report)
        found["operator"] = asdict(shown)
    if viewer.names:
        of = (seen, facts.explanation, facts.course, facts.ledgers, facts.logs)
        found["officer"] = asdict(officer_view(*of, *more))
    if facts.acts is not None and (own if facts.owner else viewer.names):
        done = [asdict(each) for each in facts.acts]
        offered = ("export",) if facts.seen.over and not own else facts.offered
        found["acts"] = {"done": done, "offered": offered, "clients": _clients(facts.seen)}
    # what is wrong with a file may name a client
    found["troubles"] = dict(facts.troubles) if own or viewer.names else {}
    return json.dumps(found, allow_nan=False, separators=(",", ":"))


def _clients(seen: Seen) -> list[tuple[str, bool]]:
    """Clients that an act may be of, and whether an operator has left them out."""
    members = seen.status.members if seen.status is not None else ()
    known = ((each.name, each.state.partition(":")) for each in members[:ROWS])
    return [(name, word == OUT) for name, (word, why, _) in known if word not in GONE or why]


OUT, GONE = "left out", ("left out", "revoked")
"""States of a client that takes no part; an operator's reason follows the first."""
