"""What a plan means: who sees what, who must collude, what it spends and what it costs.

All of it is computed from the plan and the number of values in each group, by the code that the
parties run. Of row-blocks that too few clients touch only the number is shown, because which client
touches which row-block stays where it is known.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import MappingProxyType

from secureps.codec.grid import MOST_BITS, levels
from secureps.config.plan import (
    MOST_CAPACITY,
    AsyncSection,
    BufferedSection,
    ClientPrivacySection,
    GroupSection,
    OwnRuleSection,
    PlanSection,
    PrioritySection,
    RecordPrivacySection,
    RuleSection,
    SspSection,
    SyncSection,
)
from secureps.config.site_files import ServeSection
from secureps.crypto.cipher import CipherParameters, Opening
from secureps.crypto.ring import (
    COEFFICIENT_BYTES,
    GUIDELINES_LOG_Q,
    HINTED_SIGMA,
    ML_KEM_768,
    choose,
    core_svp,
)
from secureps.crypto.suite import cipher
from secureps.errors import PlanRefused
from secureps.model.layout import GroupLayout
from secureps.policy.block_deltas import FLOAT_BYTES, block_delta, bytes_down
from secureps.policy.checks.sections import weak_privacy
from secureps.policy.explain.visibility import (
    Sight,
    across_versions,
    advised_threshold,
    collusion,
    count_withstood,
    describe_opened,
    evaluation_words,
    sights,
)
from secureps.policy.memory import MemoryUse, Service, sealing_memory, worst_footprint
from secureps.policy.plan import (
    LARGE_BLOCK,
    Plan,
    bits_left,
    bytes_up,
    counts_by_public_number,
    envelope_bytes,
    joint_groups,
    leaves_few_bits,
    most_counted,
    one_envelope,
    protects_persons,
    shares_of,
    value_bytes,
)
from secureps.policy.rules.rule import Bounds
from secureps.policy.spending import Choice, adjacency, plan_epsilon, refuse_unaffordable
from secureps.wording import counted, size


@dataclass(frozen=True, slots=True)
class RuleText:
    """One group's rule, in words.

    Args:
        group: its name; of a table that is cut, for all its row-blocks.
        behind: how old the base of an update may be.
        charged: the most that a client is charged in the whole run.
        seen: what the coordinator sees of a client besides participation and sizes.
    """

    group: str
    rule: str
    behind: str
    weights: str
    charged: str
    seen: str


def rule_words(plan: Plan) -> tuple[RuleText, ...]:
    return tuple(_words(plan, section) for section in plan.section.group)


def _words(plan: Plan, section: GroupSection) -> RuleText:
    cut = section.sparse
    name = section.name if cut is None else cut.names(section.name)[0]
    own = plan.bounds(name)
    return RuleText(
        group=section.name,
        rule=("the exact total of " if plan.is_exact(name) else "")
        + _rule(section.rule, own)
        + _turns(plan, name),
        behind=f"up to {own.stale} versions" if own.stale else "none: all train from the newest",
        weights=_weights(plan, own) + _counted(plan, section),
        charged=_charged(plan, section.rule, name, own),
        seen=_seen(section),
    )


def _rule(section: RuleSection, own: Bounds) -> str:
    match section:
        case SyncSection():
            invited = f"up to {own.most} members"
            if section.fraction < 1:
                part = f"{section.fraction:g} of the live members"
                invited = f"{part}, at most {own.most}, drawn for each version"
            return (
                f"rounds of {invited}, once {own.start} are live; one closes when "
                f"all have sent, or after {section.deadline:g} s with {section.quorum}"
            )
        case SspSection(slack=slack):
            return (
                f"nobody runs more than {slack} updates ahead of the slowest live member, who is "
                f"waited for {section.deadline:g} s; a version is made when all have sent"
            )
        case BufferedSection():
            return (
                f"a version of the first {section.buffer} updates, whoever sends them; after "
                f"{section.deadline:g} s {own.minimum} suffice"
            )
        case PrioritySection():
            return (
                f"a version of the best {section.buffer} of {section.waiting} waiting updates by "
                f"{section.score}; {section.ageing:g} s of waiting count as much as 1 of it"
            )
        case AsyncSection():
            return "every update is a version"
        case OwnRuleSection(name=name):
            return (
                f"{name} decides, code that the coordinator alone imports, about cohorts of "
                f"{own.minimum} to {own.most}"
            )


def _turns(plan: Plan, name: str) -> str:
    if not plan.takes_turns(name):
        return ""
    return f"; its {len(joint_groups(plan, name))} groups take turns, one in each round"


def _weights(plan: Plan, own: Bounds) -> str:
    noise = " and 1 of the shards' noise" if plan.noisy_shards else ""
    used = f"{own.total}{noise} of the capacity of {plan.section.cipher.capacity}"
    if own.most_weight == 1:
        return f"all 1; {used}"
    text = f"1 to {own.most_weight}, less for what is stale; {used}"
    if own.most == own.minimum and plan.opening is not Opening.NOTHING:
        text += (
            f"; cohorts of {own.most} must weigh alike, for each weight is that of {own.minimum} "
            "members or more: power = 0 would take a quarter"
        )
    return text


def _counted(plan: Plan, section: GroupSection) -> str:
    """Says by which number in its receipt a member's update counts."""
    if section.weighting == "uniform":
        return ""
    if counts_by_public_number(plan.section):
        return "; besides, each counts by a public number, its own or privacy.records"
    what = "persons" if protects_persons(plan.section) else "records"
    return f"; besides, each counts by its number of {what}, which is public then"


