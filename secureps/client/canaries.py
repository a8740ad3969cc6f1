"""Canaries in single releases of a plan, made by the code that a run executes.

A release is a private step of DP-SGD, or the opened sum of a group. A canary that is out is the
plan's own neighbour: no such record or person (zeros under `zero-out`), or a client's update of
zeros, which counts as neither short nor cut. One that is in is the worst case, a thousand clips
long in one direction. The observer knows all other data and their noise. The score is the release's
part in that direction, in clips. Noise comes from the operating system, and only coins are seeded.

- **A step** is one of `TorchTrainer.fit`, for a layer whose loss has the record as its gradient. It
  is read at the optimizer; a fit of 100 steps is 100 trials, each with its own batch and noise.
  Others' gradients are zero; or oppose the canary, which then moves a sum by two clips if it takes
  another's place, as in batches of a fixed size.
- **A sum** is made by `clip_update`, `UpdateIntegers` and the shards' `draw_noise`. It is exact,
  and the same under every cipher, so the observer subtracts members whose noise it knows: they are
  left out. What remains is the canary (`local`), with the shards' noise (`aggregator`), or with
  the honest - 1 members on whose noise the plan counts, itself among them (`distributed`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.trainer import SECRET_BYTES, FitConfig, RecordPrivacy, record_privacy
from secureps.client.update import Update, UpdateIntegers, clip_update
from secureps.client.worker import make_addends
from secureps.config.plan import RecordPrivacySection
from secureps.crypto.sampling import SecretSeed
from secureps.extras import from_extras
from secureps.messages.charge import Charge, Fact
from secureps.messages.run import TensorSpec
from secureps.messages.submission import Cohort
from secureps.model.layout import GroupLayout
from secureps.policy.block_deltas import block_codes
from secureps.policy.plan import Plan, counts_by_public_number
from secureps.policy.spending import make_fact
from secureps.privacy.client_level import FIRST
from secureps.privacy.mechanism import clip_l2
from secureps.roles.member.tasks import Aim
from secureps.service.shard.worker import draw_noise

LONG = 1000.0
"""A canary's length in clips."""

STEPS, TOGETHER, OPPOSED = 100, 500, 50
"""Steps of a fit (or canaries of a batch of sums); canaries of a step; the most that oppose one."""

MANY = "many at once"
"""The attack whose canaries share releases, so that only `one_run_bound` may judge it."""

Floats = NDArray[np.float32]
Coins = NDArray[np.bool_]

Trials = tuple[Coins, NDArray[np.floating[Any]]]
"""Says of each canary whether it was in, bool [trials], and has its score, floats [trials]."""

Play = Callable[[np.random.Generator], Trials]
"""Makes the next trials; the generator throws coins."""


@dataclass(frozen=True)
class Mechanism:
    """One kind of release of a plan, and the attacks on it by name.

    Args:
        fact: the ledger's, of one release.
        noise: its standard deviation in the canary's direction, in clips.
        rate: the probability that a canary that is in moves the release.
    """

    name: str
    fact: Fact
    noise: float
    rate: float
    attacks: Mapping[str, Play]


def mechanisms(plan: Plan, sizes: Mapping[str, int]) -> list[Mechanism]:
    """Returns all kinds of noisy releases of a plan; `sizes` has the values of each group."""
    if isinstance(plan.section.privacy, RecordPrivacySection):
        return [_step(plan, plan.section.privacy)]
    evaluation = {plan.trailing: plan.metrics_count} if plan.trailing else {}
    return [_sum(plan, layout) for layout in plan.lay_out_sizes({**sizes, **evaluation})]


def _step(plan: Plan, section: RecordPrivacySection) -> Mechanism:
    privacy = record_privacy(plan, section.records or 1)
    fact = make_fact(plan, "canary", plan.groups[0], 1, 0)
    assert privacy is not None
    assert isinstance(fact, Charge)
    removed, long = counts_by_public_number(plan.section), LONG * privacy.max_grad_norm

    def observe(x: Floats, present: Coins, steps: int) -> Floats:
        return observe_steps(privacy, x[present] if removed else x * present[:, None], steps)

    def compare(others: list[float], _: np.random.Generator) -> Trials:
        x, here = np.array([[long], *([each] for each in others)], np.float32), [True] * len(others)
        seen = [observe(x, np.array([inside, *here]), STEPS) for inside in (True, False)]
        return np.repeat([True, False], STEPS), np.concatenate(seen).reshape(-1)

    def gather(rng: np.random.Generator) -> Trials:
        x = long * np.eye(TOGETHER + 1, TOGETHER, dtype=np.float32)  # the last row is zero
        coins = rng.random(TOGETHER) < 0.5
        return coins, observe(x, np.append(coins, True), 1)[0]

    attacks: dict[str, Play] = {"alone": partial(compare, [0.0]), MANY: gather}
    if privacy.sample_rate < 1:
        others = min(OPPOSED, round(1 / privacy.sample_rate) + 1)  # about one of them in a batch
        attacks["opposed by others"] = partial(compare, [-long] * others)
    law = privacy.noise_multiplier, privacy.sample_rate
    title = f"a private step, by {privacy.unit}"
    return Mechanism(title, replace(fact, steps=1), *law, attacks)


