"""What is in each file of `vectors/`, made by the real functions from fixed seeds."""

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.codec import delta
from secureps.codec.chain import Chain
from secureps.codec.grid import Grid, MovingRange
from secureps.config.plan import OptimizerSection
from secureps.crypto import sharing
from secureps.crypto.cipher import CipherParameters, Place
from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.identity import Identity
from secureps.crypto.ring import RINGS, choose
from secureps.crypto.rlwe import PublicPolynomials, RlweAdder, RlweOpener, RlweSealing
from secureps.crypto.sampling import SecretSeed, UnsafeSeed, public_stream
from secureps.messages import submission
from secureps.messages.charge import Charge, Release
from secureps.messages.encoding import canonical, digest, file_digest, payload_digest, to_plain
from secureps.messages.submission import BlockHeader, Cohort, Receipt
from secureps.model.optimizer import OPTIMIZERS, SCHEDULES, build_optimizer
from secureps.privacy.accountant import client_epsilon, epsilon
from secureps.privacy.client_level import AdaptiveClip, ClientMechanism
from secureps.privacy.skellam import Skellam
from secureps.wire import msgpack
from tests.crypto.test_envelope import KNOWN, SECRET, opened_slowly, schedule
from tests.golden.values import full
from tests.kits.sharing_kit import fixed_urandom

Vector = dict[str, Any]
FIRST = 16
"""Values of an array that a file has; its digest stands for the rest."""
SEED = bytes(range(32))
RUN = bytes(range(64, 96))
LAYOUT = bytes(range(96, 128))
ABOUT = bytes([7]) * 32
WEIGHTS = (1, 2, 4)


def array(values: NDArray[Any], dtype: str) -> Vector:
    little = np.ascontiguousarray(values, dtype)
    first = [float(v).hex() if "f" in dtype else str(v) for v in little[:FIRST]]
    own = file_digest(little.tobytes()).hex()
    return {"type": dtype, "count": little.size, "first": " ".join(first), "blake2b": own}


def payload(data: bytes | memoryview) -> Vector:
    whole, own = bytes(data), payload_digest(data)
    return {"bytes": len(whole), "first": whole[:FIRST].hex(), "blake3": own.hex()}


def floats(count: int, seed: int) -> NDArray[np.float32]:
    """Float32 values in [-1, 1) that no library draws."""
    words = UnsafeSeed(seed).derive("floats").words(count)
    return ((words >> np.uint32(8)).astype(np.float32) / np.float32(1 << 23)) - np.float32(1)


# --- seeds, polynomials, ciphertexts ----------------------------------------------


def seeds() -> Vector:
    lists: tuple[tuple[Any, ...], ...] = (
        (),
        ("round", "clinic-a", "all", 3, 0),
        ("é", b"\x00\xff", -12, 1 << 70),
    )
    streams = []
    for labels in lists:
        told = [f"{type(each).__name__} {to_plain(each)}" for each in labels]
        secret, unsafe = SecretSeed(SEED).derive(*labels), UnsafeSeed(7).derive(*labels)
        drawn = {"secret": secret, "unsafe": unsafe, "public": public_stream(*labels)}
        words = {name: array(stream.words(40), "<u4") for name, stream in drawn.items()}
        streams.append({"labels": told, **words})
    hashed = {n: bytes(i % 251 for i in range(n)) for n in (0, 1, 64, 1024, 1025, 2048, 13_568)}
    parts, me = ((), (b"",), (b"one", b"two")), Identity(SEED)
    return {
        "secret_seed": SEED.hex(),
        "unsafe_seed": 7,
        "streams": streams,
        "blake3": {n: payload_digest(data).hex() for n, data in hashed.items()},
        "digests": [[[p.hex() for p in of], digest("a domain", *of).hex()] for of in parts],
        "public": me.public.key.hex(),
        "signature": me.sign(b"a domain", b"a message").hex(),
    }


def place(slots: int) -> Place:
    return Place(RUN, "all", LAYOUT, slots)


