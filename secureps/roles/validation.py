"""What may come in: the plan's conditions on a receipt and on a block's header.

Pure functions of the plan, the layout and what came; signatures, rounds and what is known
already are checked by the machines. What must not live here: state, payloads, decisions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from secureps.config.plan import PrioritySection
from secureps.crypto.cipher import Opening
from secureps.crypto.envelope import OVERHEAD
from secureps.crypto.field import parse_vector
from secureps.crypto.suite import cipher, key_length
from secureps.errors import Malformed, Oversized, UnknownParty
from secureps.messages.encoding import DIGEST_BYTES
from secureps.messages.requests import Checkpointed, Prepared
from secureps.messages.submission import (
    FOUNDING,
    OPENED,
    UPDATE,
    UPDATE_BYTES,
    BlockHeader,
    Receipt,
    SubmissionId,
    ciphertext_root,
)
from secureps.model.layout import GroupLayout
from secureps.policy.groups import together
from secureps.policy.plan import Plan
from secureps.policy.rules.priority import LARGEST
from secureps.policy.spending import fact
from secureps.privacy.adaptive import FIRST

PURPOSES = {"client": (UPDATE, FOUNDING), "holder": (OPENED,)}
"""What a role may send blocks for."""

LAST_SEQUENCE = (1 << 62) - 1
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
"""Of a submission; the one after it still has room on the wire."""


def block_bytes(plan: Plan, layout: GroupLayout, purpose: str, block: int) -> int:
    """How long the payload of a block must be; Malformed if no block is for this purpose."""
    slots = layout.slots(block)
    if purpose == UPDATE:
        return cipher(plan.cipher_parameters).adder().block_bytes(slots)
    if purpose == FOUNDING:
        return 4 * (slots - layout.weight_slots)
    if purpose == OPENED and cipher(plan.cipher_parameters).opening is Opening.HOLDER:
        return 8 * slots
    raise Malformed(f"no block is for {purpose!r}")


def check_sequence(id: SubmissionId) -> None:
    """Malformed: a sequence that no client counts to, and after which none could be told."""
    if not 0 <= id.sequence <= LAST_SEQUENCE:
        raise Malformed(f"{id}: a sequence is at least 0, and at most {LAST_SEQUENCE}")


def check_receipt(plan: Plan, layout: GroupLayout, receipt: Receipt) -> None:
    """Accepts a receipt that this plan can have made.

    Raises:
        Malformed: its purpose, sequence, step, number of blocks, size, charge, shared key, what
            names its update, or what it declares of the update's size is another one.
        Oversized: an envelope or the correction is too long.
    """
    if receipt.purpose not in (UPDATE, FOUNDING):
        raise Malformed(f"{receipt.id}: no receipt is for {receipt.purpose!r}")
    check_sequence(receipt.id)
    ahead = plan.bounds(receipt.id.group).ahead
    if not 0 <= receipt.step <= ahead:
        raise Malformed(
            f"{receipt.id}: update {receipt.step} of one version, by the plan's rule the last is "
            f"{ahead}"
        )
    blocks = range(layout.blocks)
    if len(receipt.blocks) != len(blocks) or any(len(d) != DIGEST_BYTES for d in receipt.blocks):
        raise Malformed(f"{receipt.id}: the group has {len(blocks)} blocks, each one digest")
    if receipt.root != ciphertext_root(receipt.blocks):
        raise Malformed(f"{receipt.id}: its root is not that of its blocks' digests")
    size = sum(block_bytes(plan, layout, receipt.purpose, block) for block in blocks)
    if receipt.size != size:
        raise Malformed(f"{receipt.id}: {receipt.size} bytes, the plan makes {size}")
    beside = DIGEST_BYTES if len(together(plan, receipt.id.group)) > 1 else 0
    wanted = (UPDATE_BYTES, beside) if receipt.purpose == UPDATE else (0, 0)
    if (len(receipt.update), len(receipt.beside)) != wanted:
        raise Malformed(f"{receipt.id}: its update's name and the groups beside it take {wanted}")
    check_magnitude(plan, receipt)
    check_shared_key(plan, receipt)
    check_fact(plan, layout, receipt)


def check_magnitude(plan: Plan, receipt: Receipt) -> None:
    """Malformed unless a size is declared where the plan's rule asks for one, and within bounds.

    One beyond them would come before all others for ever, however long these have waited.
    """
    rule, given = plan.group(receipt.id.group).rule, receipt.magnitude
    asks = isinstance(rule, PrioritySection) and rule.score == "magnitude"
    if not (asks and receipt.purpose == UPDATE):
        if given is not None:
            raise Malformed(f"{receipt.id}: it declares a size, and nobody asks for one")
    elif given is None or not 0 <= given <= LARGEST:
        raise Malformed(f"{receipt.id}: it declares a size of 0 to {LARGEST}, not {given}")


def check_shared_key(plan: Plan, receipt: Receipt) -> None:
    """Counts and sizes of what a receipt says of its one-time key; what is sealed, holders check.

    Raises:
        Malformed, Oversized: there is more or less than the plan's committee wants.
    """
    id, correction = receipt.id, receipt.correction
    shared = cipher(plan.cipher_parameters).opening is Opening.COMMITTEE
    if not shared or receipt.purpose != UPDATE:
        if receipt.envelopes or receipt.commitments or correction is not None:
            raise Malformed(f"{id}: it has no key to share, and no envelopes or commitments to it")
        return
    committee = plan.committee([f"{number:02d}" for number in range(plan.holders)])
    subsets, size = len(committee.subsets), committee.seed_bytes + OVERHEAD
    if len(receipt.envelopes) != plan.holders or len(receipt.commitments) != subsets:
        raise Malformed(
            f"{id}: {plan.holders} key holders want as many envelopes and {subsets} commitments, "
            f"not {len(receipt.envelopes)} and {len(receipt.commitments)}"
        )
    if any(len(commitment) != DIGEST_BYTES for commitment in receipt.commitments):
        raise Malformed(f"{id}: a commitment has {DIGEST_BYTES} bytes")
    for sealed in receipt.envelopes:
        if len(sealed) != size:
            kind = Oversized if len(sealed) > size else Malformed
            raise kind(f"{id}: an envelope has {size} bytes, not {len(sealed)}")
    if correction is None:
        raise Malformed(f"{id}: the correction of its key is missing")
    parse_vector(correction, key_length(plan.cipher_parameters))


def check_fact(plan: Plan, layout: GroupLayout, receipt: Receipt) -> None:
    """Malformed unless the charge or release is what the plan makes for this submission."""
    id, given = receipt.id, receipt.fact
    planned = None
    if receipt.purpose == UPDATE:
        attempt = 0 if given is None else max(0, given.attempt)
        planned = fact(plan, id.client, id.group, layout.size, receipt.version, attempt)
    if planned is None:
        if given is not None:
            raise Malformed(f"{id}: a charge where nothing is private")
        return
    wanted = (id.client, id.group, receipt.version)
    if given is None or (given.party, given.group, given.version) != wanted:
        raise Malformed(f"{id}: the privacy charge is missing or for another submission")
    if given != planned or (receipt.charge is not None and receipt.release is not None):
        raise Malformed(f"{id}: the privacy charge differs from the plan")


def check_scale(plan: Plan, group: str, scale: float | None) -> None:
    """Malformed unless it is a scale that this group's clip may have; None where that stays."""
    adaptive = plan.adaptive(group)
    if adaptive is not None:
        adaptive.check(scale)
    elif scale is not None:
        raise Malformed(f"{group} has a clip that stays, and a scale of {scale} was given")


