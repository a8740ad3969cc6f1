"""What a committee costs: CPU time of one core for each party, per submission or per cohort.

None of it depends on the model: a key has N = 2048 coefficients whatever it seals. With 3 of 4,
on one 2.5 GHz core, a submission takes a holder 0.15 ms (open, check, derive, add) and its
client 0.45 ms (share, and seal for all four); whoever opens a cohort needs 0.05 ms for the
answers, and 0.02 ms for each member's correction, which adds as a share does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from benchmarks.report import Row, report
from benchmarks.stopwatch import fastest
from secureps.crypto import envelope
from secureps.crypto.envelope import EnvelopeKey, seal
from secureps.crypto.sharing import (
    KEY_BOUND,
    Committee,
    HolderShare,
    SharedKey,
    Vector,
    answer,
    interpolate,
    judge,
    parse_vector,
    share,
    vector_bytes,
    weighted_sum,
)

DEGREE = 2048
COMMITTEES = ((1, 1), (2, 3), (3, 4), (5, 7))
"""(t, n)."""
ID = b"a run, a client, a group, a sequence"
RECEIPT = bytes(1000)
"""As long as a receipt: what envelopes are bound to."""

Made = TypeVar("Made")


def measure(degree: int = DEGREE, tries: int = 200) -> Sequence[Row]:
    """All rows; ms of CPU time, and bytes sent if any are."""
    return [row for t, n in COMMITTEES for row in _committee(t, n, degree, tries)]


def _committee(t: int, n: int, degree: int, tries: int) -> Sequence[Row]:
    rows: list[Row] = []

    def step(who: str, per: str, name: str, action: Callable[[], Made], sent: int = 0) -> Made:
        made, seconds = fastest(action, tries)
        rows.append(
            {
                "committee": f"{t} of {n}",
                "who": who,
                "per": per,
                "step": name,
                "ms": 1e3 * seconds,
                "bytes": sent,
            }
        )
        return made

    us = Committee(tuple(f"holder-{k}" for k in range(n)), t)
    keys = [EnvelopeKey.from_os() for _ in us.holders]
    rng = np.random.default_rng(1)
    secret = rng.integers(-KEY_BOUND, KEY_BOUND + 1, degree).astype(np.int32)

    public = 4 * degree + 32 * len(us.subsets)
    shared = step("client", "submission", "share", lambda: share(ID, secret, us), public)
    size = n * (us.seed_bytes + envelope.OVERHEAD)
    sealed = step("client", "submission", "seal", lambda: _sealed(shared, keys), size)

    step("holder", "key", "make", EnvelopeKey.from_os, len(keys[0].public.key))
    seeds = step("holder", "submission", "open", lambda: _opened(us, keys[0], sealed[0]))
    mine = HolderShare(us, 0, ID, seeds)
    step("holder", "submission", "check", lambda: mine.check(shared.commitments))
    derived = step("holder", "submission", "derive", lambda: mine.share(degree))
    step("holder", "submission", "add", lambda: weighted_sum([derived], [4]))
    step(
        "holder",
        "cohort",
        "answer",
        lambda: vector_bytes(answer([mine], [4], ID, degree)),
        4 * degree,
    )

    answers: dict[int, Vector] = {
        k: HolderShare(us, k, ID, _opened(us, keys[k], sealed[k])).share(degree) for k in range(n)
    }
    quorum = dict(list(answers.items())[:t])
    data = vector_bytes(derived)
    step("shard", "cohort", "parse", lambda: [parse_vector(data, degree) for _ in quorum])
    step("shard", "cohort", "interpolate", lambda: interpolate(us, quorum))
    step("shard", "cohort", "judge all", lambda: judge(us, answers))
    return rows


def _sealed(shared: SharedKey, keys: Sequence[EnvelopeKey]) -> list[bytes]:
    return [seal(key.public, shared.seeds_of(k), RECEIPT) for k, key in enumerate(keys)]


def _opened(us: Committee, key: EnvelopeKey, sealed: bytes) -> bytes:
    return envelope.open(key, sealed, RECEIPT, us.seed_bytes)


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    report("committee", f"Parties of a committee, keys of {DEGREE} coefficients", measure())


if __name__ == "__main__":
    main()