def polynomials() -> Vector:
    made = []
    for ring, element in zip(RINGS, (3, 0, 2, 0, 1), strict=True):
        rows = PublicPolynomials(ring, place(1)).derive(element, 1)[0]
        made.append({"ring": ring.name, "element": element, "a": [array(a, "<u4") for a in rows]})
    return {"run": RUN.hex(), "layout": LAYOUT.hex(), "polynomials": made}


def ciphertexts() -> Vector:
    narrow, wide = CipherParameters("rlwe", 32, 65_534, 4), CipherParameters("rlwe", 7, 2, 4)
    large = CipherParameters("rlwe", 32, (1 << 20) - 2, 4, slots=1 << 22)
    sums = [summed(narrow, 4, 0), summed(narrow, 5_000, 1), summed(large, 9_000, 2)]
    safe = replace(narrow, slots=4_096, security="conservative")
    sums += [summed(wide, 10_000, 0), summed(safe, 100, 3)]
    return {"run": RUN.hex(), "layout": LAYOUT.hex(), "weights": list(WEIGHTS), "sums": sums}


def summed(parameters: CipherParameters, slots: int, block: int) -> Vector:
    """One block of three members, added and opened."""
    adder, enc = RlweAdder(parameters), choose(parameters)
    sums, keys, blocks = adder.zero(slots), np.zeros(enc.ring.degree, np.int64), []
    for i, weight in enumerate(WEIGHTS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "urandom", lambda size: bytes([i] * size))  # noqa: B023
            sealer = RlweSealing(parameters, place(slots))
        values = np.arange(1, slots + 1) * 7919 * (i + 1) % (parameters.levels + 1)
        blocks.append(sealer.seal(block, values))
        adder.add(sums, blocks[-1], weight)
        keys += weight * sealer.key.coefficients().astype(np.int64)
    total = adder.total(sums)
    opener = RlweOpener(parameters, place(slots), keys, sum(w * w for w in WEIGHTS))
    return {
        "capacity": parameters.capacity,
        "levels": parameters.levels,
        "most_weight": parameters.most_weight,
        "ring": enc.ring.name,
        "digits": enc.digits,
        "delta": str(enc.delta),
        "slots": slots,
        "block": block,
        "blocks": [payload(each) for each in blocks],
        "total": payload(total),
        "key_sum": array(keys, "<i4"),
        "opened": array(opener.open(block, total, slots), "<i8"),
    }


# --- shares -----------------------------------------------------------------------


def shares() -> Vector:
    return {"about": ABOUT.hex(), "committees": [committee(4, 3), committee(3, 2)]}


def committee(n: int, t: int) -> Vector:
    """Two submissions of weights 2 and 1, and their opening by the last t of n holders."""
    us = sharing.Committee(tuple(f"holder-{k}" for k in range(n)), t)
    weights, size, members, made = (2, 1), 2048, [], []
    for i in range(2):
        id = b"run/hospital-%d/all/7" % i
        key = (np.arange(size) * (3 + i) % 83 - 41).astype(np.int32)
        with pytest.MonkeyPatch.context() as patch:
            fixed_urandom(patch, 1 + 100 * i)
            shared = sharing.share(id, key, us)
        own = [commitment.hex() for commitment in shared.commitments]
        public = {"commitments": own, "correction": array(shared.correction, "<u4")}
        members.append({"id": id.hex(), "key": array(key, "<i4"), **public})
        made.append((id, shared))
    answers, holders = {}, []
    for k in range(n):
        held = [sharing.HolderShare(us, k, id, each.seeds_of(k)) for id, each in made]
        parts = [each.share(size) for each in held]
        answers[k] = sharing.answer(held, weights, ABOUT, size)
        plain = sharing.weighted_sum(parts, weights)
        zero = sharing.combination((1, sharing.P - 1), (answers[k], plain))
        told = {"share_of_zero": array(zero, "<u4"), "answer": array(answers[k], "<u4")}
        shares = [array(each, "<u4") for each in parts]
        holders.append({"seeds": list(us.held_by(k)), "shares": shares, **told})
    chosen = {k: answers[k] for k in range(n - t, n)}
    opened = sharing.key_sum(us, chosen, [each.correction for _, each in made], weights)
    subsets = [list(each) for each in us.subsets]
    whole = {"threshold": t, "subsets": subsets, "weights": list(weights), "members": members}
    return whole | {"holders": holders, "opened_by": list(chosen), "key_sum": array(opened, "<i4")}


