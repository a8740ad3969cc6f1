import math

import numpy as np
import pytest

from secureps.errors import ConfigError
from secureps.scenario.delays import (
    Delays,
    Distribution,
    distribution,
    generator,
)

TABLES: list[tuple[object, Distribution]] = [
    (3, Distribution("constant", (3.0,))),
    ({"kind": "constant", "value": 2}, Distribution("constant", (2.0,))),
    ({"kind": "uniform", "low": 1, "high": 3.0}, Distribution("uniform", (1.0, 3.0))),
    ({"kind": "lognormal", "median": 2.0, "sigma": 0.5}, Distribution("lognormal", (2.0, 0.5))),
    ({"kind": "exponential", "mean": 2.0}, Distribution("exponential", (2.0,))),
]
DELAYS = Delays(
    Distribution("lognormal", (2.0, 0.5)), Distribution("exponential", (0.1,)), dropout=0.3
)


@pytest.mark.parametrize(("table", "expected"), TABLES)
def test_tables_name_distributions(table: object, expected: Distribution) -> None:
    assert distribution(table) == expected


def draws(law: Distribution) -> list[float]:
    return [law.sample(generator(1, "a", v, "train")) for v in range(4000)]


def test_samples_follow_their_law() -> None:
    assert set(draws(Distribution("constant", (2.0,)))) == {2.0}
    uniform = draws(Distribution("uniform", (1.0, 3.0)))
    assert (min(uniform) >= 1.0, max(uniform) < 3.0) == (True, True)
    assert np.mean(uniform) == pytest.approx(2.0, abs=0.05)
    assert np.var(uniform) == pytest.approx(1 / 3, rel=0.1)
    lognormal = np.log(draws(Distribution("lognormal", (2.0, 0.5))))
    assert lognormal.mean() == pytest.approx(math.log(2.0), abs=0.03)
    assert lognormal.std() == pytest.approx(0.5, rel=0.05)
    exponential = draws(Distribution("exponential", (2.0,)))
    assert np.mean(exponential) == pytest.approx(2.0, rel=0.06)
    assert np.std(exponential) == pytest.approx(2.0, rel=0.1)


def test_a_slow_device_is_slow_every_time() -> None:
    delays = Delays(
        Distribution("lognormal", (2.0, 0.5)), device=Distribution("lognormal", (1.0, 0.9))
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
        ({"kind": "pareto"}, "unknown kind 'pareto'; known are constant, uniform, lognormal, exp"),
        ({"value": 1}, "names no kind; known are constant, uniform, lognormal, exponential"),
        ({"kind": ["uniform"]}, "unknown kind"),
        ({"kind": "uniform", "low": 1}, "uniform takes low, high"),
        ({"kind": "constant", "value": 1, "mean": 2}, "constant takes value"),
        ({"kind": "uniform", "low": 2, "high": 1}, "below low"),
        ({"kind": "exponential", "mean": -1}, "delay.mean must be finite"),
        ({"kind": "exponential", "mean": True}, "must be a number"),
        ({"kind": "lognormal", "median": 1, "sigma": 11}, "lognormal: sigma is at most 10, got 11"),
        ({"kind": "lognormal", "median": 1e16, "sigma": 1}, "delay.median must be finite and from"),
        ("fast", "must be a number"),
        (float("inf"), "must be finite"),
        (float("nan"), "must be finite"),
        (10**400, "must be finite"),
    ],
)
def test_bad_distributions_are_refused(table: object, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        distribution(table)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"drop": 0.1}, r"unknown key 'drop'; did you mean dropout\? known are train, network, d"),
        ({"dropout": 1.5}, r"\[0, 1\]"),
        ({"train": {"kind": "warp"}}, r"delays\.train"),
        ({"bandwidth": 0}, "a link has at least 1 byte a second, not 0"),
        ({"bandwidth": {"kind": "uniform", "low": 5e-324, "high": 9}}, "at least 1 byte a second"),
        ({"bandwidth": {"kind": "lognormal", "median": 1e-9, "sigma": 9}}, "not 1e-09"),
        ({"bandwidth": {"kind": "exponential", "mean": 9}}, "take lognormal"),
        ({"bandwidth": "fast"}, "delays.bandwidth must be a number"),
    ],
)
def test_bad_delays_are_refused(table: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Delays.of(table)
