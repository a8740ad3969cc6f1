"""Operation: what `secureps check` says of a plan is what the plan's code does."""

import math
from typing import Any

import pytest

from secureps.codec.grid import Grid
from secureps.crypto import envelope
from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.suite import cipher
from secureps.messages.charge import Charge
from secureps.policy.explain import explanation
from secureps.policy.explain.explanation import Price
from secureps.policy.plan import Plan, load_plan
from secureps.privacy.accountant import epsilon
from secureps.wording import size
from tests.kits.committee_plans import committee_plan
from tests.kits.explained import SERVICE, explain
from tests.kits.nursery import ROOT
from tests.kits.roles_kit import PRIVACY, SCHEMA, make_plan, private_plan

PERSONS = PRIVACY | {"unit": "person"}
DIGITS = load_plan(ROOT / "policies" / "digits.toml")
VALUES = 9610


def price_of(plan: Plan, values: int) -> Price:
    price = explain(plan, {"all": values}).price
    assert price is not None
    return price


def remarks(plan: Plan, values: int, text: str) -> list[str]:
    """Those with this text."""
    return [each for each in explain(plan, {"all": values}).remarks if text in each]


@pytest.mark.parametrize("name", ["plain", "bfv", "rlwe"])
def test_bytes_are_those_of_the_sealed_blocks(name: str) -> None:
    plan = make_plan(name)
    layout = plan.layout(SCHEMA).group("all")
    (group,) = explain(plan, {"all": layout.size}).groups
    adder = cipher(plan.cipher_parameters).adder()
    sealed = sum(adder.block_bytes(layout.slots(b)) for b in range(layout.blocks))
    assert (group.bytes_up, group.blocks) == (sealed, layout.blocks)
    assert group.ratio == sealed / (4 * layout.size)
    assert group.bytes_down == 4 * layout.size
    assert group.client_memory == (3 * 4 + 2) * layout.size
    assert (group.step, group.range) == (Grid(16, 1.0).step, 1.0)
    assert group.cohort == (2, 4)


def test_fifty_small_holders_send_no_more_than_their_blocks_need() -> None:
    """Blocks of 4,096, 4,096 and 1,421 slots: 2, 2 and 1 elements of the small ring."""
    plan = load_plan(ROOT / "policies" / "digits_50.toml")
    (group,) = explain(plan, {"all": VALUES}).groups
    assert group.bytes_up == 5 * 13_568 == 67_840


def test_epsilon_is_the_ledgers() -> None:
    price = price_of(DIGITS, VALUES)
    charges = [Charge("me", "all", version, 3.66, 0.5, 8) for version in range(15)]
    assert price.epsilon_run == epsilon(charges, 1e-5) <= price.budget == 8.0
    assert price.epsilon_version == epsilon(charges[:1], 1e-5)
    assert price.versions == 15
    assert price.unit.startswith("one record added or removed (")


def test_a_budget_that_ends_the_run_early_is_told() -> None:
    privacy = DIGITS.section.privacy
    assert privacy is not None
    less = privacy.model_copy(update={"budget": 5.0})
    plan = type(DIGITS)(DIGITS.section.model_copy(update={"privacy": less}))
    price = price_of(plan, VALUES)
    charges = [Charge("me", "all", version, 3.66, 0.5, 8) for version in range(15)]
    assert price.versions is not None
    assert 0 < price.versions < 15
    told = f"the budget ends the run after {price.versions} of 15 versions"
    assert len(remarks(plan, VALUES, told)) == 1
    assert not remarks(DIGITS, VALUES, "the budget ends")
    assert epsilon(charges[: price.versions], 1e-5) <= 5.0
    assert epsilon(charges[: price.versions + 1], 1e-5) > 5.0


def test_the_noise_is_that_of_dp_sgd_on_the_mean() -> None:
    price = price_of(DIGITS, VALUES)
    step = 4.0 * 3.66 * 0.3 / (0.5 * 200)
    deviation = step * math.sqrt(8 / 5)
    assert price.deviation["all"] == pytest.approx(deviation, rel=1e-12)
    longest = 4.0 * 8 * 0.3
    expected = deviation * math.sqrt(VALUES) / longest
    assert price.noise["all"] == pytest.approx(expected, rel=1e-12)
    assert price.noise_run["all"] == pytest.approx(expected / math.sqrt(15), rel=1e-12)
    assert price.update["all"].endswith("(lr x local_steps x max_grad_norm = 9.6)")


@pytest.mark.parametrize(("tried", "length"), [(1.5, 1.5), (40.0, 16.0)])
def test_the_noise_is_held_against_an_update_that_was_tried(tried: float, length: float) -> None:
    made = explanation.explain(DIGITS, {"all": VALUES}, SERVICE, lengths={"all": tried}).price
    assert made is not None
    assert made.noise["all"] == pytest.approx(made.deviation["all"] * math.sqrt(VALUES) / length)
    assert made.update["all"].startswith(f"an update that was tried ({length:g}, of real ")


