"""Checks of a plan's sections: servers, local work, privacy, codec and sums.

**Privacy.** An epsilon covers sums with noise. It is void if other things that are visible depend
on a client's data: how much the client counts, the size that it declares for an update, or the rows
it sends.

**Sums.** A cohort of a group with `outcome = "sum"` is summed and opened like any other. Its total
is the next version of the group's tensors: no optimizer steps, and nothing is divided. A client
sends the tensors that its trainer returns, not their differences from the version before. Without
noise every total is exact: clients send whole numbers of `bits` bits including the sign, and a plan
is refused if its largest total would not be exact in float32. Under client-level privacy `clip`
bounds the L2 norm of a client's tensors; noise and charges are those of any other sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from secureps.codec.grid import Grid, levels
from secureps.config.plan import (
    STAGES,
    CipherSection,
    ClientPrivacySection,
    GroupSection,
    OwnRuleSection,
    PlanSection,
    PrioritySection,
    RecordPrivacySection,
    SspSection,
    SyncSection,
)
from secureps.crypto.cipher import Opening
from secureps.errors import Malformed, PlanRefused
from secureps.model.layout import GroupLayout
from secureps.policy.rules.rule import Bounds
from secureps.privacy.ledger import OWN_DELTA

# --- servers and local work -------------------------------------------------------------


def refuse_replicas(section: PlanSection) -> None:
    """Refuses more copies than shards (PlanRefused)."""
    copies = section.replicas
    if copies > section.shards:
        raise PlanRefused(
            f"replicas: {copies} copies of every block lie on as many shards, and there are "
            f"{section.shards}: raise shards to {copies} or lower replicas"
        )


def refuse_unsound_scaling(section: PlanSection) -> None:
    """Refuses a first number of shards outside the range of `[scaling]` (PlanRefused)."""
    own = section.scaling
    if own is None:
        return
    if not own.least_shards <= section.shards <= section.most_shards:
        mend = "lower it, or raise scaling.most_shards"
        if section.shards < own.least_shards:
            mend = "raise it, or lower scaling.least_shards"
        raise PlanRefused(
            f"scaling: a run begins with shards = {section.shards}, and they are to be "
            f"{own.least_shards} to {section.most_shards}: {mend}"
        )
    if own.least_shards < section.replicas:
        raise PlanRefused(
            f"scaling.least_shards = {own.least_shards}: every block lies on {section.replicas} "
            "shards, so there are as many at least"
        )


def refuse_holders(section: CipherSection, opening: Opening) -> None:
    """Refuses holders or a threshold that the cipher cannot have (PlanRefused)."""
    if opening is Opening.HOLDER and section.holders not in (None, 1):
        raise PlanRefused(
            f"cipher.holders: {section.name} has one holder of the whole secret key; "
            f"{section.holders} were asked for"
        )
    if opening is not Opening.COMMITTEE and section.threshold is not None:
        raise PlanRefused(
            f"cipher.threshold: {section.name} has no committee; remove it, or take rlwe"
        )


def refuse_unsound_work(section: PlanSection) -> None:
    if section.work is not None and isinstance(section.privacy, RecordPrivacySection):
        raise PlanRefused(
            f"work: under {section.privacy.unit}-level privacy every version takes and charges "
            "training.local_steps private steps; a client that took fewer would tell in its "
            "charges how fast its machine is and how much it holds: remove [work]"
        )


# --- privacy ---------------------------------------------------------------------

Privacy = RecordPrivacySection | ClientPrivacySection | None

LEAST_NOISE = 0.5
"""With less, a single step spends an epsilon above 10 at a delta of 1e-5 (Balle and Wang 2018,
theorem 8): some outcome is 22,000 times as likely with a record as without it."""


def weak_privacy(privacy: Privacy) -> tuple[str, ...]:
    """Warns of a delta or a noise that is allowed, but protects next to nothing."""
    if privacy is None:
        return ()
    found = []
    if privacy.delta > OWN_DELTA:
        found.append(
            f"WARNING: the plan's delta is {privacy.delta:g}, above {OWN_DELTA:g}: with about this "
            "probability its epsilon promises nothing; ask for a smaller delta, or join with "
            f"--budget EPSILON, which counts at {OWN_DELTA:g}"
        )
    if privacy.noise_multiplier < LEAST_NOISE:
        of, what = ("version" if privacy.unit == "client" else "step"), privacy.unit
        found.append(
            f"WARNING: the plan's noise_multiplier is {privacy.noise_multiplier:g}, below "
            f"{LEAST_NOISE:g}: a single {of} that a {what} takes part in has an epsilon above 10, "
            "which protects next to nothing; ask for more noise, or join with --budget EPSILON, "
            "which stops at the epsilon that you name"
        )
    return tuple(found)


def refuse_steps(section: PlanSection) -> None:
    """Refuses record-level privacy without a number of steps, which its cost depends on."""
    steps = section.training.get("local_steps")
    record = isinstance(section.privacy, RecordPrivacySection)
    if record and (type(steps) is not int or steps < 1):
        raise PlanRefused(
            "training.local_steps: a private plan states how many steps each version takes, "
            "so that a client knows what it will spend: write local_steps = N in [training], in "
            "place of local_epochs"
        )


def refuse_adaptive(section: GroupSection, privacy: Privacy) -> None:
    """Refuses an adaptive clip where no noise covers the count of short updates (PlanRefused)."""
    if section.adaptive is None:
        return
    if not isinstance(privacy, ClientPrivacySection):
        raise PlanRefused(
            "adaptive: how many updates are short is counted under client-level "
            'privacy alone: remove it, or add [privacy] with unit = "client"'
        )
    if not isinstance(section.rule, SyncSection) or section.sparse is not None:
        raise PlanRefused(
            "adaptive: a clip that moves is one for all members of a cohort, who "
            'must train from one version of the whole group: take rule "sync" without sparse'
        )


def refuse_rows(section: GroupSection, privacy: Privacy) -> None:
    """Refuses row-blocks under privacy: no noise hides which of them are sent (PlanRefused).

    A single record decides whether its row is touched. DP-SGD and Skellam noise cover values, not
    that choice; hiding it would take an update of every row-block from every client.
    """
    if section.sparse is None or privacy is None:
        return
    whose = f"a {privacy.unit}"
    raise PlanRefused(
        f"sparse: which row-blocks are sent tells which rows {whose} touches, and no noise hides "
        "that: remove sparse, so that everybody sends the whole table, or [privacy]"
    )


def refuse_placement(privacy: Privacy, cipher: str, sealed: bool) -> None:
    """Refuses distributed noise, which protects sums alone, under a cipher that hides nothing."""
    if not isinstance(privacy, ClientPrivacySection):
        return
    if privacy.placement == "distributed" and not sealed:
        raise PlanRefused(
            "privacy.placement: distributed noise protects a sum and no single update, and "
            f"cipher {cipher} shows every one: encrypt, or take local"
        )
    if privacy.placement != "distributed" and privacy.honest is not None:
        raise PlanRefused(
            f"privacy.honest: {privacy.placement} noise relies on nobody's share; remove it"
        )


def refuse_client_privacy(
    section: GroupSection, privacy: ClientPrivacySection, own: Bounds, honest: int
) -> None:
    """Refuses a group whose sums the noise of `privacy` would not cover (PlanRefused)."""
    if section.weighting != "uniform":
        raise PlanRefused(
            f'weighting = "{section.weighting}" makes a client\'s influence depend on its '
            "number of examples, which the noise does not cover: client-level privacy needs "
            '"uniform"'
        )
    if section.range is not None:
        raise PlanRefused(
            "range: under client-level privacy it follows from clip, bits and noise; remove it"
        )
    if privacy.placement != "local" and own.most_weight > 1:
        key = "most_weight = 1" if isinstance(section.rule, OwnRuleSection) else "power = 0"
        raise PlanRefused(
            f"rule: {privacy.placement} noise is made for members that all weigh 1, and a heavier "
            f"one would be covered less: set {key}, or take local noise"
        )
    if isinstance(section.rule, PrioritySection) and section.rule.score == "magnitude":
        raise PlanRefused(
            "rule.score: a declared magnitude tells of an update what no noise covers: take "
            '"freshness" under client-level privacy'
        )
    if honest > own.minimum:
        raise PlanRefused(
            f"{honest} members are trusted to add noise, but cohorts of {own.minimum} would be "
            "opened: raise rule.minimum or lower privacy.honest"
        )


# --- bound -------------------------------------------------------------------------


def refuse_median(section: GroupSection, own: Bounds, opening: Opening) -> None:
    """Refuses a bound that needs two sets of each cohort where there never are (PlanRefused)."""
    text, least = f'bound = "{section.bound}"', 2 * own.minimum
    whole = opening is not Opening.COMMITTEE and not (opening is Opening.NOTHING and own.rounds)
    if whole or section.sparse is not None:
        raise PlanRefused(
            f"{text}: sets of a cohort show who makes it long, and here none may be opened: take "
            'cipher "rlwe", or "plain" with rounds, and no sparse'
        )
    if (most := own.start if own.rounds else own.most) < least:
        raise PlanRefused(
            f"{text}: cohorts of {most} cannot be divided into two sets of {own.minimum}: set "
            f"rule.{'start' if own.rounds else 'buffer'} to {least} or more, or lower rule.minimum"
        )


# --- codec -------------------------------------------------------------------------


def refuse_codec(section: GroupSection, rounds: bool, versions: int, privacy: Privacy) -> None:
    """Refuses a codec whose updates cannot be added, or feedback that cannot work (PlanRefused)."""
    names = [stage.name for stage in section.codec]
    for name, count in Counter(names).items():
        if count > 1:
            raise PlanRefused(f"codec: {name} is there {count} times: give each stage once")
    if names != (right := [name for name in STAGES if name in names]):
        raise PlanRefused(f"codec: stages go in the order {', '.join(right)}")
    if section.adaptive is not None and names:
        raise PlanRefused(
            "codec: under adaptive clipping one value of an update says whether it was short, and "
            "must be sent as it is: remove codec or adaptive"
        )
    if "support" in names:
        _refuse_support(section)
    if "round" in names:
        _refuse_range(section, names, rounds, privacy)
    if section.feedback:
        _refuse_feedback(section, rounds, versions)


def _refuse_support(section: GroupSection) -> None:
    if isinstance(section.rule, SspSection):
        raise PlanRefused(
            'codec: rule "ssp" waits for an update of every member, of whichever version, and '
            'members of a cohort must send the same part of the model: take rule "sync" or '
            '"buffered", or leave support out'
        )


def _refuse_range(
    section: GroupSection, names: Sequence[str], rounds: bool, privacy: Privacy
) -> None:
    if isinstance(privacy, ClientPrivacySection):
        raise PlanRefused(
            "codec: under client-level privacy the range follows from clip, bits and noise: remove "
            "round"
        )
    if "rotate" not in names:
        raise PlanRefused(
            "codec: round takes one range for all values, which are alike after a rotation alone: "
            "add rotate before it"
        )
    if "clip" not in section.model_fields_set:
        raise PlanRefused(
            "codec: round takes the range from the clip: state clip, about as long as updates are"
        )
    if section.follows_norms and (not rounds or section.sparse is not None):
        raise PlanRefused(
            'codec: a range that follows "mean_norm" is one for all members of a cohort, who must '
            'train from one version of the whole group: take rule "sync" without sparse, or '
            'length = "clip"'
        )
    if section.range is not None:
        raise PlanRefused("range: it follows from the clip where codec has round: remove one")


def _refuse_feedback(section: GroupSection, rounds: bool, versions: int) -> None:
    if section.adaptive is not None:
        raise PlanRefused(
            "feedback: what a client kept is in units of a clip that has moved since: remove "
            "adaptive or feedback"
        )
    if not rounds:
        raise PlanRefused(
            f'feedback: under rule "{section.rule.name}" a client may send an update before it '
            'knows what became of the last one, and so what to add to it: take rule "sync"'
        )
    if versions == 1:
        raise PlanRefused("feedback: one version is made, and what is kept would never be sent")


# --- sums --------------------------------------------------------------------------

WHOLE = 1 << 24
"""Every whole number of at most this magnitude is a float32."""

_OF_MODELS = ("adaptive", "codec", "feedback", "pull_bits", "range", "sparse", "optimizer")
"""Keys that only make sense for updates of a model."""


def refuse_sum(section: GroupSection, own: Bounds, privacy: Privacy) -> None:
    """Refuses a sum group that could not be exact, or that no epsilon would cover (PlanRefused)."""
    if section.outcome != "sum":
        return
    for key in _OF_MODELS:
        if getattr(section, key) != GroupSection.model_fields[key].default:
            raise PlanRefused(
                f'{key}: it is for updates of a model, and outcome = "sum" adds whole numbers: '
                "remove it"
            )
    if isinstance(privacy, RecordPrivacySection):
        raise PlanRefused(
            f'outcome = "sum": under {privacy.unit}-level privacy nothing is told of a client\'s '
            'records but by noisy steps: take unit = "client", or a plan of its own for the sum'
        )
    if section.weighting != "uniform":
        raise PlanRefused('weighting: in a sum all count alike: take "uniform"')
    if not isinstance(section.rule, SyncSection):
        raise PlanRefused(
            f'rule: in a sum each client counts once, and under "{section.rule.name}" it may count '
            'more or less: take "sync"'
        )
    most = whole_grid(section).most
    if privacy is None and own.most * most > WHOLE:
        raise PlanRefused(
            f"bits: {own.most} clients that add up to {most:,} each reach a total of "
            f"{own.most * most:,}, and totals are exact up to {WHOLE:,}: lower bits, rule.most or "
            "cipher.capacity"
        )


def refuse_narrow(layout: GroupLayout, exact: bool) -> None:
    """Refuses a tensor whose dtype cannot hold every total, such as uint8 (PlanRefused).

    With noise a total may be negative, so unsigned types are refused too.
    """
    for spec in layout.tensors:
        dtype = np.dtype(spec.dtype)
        if dtype.itemsize < 4 or dtype.kind not in ("fiu" if exact else "fi"):
            raise PlanRefused(
                f"group {layout.name}: tensor {spec.name!r} is {dtype}, which cannot hold every "
                'total: outcome = "sum" takes int32, int64, float32 or float64'
            )


def whole_grid(section: GroupSection) -> Grid:
    return Grid(section.bits, float(levels(section.bits) // 2))


def check_addends(section: GroupSection, layout: GroupLayout, values: NDArray[np.float32]) -> None:
    """Checks that a client's addends are whole and within the plan's bits (Malformed)."""
    most = whole_grid(section).most
    wrong = (values != np.rint(values)) | (np.abs(values) > most)
    if wrong.any():
        at = int(wrong.argmax())
        name = next(name for name, part in layout.parts() if at < part.stop)
        raise Malformed(
            f"tensor {name!r} has the value {values[at]:g}, and the plan sums whole numbers from "
            f"{-most:,} to {most:,} (group {section.name}: bits = {section.bits})"
        )
