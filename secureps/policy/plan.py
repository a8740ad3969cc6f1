"""A plan says what a run does: rule, privacy, codec, cipher and placement, validated as a whole.

Theory of operation. `config.plan` has the sections of a plan's file, key by key. `Plan` is a sound
combination of them, and answers all questions about it: which cohorts may form (`bounds`, `rule`),
how values become integers (`chain`, `grid`, `mechanism`), how they are sealed and opened
(`cipher_of`, `opening`, `committee`), how a model is cut into blocks (`layout`), and how a version
is made (`optimizer`). Other modules of the room answer one question each: `rules` when a cohort
closes, `cohorts` which cohorts may follow a failed one, `checks` what is unsound, `spending` what
an update costs, `explain` what a plan means, `scaling` how many shards a load needs.

What happens to one plan:

    read       `load_plan` parses the file, and pins the file of version 0 by its digest
    validated  `Plan.__post_init__` calls `_refuse_unsound`; PlanRefused says what to change
    written    `canonical` makes the text that the run id covers, so all parties agree on it
    received   `Plan.from_text` reads the coordinator's text at every party, and validates it again
    laid out   `Plan.layout` refuses a model that the plan cannot carry

A client counts by a public number, which stands in its signed receipt. Before an update is rounded
it is scaled by the client's share, which is that number divided by a bound. The bound is the
plan's, because all clients must divide by the same one; without a bound all clients count alike.

Everything that a party computes from a plan depends on its text alone. A plan does not change
during a run: every party has it in its journal, and reads it from there after a kill. Only the
coordinator asks a group's rule, which may be a user's own code; all others check its cohorts by
`bounds`.

Guards. A client does not trust the coordinator's plan: it refuses an unsound one here, and one
that breaks its own terms in `roles.member.terms`. `digest` lets a site allow certain plans.
`refuse_small` and `refuse_crowded` stop plans that would only fail in the middle of a run.

Look first at `config.plan` for a new key, at `checks` for what may not be combined with it, and
then at `config.sections.LATER` and `FIXED`, which keep the ids of older plans.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from secureps.arguments import check_types
from secureps.codec.chain import Chain
from secureps.codec.grid import Grid, MovingRange, levels
from secureps.config.plan import (
    ClientPrivacySection,
    GroupSection,
    PlanSection,
    RecordPrivacySection,
)
from secureps.config.sections import PINNED, parse, read_toml, resolve_paths
from secureps.crypto import envelope
from secureps.crypto.cipher import Cipher, CipherParameters, Opening
from secureps.crypto.ring import COEFFICIENT_BYTES, choose
from secureps.crypto.sharing import Committee
from secureps.crypto.suite import cipher, key_length
from secureps.errors import ConfigError, Malformed, PlanRefused, naming
from secureps.files.objects import pin_initial
from secureps.messages.encoding import DIGEST_BYTES, digest, file_digest
from secureps.messages.orders import MESSAGE_LIMIT
from secureps.messages.run import GroupVersion, Schema
from secureps.messages.submission import Cohort, model_digest
from secureps.model.layout import SCALE, GroupLayout, Layout, cut
from secureps.model.optimizer import REPLACING, Optimizer, build_optimizer, keeping_exact
from secureps.policy.checks.evaluation import (
    Schedule,
    evaluation_group,
    evaluation_layout,
    refuse_noisy_choice,
    refuse_unsound_evaluation,
)
from secureps.policy.checks.sections import (
    refuse_adaptive,
    refuse_client_privacy,
    refuse_codec,
    refuse_holders,
    refuse_median,
    refuse_narrow,
    refuse_placement,
    refuse_replicas,
    refuse_rows,
    refuse_steps,
    refuse_sum,
    refuse_unsound_scaling,
    refuse_unsound_work,
    whole_grid,
)
from secureps.policy.rules.registry import bounds, build_rule, refuse_rule
from secureps.policy.rules.rule import Bounds, Rule
from secureps.privacy.client_level import AdaptiveClip, ClientMechanism
from secureps.wording import named

DEVIATIONS = 3.0
"""The range of rotated values, in standard deviations of one. Rotated values are about normal, and
it cuts off 0.3 % of them; a wider range would make every step of the grid wider."""


# --- how much a client counts --------------------------------------------------------

FEW_BITS = 8
"""`check` warns of a cohort's mean that has fewer bits left than this."""


def refuse_unbounded(section: GroupSection) -> None:
    if section.weighting == "examples" and section.most_examples is None:
        raise PlanRefused(
            'weighting = "examples" needs most_examples: about how many examples the largest '
            "client has, for one that has more counts as with so many; or take "
            'weighting = "uniform", by which all count alike'
        )


