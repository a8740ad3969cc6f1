"""How many bytes a client's messages have under a plan's own cipher, while sums are in the clear.

What is sealed is as long as its plan says, whatever is in it. So a simulation that plays in the
clear takes the virtual time of encryption without its work, and comes to the same model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from secureps.crypto.cipher import Opening
from secureps.errors import ConfigError
from secureps.messages.encoding import DIGEST_BYTES
from secureps.messages.requests import PutBlock, Submit
from secureps.messages.submission import UPDATE
from secureps.model.layout import GroupLayout, Layout
from secureps.policy.envelope_size import envelope_bytes
from secureps.policy.plan import Plan
from secureps.scenario.links import message_bytes


def sealed_bytes(plan: Plan, own: Layout, clear: Layout) -> Callable[[Any], int]:
    """As `scenario.links.message_bytes`: the bytes of a message that stands for a sealed one.

    Args:
        plan: under whose cipher it is sealed; own: its groups and blocks.
        clear: those of the plan that is played.

    Raises:
        ConfigError: the blocks of the two are not the same.
    """
    if [_spans(group) for group in own.all_groups] != [_spans(g) for g in clear.all_groups]:
        raise ConfigError(
            f"study.sealed: under {plan.section.cipher.name} the model lies in other blocks than "
            "in the clear, so that its bytes cannot be told: give the plan a block_size, by which "
            "it lies alike, or set study.sealed to 0, and all is encrypted"
        )

    @cache
    def of_block(group: str, block: int) -> int:
        layout = own.group(group)
        return plan.cipher_of(layout).block_bytes(layout.slots(block))

    @cache
    def of_key(group: str) -> int:
        if plan.opening is not Opening.COMMITTEE:
            return 0
        return envelope_bytes(plan.unnamed_committee, plan.key_length(own.group(group)))

    def size(message: Any) -> int:
        match message:
            case PutBlock(header) if header.purpose == UPDATE:
                return of_block(header.group, header.block)
            case Submit(receipt) if receipt.purpose == UPDATE:
                return len(receipt.blocks) * DIGEST_BYTES + of_key(receipt.id.group)
        return message_bytes(message)

    return size


def _spans(group: GroupLayout) -> tuple[str, list[tuple[int, int]]]:
    return group.name, [group.span(block) for block in range(group.blocks)]
