"""Who sees what under a plan, and who must collude to open a single update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from secureps.config.plan import ClientPrivacySection, RecordPrivacySection
from secureps.crypto.cipher import Opening
from secureps.policy.plan import Plan, publishes_counts
from secureps.wording import counted, named


@dataclass(frozen=True, slots=True)
class Sight:
    """What a role sees and never sees, as long as it keeps to the protocol."""

    role: str
    sees: str
    never: str


def sights(plan: Plan) -> tuple[Sight, ...]:
    noise = ", its own noise" if plan.noisy_shards else ""
    keys = "; sums of one-time keys" if plan.has_committee else ""
    more = "; who touches which row-blocks" if any(g.sparse for g in plan.section.group) else ""
    made = "models" if plan.has_model else "totals"
    if plan.has_model and any(map(plan.is_sum, plan.groups)):
        made = "models and totals"
    model = ", the model" if plan.has_model else ""  # a total is the sum of its cohort
    if publishes_counts(plan.section):
        more = f"; by how many examples each client counts{more}"
    coordinator = Sight(
        "coordinator",
        f"who takes part, when, how large; receipts; charges{keys}{more}",
        f"updates, sums, {made}",
    )
    client = Sight("client", f"its own records, published {made}", "another client's update")
    if plan.opening is Opening.NOTHING:
        shard = Sight("shard", f"every client's update, sums{model}{noise}{more}", "records")
        return client, coordinator, shard
    held = f"ciphertexts, the sum of each cohort{model}{noise}{more}"
    shard = Sight("shard", held, "a single update")
    if plan.opening is Opening.HOLDER:
        seen = f"receipts, cohort lists, every opened sum{more}"
        return client, coordinator, shard, Sight("key holder", seen, "ciphertexts, models")
    seen = f"its seeds of one-time keys, receipts, cohort lists{more}"
    never = "ciphertexts, updates, sums of them, models"
    role = f"key holder, each of {plan.holders}"
    return client, coordinator, shard, Sight(role, seen, never)


ONE_HOLDER = (
    "the aggregator (a shard suffices) together with the key holder",
    "a malicious shard alone, if it gives the holder one ciphertext in place of a sum and "
    "reads what comes back",
)


def count_withstood(threshold: int, holders: int) -> int:
    """Counts the corrupt key holders that do not help a malicious aggregator: f = 2t - n - 1.

    With one more, the aggregator can show two cohorts that differ in one client to two disjoint
    groups of honest holders: n - f honest holders are enough for two groups of t - f, and no honest
    holder sees both. docs/threat-model.md has the argument.
    """
    return 2 * threshold - holders - 1


def advised_threshold(holders: int) -> int:
    """Returns a threshold by which as many holders may be corrupt as may be away, or more.

    With 3a + 1 holders, a may be away, and a corrupt ones gain nothing.
    """
    return holders - (holders - 1) // 3


def collusion(plan: Plan) -> tuple[str, ...]:
    """Lists everybody that can open a single update: one party, or several that collude."""
    if plan.opening is Opening.NOTHING:
        return ("any shard alone: it reads every update",)
    least = min(plan.bounds(name).minimum for name in plan.all_groups)
    seen = "a shard, which knows its noise" if plan.noisy_shards else "whoever sees sums or models"
    who = _committees(plan) if plan.has_committee else ONE_HOLDER
    return (
        *who,
        f"all but one of a cohort's clients (at least {least - 1}) together with {seen}",
        _issuers(plan),
    )


def _committees(plan: Plan) -> Iterator[str]:
    t, n = plan.threshold, plan.holders
    quorum = f"any {t} of the {n} key holders" if t < n else f"all key holders, who are {n}"
    yield f"the aggregator (a shard suffices) together with {quorum}"
    few = count_withstood(t, n) + 1
    if few < t:
        whom = "any one key holder" if few == 1 else f"any {few} key holders"
        yield (
            f"a malicious aggregator together with {whom}: it has the others open two sums that "
            "differ in one client, each before a group of its own, and subtracts"
        )


def _issuers(plan: Plan) -> str:
    if plan.opening is Opening.HOLDER:
        return "whoever issued the keys and kept the holder's, together with a shard"
    return (
        f"whoever issued the keys, if it kept those of {plan.threshold} key holders or invents "
        "clients that do not exist, together with a shard"
    )


def describe_opened(plan: Plan) -> str:
    privacy = plan.section.privacy
    if privacy is None:
        return "the whole update: nothing protects it but the cipher"
    if isinstance(privacy, RecordPrivacySection):
        unit = privacy.unit
        return f"an update whose noise protects each {unit} to the epsilon below, and nothing else"
    if privacy.placement == "local":
        return "an update whose own noise protects it to the epsilon below"
    if privacy.placement == "aggregator":
        return "the whole update, without noise: the shards add theirs to sums"
    shares = max(plan.honest(name) for name in plan.groups) - 1
    return f"an update with 1/{shares} of the noise's variance: hardly protected by itself"


def across_versions(plan: Plan) -> list[str]:
    """Says what nearly equal models or totals tell about one client, where no noise bounds it."""
    private = plan.section.privacy
    bare = ["updates"] if private is None else []
    if plan.trailing and not isinstance(private, ClientPrivacySection):
        bare.append("metrics")
    if not bare:
        return []
    what = " and of ".join(bare)
    steps, said = max(plan.bounds(name).ahead for name in plan.groups), list[str]()
    exact = [name for name in plan.groups if plan.is_exact(name)]
    if apart := [name for name in exact if not _takes_all(plan, name)]:
        said.append(
            f"{named(apart)}: two totals of one question, of cohorts that differ by one client, "
            "tell what that client sent: take a minimum of all clients, or [privacy]"
        )
    if together := [name for name in exact if _takes_all(plan, name)]:
        said.append(
            f"{named(together)}: each total is of all clients that [federation] counts; if more of "
            "them are on the roster, raise the minimum to their number, or two totals of one "
            "question can be subtracted"
        )
    if steps and private is None:
        said.append(
            f"up to {steps + 1} updates of one client may come of one model, step after step: an "
            f"aggregator subtracts the sums of {what} of two steps whose cohorts differ, and only "
            "noise bounds what that tells of whoever is in one of them alone"
        )
    if len(exact) < len(plan.groups):
        said.append(
            f"two versions that are one model but for rounding tell the difference of their "
            f"cohorts: an aggregator that publishes them subtracts the sums of {what}, and has "
            "those of whoever is in one of them alone; clients refuse a model that is exactly "
            "equal, and only noise bounds the rest"
        )
    return said


def _takes_all(plan: Plan, name: str) -> bool:
    """Tells whether every cohort has all training clients that the plan counts."""
    federation = plan.section.federation
    if federation is None:
        return False
    return plan.bounds(name).minimum >= federation.clients - bool(plan.evaluator)


def evaluation_words(plan: Plan) -> list[str]:
    """Says who learns what about held-out records, and what protects them."""
    evaluation, privacy = plan.section.evaluation, plan.section.privacy
    if evaluation is None:
        return []
    names = ", ".join(evaluation.magnitudes)
    count = plan.schedule.count(plan.section.versions)
    if plan.evaluator:
        return [
            f"evaluation: {plan.evaluator} judges {count} versions on held-out records and tells "
            f"the coordinator {names} in the clear; it does not train, and no epsilon covers its "
            "records"
        ]
    least = plan.bounds(plan.trailing).minimum
    seen = (
        f"evaluation: of {count} versions everybody sees {names}, each a mean over at least "
        f"{counted(least, 'client')}"
    )
    if isinstance(privacy, ClientPrivacySection):
        return [f"{seen}; each evaluation has noise and is charged like another update"]
    sealed = plan.opening is not Opening.NOTHING
    protection = "the encrypted sum" if sealed else "nothing, in the clear,"
    return [
        f"{seen}, exact: {protection} protects a single client's, and no epsilon covers held-out "
        "records; a client with --budget sends none"
    ]