def envelopes() -> Vector:
    """What of an envelope can be computed again: the key pair, the key schedule, an opening."""
    key, nonce = schedule(SEED, b"a receipt")
    return {
        "secret": SECRET.hex(),
        "public": file_digest(EnvelopeKey(SECRET).public.key).hex(),
        "bound_to": "a receipt",
        "kem_secret": SEED.hex(),
        "key": key.hex(),
        "nonce": nonce.hex(),
        "envelope": KNOWN.hex(),
        "opens_to": opened_slowly(SECRET, KNOWN, b"a receipt").hex(),
    }


# --- messages and receipts --------------------------------------------------------


def messages() -> Vector:
    sent = [full(msgpack.SENT[name]) for name in ("Telemetry", "GetBlock", "Stored", "Noted")]
    made = [[type(each).__name__, to_plain(each), msgpack.encode(each).hex()] for each in sent]
    return {"messages": made}


def receipts() -> Vector:
    """A receipt, a cohort and a block's header, with something in every field."""
    me, receipt, cohort = Identity(SEED), full(Receipt), full(Cohort)
    root = submission.ciphertext_root(receipt.blocks, receipt.correction)
    domain, text = submission.signing_bytes(receipt := replace(receipt, root=root))
    receipt = replace(receipt, signature=me.sign(domain, text))
    domain, header = submission.signing_bytes(full(BlockHeader))
    return {
        "run": RUN.hex(),
        "public": me.public.key.hex(),
        "receipt": to_plain(receipt),
        "receipt_signed": text.decode(),
        "receipt_digest": receipt.digest.hex(),
        "base": submission.model_digest("all", 3, receipt.blocks).hex(),
        "sharing_id": submission.sharing_id(RUN, receipt.id).hex(),
        "envelope_of_holder_1_is_bound_to": submission.enveloped_part(receipt, "holder-1").decode(),
        "header_signed": header.decode(),
        "header_signature": me.sign(domain, header).hex(),
        "cohort": to_plain(cohort),
        "cohort_canonical": canonical(cohort).decode(),
        "cohort_digest": submission.cohort_digest(RUN, cohort).hex(),
        "opening_digest": submission.opening_digest(RUN, cohort, [receipt.digest]).hex(),
    }


# --- noise and privacy ------------------------------------------------------------


def noise() -> Vector:
    draws, mechanisms = [], []
    for variance in (0.75, 40.0, 1e6, 2.0**34):
        drawn = Skellam(variance).sample(1000, UnsafeSeed(3).derive("skellam").words)
        draws.append({"variance": variance.hex(), "draws": array(drawn, "<i8")})
    for placement, honest in (("local", 1), ("distributed", 3), ("aggregator", 1)):
        made = ClientMechanism(1.5, 300, 16, 1.25, placement, honest)  # type: ignore[arg-type]
        update, cost = floats(300, 5) / np.float32(16), made.release("a", "all", 0)
        rounded = made.round_update(update, UnsafeSeed(5).derive("round").words)
        told: Vector = {"update": array(update, "<f4"), "rounded": array(rounded, "<i8")}
        sent = made.add_noise(rounded, UnsafeSeed(5).derive("noise").words)
        told |= {"sent": array(sent, "<i8"), "placement": placement, "honest": honest}
        told |= {"step": made.calibration.step.hex(), "limit": made.calibration.limit}
        told |= {"variance": made.calibration.variance.hex(), "release": to_plain(cost)}
        mechanisms.append(told)
    adaptive, moving, scales = AdaptiveClip(1.5, 0.5), MovingRange(2.0, 0.5), []
    for mover in (adaptive, moving):
        for scale, mean in ((1.0, 0.25), (0.5, -0.3), (0.75, -0.5)):
            after = mover.next_scale(scale, mean)
            scales.append([type(mover).__name__, scale, mean, after.hex()])
    clip = {"indicator": adaptive.indicator.hex(), "norm": adaptive.norm.hex()}
    return {"skellam": draws, "mechanisms": mechanisms, **clip, "scales": scales}


