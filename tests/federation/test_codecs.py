"""Updates that are made small before they are rounded: charged for the integers that are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.crypto.sampling import UnsafeSeed
from secureps.model.layout import GroupLayout
from secureps.policy.block_deltas import block_codes
from secureps.policy.plan import Plan
from secureps.policy.spending import plan_epsilon
from secureps.privacy.client_level import ClientMechanism
from secureps.privacy.mechanism import clip_l2
from tests.kits.federations import layout_of, small_federation
from tests.kits.privacy_kit import facts_of, least_cipher, private_plan
from tests.kits.thin_group import THIN

PRIVATE = {"codec": THIN[:2], "feedback": True, "weighting": "uniform"}


def private(placement: str, cipher: str = "bfv", **group: Any) -> Plan:
    rule = {"quorum": 6, "minimum": 5, "deadline": 10.0, "extensions": 0}
    own = {"clip": 1.0, "bits": 16, "weighting": "uniform", "rule": rule}
    return private_plan(placement, cipher, group=[own | group], block_size=64)


@pytest.mark.parametrize("placement", ["local", "distributed", "aggregator"])
def test_client_level_privacy_is_charged_for_the_integers_that_are_sent(
    placement: str, tmp_path: Path
) -> None:
    """The ledger's numbers are those of fewer values."""
    plan = private(placement, least_cipher(placement), **PRIVATE)
    simulation = small_federation(plan, tmp_path)
    simulation.run()
    layout = layout_of(simulation).group("all")
    assert (layout.size, layout.sent) == (217, 55)
    facts = facts_of(simulation.coordinator.federation.ledger, "client-02")
    mechanism = ClientMechanism(1.0, 55, 16, 1.0, placement, plan.honest("all"))  # type: ignore[arg-type]
    assert list(facts) == [mechanism.release("client-02", "all", v) for v in range(4)]


def test_a_public_support_earns_no_amplification() -> None:
    """One in four of 220 values costs what all of 55 do, and no less by a digit."""
    thin = private("local", "plain", codec=[{"name": "support", "one_in": 4}])
    whole = private("local", "plain")
    assert thin.chain("all").one_in == 4
    for versions in (1, 4):
        spent = [plan_epsilon(each, {"all": 55}, versions) for each in (thin, whole)]
        assert spent[0] == spent[1] > 0


@pytest.mark.parametrize("shape", ["one value", "alike", "along a row", "random"])
def test_no_update_is_longer_in_integers_than_its_mechanism_says(
    shape: str,
) -> None:
    """Of the clip's whole length, through support and rotation, with the worst rest there is."""
    plan = private("local", "plain", codec=["rotate"], bits=10)
    layout = GroupLayout("all", (), 217, 63)
    mechanism = plan.mechanism("all", layout.sent)
    assert mechanism is not None
    x = np.random.default_rng(1).standard_normal(layout.size)
    if shape != "random":
        x = np.zeros(layout.size)
        x[{"one value": slice(3, 4), "alike": slice(None), "along a row": slice(0, 60)}[shape]] = 1
    update, _ = clip_l2(x * 1e6, 1.0)
    code_of = block_codes(plan, layout, 0, [bytes(32)] * layout.blocks)
    spans = [slice(*layout.span(k)) for k in range(layout.blocks)]
    encoded = np.concatenate([code_of(k).encode(update[span]) for k, span in enumerate(spans)])
    assert np.linalg.norm(encoded) <= 1 + 1e-7
    whole, _ = clip_l2(encoded, 1.0)
    words = UnsafeSeed(1).derive("words").words
    for _ in range(20):
        rounded = mechanism.round_update(whole, words)
        assert int(rounded @ rounded) <= mechanism.l2_sensitivity**2
        assert np.abs(rounded).sum() <= mechanism.l1_sensitivity
