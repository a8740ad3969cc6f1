"""What a client's machine is made from: what its kit, its script and its own settings say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from secureps.crypto.identity import Roster
from secureps.messages.schema import Schema


@dataclass(frozen=True, slots=True)
class MemberKit:
    """What a client has from its kit and its model: names, roster, holders, schema.

    `budget` is the epsilon at which it stops whatever the plan says; with it, a plan that
    trains without privacy is refused. `rows` are those of sparse tensors that its data touches.
    """

    name: str
    roster: Roster
    holders: bytes
    schema: Schema
    budget: float | None = None
    rows: Mapping[str, Sequence[int]] = field(default_factory=dict)
