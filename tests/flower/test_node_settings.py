"""Who a node is: its operator's word before the run's."""

from pathlib import Path

import pytest

from secureps.errors import ConfigError
from secureps.flower.mod import NodeSettings, objection
from secureps.roles.member.terms import NO_TERMS, Terms

SIMULATED: dict[str, object] = {"partition-id": 2, "num-partitions": 12}
TOLD: dict[str, str | int] = {"kit": "/run/kit", "unsafe-seed": 4}
OWN = {"secureps-kit": "/srv/kit", "secureps-name": "north"}


def test_where_the_operator_says_anything_the_run_says_nothing() -> None:
    found = NodeSettings.of({**SIMULATED, **OWN}, TOLD)
    assert (found.kit, found.name, found.unsafe_seed) == (Path("/srv/kit"), "north", None)
    assert found.state == Path("/srv/kit/state/north")
    own = NodeSettings.of({**OWN, "secureps-state": "/var/lib/north", "secureps-site": "s"}, TOLD)
    assert (own.state, own.site) == (Path("/var/lib/north"), Path("s"))


@pytest.mark.parametrize(
    ("config", "told", "why"),
    [
        ({}, TOLD, "has no start-up kit"),
        (SIMULATED, {}, "has no start-up kit"),
        ({"secureps-kit": "/srv/kit"}, TOLD, "secureps-name is missing"),
        ({"secureps-name": "north"}, TOLD, "secureps-kit is missing"),
        ({**OWN, "secureps-sate": "x"}, {}, "is not known"),
        ({**OWN, "secureps-unsafe-seed": "x"}, {}, "is a number"),
    ],
)
def test_what_is_not_enough(
    config: dict[str, object], told: dict[str, str | int], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        NodeSettings.of(config, told)


ALLOWS = Terms(messages=("query.ages",))


@pytest.mark.parametrize(
    ("kind", "terms", "own", "heard"),
    [
        ("train", NO_TERMS, "", ""),
        ("evaluate", NO_TERMS, "", ""),
        ("query.ages", ALLOWS, "", ""),
        ("query.Ages", ALLOWS, "the run uses query.Ages", "by its own terms: messages"),
        ("query", ALLOWS, "the run uses query of the app", "by its own terms: messages"),
        ("train.other", ALLOWS, "the run uses train.other", "by its own terms: messages"),
        ("evaluate.other", NO_TERMS, "the run uses evaluate.other", "its own terms: messages"),
        ("evaluate", Terms(evaluation=False), "evaluation = false", "its own terms: evaluation"),
        ("evaluate", Terms(evaluation=False, reveal="nothing"), "evaluation", "by its own te"),
    ],
)
def test_an_app_is_given_what_its_site_allows(
    kind: str, terms: Terms, own: str, heard: str
) -> None:
    said, told = objection(kind, terms)
    assert bool(said) == bool(own)
    assert own in said
    assert heard in told