def most_counted(section: GroupSection) -> int:
    """Returns the most that a client of a group counts by; 1 where all count alike."""
    return 1 if section.weighting == "uniform" else section.most_examples or 1


def check_counted(section: GroupSection, whose: object, examples: int) -> None:
    """Refuses a public number below 1 or above the bound (Malformed).

    With such a number a client's update would stand out of the mean. `whose` begins the refusal.
    """
    most = most_counted(section)
    if not 1 <= examples <= most:
        raise Malformed(
            f"{whose}: it counts as {examples} examples, and a client of this group counts as 1 "
            f"to {most}"
        )


def shares_in(section: GroupSection, cohort: Cohort) -> Fraction:
    """Computes exactly the divisor of a cohort's sum: its members' shares times their weights."""
    counted = sum(member.weight * member.examples for member in cohort.members)
    return Fraction(counted, most_counted(section))


def counts_by_public_number(section: PlanSection) -> bool:
    """Tells whether clients count by a stated number instead of the number of their records.

    Then nothing that a client sends depends on exactly how many records it has.
    """
    privacy = section.privacy
    return isinstance(privacy, RecordPrivacySection) and privacy.adjacency == "add-or-remove"


def protects_persons(section: PlanSection) -> bool:
    """Tells whether epsilon is of persons; then numbers of a client's records are of persons."""
    privacy = section.privacy
    return isinstance(privacy, RecordPrivacySection) and privacy.unit == "person"


def publishes_exact_counts(section: PlanSection) -> bool:
    """Tells whether clients publish the exact number of their examples, in any group."""
    return not counts_by_public_number(section) and any(
        group.weighting == "examples" for group in section.group
    )


def public_number(section: PlanSection, own: int | None) -> int | None:
    """Returns the stated number that a client counts by; None where it counts its own examples.

    A number of its `own` settings overrides the plan's. PlanRefused if its records may not be
    counted, and neither states a number.
    """
    if own is not None or not counts_by_public_number(section):
        return own
    privacy = section.privacy
    assert isinstance(privacy, RecordPrivacySection)
    if privacy.records is None:
        raise PlanRefused(
            f"privacy.records: that a {privacy.unit} was added or removed must not show in how "
            "much a client counts, so it counts by a public number: state about how many "
            f"{privacy.unit}s a client has (or each client its own, by --records), or set "
            'adjacency = "zero-out", under which exact numbers are public'
        )
    return privacy.records


def publishes_counts(section: PlanSection) -> bool:
    groups = (*section.group, evaluation_group(section))
    return any(group is not None and group.weighting == "examples" for group in groups)


def describe_public_number(section: PlanSection, own: int | None) -> tuple[str, ...]:
    """Tells a client which of its numbers is public, and to whom; empty where all count alike."""
    if not publishes_counts(section):
        return ()
    number = public_number(section, own)
    what = "persons" if protects_persons(section) else "examples"
    how, own_way = f"by how many {what} it has", "; --records N counts by a number of your own"
    if number is not None:
        how, own_way = f"as {number} {what}", ""
    return (
        f"this client counts {how}, and that number is public: the coordinator, the shards and the "
        f"key holders read it in its receipts{own_way}",
    )


def weight_remarks(section: GroupSection, of: str, number: int) -> tuple[str, ...]:
    """Returns warnings for a client that counts by `number`; `of` ends a phrase with its group."""
    most, members = most_counted(section), section.rule.minimum
    share, found = min(number, most) / most, []
    if number > most:
        found.append(
            f"this client counts as if it had {most} examples, not {number}: more counts no more, "
            f"by the plan's most_examples{of}"
        )
    left = bits_left(section.bits, share * members, members)
    if leaves_few_bits(left, section.bits):
        found.append(
            f"about {max(0.0, left):.1f} of {section.bits} bits{of} are left in a mean of "
            f"{members} clients like this one, whose {number} examples are few of {most}: ask for "
            "a plan with a smaller most_examples, or with more bits"
        )
    return tuple(found)


def leaves_few_bits(left: float, bits: int) -> bool:
    """Tells whether weights leave too few of the bits that a plan asks for."""
    return left < min(FEW_BITS, bits - 0.5)


def shares_of(section: GroupSection, numbers: Sequence[int]) -> list[float]:
    most = most_counted(section)
    return [min(number, most) / most for number in numbers]


def bits_left(bits: int, shares: float, members: int) -> float:
    """Computes how many bits of a group's integers are left in a cohort's mean.

    Every member's rounding adds an independent error of about a step. The mean divides their sum by
    the sum of weights; `shares` is the sum of all members' shares.
    """
    return bits + math.log2(shares) - math.log2(members) / 2