def test_momentum_may_take_an_update_to_its_clip() -> None:
    training = {**DIGITS.section.training, "momentum": 0.9}
    plan = Plan(DIGITS.section.model_copy(update={"training": training}))
    price = price_of(plan, VALUES)
    assert price.update["all"] == "an update of the whole clip (16)"


def test_who_sees_what_depends_on_the_cipher() -> None:
    sealed, plain = (explain(make_plan(name), {"all": 60}) for name in ("bfv", "plain"))
    assert [s.role for s in sealed.sights] == ["client", "coordinator", "shard", "key holder"]
    assert "a single update" in sealed.sights[2].never
    assert "every client's update" in plain.sights[2].sees
    assert any("at least 1" in who for who in sealed.collusion)
    assert plain.collusion == ("any shard alone: it reads every update",)
    assert sealed.opened.startswith("the whole update: nothing")
    assert any("no encryption" in remark for remark in plain.remarks)
    assert not any("no encryption" in remark for remark in sealed.remarks)


@pytest.mark.parametrize(
    ("holders", "threshold", "told"),
    [
        (1, 1, "the one key holder may not be away, and a malicious aggregator opens single upd"),
        (3, 3, "none of 3 key holders may be away, and a malicious aggregator gains nothing by 2"),
        (4, 3, "1 of 4 key holders may be away, and a malicious aggregator gains nothing by 1 of"),
        (5, 3, "2 of 5 key holders may be away, and a malicious aggregator opens single updates"),
    ],
)
def test_what_a_committee_withstands_is_said_of_a_model_of_any_size(
    holders: int, threshold: int, told: str
) -> None:
    remarks = explain(committee_plan(holders, threshold), None).remarks
    (said,) = [each for each in remarks if each.startswith(told)]
    assert "a data holder that colludes and whose site holds keys counts as one" in said
    advised = "cipher.threshold = 4 withstands 2 of the 5 key holders, and 1 may be away"
    assert (advised in remarks) is (holders == 5)


@pytest.mark.parametrize(("minimum", "few"), [(3, True), (4, False)])
def test_sites_that_collude_are_counted_as_clients_where_a_cohort_is_small(
    minimum: int, few: bool
) -> None:
    remarks = explain(committee_plan(3, 3, minimum=minimum), None).remarks
    (said,) = [each for each in remarks if "counts as one" in each]
    told = "counts as one, and as a client: 2 of a cohort of 3 subtract themselves from its sum; an"
    assert (told in said) is few
    assert ("as a client" in said) is few


def test_the_size_of_an_envelope_is_that_of_a_sealed_one() -> None:
    seeds = bytes(6 * 32)
    sealed = len(envelope.seal(EnvelopeKey.from_os().public, seeds, b""))
    told = explain(committee_plan(4, 3), None).remarks
    assert any(each.endswith(f"an envelope of {size(sealed)} for each") for each in told)


def client_plan(placement: str, minimum: int = 5, **privacy: Any) -> Plan:
    rule = {"quorum": 6, "minimum": minimum, "most": 6}
    unit = {"unit": "client", "placement": placement, "noise_multiplier": 1.0}
    return make_plan(
        "bfv",
        group=[{"rule": rule, "weighting": "uniform"}],
        privacy=unit | {"delta": 1e-5, "budget": 8.0} | privacy,
    )


FEW = make_plan("plain", block_size=1 << 18)
COHORT = "a key holder takes part for 5 or more unless its own `minimum` is lower: in its file, or"
DISK = "a shard's disk that is lost between checkpoints ends the run"
MOMENTUM = "momentum adds to the noise"


def with_momentum(plan: Plan) -> Plan:
    training = plan.section.training | {"momentum": 0.9}
    return Plan(plan.section.model_copy(update={"training": training}))


@pytest.mark.parametrize(
    ("text", "plan", "values", "told"),
    [
        ("raise block_size", make_plan("bfv"), 60, True),
        ("block_size", FEW, 1 << 20, False),
        ("fewer blocks than shards", FEW, 60, True),
        ("no privacy", make_plan("bfv"), 60, True),
        (MOMENTUM, with_momentum(private_plan()), 60, True),
        (MOMENTUM, with_momentum(client_plan("local")), 60, False),  # its noise comes after it
        (COHORT, client_plan("local", minimum=4), 60, True),
        (COHORT, client_plan("local"), 60, False),
        (COHORT, make_plan("plain"), 60, False),
        # a partly empty ciphertext is as large with fewer bits
        ("would take 2.69 bytes", committee_plan(bits=15, most=32), 1000, False),
        ("would take 2.69 bytes", committee_plan(bits=15, most=32), 1 << 20, True),
        (DISK, make_plan("plain", checkpoint_every=1, replicas=1), 60, False),
        (DISK, make_plan("plain", checkpoint_every=1, replicas=2), 60, False),
        (DISK, make_plan("plain", checkpoint_every=2, replicas=1), 60, True),
        (DISK, make_plan("plain", checkpoint_every=2, replicas=2), 60, False),
    ],
)
def test_a_remark_is_made_where_it_applies(text: str, plan: Plan, values: int, told: bool) -> None:
    assert bool(remarks(plan, values, text)) is told