def observe_steps(privacy: RecordPrivacy, x: Floats, steps: int) -> Floats:
    """Takes private steps on records whose gradients are the rows of `x` [records, values].

    Under the unit "person" a row is the gradient of both records of a person. Returns the noisy sum
    of each step, in clips, float32 [steps, values].
    """
    with from_extras():
        from torch import nn
        from torch.optim.optimizer import register_optimizer_step_post_hook

        from secureps.client.torch import TorchTrainer

    seen = list[Floats]()

    def note(optimizer: Any, *_: Any) -> None:
        (weight,) = optimizer.param_groups[0]["params"]
        seen.append(weight.grad.numpy().reshape(-1).copy())

    records = np.arange(len(x)).repeat(2 if privacy.unit == "person" else 1)
    data = x[records], np.zeros(len(records), np.float32)
    layer = partial(nn.Linear, x.shape[1], 1, bias=False)
    trainer = TorchTrainer(
        layer, data, data, loss=lambda y, _: y.mean(), device="cpu", persons=records
    )
    secret, settings = os.urandom(SECRET_BYTES), {"local_steps": steps, "lr": 2.0**-20}
    config = FitConfig({}, secrets.randbits(63), settings, privacy, secret=secret)
    observer = register_optimizer_step_post_hook(note)
    try:
        trainer.fit(trainer.parameters(0), config)
    finally:
        observer.remove()
    return np.stack(seen) * np.float32(privacy.expected_batch(len(x)) / privacy.max_grad_norm)


def _sum(plan: Plan, layout: GroupLayout) -> Mechanism:
    name, blocks = layout.name, range(layout.blocks)
    fact = make_fact(plan, "canary", name, layout.sent, 0)
    mechanism = plan.mechanism(name, layout.sent)
    assert fact is not None
    assert mechanism is not None
    codes, shares = block_codes(plan, layout, 0, ()), mechanism.shares
    many = min(shares, codes(0).sent)

    def seal(update: Update) -> NDArray[np.int64]:
        """Makes the integers that a member seals, without the middle of the grid."""
        own = SecretSeed.from_os().derive
        integers = UpdateIntegers("canary", plan, layout, Aim(name, 0, 0), own)
        made = dict(integers.make(codes, update, 1, 1.0)[1])
        return np.concatenate([made[block] for block in blocks]).astype(np.int64) - mechanism.most

    def aim(place: int) -> NDArray[np.float64]:
        """Returns a canary's direction, by which the integers' product is its length in clips."""
        values = make_longest(plan, layout, place).values
        parts = [codes(k).encode(values[slice(*layout.span(k))]) for k in blocks]
        sent = np.concatenate(parts).astype(np.float64)
        return np.asarray(sent * (mechanism.calibration.step / np.square(sent).sum()))

    directions = np.stack([aim(place) for place in range(many)])

    def release(coins: Coins) -> NDArray[np.float64]:
        total = np.zeros(layout.sent, np.int64)
        for place, inside in enumerate([*coins, *[False] * (shares - len(coins))]):
            silent = Update(np.zeros(layout.size, np.float32), 0.0)
            total += seal(make_longest(plan, layout, place) if inside else silent)
        if plan.noisy_shards:
            seed, cohort = SecretSeed.from_os(), Cohort(name, 0, 1, 0, ())
            noise = [draw_noise(plan, layout, seed, cohort, block) for block in blocks]
            total += np.concatenate(noise) - mechanism.most
        return np.asarray(directions[: len(coins)] @ total)

    def play(canaries: int, rng: np.random.Generator) -> Trials:
        coins = rng.random((-(-STEPS // canaries), canaries)) < 0.5
        return coins.reshape(-1), np.concatenate([release(each) for each in coins])

    what = "an evaluation" if plan.trails(name) else f"a sum of {name}"
    title = f"{what}, {mechanism.placement}{', adaptive clip' if plan.adaptive(name) else ''}"
    noise = mechanism.stddev * float(np.linalg.norm(directions[0]))
    attacks = {"alone": partial(play, 1), MANY: partial(play, many)}
    return Mechanism(title, fact, noise, 1.0, attacks)


def make_longest(plan: Plan, layout: GroupLayout, place: int) -> Update:
    """Makes a clipped update that was a thousand clips long, in the value sent at `place` alone."""
    code, values = block_codes(plan, layout, 0, ())(0), np.zeros(layout.size, np.float32)
    clip, one = plan.group(layout.name).clip, np.zeros(code.sent, np.float32)
    one[place] = LONG * clip
    values[slice(*layout.span(0))] = code.decode(one)
    if plan.trails(layout.name):
        return Update(*clip_l2(values, clip))
    if plan.is_sum(layout.name):
        spec = TensorSpec("canary", (layout.size,), "float32")
        return make_addends(plan, replace(layout, tensors=(spec,)), {"canary": values})
    scale = FIRST if plan.adaptive(layout.name) else None
    return replace(clip_update(plan, layout, values, scale, {}), uncut=None)  # logs no cut