# --- one plan ------------------------------------------------------------------------


def refuse_small(
    section: GroupSection,
    groups: Sequence[GroupLayout],
    parameters: CipherParameters,
    committee: Committee,
) -> None:
    """Refuses row-blocks that are shorter, when sealed, than the envelopes of their keys.

    Under a committee each row-block is a submission with its own key and envelopes. The last
    row-block has the remaining rows and may be smaller. PlanRefused says how many rows are enough.
    """
    cut = section.sparse
    assert cut is not None
    most = max(group.sent for group in groups)
    own = choose(parameters)
    a_value = own.element_bytes / own.values
    sealed = math.floor(most * a_value)
    envelopes = envelope_bytes(committee, own.ring.degree)
    if sealed < envelopes:
        a_row = most / min(cut.block, cut.rows)
        enough = math.ceil(envelopes / (a_row * a_value))
        raise PlanRefused(
            f"group {section.name}: sparse.block = {cut.block}: a row-block has {most} values, "
            f"{sealed} bytes when sealed, and its envelopes for the key holders take {envelopes}: "
            f"make it {enough} rows or more, or leave sparse out"
        )


def refuse_crowded(committee: Committee, bounds: Mapping[str, Bounds]) -> None:
    """Refuses cohorts whose order to a holder would exceed the message limit (PlanRefused)."""
    for group, own in bounds.items():
        size, none = (order_bytes(committee, count, group) for count in (own.most, 0))
        if size > MESSAGE_LIMIT:
            fit = (MESSAGE_LIMIT - none) * own.most // (size - none)
            raise PlanRefused(
                f"cohorts of {group} have up to {own.most} members, whose envelopes for "
                f"{len(committee.holders)} key holders may take {size} bytes, and no message to a "
                f"holder has more than {MESSAGE_LIMIT}: let the rule take at most {fit} (most, "
                "buffer, or cipher.capacity), or take fewer holders"
            )