def _charged(plan: Plan, section: RuleSection, name: str, own: Bounds) -> str:
    privacy = plan.section.privacy
    if privacy is None:
        return "nothing: nothing is private"
    most = plan.versions(name) + own.ahead
    whole = isinstance(privacy, ClientPrivacySection)
    each = "one release" if whole else "its steps"
    if isinstance(section, OwnRuleSection):
        return f"{each} for every update that the rule asks of it, until its budget ends it"
    ahead = f", {own.ahead} of them ahead of the others" if own.ahead else ""
    return (
        f"{each} for each of up to {most} updates{ahead}, summed or not; that only some of all "
        "clients are summed makes none cheaper"
    )


def _seen(section: GroupSection) -> str:
    found = []
    cut = section.sparse
    if cut is not None:
        found.append(
            f"which of {len(cut.names(section.name))} row-blocks of {cut.block} rows it touches, "
            "and the shards see it too"
        )
    if isinstance(section.rule, PrioritySection) and section.rule.score == "magnitude":
        found.append("how large each update is, in 16 classes of half an octave")
    return "; ".join([*found, "how long it takes for each update"])


LOUD = 0.5
"""A remark is made if rounding's noise in a mean is this long, relative to an update."""


def codec_words(plan: Plan, group: GroupLayout, head: str) -> Iterator[str]:
    section = plan.group(group.name)
    if section.codec:
        grid = plan.grid(group.name, group.sent)
        rotated = ", rotated," if section.rotates else ""
        yield (
            f"{head}of {group.size:,} values an update sends {group.sent:,}{rotated} each as one "
            f"of {grid.levels + 1:,} integers within +-{grid.range:.3g}"
        )
    if section.follows_norms:
        yield (
            f"{head}the range is that of version 0, and follows the mean norm of the updates of "
            "each cohort, which is sent encrypted and opened with the sum: everybody learns it, "
            "as the mean"
        )
    yield from _rounding(plan, group, head)
    if section.feedback:
        kept = FLOAT_BYTES * group.size
        yield (
            f"{head}what an update does not carry its client adds to the next one, and keeps until "
            f"then in its state folder, in the clear: {kept:,} bytes"
        )
    elif section.one_in is not None:
        yield (
            f"{head}each value that is sent stands for {section.one_in}, noise and rounding with "
            "it: feedback = true sends the others later instead"
        )
    delta = block_delta(plan, group, 0)
    if delta is not None:
        whole, each = FLOAT_BYTES * group.size, bytes_down(plan, group)
        yield (
            f"{head}clients pull what changed since the version that they have, {each:,} bytes a "
            f"version, and the whole, {whole:,} bytes, when they begin or are {delta.behind + 1} "
            "versions behind or more; a shard keeps what was rounded off for the next version"
        )
    if times := plan.times_median(group.name):
        yield (
            f"{head}a mean {times:g} times as long as usual makes no step: to see what is usual, 3 "
            "to 7 cohorts are burnt before version 1, and when updates grow; a client whose "
            "updates are as much longer than others' is left out as if it poisoned"
        )


def _rounding(plan: Plan, group: GroupLayout, head: str) -> Iterator[str]:
    """Says how much noise rounding adds to an update as long as the plan's clip.

    For a normal value of deviation s on a grid of step t s, the mean variance is s^2 t^2 / 6 if t
    is small, and s t E|x| = 0.8 s^2 t if most values lie within a step of zero.
    """
    section = plan.group(group.name)
    if plan.mechanism(group.name, group.sent) or "clip" not in section.model_fields_set:
        return
    value = section.clip / math.sqrt(group.size)
    steps = plan.grid(group.name, group.sent).step / value
    alone = math.sqrt(min(steps**2 / 6, math.sqrt(2 / math.pi) * steps))
    members = section.rule.minimum
    mean = alone / math.sqrt(members)
    if not section.codec and mean < LOUD:
        return
    much = "" if mean < LOUD else ": take more bits, or rotate and round, which narrow the range"
    yield (
        f"{head}rounding adds noise {alone:.0%} as long as an update of the clip's length, "
        f"{mean:.0%} in the mean of {members}{much}"
    )


CLIENT_NANOSECONDS = {"plain": 31, "bfv": 170, "rlwe": 40}
SERVER_NANOSECONDS = {"plain": 22, "bfv": 35, "rlwe": 25}
"""CPU time per value of an update. The client's: make, seal and send the update, pull the next
version by TLS. All servers' together: take it in, add, open, step and serve. Measured at 10M
values, 16 bits and 5 clients (`benchmarks.scaling`, `benchmarks.ciphers`). Each update costs all
parties another 20 ms or so, whatever its size."""


@dataclass(frozen=True, slots=True)
class Link:
    """A client's link in Mbit/s."""

    up: float = 20.0
    down: float = 100.0


