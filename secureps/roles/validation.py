"""The plan's conditions on blocks' headers, and on the reports of shards.

These are pure functions of the plan, the layout and the message. The machines check signatures,
rounds, and whether a message is known already.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from secureps.crypto.cipher import Opening
from secureps.errors import Malformed, Oversized, UnknownParty
from secureps.messages.encoding import DIGEST_BYTES
from secureps.messages.requests import Checkpointed, Prepared
from secureps.messages.submission import FOUNDING, OPENED, UPDATE, BlockHeader, Cohort, SubmissionId
from secureps.model.layout import GroupLayout
from secureps.policy.plan import Plan, check_counted, scale_mover
from secureps.privacy.client_level import FIRST

PURPOSES = {"client": (UPDATE, FOUNDING), "holder": (OPENED,)}
"""The purposes for which each role may send blocks."""

LAST_SEQUENCE = (1 << 62) - 1
"""Highest sequence of a submission; the one after it still fits into a message."""
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


def block_bytes(plan: Plan, layout: GroupLayout, purpose: str, block: int) -> int:
    """Returns how long a block's payload must be; Malformed if no block is for this purpose."""
    slots = layout.slots(block)
    if purpose == UPDATE:
        return plan.cipher_of(layout).block_bytes(slots)
    if purpose == FOUNDING:
        start, stop = layout.span(block)
        return 4 * (stop - start)
    if purpose == OPENED and plan.opening is Opening.HOLDER:
        return 8 * slots
    raise Malformed(f"no block is for {purpose!r}")


def check_sequence(id: SubmissionId) -> None:
    """Malformed if no client can have come to this sequence."""
    if not 0 <= id.sequence <= LAST_SEQUENCE:
        raise Malformed(f"{id}: a sequence is at least 0, and at most {LAST_SEQUENCE}")


def check_scale(plan: Plan, group: str, scale: float | None) -> None:
    """Malformed unless the group may have this scale; None is the scale of a fixed clip."""
    mover = scale_mover(plan, group)
    if mover is not None:
        mover.check(scale)
    elif scale is not None:
        raise Malformed(f"{group} has a clip that stays, and a scale of {scale} was given")


def check_divisor(plan: Plan, cohort: Cohort) -> None:
    """Malformed unless the plan allows a cohort's scale, and its members' numbers of examples.

    Otherwise a coordinator alone could choose the divisor of the sum.
    """
    check_scale(plan, cohort.group, cohort.scale)
    section = plan.group(cohort.group)
    for member in cohort.members:
        check_counted(section, member.id, member.examples)


def check_key_sum(plan: Plan, layout: GroupLayout, cohort: Cohort, key: bytes | None) -> bytes:
    """Returns the key; Malformed unless it is as long as a sum of one-time keys, int32."""
    due = 4 * plan.key_length(layout)
    if key is None or len(key) != due:
        raise Malformed(
            f"cohort {cohort.number} of {cohort.group} comes without its sum of keys, {due} bytes"
        )
    return key


def check_prepared(plan: Plan, prepared: Prepared, owners: Sequence[str]) -> None:
    """Malformed if a scale or squared norms are not the plan's, or come from a wrong shard.

    `owners` hold the group's last block, and the scale with it.
    """
    name, scale = prepared.shard, prepared.scale
    if name in owners:
        check_scale(plan, prepared.group, scale)
    elif scale is not None:
        raise Malformed(f"{name}: {owners[0]} has the scale of {prepared.group}")
    if prepared.version == 0 and scale not in (None, FIRST):
        raise Malformed(f"{name}: {prepared.group} begins with a scale of {FIRST:g}, not {scale}")
    measured = prepared.cohort >= 0 and plan.bounds_sums(prepared.group)
    squares = prepared.squares
    if len(squares) != measured * len(prepared.blocks) or not all(
        0 <= x < math.inf for x in squares
    ):
        raise Malformed(f"{name}: {len(squares)} squared norms, or not finite ones, of its blocks")


def check_part(part: Checkpointed) -> None:
    """Malformed unless a shard's file lies in the checkpoint's own folder, and has a size."""
    if _FILE.fullmatch(part.file) is None or part.size < 0:
        raise Malformed(f"{part.shard}: no file of a checkpoint: {part.file!r:.80}")


def check_digests(shard: str, group: str, owned: Sequence[int], digests: Sequence[bytes]) -> None:
    """Malformed unless there is one digest for each block of a group that a shard owns."""
    if (
        not owned
        or len(digests) != len(owned)
        or any(len(digest) != DIGEST_BYTES for digest in digests)
    ):
        raise Malformed(f"{shard}: it holds {len(owned)} blocks of {group}, each one digest")


def check_header(plan: Plan, layout: GroupLayout, header: BlockHeader, role: str) -> None:
    """Accepts the header of a block of this layout that a party of this role may send."""
    if header.purpose not in PURPOSES.get(role, ()):
        raise UnknownParty(f"a {role} sends no {header.purpose!r} blocks")
    if len(header.digest) != DIGEST_BYTES:
        raise Malformed("a block's header needs a 32-byte digest")
    check_sequence(header.id)
    expected = block_bytes(plan, layout, header.purpose, header.block)
    if header.length != expected:
        kind = Oversized if header.length > expected else Malformed
        raise kind(f"{header.length} bytes, the plan makes {expected} for this block")
