"""What a plan means: who sees what, who must collude, what it spends and what it costs.

Computed from the plan and the number of values in each group, by the same code that the
parties run. What must not live here: how it looks (`run.check`), and any measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from secureps.config import ClientPrivacySection, RecordPrivacySection
from secureps.crypto.cipher import Opening
from secureps.crypto.suite import cipher
from secureps.policy.plan import Plan
from secureps.policy.spending import fact, spent

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Sight:
    """What one role sees and never sees, as long as it keeps to the protocol."""

    role: str
    sees: str
    never: str


@dataclass(frozen=True, slots=True)
class GroupCost:
    """What one group costs.

    Args:
        values: of the model in this group; blocks: how many they are cut into.
        bits: of one integer; step: distance of two of them, in the model's units.
        cohort: members of the smallest and of the largest cohort that is opened.
        bytes_up: of one client's update; ratio: to the same values as plain fp32.
        bytes_down: of a version that a client pulls, at most.
    """

    name: str
    values: int
    blocks: int
    bits: int
    step: float
    cohort: tuple[int, int]
    bytes_up: int
    ratio: float
    bytes_down: int


@dataclass(frozen=True, slots=True)
class Price:
    """What privacy spends and what its noise costs.

    Args:
        unit: what is protected, in words.
        epsilon_version, epsilon_run: of one client, at `delta`; infinite without noise.
        budget: the epsilon at which a client stops.
        versions: how many the budget allows, at most the plan's.
        noise: standard deviation of the noise on one value of the mean update, in the model's
            units, over that value's share of a clipped update (clip / sqrt(values)); by group.
    """

    unit: str
    epsilon_version: float
    epsilon_run: float
    delta: float
    budget: float
    versions: int
    noise: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A sound plan, explained.

    Args:
        sights: by role; collusion: who must work together to open a single update.
        price: None if nothing is private.
        groups: costs, in the plan's order.
        shard_state: bytes of model and optimizer that each of the shards keeps, on average;
            shard_spool: bytes of updates on its disk while a cohort is open.
        remarks: what else to know before this plan is run.
    """

    name: str
    versions: int
    cipher: str
    shards: int
    sights: tuple[Sight, ...]
    collusion: str
    price: Price | None
    groups: tuple[GroupCost, ...]
    shard_state: int
    shard_spool: int
    remarks: tuple[str, ...]


def explain(plan: Plan, sizes: Mapping[str, int]) -> Explanation:
    """Explains a plan for a model with `sizes` values in each group (see `Layout`)."""
    groups = tuple(_cost(plan, name, sizes[name]) for name in plan.groups)
    most = {group.name: group.cohort[1] for group in groups}
    shards = plan.section.shards
    return Explanation(
        name=plan.section.name,
        versions=plan.section.versions,
        cipher=plan.section.cipher.name,
        shards=shards,
        sights=_sights(plan),
        collusion=_collusion(plan),
        price=_price(plan, sizes),
        groups=groups,
        shard_state=sum(_state_bytes(plan, name, sizes[name]) for name in plan.groups) // shards,
        shard_spool=sum(most[g.name] * g.bytes_up for g in groups) // shards,
        remarks=_remarks(plan, sizes),
    )