def ledgers() -> Vector:
    charges = (
        [Charge("a", "all", v, 1.1, 0.25, 40) for v in range(5)],
        [Charge("a", "all", 0, 20.0, 1.0, 10), Charge("a", "head", 0, 8.0, 0.1, 100)],
    )
    last = Release("a", "head", 0, 50.0, 300.0, 75.0, 1, 0.0)
    releases = (
        [Release("a", "all", v, 2244.685, 59558.25, 2244.5, 2, 2.0**-130) for v in range(3)],
        [*(Release("a", "all", v, 100.0, 900.0, 250.0, 1, 2.0**-70) for v in range(8)), last],
    )
    # Logarithms differ between machines in their last bits.
    spent = [[to_plain(facts), round(epsilon(facts, 1e-5), 6)] for facts in charges]
    more = [[to_plain(facts), round(client_epsilon(facts, 1e-5), 6)] for facts in releases]
    return {"delta": 1e-5, "charges": spent, "releases": more}


# --- codecs and optimizers --------------------------------------------------------


def codecs() -> Vector:
    base, x, chains = payload_digest(b"a block"), floats(1_500, 1), []

    def draw(stage: str, count: int) -> NDArray[np.uint32]:
        labels: dict[str, tuple[Any, ...]] = {"support": (5, base), "rotate": ()}
        return public_stream(stage, "all", 2, *labels[stage]).words(count)

    for one_in, rotates, unbiased, apart in (
        *((1, True, True, 0), (4, False, True, 0), (4, False, False, 0)),
        *((3, True, True, 0), (3, True, True, 1)),
    ):
        code = Chain(one_in, rotates, unbiased).block(x.size, draw, apart)
        encoded = code.encode(x).astype(np.float64)
        own = {"encoded": array(encoded, "<f8"), "decoded": array(code.decode(encoded), "<f4")}
        told = {"one_in": one_in, "rotate": rotates, "feedback": not unbiased, "apart": apart}
        chains.append(told | own)
    grid = Grid(8, 0.75)
    steps = grid.encode(x, UnsafeSeed(2).derive("round").words(x.size), 0.625).astype(np.int64)
    mean = grid.mean(grid.decode_sum(3 * steps, 3), Fraction(15, 8))
    rounded: Vector = {"bits": 8, "range": 0.75, "share": 0.625, "integers": array(steps, "<i4")}
    codes, followed = delta.encode(x, floats(1_500, 4), 5), floats(1_500, 4)
    delta.add(followed, codes, 5)
    difference = {"bits": 5, "payload": codes.tobytes().hex(), "after": array(followed, "<f4")}
    known: Vector = {"group": "all", "block": 2, "version": 5, "base": base.hex(), "chains": chains}
    known |= {"values": array(x, "<f4"), "difference": difference}
    return known | {"grid": rounded | {"weight": 3, "mean": array(mean, "<f4")}}


def optimizers() -> Vector:
    """Three steps of each optimizer under one of the schedules."""
    made, start, updates = [], floats(20, 1), floats(60, 2).reshape(3, 20)
    for name, kind in zip(OPTIMIZERS, itertools.cycle(SCHEDULES)):
        schedule = {"name": kind, "decay": 0.75, "warmup_steps": 2}
        keys = {"name": name, "learning_rate": 0.1, "schedule": schedule}
        section = OptimizerSection.model_validate(keys)
        optimizer = build_optimizer(section, 4)
        values, state = start, optimizer.init(start)
        for update in updates:
            values, state = optimizer.apply(update, values, state)
        slots = {slot: array(v, "<f4") for slot, v in sorted(state.slots.items())}
        own = {"values": array(values, "<f4"), "slots": slots}
        made.append({"optimizer": section.model_dump(mode="json"), **own})
    return {"start": array(start, "<f4"), "versions": 4, "optimizers": made}


MAKERS: tuple[Callable[[], Vector], ...] = (
    *(seeds, polynomials, ciphertexts, shares, envelopes, messages, receipts),
    *(noise, ledgers, codecs, optimizers),
)
"""Each makes the file of its name."""
