"""One number for the format of messages, journals and checkpoints.

A change of format raises FORMAT: of fields of a message or record, of how they are sent, of what is
signed, of how a payload is packed, or of a checkpoint's content. Then:

    peers         with another format are refused at their first request
    journals      with another format are refused: a run ends in the format that it began in
    ledgers       over all runs are read since OLDEST_LEDGER: what was spent stays spent
    checkpoints   are read since OLDEST_CHECKPOINT: a new run begins from one
"""

from __future__ import annotations

from typing import Final

from secureps.errors import ConfigError

FORMAT: Final = 6

FINGERPRINT: Final = "a775753a6e6aa51e"
"""Digest of all that is sent, journalled and kept in files (`tests/golden/schema.py`)."""

OLDEST_LEDGER: Final = 2
OLDEST_CHECKPOINT: Final = 4


def describe_peer_format(party: str, theirs: int, server: str) -> str:
    """Tells a party that its format differs from that of the server it asked."""
    return (
        f"{party} has format {theirs} of secureps, and {server} format {FORMAT}: all parties of a "
        "run need one version: install the coordinator's on this party's machine, and start it "
        f"again with a new state folder; keep the one that it has, which is of format {theirs}"
    )


def describe_journal_format(path: object, found: int) -> str:
    if found > FORMAT:
        return describe_newer_format(path, found)
    return (
        f"{path}: format {found}, and this version of secureps has format {FORMAT}: finish the run "
        "with the version that began it; or begin a new run from its last checkpoint: secureps "
        'export writes the model, and the plan of the new run names it, initial = "FILE"'
    )


def demand_readable(path: object, found: int) -> None:
    """Refuses a checkpoint of a format that this version does not read (ConfigError)."""
    if found > FORMAT:
        raise ConfigError(describe_newer_format(path, found))
    if found < OLDEST_CHECKPOINT:
        raise ConfigError(
            f"{path}: format {found}, and this version of secureps reads checkpoints since format "
            f"{OLDEST_CHECKPOINT}: export its model with the version that wrote it"
        )


def describe_newer_format(path: object, found: int) -> str:
    return (
        f"{path}: format {found}, and this version of secureps knows formats up to {FORMAT}: "
        "install the version that wrote it"
    )