def _cost(plan: Plan, name: str, values: int) -> GroupCost:
    section, grid, rule = plan.group(name), plan.grid(name, values), plan.rule(name)
    block_values = plan.section.block_size - 1
    blocks = -(-values // block_values)
    adder = cipher(plan.cipher_parameters).adder()
    last = values - (blocks - 1) * block_values
    up = (blocks - 1) * adder.block_bytes(block_values + 1) + adder.block_bytes(last + 1)
    return GroupCost(
        name=name,
        values=values,
        blocks=blocks,
        bits=section.bits,
        step=grid.step,
        cohort=(rule.minimum, rule.most),
        bytes_up=up,
        ratio=up / (FLOAT_BYTES * values),
        bytes_down=FLOAT_BYTES * values,
    )


def _state_bytes(plan: Plan, name: str, values: int) -> int:
    """Two versions of the model and of what the optimizer remembers."""
    slots = {"sgd": 0, "momentum": 1, "adam": 2, "yogi": 2}[plan.group(name).optimizer.name]
    return 2 * FLOAT_BYTES * values * (1 + slots)


def _sights(plan: Plan) -> tuple[Sight, ...]:
    sealed = cipher(plan.cipher_parameters).opening is not Opening.NOTHING
    noise = ", its own noise" if plan.noisy_shards else ""
    client = Sight("client", "its own records, published models", "another client's update")
    coordinator = Sight(
        "coordinator", "who takes part, when, how large; receipts; charges", "updates, sums, models"
    )
    if not sealed:
        shard = Sight("shard", f"every client's update, sums, the model{noise}", "records")
        return client, coordinator, shard
    return (
        client,
        coordinator,
        Sight("shard", f"ciphertexts, the sum of each cohort, the model{noise}", "a single update"),
        Sight("key holder", "receipts, cohort lists, every opened sum", "ciphertexts, models"),
    )


def _collusion(plan: Plan) -> str:
    if cipher(plan.cipher_parameters).opening is Opening.NOTHING:
        return "nobody needs help: shards read every update"
    least = min(plan.rule(name).minimum for name in plan.groups)
    return (
        "the aggregator together with the key holder; a malicious shard alone, if it gives the "
        "holder one ciphertext in place of a sum and reads what comes back; or all but one of a "
        f"cohort's clients (at least {least - 1}) and whoever reads the model"
    )


def _price(plan: Plan, sizes: Mapping[str, int]) -> Price | None:
    section, privacy = plan.section, plan.section.privacy
    if privacy is None:
        return None

    def spends(versions: int) -> float:
        facts = (
            fact(plan, "client", group, sizes[group], version)
            for version in range(versions)
            for group in plan.groups
        )
        return spent(plan, (each for each in facts if each is not None))

    allowed = next((v for v in range(section.versions, 0, -1) if spends(v) <= privacy.budget), 0)
    noise = _client_noise if isinstance(privacy, ClientPrivacySection) else _record_noise
    return Price(
        unit=UNITS[privacy.unit],
        epsilon_version=spends(1),
        epsilon_run=spends(section.versions),
        delta=privacy.delta,
        budget=privacy.budget,
        versions=allowed,
        noise={name: noise(plan, name, sizes[name]) for name in plan.groups},
    )


UNITS = {
    "record": "one record of a client, added or removed",
    "client": "a client's whole update, replaced by zero",
}


def _client_noise(plan: Plan, name: str, values: int) -> float:
    """The noise on the mean of the smallest cohort, over clip / sqrt(values)."""
    return _mean_noise(plan, name, values) / (plan.group(name).clip / math.sqrt(values))


def _mean_noise(plan: Plan, name: str, values: int) -> float:
    """Standard deviation of the noise on one value of the smallest cohort's mean.

    sigma^2 is one party's share times the parties that add one: each member (local,
    distributed), or the shards alone. In the units in which updates travel: the model's, as long
    as an adaptive clip has not moved.
    """
    mechanism = plan.mechanism(name, values)
    assert mechanism is not None
    members = plan.rule(name).minimum
    parties = 1 if plan.noisy_shards else members
    total = math.sqrt(parties * mechanism.share_variance) * mechanism.calibration.step
    return total / members


def _following(plan: Plan, name: str, values: int) -> str:
    """What an adaptive clip does and costs."""
    section, adaptive = plan.group(name), plan.adaptive(name)
    assert adaptive is not None
    error = _mean_noise(plan, name, values) / (2 * adaptive.indicator)
    return (
        f"group {name}: the clip begins at {section.clip:g} and moves until {adaptive.quantile:g} "
        f"of the updates are shorter; that they are counted makes the noise "
        f"{adaptive.cost - 1:.1%} larger than a fixed clip's, and noise on the count of the "
        f"smallest cohort has a standard deviation of {error:.2f} of it; the noise above is that "
        f"of the first clip, and in proportion to it"
    )


def _record_noise(plan: Plan, name: str, values: int) -> float:
    """DP-SGD's noise on the mean of the smallest cohort, over clip / sqrt(values).

    Each step moves a value by lr sigma C N(0, 1) / (q n) (Abadi et al. 2016, Algorithm 1), n
    records at each client: `most_examples`, since more count no more. Steps and clients are
    independent. Without momentum, which would add to it.
    """
    section, privacy = plan.group(name), plan.section.privacy
    assert isinstance(privacy, RecordPrivacySection)
    steps = int(plan.section.training["local_steps"])
    rate = float(plan.section.training.get("lr", math.nan))
    batch = privacy.sample_rate * section.most_examples
    one = rate * privacy.noise_multiplier * privacy.max_grad_norm * math.sqrt(steps) / batch
    mean = one / math.sqrt(plan.rule(name).minimum)
    return mean / (section.clip / math.sqrt(values))


def _remarks(plan: Plan, sizes: Mapping[str, int]) -> tuple[str, ...]:
    section, values = plan.section, sum(sizes[name] for name in plan.groups)
    remarks = []
    if section.privacy is None:
        remarks.append("no privacy: sums and models may give records away; add a [privacy] section")
    for name in plan.groups:
        size = section.block_size
        full = cipher(plan.cipher_parameters).adder().block_bytes(size) / size
        best = cipher(plan.cipher_parameters).adder().block_bytes(1 << 18) / (1 << 18)
        if full > 1.5 * best:
            remarks.append(
                f"group {name}: blocks of {size} values half fill a ciphertext "
                f"({full:.1f} bytes a value, {best:.1f} are possible): raise block_size"
            )
    remarks += [
        f"group {name}: epsilon holds while at least {plan.honest(name)} members of every cohort, "
        f"the smallest of which has {plan.rule(name).minimum}, add their share of the noise"
        for name in plan.groups
        if plan.honest(name) > 1
    ]
    remarks += [_following(plan, name, sizes[name]) for name in plan.groups if plan.adaptive(name)]
    price = section.privacy
    if price is not None and section.training.get("momentum"):
        remarks.append("momentum adds to the noise below, which is stated without it")
    if section.shards > 1 and values < section.shards * section.block_size:
        remarks.append("the model has fewer blocks than shards: some shards will have no work")
    return tuple(remarks)
