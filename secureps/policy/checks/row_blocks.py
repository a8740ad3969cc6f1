"""Groups of which a client touches few rows: which row-blocks are whose, and how small they may be.

Under a committee every row-block that a client sends is a submission with a key of its own, and
envelopes for every holder: smaller than these it would cost more to protect than to send.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from secureps.config.plan import GroupSection
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.ring import choose
from secureps.crypto.sharing import Committee
from secureps.errors import Malformed, PlanRefused
from secureps.model.layout import GroupLayout
from secureps.policy.envelope_size import envelope_bytes


def touched(sections: Sequence[GroupSection], rows: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """The groups that a client contributes to whose data touches these rows of sparse tensors.

    Args:
        rows: by the tensor's name; of a sparse tensor that is not there it touches all.
    Raises:
        Malformed: a sparse tensor has no such row, or none is left of the model.
    """
    patterns = [section.pattern for section in sections]
    first = {name: next((p for p in patterns if fnmatchcase(name, p)), None) for name in rows}
    found: list[str] = []
    for section in sections:
        cut = section.sparse
        if cut is None:
            found.append(section.name)
            continue
        names = cut.names(section.name)
        known = [name for name, pattern in first.items() if pattern == section.pattern]
        for name in known:
            if unknown := [row for row in rows[name] if not 0 <= row < cut.rows]:
                raise Malformed(f"{name} has rows 0 to {cut.rows - 1}, and no row {unknown[0]}")
        own = {row // cut.block for name in known for row in rows[name]}
        found += [names[k] for k in sorted(own)] if known else names
    if not found:
        raise Malformed("touches: no row of any group: this client has nothing to train")
    return tuple(found)


def refuse_small(
    section: GroupSection,
    groups: Sequence[GroupLayout],
    parameters: CipherParameters,
    committee: Committee,
) -> None:
    """Refuses row-blocks whose sealed values are fewer bytes than what their keys cost.

    The last row-block has what rows are left, and may be smaller.

    Args:
        groups: the row-blocks of the section.
    Raises:
        PlanRefused: says how many rows suffice.
    """
    cut = section.sparse
    assert cut is not None
    most = max(group.sent for group in groups)
    own = choose(parameters)
    a_value = own.element_bytes / own.values
    sealed = math.floor(most * a_value)
    envelopes = envelope_bytes(committee, own.ring.degree)
    if sealed < envelopes:
        a_row = most / min(cut.block, cut.rows)
        enough = math.ceil(envelopes / (a_row * a_value))
        raise PlanRefused(
            f"group {section.name}: sparse.block = {cut.block}: a row-block has {most} values, "
            f"{sealed} bytes when sealed, and its envelopes for the key holders take {envelopes}: "
            f"make it {enough} rows or more, or leave sparse out"
        )