@dataclass(frozen=True)
class Plan:
    """A sound plan. `initial_digest` pins the file of version 0 (hex BLAKE2b-256, or empty)."""

    section: PlanSection
    initial_digest: str = ""

    def __post_init__(self) -> None:
        _refuse_unsound(self)

    @property
    def text(self) -> str:
        """Canonical JSON, which the run id covers; [federation] is left out."""
        return canonical(self.section, self.initial_digest)

    @property
    def has_digest(self) -> bool:
        """True if the digest is known: it covers version 0's file, which may be unread."""
        return self.section.initial is None or self.initial_digest != ""

    @property
    def digest(self) -> str:
        """Digest of the text, hex, by which a site's policy allows a plan.

        It does not depend on where this machine has the file of version 0.
        """
        section = self.section
        if section.initial is not None:
            section = section.model_copy(update={"initial": ""})
        return file_digest(canonical(section, self.initial_digest).encode()).hex()

    @staticmethod
    @lru_cache(maxsize=8)
    def from_text(text: str) -> Plan:
        """Parses a canonical text; the plan is shared in the process (ConfigError, PlanRefused)."""
        try:
            body = json.loads(text)
            json.dumps(body, ensure_ascii=False).encode()  # refuses half of a character
            section, digest = body["plan"], str(body["initial_digest"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PlanRefused("the coordinator's plan is not a plan: join another run") from None
        return Plan(parse(PlanSection, section, "the coordinator's plan", PINNED), digest)

    def group(self, name: str) -> GroupSection:
        """Returns a group's section; KeyError if there is none."""
        trailing = self._trailing
        return trailing if trailing is not None and self.trails(name) else self._groups[name]

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of the model, each row-block as its own."""
        return tuple(self._groups)

    def is_alone(self, group: str) -> bool:
        """True if the group is the only one, so that texts need not name it."""
        return self.groups == (group,)

    def of(self, group: str) -> str:
        """Ends a phrase with " of NAME"; empty for the only group."""
        return "" if self.is_alone(group) else f" of {group}"

    def head(self, group: str) -> str:
        """Begins a line with the group's name; empty for the only group."""
        return "" if self.is_alone(group) else f"{group}: "

    @cached_property
    def _groups(self) -> dict[str, GroupSection]:
        found: dict[str, GroupSection] = {}
        for group in self.section.group:
            cut = group.sparse
            for name in (group.name,) if cut is None else cut.names(group.name):
                if name in found:
                    raise PlanRefused(f"two groups have the same name, {name}")
                found[name] = group
        return found

    def find_touched(self, rows: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
        """Returns the groups that a client contributes to if its data touches these rows.

        It touches all rows of a tensor that is not named. Malformed if a tensor has no such row, or
        no group is left.
        """
        sections, found = self.section.group, list[str]()
        patterns = [section.pattern for section in sections]
        first = {name: next((p for p in patterns if fnmatchcase(name, p)), None) for name in rows}
        for section in sections:
            cut = section.sparse
            if cut is None:
                found.append(section.name)
                continue
            names = cut.names(section.name)
            known = [name for name, pattern in first.items() if pattern == section.pattern]
            for name in known:
                if unknown := [row for row in rows[name] if not 0 <= row < cut.rows]:
                    raise Malformed(f"{name} has rows 0 to {cut.rows - 1}, and no row {unknown[0]}")
            own = {row // cut.block for name in known for row in rows[name]}
            found += [names[k] for k in sorted(own)] if known else names
        if not found:
            raise Malformed("touches: no row of any group: this client has nothing to train")
        return tuple(found)

    def versions(self, group: str) -> int:
        own = self.group(group).versions
        return own if own is not None else self.section.versions

    @property
    def all_groups(self) -> tuple[str, ...]:
        """Every group that clients contribute to; the one that trails the model comes first."""
        return (self.trailing, *self.groups) if self.trailing else self.groups

    def trails(self, group: str) -> bool:
        """True if each round of a group follows a version of the model, by the `schedule`.

        A round without enough members, or that fails, is skipped.
        """
        return self._trailing is not None and group == self._trailing.name

    @property
    def trailing(self) -> str:
        """The name of the group that trails the model; empty without one."""
        return "" if self._trailing is None else self._trailing.name

    @property
    def metrics_count(self) -> int:
        evaluation = self.section.evaluation
        return 0 if evaluation is None else len(evaluation.contributed)

    @property
    def evaluator(self) -> str:
        evaluation = self.section.evaluation
        return (evaluation.evaluator or "") if evaluation is not None else ""

    @property
    def keeps_best(self) -> bool:
        evaluation = self.section.evaluation
        return evaluation is not None and evaluation.best is not None

    @cached_property
    def schedule(self) -> Schedule:
        """The versions of the model that clients or the evaluator judge."""
        own = self.section.evaluation
        return Schedule(0 if own is None else own.every, self.section.versions)

    @cached_property
    def _trailing(self) -> GroupSection | None:
        return evaluation_group(self.section)

    def takes_turns(self, group: str) -> bool:
        """True if a group is a fragment: each round is for one of the groups of its rule."""
        return self.group(group).rule.name == "fragments" and not self.trails(group)

    def is_given(self, group: str) -> bool:
        """True if the plan itself determines version 0 of a group, so that no client sends it."""
        return self.is_sum(group) or self.section.initial is not None

    def is_sum(self, group: str) -> bool:
        """True if a group's versions are totals of what its cohorts sent (`checks.sections`)."""
        return self.group(group).outcome == "sum"

    @property
    def has_model(self) -> bool:
        return not all(map(self.is_sum, self.groups))

    def is_exact(self, group: str) -> bool:
        """True if clients send whole numbers to a group, and no noise is added to their total."""
        stated = self.group(group).range is not None  # of metrics: within 1, not whole numbers
        return self.is_sum(group) and not stated and self.section.privacy is None

    def bounds_sums(self, group: str) -> bool:
        """True if no step is made of a sum that is too long (`policy.longest`)."""
        section = self.group(group)
        clipped = self.section.privacy is not None or bool(section.codec) or section.feedback
        bounded = clipped if section.bound is None else section.bound != "none"
        return bounded and group in self.groups and not self.is_sum(group)

    def times_median(self, group: str) -> float:
        """Returns how many times longer than usual a sum may be; 0 if only the clip counts."""
        times, _, usual = (self.group(group).bound or "").partition("x ")
        return float(times) if usual and self.bounds_sums(group) else 0.0

    def mechanism(self, group: str, values: int) -> ClientMechanism | None:
        """Returns the mechanism of client-level privacy for updates of so many values; else None.

        Under adaptive clipping the indicator is one of the values, and within the norm.
        """
        privacy = self.section.privacy
        if not isinstance(privacy, ClientPrivacySection):
            return None
        section, adaptive = self.group(group), self.adaptive(group)
        return _mechanism(
            section.clip if adaptive is None else adaptive.norm,
            values,
            section.bits,
            privacy.noise_multiplier,
            privacy.placement,
            self.honest(group),
        )

    def adaptive(self, group: str) -> AdaptiveClip | None:
        section = self.group(group)
        if section.adaptive is None:
            return None
        return AdaptiveClip(section.clip, section.adaptive.quantile)

    def honest(self, group: str) -> int:
        privacy = self.section.privacy
        if not isinstance(privacy, ClientPrivacySection) or privacy.placement != "distributed":
            return 1
        return privacy.honest if privacy.honest is not None else self.group(group).rule.minimum

    def deviation(self, group: str, values: int) -> float:
        """Returns the noise's standard deviation on a coordinate of the smallest cohort's mean.

        The variance is one party's share times the parties that add one: each member (local,
        distributed), or the shards alone. The unit is that of updates, which is the model's until
        an adaptive clip has moved. It is 0 without client-level privacy. An update sends so many
        `values` (`GroupLayout.sent`).
        """
        mechanism = self.mechanism(group, values)
        if mechanism is None:
            return 0.0
        members = self.group(group).rule.minimum
        parties = 1 if self.noisy_shards else members
        made = mechanism.calibration
        total = math.sqrt(parties * made.variance) * made.step
        return total / members * self.chain(group).values_per_sent

    @property
    def metric_noise(self) -> dict[str, float]:
        """The noise's standard deviation on each metric of the smallest cohort, by name, sorted.

        It is in the metric's unit; empty where evaluations have no noise.
        """
        evaluation = self.section.evaluation
        if evaluation is None or not self.trailing:
            return {}
        sigma = self.deviation(self.trailing, self.metrics_count)
        return {name: sigma * most for name, most in evaluation.magnitudes.items() if sigma}

    def grid(self, group: str, values: int) -> Grid:
        """Returns the grid for so many sent values; PlanRefused if noise does not fit it."""
        section, mechanism = self.group(group), self.mechanism(group, values)
        if mechanism is not None:
            return Grid(section.bits, mechanism.range)
        if self.is_exact(group):
            return whole_grid(section)
        if section.fits_length:
            # the deviation of a coordinate of a rotated update as long as the clip
            one = section.clip / math.sqrt(values * (section.one_in or 1))
            return Grid(section.bits, DEVIATIONS * one)
        return Grid(section.bits, section.range if section.range is not None else section.clip)

    def chain(self, group: str) -> Chain:
        """Returns the codec chain that a group's updates pass before they are rounded."""
        section = self.group(group)
        return Chain(section.one_in or 1, section.rotates, not section.feedback)

    @property
    def noisy_shards(self) -> bool:
        privacy = self.section.privacy
        return isinstance(privacy, ClientPrivacySection) and privacy.placement == "aggregator"

    @cached_property
    def cipher_parameters(self) -> CipherParameters:
        """The parameters for all groups, by the most bits; see `fit_cipher`."""
        most = levels(max(self.group(name).bits for name in self.all_groups))
        own, slots = self.section.cipher, self.section.block_size or LARGE_BLOCK
        heaviest = max(self.bounds(name).most_weight for name in self.all_groups)
        return CipherParameters(own.name, own.capacity, most, heaviest, slots, own.security)

    def fit_cipher(self, group: GroupLayout) -> CipherParameters:
        """Returns the parameters with the fewest bytes for the blocks of a group's model."""
        own, slots = self.cipher_parameters, group.cipher_slots
        return own if slots is None else replace(own, slots=slots)

    def cipher_of(self, group: GroupLayout) -> Cipher:
        return cipher(self.fit_cipher(group))

    def key_length(self, group: GroupLayout) -> int:
        """Returns N, the coefficients of a one-time key of `rlwe` for one block of a group."""
        return key_length(self.fit_cipher(group))

    def lay_out_sizes(self, sizes: Mapping[str, int]) -> list[GroupLayout]:
        """Lays out all groups of a model by their numbers of values, without tensors."""
        whole = []
        for name, values in sizes.items():
            sparse = self.group(name).sparse
            rows = None if sparse is None else (0, sparse.block)
            one_in = self.group(name).one_in
            tensors = (SCALE,) if self.group(name).scaled else ()
            whole.append(GroupLayout(name, tensors, values, values, rows, one_in))
        return cut(self.section, whole, self._element, self.trailing)

    def _element(self, slots: int) -> int:
        return cipher(replace(self.cipher_parameters, slots=slots)).element

    @cached_property
    def holders(self) -> int:
        if self.opening is Opening.NOTHING:
            return 0
        asked = self.section.cipher.holders
        return _HOLDERS[self.opening] if asked is None else asked

    @property
    def divides_cohorts(self) -> bool:
        """True if parts of a burnt cohort may make its version (`cohorts.suspicion`)."""
        return self.has_committee or self.opening is Opening.NOTHING

    @property
    def has_committee(self) -> bool:
        """True if a committee opens sums: then updates of a burnt cohort may be sealed again."""
        return self.opening is Opening.COMMITTEE

    @cached_property
    def threshold(self) -> int:
        asked = self.section.cipher.threshold
        return self.holders // 2 + (self.holders > 0) if asked is None else asked

    def committee(self, names: Sequence[str]) -> Committee:
        """Returns the committee of these holders; PlanRefused if their number is not the plan's."""
        if len(names) != self.holders:
            raise PlanRefused(
                f"the plan has {self.holders} key holders, and the roster {len(names)}: issue "
                "keys to as many"
            )
        return Committee(tuple(sorted(names)), self.threshold)

    @property
    def unnamed_committee(self) -> Committee:
        """A committee with made-up names, for sizes; PlanRefused for a bad threshold."""
        return self.committee([f"holder-{number:02d}" for number in range(self.holders)])

    @cached_property
    def opening(self) -> Opening:
        return cipher(self.cipher_parameters).opening

    @property
    def room(self) -> int:
        """The largest total weight of a cohort's members; the shards' noise takes 1."""
        return self.section.cipher.capacity - self.noisy_shards

    def bounds(self, group: str) -> Bounds:
        """Returns the bounds of every cohort of the group, whatever its rule decides."""
        return self._bounds[group]

    @cached_property
    def _bounds(self) -> dict[str, Bounds]:
        found = {name: bounds(self.group(name).rule, self.room) for name in self.all_groups}
        if name := self.trailing:  # each version to be evaluated has a step of its own
            last = self.schedule.count(self.section.versions) - 1
            found[name] = replace(found[name], ahead=last)
        return found

    def rule(self, group: str) -> Rule:
        """Returns the group's rule, for the coordinator alone: a user's rule is imported."""
        if group not in self._rules:
            self._rules[group] = build_rule(self.group(group).rule, self.room)
        return self._rules[group]

    def make_rules(self) -> None:
        for name in self.groups:
            with naming(_part(self, name)):
                self.rule(name)

    @cached_property
    def _rules(self) -> dict[str, Rule]:
        return {}

    def optimizer(self, group: str) -> Optimizer:
        if self.is_sum(group):
            return REPLACING
        made = build_optimizer(self.group(group).optimizer, self.versions(group))
        return made if self.group(group).pull_bits is None else keeping_exact(made)

    def layout(self, schema: Schema) -> Layout:
        """Lays out the groups and blocks of a model.

        Raises:
            PlanRefused: a tensor has no group or cannot hold its totals, a group is too large for
                its noise, or a row-block is shorter than its envelopes.
        """
        if schema not in self._layouts:
            self._layouts[schema] = self._lay_out(schema)
        return self._layouts[schema]

    @cached_property
    def _layouts(self) -> dict[Schema, Layout]:
        return {}

    def _lay_out(self, schema: Schema) -> Layout:
        section = self.section
        asked = section.evaluation if self.trailing else None
        trailing = None if asked is None else evaluation_layout(asked)
        layout = Layout.build(schema, section, self._element, trailing)
        for group in layout.all_groups:
            self.grid(group.name, group.sent)
            if self.is_sum(group.name):
                refuse_narrow(group, self.is_exact(group.name))
        if self.has_committee:
            for each in (each for each in section.group if each.sparse is not None):
                own = [group for group in layout.groups if self.group(group.name) is each]
                refuse_small(each, own, self.fit_cipher(own[0]), self.unnamed_committee)
        return layout


LARGE_BLOCK = 1 << 18
"""Integers of a block that wastes no part of a ciphertext, under any cipher."""
_HOLDERS = {Opening.HOLDER: 1, Opening.COMMITTEE: 4}
"""The default number of key holders."""

_mechanism = lru_cache(maxsize=64)(ClientMechanism)
"""Cached, because finding the step is slow and every party asks often."""


@check_types
def load_plan(
    path: Path | str,
    base: Path | None = None,
    fetch: bool = True,
    lacking: Mapping[str, float] = MappingProxyType({}),
    own_initial: str | None = None,
) -> Plan:
    """Reads and validates a plan file.

    `initial` is a URL, or a path relative to `base` (default: the file's folder). Its digest
    becomes part of the plan; without `fetch` no other machine is asked for the file, and the digest
    stays unknown. `own_initial` is where this machine has the file, if that is elsewhere. Paths in
    the federation's settings become absolute. `lacking` has defaults for keys of `[privacy]`.

    Raises:
        ConfigError: the file does not parse, or a key has a bad value.
        PlanRefused: the plan is unsound.
        DiskFailed: the store of `initial` cannot be reached.

    Examples:
        >>> ps.load_plan("plan.toml").section.name
        'line'
    """
    path = Path(path)
    values = read_toml(path)
    if "plan" in values and "group" not in values:
        raise ConfigError(f"{path} is a scenario: `secureps simulate` plays it; name its plan here")
    if lacking and isinstance(privacy := values.get("privacy"), dict):
        values["privacy"] = {**lacking, **privacy}
    section = parse(PlanSection, values, str(path))
    if (federation := section.federation) is not None and federation.settings:
        settings = {"settings": resolve_paths(federation.settings, base or path.parent)}
        section = section.model_copy(update={"federation": federation.model_copy(update=settings)})
    with naming(path):
        if section.initial is None:
            return Plan(section)
        place = own_initial or section.initial
        initial, digest = pin_initial(place, base or path.parent, fetch)
        return Plan(section.model_copy(update={"initial": initial}), digest)


def _part(plan: Plan, name: str) -> str:
    """Names the table of the file that a group comes from; empty if there is only one group."""
    if plan.trails(name):
        return name
    return f"group {plan.group(name).name}" if len(plan.section.group) > 1 else ""


def _refuse_unsound(plan: Plan) -> None:
    section = plan.section
    refuse_unsound_evaluation(section)
    refuse_unsound_work(section)
    refuse_unsound_scaling(section)
    cipher(plan.cipher_parameters)
    # The trailing group is last: what it inherits from the first group has been checked by then.
    for name in sorted(plan.all_groups, key=plan.trails):
        with naming(_part(plan, name)):
            sealed = plan.opening is not Opening.NOTHING
            refuse_rule(plan.group(name).rule, section.cipher.capacity, sealed, plan.noisy_shards)
        plan.optimizer(name)
        with naming(_part(plan, name)):
            _refuse_uncovered(plan, name)
    _refuse_apart(plan)
    refuse_noisy_choice(section.evaluation, plan.metric_noise)
    refuse_placement(section.privacy, section.cipher.name, plan.opening is not Opening.NOTHING)
    refuse_steps(section)
    refuse_replicas(section)
    refuse_holders(section.cipher, plan.opening)
    if plan.has_committee:
        refuse_crowded(plan.unnamed_committee, plan._bounds)


def _refuse_apart(plan: Plan) -> None:
    """Refuses a sum group that does not move with a model beside it (PlanRefused).

    A client sends one update per model (`store.budget`), so all would decline to send a second sum.
    """
    sums = [name for name in plan.groups if plan.is_sum(name)]
    models = [name for name in plan.groups if not plan.is_sum(name)]
    paces = [(plan.group(name).rule, plan.versions(name)) for name in models]
    for name in sums:
        if models and (plan.group(name).rule, plan.versions(name)) not in paces:
            raise PlanRefused(
                f"group {name}: a sum in a plan with a model keeps pace with that model: give it "
                "the rule and the versions of one of the model's groups, or a plan of its own"
            )


def _refuse_turns(plan: Plan, name: str) -> None:
    """Refuses groups that cannot send one training in turn (PlanRefused)."""
    if plan.groups != joint_groups(plan, name) or plan.is_alone(name):
        raise PlanRefused(
            'rule: under "fragments" all groups of a plan take turns: give two groups or more this '
            'rule, key by key and without sparse, and no group another; or take "sync"'
        )
    if len({plan.versions(group) for group in plan.groups}) > 1:
        raise PlanRefused(
            f"versions: {named(plan.groups)} take turns, so each makes as many as the others: "
            "leave the key out"
        )
    if plan.section.work is not None:
        raise PlanRefused(
            'work: under "fragments" a client trains in the first turn alone, and is no slower or '
            'faster in the others: remove [work], or take "sync"'
        )


def _refuse_uncovered(plan: Plan, name: str) -> None:
    section, privacy = plan.group(name), plan.section.privacy
    refuse_unbounded(section)
    if not plan.trails(name):
        refuse_sum(section, plan.bounds(name), privacy)
    refuse_codec(section, plan.bounds(name).rounds, plan.versions(name), privacy)
    if plan.takes_turns(name):
        _refuse_turns(plan, name)
    refuse_adaptive(section, privacy)
    refuse_rows(section, privacy)
    if plan.times_median(name):
        refuse_median(section, plan.bounds(name), plan.opening)
    if isinstance(privacy, ClientPrivacySection):
        refuse_client_privacy(section, privacy, plan.bounds(name), plan.honest(name))
    else:
        plan.grid(name, 1)


# --- canonical ---------------------------------------------------------------------


def canonical(section: PlanSection, initial_digest: str) -> str:
    """Returns the JSON text that the run id covers, without [federation]."""
    body = section.model_dump(mode="json", exclude={"federation"}, context=PINNED)
    if section.replicas == 1:  # one of `LATER` too, and this key came with it
        del body["shards_wait"]
    text = {"plan": body, "initial_digest": initial_digest}
    return json.dumps(text, sort_keys=True, separators=(",", ":"))


def different_keys(own: str, other: str) -> tuple[str, ...]:
    """Returns the keys, such as `group.0.clip`, in which two plans' texts differ.

    The path of `initial` is not compared, because each machine has its own; its digest is.
    """

    def flat(value: Any, path: str) -> dict[str, Any]:
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            return {k: v for key, item in items for k, v in flat(item, f"{path}.{key}").items()}
        return {path.removeprefix(".plan").removeprefix("."): value}

    mine, theirs = flat(json.loads(own), ""), flat(json.loads(other), "")
    missing = object()
    keys = sorted((mine.keys() | theirs.keys()) - {"initial"})
    return tuple(k for k in keys if mine.get(k, missing) != theirs.get(k, missing))


# --- envelope size: by the ring's degree, and not by the model's --------------------

ORDER_BYTES = 200
"""Most bytes of an order to open a cohort, without its members."""
MEMBER_BYTES = 943
"""Most bytes of a member and its receipt in an order, without the group's name (three times) and
the envelopes."""
_ENVELOPE_FRAMING, _KEY_NUMBER, _DIGEST_FRAMING = 3, 5, 2


def one_envelope(committee: Committee) -> int:
    return committee.seed_bytes + envelope.OVERHEAD


def order_bytes(committee: Committee, members: int, group: str) -> int:
    """Bounds the bytes of an order to open a cohort, which has all receipts."""
    each = one_envelope(committee) + _ENVELOPE_FRAMING + _KEY_NUMBER
    sealed = len(committee.holders) * each
    committed = len(committee.subsets) * (DIGEST_BYTES + _DIGEST_FRAMING)
    member = MEMBER_BYTES + 3 * len(group) + sealed + committed
    return ORDER_BYTES + len(group) + members * member


def value_bytes(parameters: CipherParameters) -> float:
    return choose(parameters).block_bytes(parameters.slots) / parameters.slots


def envelope_bytes(committee: Committee, degree: int) -> int:
    return (
        len(committee.holders) * one_envelope(committee)
        + len(committee.subsets) * DIGEST_BYTES
        + degree * COEFFICIENT_BYTES
    )


def bytes_up(parameters: CipherParameters, group: GroupLayout) -> int:
    """Returns the bytes of a sealed update; `parameters` are fitted to the group's blocks."""
    sealed = cipher(parameters).block_bytes
    full, last = sealed(group.slots(0)), group.slots(group.blocks - 1)
    return (group.blocks - 1) * full + sealed(last)


# --- groups that train together ------------------------------------------------------


def joint_groups(plan: Plan, group: str) -> tuple[str, ...]:
    """Returns the groups that train together with this one, itself included, in order.

    Groups with rounds and the same rule move together. Row-blocks have rounds of their own, because
    each has other members.
    """
    if not joins_others(plan, group):
        return (group,)
    rule = plan.group(group).rule
    return tuple(
        each for each in plan.groups if joins_others(plan, each) and plan.group(each).rule == rule
    )


def digest_round_models(
    plan: Plan, group: str, model: Sequence[GroupVersion], blocks: Mapping[str, Sequence[bytes]]
) -> bytes:
    """Digests the models that all groups of a round were trained on; empty for a single group.

    A trailing group is always single: its base covers the digests of the whole model. `blocks` are
    the digests of the published blocks of `model`, by group.
    """
    groups = joint_groups(plan, group)
    if len(groups) == 1:
        return b""
    at = {each.group: each.version for each in model}
    return digest("secureps-beside", *(model_digest(g, at[g], tuple(blocks[g])) for g in groups))


def joins_others(plan: Plan, group: str) -> bool:
    """Tells whether a group has rounds that other groups of the same rule may join."""
    apart = plan.trails(group) or plan.group(group).sparse is not None
    return not apart and plan.bounds(group).rounds


def next_groups(plan: Plan, groups: Sequence[str], versions: Mapping[str, int]) -> tuple[str, ...]:
    """Returns which of some joint groups, in the plan's order, the next round is for.

    These are all of them; of fragments the one whose turn it is, which has the fewest versions.
    """
    if plan.takes_turns(groups[0]):
        return (min(groups, key=lambda group: versions[group]),)
    return tuple(groups)


def scale_mover(plan: Plan, group: str, sent: int = 1) -> AdaptiveClip | MovingRange | None:
    """Builds the mover of a group's scale, in whose units its updates travel; None without one."""
    section = plan.group(group)
    if not section.follows_norms:
        return plan.adaptive(group)
    return MovingRange(section.clip, plan.grid(group, sent).range)