@pytest.mark.parametrize(
    ("plan", "against", "opened"),
    [
        (private_plan(), "whoever colludes", "protects each record"),
        (private_plan(PERSONS), "whoever colludes", "protects each person"),
        (client_plan("local"), "whoever colludes", "own noise protects it"),
        (client_plan("distributed", honest=4), "(4 of them)", "1/3 of the noise's variance"),
        (client_plan("aggregator"), "everybody but the shards", "the whole update, without noise"),
    ],
    ids=["record", "person", "local", "distributed", "aggregator"],
)
def test_against_whom_noise_protects(plan: Plan, against: str, opened: str) -> None:
    made = explain(plan, {"all": 60})
    assert made.price is not None
    assert against in made.price.against
    assert opened in made.opened


@pytest.mark.parametrize(
    ("adjacency", "told"),
    [
        ("add-or-remove", "added or removed (a client counts by a public number)"),
        ("zero-out", "replaced by nothing (how many persons a client has is public)"),
    ],
)
def test_an_epsilon_of_persons_is_as_large_as_one_of_records_and_says_persons(
    adjacency: str, told: str
) -> None:
    evaluation = {"every": 1, "metrics": {"loss": 4.0}}
    plans = [
        private_plan(each | {"adjacency": adjacency}, evaluation=evaluation)
        for each in (PRIVACY, PERSONS)
    ]
    record, person = (price_of(plan, 60) for plan in plans)
    assert person.unit == f"all records of one person {told}"
    alone = price_of(private_plan(PERSONS | {"adjacency": adjacency}), 60)
    assert record.epsilon_run == person.epsilon_run == alone.epsilon_run
    assert record.noise == person.noise


def test_shards_know_the_noise_that_they_add() -> None:
    told = [
        any("which knows its noise" in who for who in explain(plan, {"all": 60}).collusion)
        for plan in (client_plan("aggregator"), client_plan("local"))
    ]
    assert told == [True, False]


@pytest.mark.parametrize(("values", "more"), [(60, True), (100_000, False)])
def test_envelopes_that_are_more_than_the_values_are_told(values: int, more: bool) -> None:
    made = explain(committee_plan(), {"all": values})
    (up,) = (cost.bytes_up for cost in made.groups if cost.name == "all")
    assert up is not None
    assert made.committee is not None
    envelopes = made.committee.submission
    text = f"{envelopes:,} of the {envelopes + up:,} bytes of a client's version are envelopes"
    assert any(remark.startswith(text) for remark in made.remarks) is more is (envelopes > up)


def test_a_small_model_cannot_fill_a_ciphertext() -> None:
    small = explain(make_plan("bfv", block_size=1024), {"all": 650})
    assert any("650 values do not fill a ciphertext" in remark for remark in small.remarks)
    assert not any("raise block_size" in remark for remark in small.remarks)
    assert small.groups[0].bytes_value == 65536 / 650


def test_noise_that_is_longer_than_an_update_is_remarked() -> None:
    plan, found = client_plan("aggregator"), {}
    for values in (16, 30, 600):
        explanation = explain(plan, {"all": values})
        assert explanation.price is not None
        noise, lasting = explanation.price.noise["all"], explanation.price.noise_run["all"]
        told = [remark for remark in explanation.remarks if "drowns" in remark]
        found[values] = (noise > 1, lasting > 1, len(told))
    assert found == {16: (False, False, 0), 30: (True, False, 0), 600: (True, True, 1)}
    assert told[0].startswith(
        f"the noise is {noise:.3g} times as long as an update of the whole clip (1), in the mean "
        f"of the smallest cohort (5 members), and over {plan.section.versions} versions "
        f"{lasting:.3g} times as long as all of their updates together: it drowns "
    )


def test_the_most_important_comes_first_and_the_same_of_several_groups_once() -> None:
    rule = {"quorum": 3, "minimum": 2, "most": 4}
    groups = [
        {"name": n, "pattern": p, "rule": rule}
        for n, p in (("b", "bias"), ("w", "weight"), ("x", "*"))
    ]
    told = explain(make_plan("rlwe", group=groups, checkpoint_every=2), None).remarks
    assert told[0].startswith("no privacy: ")
    (few,) = [text for text in told if "a key holder takes part for 5 or more" in text]
    assert few.startswith("b, w, x: a cohort may have 2 members, and ")
    (disk,) = [text for text in told if "disk that is lost between checkpoints" in text]
    assert told.index(few) < told.index(disk)
    assert len({*told}) == len(told)
    evaluation = {"every": 1, "metrics": {"accuracy": 1.0}}
    one = make_plan("rlwe", group=[{**groups[2], "name": "all"}], evaluation=evaluation)
    (few,) = [text for text in explain(one, None).remarks if "takes part for 5 or more" in text]
    assert few.startswith("evaluation, all: a cohort may have 2 members, and ")
