import math

import numpy as np
import pytest

from secureps.config.scenario import DelaysSection, LawSection
from secureps.config.sections import parse
from secureps.errors import ConfigError
from secureps.scenario.delays import Delays, draw, generator

DELAYS = Delays(
    train=LawSection(kind="lognormal", median=2.0, sigma=0.5),
    network=LawSection(kind="exponential", mean=0.1),
    dropout=0.3,
)


def test_a_number_is_a_constant() -> None:
    told = Delays.model_validate({"train": 3})
    assert told.train == LawSection(kind="constant", value=3.0)


def draws(law: LawSection) -> list[float]:
    return [draw(law, generator(1, "a", v, "train")) for v in range(4000)]


def test_samples_follow_their_law() -> None:
    assert set(draws(LawSection(kind="constant", value=2.0))) == {2.0}
    uniform = draws(LawSection(kind="uniform", low=1.0, high=3.0))
    assert (min(uniform) >= 1.0, max(uniform) < 3.0) == (True, True)
    assert np.mean(uniform) == pytest.approx(2.0, abs=0.05)
    assert np.var(uniform) == pytest.approx(1 / 3, rel=0.1)
    lognormal = np.log(draws(LawSection(kind="lognormal", median=2.0, sigma=0.5)))
    assert lognormal.mean() == pytest.approx(math.log(2.0), abs=0.03)
    assert lognormal.std() == pytest.approx(0.5, rel=0.05)
    exponential = draws(LawSection(kind="exponential", mean=2.0))
    assert np.mean(exponential) == pytest.approx(2.0, rel=0.06)
    assert np.std(exponential) == pytest.approx(2.0, rel=0.1)


def test_a_slow_device_is_slow_every_time() -> None:
    delays = Delays(
        train=LawSection(kind="lognormal", median=2.0, sigma=0.5),
        device=LawSection(kind="lognormal", median=1.0, sigma=0.9),
    )
    speeds = [
        {delays.train_seconds(9, c, v) / DELAYS.train_seconds(9, c, v) for v in range(3)}
        for c in ("a", "b")
    ]
    (a,), (b,) = ({round(factor, 9) for factor in each} for each in speeds)
    assert a != b


def test_a_delay_does_not_depend_on_the_order_of_calls() -> None:
    events = [(client, version) for client in ("a", "b") for version in range(5)]
    forward = {event: DELAYS.train_seconds(9, *event) for event in events}
    backward = {event: DELAYS.train_seconds(9, *event) for event in reversed(events)}
    assert forward == backward
    assert len(set(forward.values())) == len(events)


def test_every_part_of_an_event_matters() -> None:
    base = (1, "a", 12, "push")
    others = [
        (2, "a", 12, "push"),
        (1, "b", 12, "push"),
        (1, "a", 1, "2push"),
        (1, "a1", 2, "push"),
    ]
    values = {generator(*event).random() for event in [base, *others]}
    assert len(values) == 5
    assert DELAYS.network_seconds(1, "a", 1, "push") != DELAYS.network_seconds(1, "a", 1, "pull")


def test_dropout_is_a_probability() -> None:
    dropped = [DELAYS.drops(4, "a", version) for version in range(3000)]
    assert np.mean(dropped) == pytest.approx(0.3, abs=0.03)
    assert not any(Delays().drops(4, "a", version) for version in range(100))
    assert all(Delays(dropout=1.0).drops(4, "a", version) for version in range(100))


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"train": {"kind": "pareto"}}, "train.kind: unknown value .pareto.; known are constant"),
        ({"train": {"value": 1}}, "train.kind: is missing"),
        ({"train": {"kind": "uniform", "low": 1}}, "train: uniform takes low, high, not low"),
        ({"train": {"kind": "constant", "value": 1, "mean": 2}}, "takes value, not value, "),
        ({"train": {"kind": "uniform", "low": 2, "high": 1}}, "train: high, 1, is below low, 2"),
        ({"train": {"kind": "exponential", "mean": -1}}, "train.mean: must be 0 or more"),
        ({"train": {"kind": "exponential", "mean": True}}, "train.mean: must be a number"),
        ({"train": {"kind": "lognormal", "median": 1, "sigma": 11}}, "sigma: must be 10 or less"),
        ({"train": {"kind": "lognormal", "median": 1e16, "sigma": 1}}, "median: must be 1e.15 or"),
        ({"train": "fast"}, "train.value: must be a number"),
        ({"train": float("inf")}, "must be a finite number"),
        ({"train": float("nan")}, "must be a finite number"),
        ({"train": 10**400}, "train.value: must be a number"),
        ({"drop": 0.1}, r"unknown key; did you mean dropout\? known are train, network, device"),
        ({"dropout": 1.5}, "dropout: must be 1 or less"),
        ({"bandwidth": 0}, "a link has 1 byte a second or more, and not 0"),
        ({"bandwidth": {"kind": "uniform", "low": 5e-324, "high": 9}}, "1 byte a second or more"),
        ({"bandwidth": {"kind": "lognormal", "median": 1e-9, "sigma": 9}}, "not 1e-09"),
        ({"bandwidth": {"kind": "exponential", "mean": 9}}, "take lognormal"),
    ],
)
def test_bad_delays_are_refused(table: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse(DelaysSection, table, "delays")