DEFAULT_LINK = Link()


@dataclass(frozen=True, slots=True)
class GroupCost:
    """What one group costs; None for what depends on an unknown number of values.

    Args:
        bits, step, range: of the integers: size, distance in the model's units, and largest change
            of a value (under a codec, of what is sent).
        bytes_value: per value on the wire.
        cohort: members of the smallest and of the largest cohort.
        bytes_up, ratio: of one client's update, and relative to plain float32.
        bytes_down: the most that a client with the version before pulls.
        client_cpu, server_cpu: approximate seconds of one core per update, without training.
        bits_left: of `bits`, in the mean of a cohort of the smallest clients; None for a sum, or if
            their examples are unknown.
    """

    name: str
    bits: int
    cohort: tuple[int, int]
    bits_left: float | None = None
    values: int | None = None
    blocks: int | None = None
    step: float | None = None
    range: float | None = None
    bytes_value: float | None = None
    bytes_up: int | None = None
    ratio: float | None = None
    bytes_down: int | None = None
    seconds_up: float | None = None
    seconds_down: float | None = None
    client_cpu: float | None = None
    server_cpu: float | None = None
    client_memory: int | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """What privacy spends and what its noise costs.

    Args:
        unit, against: what is protected, and from whom under which assumption, in words.
        epsilon_version, epsilon_run: of one client, at `delta`; infinite without noise, None if
            they depend on an unknown number of values.
        budget: the epsilon at which a client stops.
        versions: that the budget allows, at most the plan's; None as above.
        deviation: by group, the noise's standard deviation on a coordinate of the smallest cohort's
            mean update, in the model's units; empty if unknown.
        noise, noise_run: length of the noise relative to an update, for one version and for all.
        update: the update that this compares with, in words.
        metrics: by metric, the noise's standard deviation in the smallest cohort's mean, and the
            metric's largest magnitude; empty without noise.
    """

    unit: str
    against: str
    epsilon_version: float | None
    epsilon_run: float | None
    delta: float
    budget: float
    versions: int | None
    deviation: Mapping[str, float]
    noise: Mapping[str, float]
    noise_run: Mapping[str, float]
    update: Mapping[str, str]
    metrics: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A sound plan, explained.

    Args:
        digest: by which a site's policy allows the plan; empty if unknown.
        collusion: every party, or set of parties, that can open a single update.
        opened: what a party that opens one learns.
        price: None if nothing is private.
        link: a client's, for transfer times.
        committee: None without a committee, or for a model of unknown size.
        shard: memory and disk of the shard that needs most, with the fewest shards that `[scaling]`
            may leave; None for an unknown size.
        remarks: what else to know before the run, the most important first.
        unknown: what could not be computed, and how to have it computed.
        choice: noise or versions for an epsilon, if that was asked for.
    """

    name: str
    digest: str
    versions: int
    cipher: str
    shards: int
    replicas: int
    sights: tuple[Sight, ...]
    collusion: tuple[str, ...]
    opened: str
    rules: tuple[RuleText, ...]
    price: Price | None
    groups: tuple[GroupCost, ...]
    link: Link
    committee: CommitteeCost | None
    shard: MemoryUse | None
    remarks: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    choice: Choice | None = None


def explain(
    plan: Plan,
    sizes: Mapping[str, int] | None,
    service: Service,
    examples: Sequence[int] = (),
    lengths: Mapping[str, float] = MappingProxyType({}),
    notes: Sequence[str] = (),
    link: Link = DEFAULT_LINK,
) -> Explanation:
    """Explains a plan for a model with `sizes` values in each group.

    Args:
        sizes: None if the size of any group is unknown, because blocks are cut alike.
        examples: of each client; empty if unknown.
        lengths: by group, of a trial update without noise.
    Raises:
        PlanRefused: its budget allows no version.
    """
    if sizes is not None:
        sizes = {**sizes, plan.trailing: plan.metrics_count}
        sizes = {name: sizes[name] for name in plan.all_groups}
    layout = () if sizes is None else tuple(plan.lay_out_sizes(sizes))
    laid = {group.name: group for group in layout}
    numbers = _numbers(plan, examples)
    price = _price(plan, laid, numbers, lengths)
    return Explanation(
        name=plan.section.name,
        digest=plan.digest if plan.has_digest else "",
        versions=plan.section.versions,
        cipher=plan.section.cipher.name,
        shards=plan.section.shards,
        replicas=plan.section.replicas,
        sights=sights(plan),
        collusion=collusion(plan),
        opened=describe_opened(plan),
        rules=rule_words(plan),
        price=price,
        groups=tuple(_cost(plan, name, laid.get(name), numbers, link) for name in plan.all_groups),
        link=link,
        committee=committee_cost(plan, layout) if layout else None,
        shard=worst_footprint(plan, layout, service) if layout else None,
        remarks=_once(
            plan,
            (
                *weak_privacy(plan.section.privacy),
                *_unprotected(plan),
                *_warn_of_price(plan, price),
                *_stuck(plan),
                *_counting(plan, numbers),
                *notes,
                *_trusted(plan),
                *_of_noise(plan, laid, numbers),
                *_of_costs(plan, laid),
            ),
        ),
    )


def _once(plan: Plan, remarks: Iterable[str]) -> tuple[str, ...]:
    """Merges equal remarks about several groups into one with all their names."""
    found: dict[str, list[str]] = {}
    for remark in remarks:
        head, colon, text = remark.partition(": ")
        of_group = colon and head in plan.all_groups
        name, text = (head, text) if of_group else ("", remark)
        if name not in (names := found.setdefault(text, [])):
            names.append(name)
    alone = plan.groups[0]  # the only group of a model is named only beside a trailing one
    return tuple(
        f"{', '.join(name or alone for name in names)}: {text}" if names != [""] else text
        for text, names in found.items()
    )


def _numbers(plan: Plan, examples: Sequence[int]) -> tuple[int, ...]:
    """Returns the numbers by which clients count, ascending; empty if unknown."""
    privacy, federation = plan.section.privacy, plan.section.federation
    if isinstance(privacy, RecordPrivacySection) and counts_by_public_number(plan.section):
        if federation is not None and federation.records:
            return tuple(sorted(federation.records))
        most = max(plan.bounds(name).minimum for name in plan.all_groups)
        return (privacy.records,) * most if privacy.records else ()
    return tuple(sorted(number for number in examples if number))


def _left(plan: Plan, name: str, numbers: Sequence[int]) -> float | None:
    """Returns the bits left in the mean of a cohort of the smallest clients; None for a sum."""
    section, members = plan.group(name), plan.bounds(name).minimum
    if plan.is_sum(name) and not plan.trails(name):
        return None
    if section.weighting == "uniform":
        return min(section.bits, bits_left(section.bits, members, members))
    if plan.trails(name) or len(numbers) < members:
        return None
    shares = sum(shares_of(section, numbers)[:members])
    return min(section.bits, bits_left(section.bits, shares, members))


def _counting(plan: Plan, numbers: Sequence[int]) -> Iterator[str]:
    """Says what small clients lose to large ones."""
    for name in _one_of_each(plan):
        left, section = _left(plan, name, numbers), plan.group(name)
        most = most_counted(section)
        if section.weighting == "uniform" and plan.section.privacy is None:
            if not plan.is_sum(name) and numbers and numbers[0] != numbers[-1]:
                yield (
                    f"{plan.head(name)}all clients count alike, with {numbers[0]:,} to "
                    f"{numbers[-1]:,} examples: most_examples = {numbers[-1]} weighs them by these"
                )
        elif numbers and numbers[-1] > most and not plan.trails(name):
            yield (
                f"{plan.head(name)}a client counts as {most:,} examples at most (most_examples), "
                f"and the largest has {numbers[-1]:,}"
            )
        if left is not None and leaves_few_bits(left, section.bits):
            yield (
                f"{plan.head(name)}about {max(0.0, left):.1f} of {section.bits} bits are left in "
                "a mean of the smallest clients: take a smaller most_examples, or more bits"
            )


def _spread(plan: Plan, numbers: Sequence[int]) -> Iterator[str]:
    """Says how much the noise of a mean depends on which clients are in it."""
    privacy = plan.section.privacy
    if not isinstance(privacy, RecordPrivacySection) or _rate(plan) is None:
        return
    if not numbers:
        yield (
            f"how much noise an update has depends on how many {privacy.unit}s clients have, or "
            "count by: it cannot be said without their script, or privacy.records"
        )
    elif numbers[0] != numbers[-1]:
        for name in plan.groups:
            least, most = (_record_noise(plan, name, way) for way in (numbers[::-1], numbers))
            yield (
                f"{plan.head(name)}the noise above is that of a cohort of the smallest clients; "
                f"it has a standard deviation of {least:.3g} to {most:.3g}, as the cohort is"
            )


def _cost(
    plan: Plan, name: str, group: GroupLayout | None, numbers: Sequence[int], link: Link
) -> GroupCost:
    section, rule = plan.group(name), plan.bounds(name)
    cohort, left = (rule.minimum, rule.most), _left(plan, name, numbers)
    if group is None:
        return GroupCost(name, section.bits, cohort, left)
    up, grid = bytes_up(plan.fit_cipher(group), group), plan.grid(name, group.sent)
    down, cipher = bytes_down(plan, group), plan.section.cipher.name
    return GroupCost(
        name=name,
        bits=section.bits,
        cohort=cohort,
        bits_left=left,
        values=group.size,
        blocks=group.blocks,
        step=grid.step,
        range=grid.range,
        bytes_value=up / group.size,
        bytes_up=up,
        ratio=up / (FLOAT_BYTES * group.size),
        bytes_down=down,
        seconds_up=8e-6 * up / link.up,
        seconds_down=8e-6 * down / link.down,
        client_cpu=1e-9 * CLIENT_NANOSECONDS[cipher] * group.size,
        server_cpu=1e-9 * SERVER_NANOSECONDS[cipher] * group.size,
        client_memory=sealing_memory(plan, group),
    )


def _price(
    plan: Plan,
    laid: Mapping[str, GroupLayout],
    numbers: Sequence[int],
    lengths: Mapping[str, float],
) -> Price | None:
    privacy = plan.section.privacy
    if privacy is None:
        return None

    client = isinstance(privacy, ClientPrivacySection)
    most = {} if plan.section.evaluation is None else plan.section.evaluation.magnitudes
    sent = {name: laid[name].sent if laid else 1 for name in plan.groups}
    told = bool(laid) or not client  # a record's epsilon does not depend on sizes

    def spends(versions: int) -> float:
        return plan_epsilon(plan, sent, versions)

    refuse_unaffordable(plan, sent)
    last = _last(plan)
    updates = {name: _update(plan, name, lengths.get(name, 0.0)) for name in plan.groups}
    deviation = {
        name: plan.deviation(name, sent[name]) if client else _record_noise(plan, name, numbers)
        for name in (plan.groups if laid and (client or (_rate(plan) and numbers)) else ())
    }
    noise = {
        name: sigma * math.sqrt(laid[name].size) / updates[name][0]
        for name, sigma in deviation.items()
    }
    return Price(
        unit=_unit(plan),
        against=_against(plan),
        epsilon_version=spends(1) if told else None,
        epsilon_run=spends(last) if told else None,
        delta=privacy.delta,
        budget=privacy.budget,
        versions=next(v for v in range(last, 0, -1) if spends(v) <= privacy.budget)
        if told
        else None,
        deviation=deviation,
        noise=noise,
        # the noise of versions is independent, but their updates may all point the same way
        noise_run={name: each / math.sqrt(plan.versions(name)) for name, each in noise.items()},
        update={name: updates[name][1] for name in deviation},
        metrics={name: (each, most[name]) for name, each in plan.metric_noise.items()},
    )


def _update(plan: Plan, name: str, tried: float) -> tuple[float, str]:
    """Returns the length that noise is compared with, and its description.

    It is that of a trial update if there is one, else that of the longest possible update.
    """
    clip, privacy = plan.group(name).clip, plan.section.privacy
    if tried > 0:
        length = min(tried, clip)
        note = "of real records and without noise: keep it here"
        return length, f"an update that was tried ({length:.3g}, {note})"
    bound, rate = clip, _rate(plan)
    if isinstance(privacy, RecordPrivacySection) and rate is not None:
        # a step is the sum of clipped gradients over the expected batch (`RecordPrivacy`)
        bound = rate * int(plan.section.training["local_steps"]) * privacy.max_grad_norm
    if bound < clip and not plan.section.training.get("momentum"):
        return bound, f"the longest update (lr x local_steps x max_grad_norm = {bound:.3g})"
    return clip, f"an update of the whole clip ({clip:g})"


def _last(plan: Plan) -> int:
    return max(plan.versions(name) for name in plan.groups)


def _unit(plan: Plan) -> str:
    privacy = plan.section.privacy
    if not isinstance(privacy, RecordPrivacySection):
        return adjacency(plan)
    public = privacy.adjacency == "zero-out"
    what = "how many persons" if privacy.unit == "person" else "how many"
    how = f"{what} a client has is public" if public else "a client counts by a public number"
    return f"{adjacency(plan)} ({how})"


def _against(plan: Plan) -> str:
    privacy = plan.section.privacy
    if not isinstance(privacy, ClientPrivacySection) or privacy.placement == "local":
        return "everybody, whoever colludes: the noise is added at the client"
    if privacy.placement == "aggregator":
        return "everybody but the shards, which add the noise and know it"
    least = ", ".join(
        f"{plan.honest(name)} of them" if plan.is_alone(name) else f"{plan.honest(name)} in {name}"
        for name in plan.groups
    )
    return (
        "whoever sees sums and models, while enough members of every cohort add their share of "
        f"the noise and keep it to themselves ({least})"
    )


def _following(plan: Plan, name: str, values: int) -> str:
    section, adaptive = plan.group(name), plan.adaptive(name)
    assert adaptive is not None
    error = plan.deviation(name, values) / (2 * adaptive.indicator)
    return (
        f"{plan.head(name)}the clip begins at {section.clip:g} and moves until "
        f"{adaptive.quantile:g} of the updates are shorter; that they are counted makes the noise "
        f"{adaptive.cost - 1:.1%} larger than a fixed clip's, and noise on the count of the "
        f"smallest cohort has a standard deviation of {error:.2f} of it; the noise above is that "
        f"of the first clip, and in proportion to it"
    )


def _rate(plan: Plan) -> float | None:
    """Returns the learning rate of local training; None if the plan has none above 0."""
    rate = plan.section.training.get("lr")
    sound = isinstance(rate, int | float) and math.isfinite(rate) and rate > 0
    return float(rate) if sound and rate is not None else None


def _record_noise(plan: Plan, name: str, numbers: Sequence[int]) -> float:
    """Returns the standard deviation of DP-SGD's noise on a coordinate of a cohort's mean.

    Each step moves a value by lr sigma C N(0, 1) / (q n) (Abadi et al. 2016, Algorithm 1), for a
    client that counts by n records or persons. Steps and clients are independent, and momentum is
    left out. The cohort is the smallest allowed, of the first clients in `numbers`.
    """
    section, privacy = plan.group(name), plan.section.privacy
    assert isinstance(privacy, RecordPrivacySection)
    steps = int(plan.section.training["local_steps"])
    rate = _rate(plan)
    assert rate is not None
    step = rate * privacy.noise_multiplier * privacy.max_grad_norm / privacy.sample_rate
    cohort = (*numbers, *[numbers[-1]] * plan.bounds(name).minimum)[: plan.bounds(name).minimum]
    shares = shares_of(section, cohort)
    parts = [share / number for share, number in zip(shares, cohort, strict=True)]
    alone = step * math.sqrt(steps) * math.hypot(*parts) / sum(shares)
    return alone * plan.chain(name).values_per_sent


def _warn_of_price(plan: Plan, price: Price | None) -> Iterator[str]:
    """Warns of a budget that ends the run, and of noise longer than all updates together."""
    if price is None:
        return
    if price.versions is not None and price.versions < _last(plan):
        yield (
            f"the budget ends the run after {price.versions} of {_last(plan)} versions: "
            f"all of them spend epsilon {price.epsilon_run:.3f}"
        )
    own, what = plan.section.privacy, "a clip no longer than updates are"
    if isinstance(own, RecordPrivacySection):
        what = f"more {own.unit}s, a higher sample_rate"
    for name in _one_of_each(plan):
        if (lasting := price.noise_run.get(name, 0.0)) <= 1:
            continue
        versions, noise = plan.versions(name), price.noise[name]
        together = (
            f", and over {versions} versions {lasting:.3g} times as long as all of their updates "
            "together"
        )
        yield (
            f"{plan.head(name)}the noise is {noise:.3g} times as long as {price.update[name]}, in "
            f"the mean of the smallest cohort ({counted(plan.bounds(name).minimum, 'member')})"
            f"{together if versions > 1 else ''}: it drowns what the run learns; take larger "
            f"cohorts (minimum), a smaller noise_multiplier, {what} or fewer values "
            "(docs/tuning.md)"
        )


def _unprotected(plan: Plan) -> Iterator[str]:
    if plan.section.privacy is None:
        gives = "sums and models" if plan.has_model else "totals"
        yield f"no privacy: {gives} may give records away; add a [privacy] section"
    if not plan.holders:
        yield "no encryption: only for runs whose shards may read every update"


def _stuck(plan: Plan) -> Iterator[str]:
    for name in _one_of_each(plan):
        minimum = plan.bounds(name).minimum
        if plan.holders and minimum < OPENED:
            yield (
                f"{plan.head(name)}a cohort may have {minimum} members, and a key holder "
                f"takes part for {OPENED} or more unless its own `minimum` is lower: in its file, "
                "or under `secureps join --hold` in its site's policy"
            )


def _trusted(plan: Plan) -> Iterator[str]:
    """Says what no noise covers, and which parties the rest depends on."""
    yield from across_versions(plan)
    yield from evaluation_words(plan)
    for name in _one_of_each(plan):
        if plan.honest(name) > 1:
            yield (
                f"{plan.head(name)}epsilon holds while at least {plan.honest(name)} "
                f"members of every cohort, the smallest of which has {plan.bounds(name).minimum}, "
                "add their share of the noise"
            )
    yield from _of_holders(plan)


def _of_holders(plan: Plan) -> Iterator[str]:
    """Says what a committee withstands, how many holders may be away, and what an update pays."""
    if not plan.has_committee:
        return
    t, n = plan.threshold, plan.holders
    few, better = count_withstood(t, n), advised_threshold(n)
    away = f"{n - t or 'none'} of {n} key holders may be away"
    if n == 1:
        away = "the one key holder may not be away"
    gains = f"gains nothing by {few} of them" if few else "opens single updates with any one"
    smallest = min(plan.bounds(name).minimum for name in plan.groups)
    as_clients = ""
    if smallest - 1 <= few:
        as_clients = (
            f", and as a client: {smallest - 1} of a cohort of {smallest} "
            f"{'subtracts itself' if smallest == 2 else 'subtract themselves'} from its sum"
        )
    yield (
        f"{away}, and a malicious aggregator {gains}; a data holder that colludes and whose site "
        f"holds keys counts as one{as_clients}; an update has an envelope of "
        f"{size(one_envelope(plan.unnamed_committee))} for each"
    )
    if not few and better > t:
        yield (
            f"cipher.threshold = {better} withstands {count_withstood(better, n)} of the {n} key "
            f"holders, and {n - better or 'none'} may be away"
        )


def _of_noise(plan: Plan, laid: Mapping[str, GroupLayout], numbers: Sequence[int]) -> Iterator[str]:
    """Says what the figures about noise depend on."""
    record = isinstance(plan.section.privacy, RecordPrivacySection)
    if record and _rate(plan) is None:
        yield (
            "training.lr is no number above 0: how much noise an update has cannot be said before "
            "the script is run, which takes its own default, or refuses"
        )
    if record and plan.section.training.get("momentum"):
        # client-level noise is added after training, so momentum does not act on it
        yield "momentum adds to the noise, which is stated without it"
    yield from _spread(plan, numbers)
    for name in _one_of_each(plan):
        if name in laid and plan.adaptive(name):
            yield _following(plan, name, laid[name].sent)


def _of_costs(plan: Plan, laid: Mapping[str, GroupLayout]) -> Iterator[str]:
    section, full = plan.section, False
    blocks = sum(laid[name].blocks for name in plan.groups) if laid else None
    if section.checkpoint_every > 1 and section.replicas == 1:
        yield (
            "a shard's disk that is lost between checkpoints ends the run: "
            "checkpoint_every = 1, or replicas = 2"
        )
    if blocks is not None and 1 < section.shards > blocks:
        yield "the model has fewer blocks than shards: some shards will have no work"
    for name in _one_of_each(plan):
        if (group := laid.get(name)) is None:
            continue
        yield from codec_words(plan, group, plan.head(name))
        if not plan.trails(name):
            wasted = tuple(_wasted(plan, group))
            full |= not wasted
            yield from wasted
    if laid and plan.takes_turns(plan.groups[0]):
        kept = FLOAT_BYTES * sum(laid[name].size for name in plan.groups)
        yield (
            "until all groups are sent a client keeps what it trained in its state folder, in the "
            f"clear: {kept:,} bytes"
        )
    yield from _of_envelopes(plan, laid)
    if full:  # fewer bits do not shorten a ciphertext that is partly empty
        yield from advice(plan, next(iter(laid.values())))
    yield from _scaling_words(section, blocks)


def _scaling_words(section: PlanSection, blocks: int | None) -> list[str]:
    """Says what follows the load under `[scaling]`; `blocks` is None if unknown."""
    own = section.scaling
    if own is None:
        return []
    most, parts = section.most_shards, list[str]()
    if own.policy != "fixed":
        parts.append(f"{own.least_shards} to {most} shards")
        if own.least_deadline < own.most_deadline:
            parts.append(f"deadlines of {own.least_deadline:g} to {own.most_deadline:g} times")
        if own.least_buffer < 1:
            parts.append(f"buffers of {own.least_buffer:g} to 1 times")
    text = ", ".join([*parts, "row-blocks move"])
    words = [f"scaling by {own.policy}, at most once in {own.every:g} s: {text}"]
    if own.policy != "fixed" and blocks is not None and blocks < most:
        words.append(
            f"the model has {counted(blocks, 'block')}, and a shard holds one at least: no more "
            f"than {counted(blocks, 'shard')} can have work; name a smaller block_size"
        )
    return words


def _of_envelopes(plan: Plan, laid: Mapping[str, GroupLayout]) -> Iterator[str]:
    cost = committee_cost(plan, tuple(laid.values())) if laid else None
    if cost is None:
        return
    values = sum(bytes_up(plan.fit_cipher(laid[name]), laid[name]) for name in plan.groups)
    envelopes = cost.submission * len(plan.groups)
    if envelopes > values:
        yield (
            f"{envelopes:,} of the {envelopes + values:,} bytes of a client's version are "
            "envelopes for the key holders, which are as long for any model: more training between "
            "versions (local_steps) sends fewer of them"
        )


def _one_of_each(plan: Plan) -> Iterator[str]:
    """Yields the groups, but only the first row-block of a table: all have the same remarks."""
    known: set[str] = set()
    for name in plan.all_groups:
        own = plan.group(name).name
        if own not in known:
            known.add(own)
            yield name


OPENED = ServeSection.model_fields["minimum"].default
"""The smallest cohort that a holder opens unless its operator says otherwise."""


def _wasted(plan: Plan, group: GroupLayout) -> Iterator[str]:
    up = bytes_up(plan.fit_cipher(group), group)
    possible = replace(plan.fit_cipher(group), slots=LARGE_BLOCK)
    larger = bytes_up(possible, replace(group, block_values=LARGE_BLOCK))
    best = cipher(possible).block_bytes(LARGE_BLOCK) / LARGE_BLOCK
    if plan.section.block_size is not None and up > 1.2 * larger:
        yield (
            f"{plan.head(group.name)}blocks of {plan.section.block_size} values leave "
            f"ciphertexts partly empty, {up:,} bytes an update where {larger:,} would do: raise "
            "block_size, or leave it out"
        )
    elif up > 1.5 * best * group.sent:
        yield (
            f"{plan.head(group.name)}{group.sent:,} values do not fill a ciphertext: "
            f"{up / group.sent:.0f} bytes a value, where large models need {best:.0f}"
        )


def touched_by_few(plan: Plan, touching: Mapping[str, int]) -> frozenset[str]:
    """Finds the row-blocks that fewer clients touch than a version needs."""
    blocks = chain.from_iterable(plan.section.tables.values())
    return frozenset(each for each in blocks if touching.get(each, 0) < plan.bounds(each).start)


def row_block_words(plan: Plan, few: Collection[str]) -> Iterator[str]:
    for table, blocks in plan.section.tables.items():
        if number := len(set(few).intersection(blocks)):
            yield (
                f"{number} of {len(blocks)} row-blocks of {table} are touched by fewer than "
                f"{plan.bounds(blocks[0]).start} clients, without whom no version is made: they "
                "stay as they began; make the block of [group.sparse] larger, or the rule's "
                "minimum, and what else a version waits for, smaller"
            )


# --- committee ---------------------------------------------------------------------

RECEIPT_BYTES = 300
"""Approximate bytes of a receipt as holders get it: names, digests, charge and signature, no keys.
"""
TIMES_SENT = 2
"""A holder gets a receipt twice: on arrival, to check its envelope, and with the cohort."""
SECURITY_BITS = 128
SOURCE = "Security Guidelines for Implementing Homomorphic Encryption (2024), table 5.2"


@dataclass(frozen=True, slots=True)
class CommitteeCost:
    """The cost of a plan's committee.

    Seeds, envelopes and answers belong to a key, whose length is the ring's degree. So a holder's
    traffic grows with the clients of a cohort, not with the model.

    Args:
        holders: n.
        threshold: t, how many must agree.
        withstood: corrupt holders from which a malicious aggregator gains nothing.
        degree: N of the ring.
        modulus_bits: of the ring's q.
        most_modulus_bits: what `source` allows for `security_bits` against classical attacks.
        core_svp: bits of the primal attack on a key after a sum was opened, classical and quantum
            (`crypto.ring`).
        envelope: the same for ML-KEM-768, in envelopes and TLS.
        digits: values in a coefficient.
        bits, capacity: the largest that cost no more bytes per value.
        submission: bytes of a submission's envelopes, commitments and correction.
        down, up: bytes that a holder receives and sends for a version of the largest cohorts.
    """

    holders: int
    threshold: int
    withstood: int
    degree: int
    modulus_bits: int
    most_modulus_bits: int
    security_bits: int
    source: str
    core_svp: tuple[float, float]
    envelope: tuple[float, float]
    digits: int
    bits: int
    capacity: int
    submission: int
    down: int
    up: int

    @property
    def weakest(self) -> str:
        """Says what breaks first if an attacker records all and later has a quantum computer."""
        links = {"the ring": self.core_svp, "ML-KEM-768 in envelopes and TLS": self.envelope}
        first, then = sorted(links, key=lambda name: links[name][1])
        return (
            f"{first}: {links[first][1]:.0f} bits of core-SVP against a quantum computer; "
            f"{then}: {links[then][1]:.0f}"
        )


def committee_cost(plan: Plan, groups: tuple[GroupLayout, ...]) -> CommitteeCost | None:
    if not plan.has_committee:
        return None
    committee = plan.unnamed_committee
    parameters = plan.fit_cipher(groups[0])
    own = choose(parameters)
    ring, shared = own.ring, envelope_bytes(committee, own.ring.degree)
    correction = ring.degree * COEFFICIENT_BYTES  # no holder gets it
    receipt = RECEIPT_BYTES + shared - correction
    receipts = sum(plan.bounds(group.name).most * receipt for group in groups)
    return CommitteeCost(
        holders=plan.holders,
        threshold=plan.threshold,
        withstood=count_withstood(plan.threshold, plan.holders),
        degree=ring.degree,
        modulus_bits=ring.modulus.bit_length(),
        most_modulus_bits=GUIDELINES_LOG_Q[ring.degree],
        security_bits=SECURITY_BITS,
        source=SOURCE,
        core_svp=core_svp(ring.degree, ring.modulus, HINTED_SIGMA),
        envelope=core_svp(*ML_KEM_768),
        digits=own.digits,
        bits=_most_bits(parameters),
        capacity=_most_capacity(parameters),
        submission=shared,
        down=TIMES_SENT * receipts,
        up=len(groups) * correction,
    )


def advice(plan: Plan, group: GroupLayout) -> Iterator[str]:
    if not plan.has_committee:
        return
    own, part = plan.fit_cipher(group), group.sent / group.size
    now, bits = part * value_bytes(own), _bits(own.levels)
    largest = max(plan.bounds(name).most for name in plan.all_groups) + plan.noisy_shards
    tight = part * value_bytes(replace(own, capacity=largest))
    if tight < now:
        yield (
            f"cipher.capacity: no cohort is larger than {largest}; that capacity would take "
            f"{tight:.2f} bytes a value in place of {now:.2f}"
        )
    for fewer in range(bits - 1, max(1, bits - 3), -1):
        less = part * value_bytes(replace(own, levels=levels(fewer)))
        if less < now:
            yield (
                f"bits: {fewer} would take {less:.2f} bytes a value in place of {now:.2f}, in "
                f"steps {2 ** (bits - fewer)} times as large"
            )
            return


def _bits(levels: int) -> int:
    return (levels // 2).bit_length() + 1


def _costs_more(own: CipherParameters, capacity: int, most: int) -> bool:
    """True if a larger capacity or grid takes more bytes per value, or is impossible."""
    try:
        return value_bytes(replace(own, capacity=capacity, levels=most)) > value_bytes(own)
    except PlanRefused:
        return True


def _most_bits(own: CipherParameters) -> int:
    more = range(_bits(own.levels) + 1, MOST_BITS + 1)
    costs = partial(_costs_more, own, own.capacity)
    return _bits(own.levels) + bisect_left(more, True, key=lambda bits: costs(levels(bits)))


def _most_capacity(own: CipherParameters) -> int:
    more = range(own.capacity + 1, MOST_CAPACITY + 1)
    return own.capacity + bisect_left(more, True, key=lambda n: _costs_more(own, n, own.levels))