def check_prepared(plan: Plan, prepared: Prepared, owner: str) -> None:
    """The scale of a clip comes from the shard that has it, and from no other.

    Args:
        owner: the shard that holds the group's last block.
    Raises:
        Malformed: a scale that the plan does not allow, or that this shard cannot know.
    """
    name, scale = prepared.shard, prepared.scale
    if name == owner:
        check_scale(plan, prepared.group, scale)
    elif scale is not None:
        raise Malformed(f"{name}: {owner} has the scale of {prepared.group}")
    if prepared.version == 0 and scale not in (None, FIRST):
        raise Malformed(f"{name}: {prepared.group} begins with a scale of {FIRST:g}, not {scale}")


def check_part(part: Checkpointed) -> None:
    """A shard's file lies in the checkpoint's own folder, whoever goes by its name.

    Raises:
        Malformed: a name that leads elsewhere, or no size.
    """
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
    """Accepts the header of a block of this layout that a party of this role may send.

    Raises:
        UnknownParty: this role sends no such blocks.
        Malformed: no digest, a sequence below 0, no such block, or too short.
        Oversized: too long.
    """
    if header.purpose not in PURPOSES.get(role, ()):
        raise UnknownParty(f"a {role} sends no {header.purpose!r} blocks")
    if len(header.digest) != DIGEST_BYTES or header.sequence < 0:
        raise Malformed("a block's header needs a 32-byte digest and a sequence >= 0")
    expected = block_bytes(plan, layout, header.purpose, header.block)
    if header.length != expected:
        kind = Oversized if header.length > expected else Malformed
        raise kind(f"{header.length} bytes, the plan makes {expected} for this block")
