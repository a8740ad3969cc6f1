"""A plan's codec is refused, with a remedy, if its stages or the group's rule do not fit it."""

from typing import Any

import pytest

from secureps.errors import ConfigError, PlanRefused
from tests.kits.federations import small_plan
from tests.kits.privacy_kit import PRIVACY

RULE = {"quorum": 6, "minimum": 3}
STREAM = {"name": "buffered", "buffer": 3, "minimum": 3, "power": 0.0}
SSP = {"name": "ssp", "slack": 1, "minimum": 3}
SUPPORT = {"name": "support", "one_in": 4}
FOLLOWS = {"name": "round", "length": "mean_norm"}


def refused(group: dict[str, Any], **more: Any) -> str:
    with pytest.raises((PlanRefused, ConfigError)) as caught:
        small_plan(**({"group": [{"rule": RULE} | group]} | more))
    return str(caught.value)


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ({"codec": ["rotate", SUPPORT]}, "stages go in the order support, rotate"),
        ({"codec": [SUPPORT, SUPPORT]}, "support is there 2 times"),
        ({"codec": ["rotat"]}, "did you mean rotate? known are support"),
        ({"codec": ["support"]}, "one_in"),
        ({"codec": [{"name": "support", "one_in": 1}]}, "one_in"),
        ({"codec": [SUPPORT | {"every": 3}]}, "every: this key is gone"),
        ({"codec": [SUPPORT], "rule": SSP}, 'take rule "sync" or "buffered"'),
        ({"codec": ["round"], "clip": 1.0}, "add rotate before it"),
        ({"codec": ["rotate", "round"]}, "state clip, about as long as updates are"),
        ({"codec": ["rotate", "round"], "clip": 1.0, "range": 1.0}, "remove one"),
        ({"codec": ["rotate", FOLLOWS], "clip": 1.0, "rule": STREAM}, "of the whole group"),
        ({"codec": ["rotate", FOLLOWS]}, "state clip, about as long as updates are"),
        ({"feedback": True, "rule": STREAM}, "before it knows what became of the last one"),
    ],
)
def test_what_does_not_add_up(group: dict[str, Any], reason: str) -> None:
    assert reason in refused(group)


def test_feedback_is_for_clients_that_take_part_again() -> None:
    assert "would never be sent" in refused({"feedback": True}, versions=1)


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ({"codec": ["rotate", "round"], "clip": 1.0}, "follows from clip, bits and noise"),
        ({"codec": ["rotate", FOLLOWS], "clip": 1.0}, "follows from clip, bits and noise"),
        ({"codec": ["rotate"], "adaptive": {}}, "must be sent as it is"),
        ({"feedback": True, "adaptive": {}}, "a clip that has moved since"),
    ],
)
def test_what_client_level_privacy_does_not_go_with(group: dict[str, Any], reason: str) -> None:
    own = {"weighting": "uniform"} | group
    assert reason in refused(own, privacy=PRIVACY | {"placement": "local"})


def test_what_adds_up_is_taken_and_changes_the_run_only_if_it_is_there() -> None:
    plain = small_plan()
    assert '"codec"' not in plain.text
    assert '"feedback"' not in plain.text
    thin = {"codec": [SUPPORT, "rotate", "round"], "clip": 1.0}
    plan = small_plan(group=[{"rule": RULE, "feedback": True} | thin])
    assert type(plan).from_text(plan.text).section == plan.section
    assert plan.grid("all", 100).range == 3 * (1 / 20)  # of one in 4 of 400 values
    streamed = small_plan(group=[{"rule": STREAM, "clip": 1.0, "codec": ["rotate", "round"]}])
    assert streamed.chain("all").rotates
