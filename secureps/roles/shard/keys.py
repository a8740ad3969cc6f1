"""Under which keys a shard's payloads lie, and of what a payload is."""

from __future__ import annotations

from secureps.messages.submission import OPENED, BlockHeader, SubmissionId

BlockName = tuple[str, str, str, int, int]
"""(purpose, author, group, sequence, block): one payload, for ever."""


def block_name(header: BlockHeader) -> BlockName:
    return (header.purpose, header.author, header.group, header.sequence, header.block)


def name_under(key: str) -> BlockName:
    purpose, author, group, sequence, block, _ = key.split("/")
    return (purpose, author, group, int(sequence), int(block))


def submission_of(name: BlockName) -> SubmissionId | None:
    """The submission that a block is part of; None for an opened sum."""
    purpose, author, group, sequence, _ = name
    return None if purpose == OPENED else SubmissionId(author, group, sequence)


def sum_key(group: str, cohort: int, block: int) -> str:
    """Where a shard keeps the ciphertext sum of a block of a cohort."""
    return f"sum/{group}/{cohort}/{block}"


def noise_key(group: str, cohort: int, block: int, about: bytes) -> str:
    """Where it keeps what shards add to that sum themselves, sealed.

    Args:
        about: the `cohort_digest`. Noise of another cohort of that number would be the same in two
            sums, and cancel in their difference.
    """
    return f"{sum_key(group, cohort, block)}/noise/{about.hex()}"


def cohort_under(key: str) -> tuple[tuple[str, int], str | None]:
    """The (group, cohort) of a sum's key; for noise also what it is about, in hex."""
    _, group, number, _, *noise = key.split("/")
    return (group, int(number)), noise[-1] if noise else None


def state_key(group: str, version: int, block: int) -> str:
    """Where a shard finds a block's values and optimizer, its own or fetched from another."""
    return f"state/{group}/{version}/{block}"


def model_key(group: str, version: int, block: int, since: int | None = None) -> str:
    """Where a shard's worker finds a published block, or its differences `since` a version."""
    return f"model/{group}/{version}/{block}" + ("" if since is None else f"/{since}")
