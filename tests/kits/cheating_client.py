"""A data holder that seals well and shares its one-time key badly, for tests.

`--set cheat=KIND@VERSION`, VERSION being the one that is made of it:

    garbage         random envelopes
    replayed        the envelopes of its submission before
    swapped         holders 0 and 1 get each other's
    inconsistent    holders 0 and 1 get other seeds than the receipt commits to
    truncated       an envelope lacks its last byte
    wrong-key       all of it fits together, and it is another key than the one it sealed with

With `hangs` it cheats nobody: its disk does not give back what it sealed until there is a file
`go`, and it counts as hanging after a second.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from secureps.client.runner import run_client
from secureps.client.sealing import OutboxSealer
from secureps.crypto import envelope
from secureps.messages.submission import Receipt, enveloped_part
from tests.kits import faulty_server, walker_client
from tests.kits.federations import Walker

Envelopes = tuple[bytes, ...]


def garbage(sealer: OutboxSealer, receipt: Receipt, last: Envelopes) -> Envelopes:
    return tuple(os.urandom(len(sealed)) for sealed in receipt.envelopes)


def replayed(sealer: OutboxSealer, receipt: Receipt, last: Envelopes) -> Envelopes:
    assert last
    return last


def swapped(sealer: OutboxSealer, receipt: Receipt, last: Envelopes) -> Envelopes:
    first, second, *others = receipt.envelopes
    return (second, first, *others)


def inconsistent(sealer: OutboxSealer, receipt: Receipt, last: Envelopes) -> Envelopes:
    seeds = bytes(len(receipt.envelopes[0]) - envelope.OVERHEAD)
    made = []
    for name in sorted(sealer._holder_keys)[:2]:
        newest = sealer._announced().get(name)
        raw = sealer._holder_keys[name] if newest is None else newest.key
        key = envelope.EnvelopePublicKey(raw)
        made.append(envelope.seal(key, seeds, enveloped_part(receipt, name)))
    return (*made, *receipt.envelopes[2:])


def truncated(sealer: OutboxSealer, receipt: Receipt, last: Envelopes) -> Envelopes:
    return (receipt.envelopes[0][:-1], *receipt.envelopes[1:])


SPOILS: dict[str, Callable[[OutboxSealer, Receipt, Envelopes], Envelopes]] = {
    kind.__name__: kind for kind in (garbage, replayed, swapped, inconsistent, truncated)
}


def make(settings: Mapping[str, Any]) -> Walker:
    kind, _, version = settings["cheat"].partition("@")
    if kind == "hangs":
        faulty_server.hang_at("reads", int(version), "wait=go")
    right, last = OutboxSealer._share_key, [Envelopes()]

    def shared(sealer: OutboxSealer, pinned: Any, receipt: Receipt, key: Any) -> Receipt:
        now = receipt.version + 1 == int(version)
        if now and kind == "wrong-key":
            key = type(key)(key.coefficients()[::-1].copy())
        made = right(sealer, pinned, receipt, key)
        if now and kind in SPOILS:
            made = dataclasses.replace(made, envelopes=SPOILS[kind](sealer, made, last[0]))
        last[0] = made.envelopes
        return made

    OutboxSealer._share_key = shared  # type: ignore[method-assign, assignment]
    return walker_client.make(settings)


if __name__ == "__main__":
    run_client(make)
