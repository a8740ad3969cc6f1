"""How much of its local work a client does: the rule, its clock, and the trainers."""

from typing import Any

import numpy as np
import pytest

from secureps.client.trainer import FitConfig, RecordPrivacy
from secureps.errors import ConfigError, PlanRefused
from secureps.messages import requests
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import Plan
from secureps.roles.machine import Answered
from secureps.roles.member.outbox import Pace, Timing, portion
from secureps.roles.member.tasks import Contribute
from tests.kits.member_kit import Client
from tests.kits.roles_kit import PRIVACY, make_plan, works


def plan(**work: Any) -> Plan:
    return make_plan(work=work, versions=10)


def part(paces: list[Pace], **work: Any) -> float:
    return portion(plan(**work).section, paces)


@pytest.mark.parametrize(
    ("training", "transfer", "expected"),
    [
        (8.0, 2.0, 1.0),  # just in time
        (8.1, 2.0, 0.5),
        (16.0, 2.0, 0.5),
        (16.1, 2.0, 0.25),
        (64.0, 2.0, 0.125),
        (1000.0, 2.0, 0.125),  # never less than the least
        (1.0, 20.0, 0.125),  # less work does not shorten the transfer, and is all that can be done
    ],
)
def test_it_is_the_largest_part_that_fits(
    training: float, transfer: float, expected: float
) -> None:
    assert part([Pace(training, transfer)], target_seconds=10.0) == expected


def test_it_expects_the_mean_of_what_was_measured() -> None:
    paces = [Pace(2.0, 0.0), Pace(30.0, 4.0)]  # 16 and 2
    assert part(paces, target_seconds=18.0) == 1.0
    assert part(paces, target_seconds=17.9) == 0.5


def test_all_of_the_work_is_done_without_a_measurement_or_the_section() -> None:
    assert part([], target_seconds=1e-3) == 1.0
    assert portion(make_plan().section, [Pace(1e9, 1e9)]) == 1.0


def test_the_default_target_is_the_shortest_deadline() -> None:
    rules = [{"quorum": 3, "minimum": 2, "most": 4, "deadline": d} for d in (50.0, 20.0)]
    group = [
        {"name": "b", "pattern": "bias", "rule": rules[0]},
        {"name": "w", "pattern": "*", "rule": rules[1]},
    ]
    section = make_plan(group=group, work={}).section
    assert portion(section, [Pace(20.0, 0.0)]) == 1.0
    assert portion(section, [Pace(20.1, 0.0)]) == 0.5


def test_where_deadlines_follow_the_load_so_does_the_work() -> None:
    pace = [Pace(20.0, 0.0)]
    assert portion(make_plan(work={"target_seconds": 20.0}).section, pace, 5.0) == 1.0
    scaled = make_plan(work={"target_seconds": 20.0}, scaling={}).section
    assert portion(scaled, pace, 5.0) == 0.25
    assert portion(scaled, pace, 50.0) == 1.0, "a longer one has nobody do more than the plan says"


def test_private_steps_are_all_taken() -> None:
    with pytest.raises(PlanRefused, match="work: under record-level privacy"):
        make_plan(work={}, privacy=PRIVACY, training={"local_steps": 5})
    with pytest.raises(ConfigError, match="takes all private steps"):
        FitConfig({}, 1, {}, RecordPrivacy(1.0, 1.0, 0.1, 1e-5), work=0.5)


def test_a_plan_without_it_has_the_text_of_before() -> None:
    assert '"work"' not in make_plan().text
    assert Plan.from_text(plan(target_seconds=9.0).text) == plan(target_seconds=9.0)


def test_steps_are_rounded_down_but_one_is_taken() -> None:
    light = FitConfig({}, 1, {}, work=0.25)
    assert [light.part(count) for count in (1, 3, 7, 8)] == [1, 1, 1, 2]
    assert FitConfig({}, 1, {}).part(7) == 7


# --- the clock --------------------------------------------------------------------


def test_it_measures_training_and_transfer() -> None:
    watch = Timing()
    watch.begin_pull(1.0)
    watch.begin_pull(2.0)  # more blocks of the same model
    watch.begin_training(3.0, 0.5)
    watch.end_training(13.0)
    assert list(watch.paces) == [Pace(20.0, 2.0)]
    watch.note_transfer(4.0)
    watch.note_transfer(3.0)  # another group's, sent beside it
    assert list(watch.paces) == [Pace(20.0, 6.0)]
    watch.begin_training(20.0, 1.0)  # nothing was to be pulled
    watch.end_training(21.0)
    assert watch.paces[-1] == Pace(1.0, 0.0)


def test_what_is_no_training_is_not_measured() -> None:
    watch = Timing()
    watch.end_training(5.0)
    watch.note_transfer(1.0)
    assert not watch.paces


# --- the member -------------------------------------------------------------------


def turn(client: Client, version: int, seconds: float) -> float:
    """Trains once, in this many seconds; returns the part of the work that was asked for."""
    client.publish(version)
    steps = [client.invite(version), *(client.got(version, block) for block in range(4))]
    (task,) = [task for step in steps for task in works(step)]
    assert isinstance(task, Contribute)
    client.now += seconds * task.work
    update = client.sealed(version, version)
    client.contributed(update)
    client.stored(update)
    client.give(COORDINATOR, Answered(requests.Submit(update.receipt), requests.Noted()))
    return task.work


def test_a_slow_member_does_less_and_more_again_when_it_is_faster() -> None:
    client = Client(plan(target_seconds=10.0)).joined()
    assert [turn(client, version, 39.0) for version in range(3)] == [1.0, 0.25, 0.25]
    assert [turn(client, version, 1.0) for version in range(3, 7)] == [0.25, 0.25, 0.5, 1.0]


def test_a_member_that_is_started_again_begins_with_all_of_it() -> None:
    client = Client(plan(target_seconds=10.0)).joined()
    assert [turn(client, version, 39.0) for version in range(2)] == [1.0, 0.25]
    again = client.restarted()
    again.welcome()
    assert turn(again, 2, 39.0) == 1.0


def test_torch_takes_fewer_steps() -> None:
    torch = pytest.importorskip("torch")
    from secureps.client.torch import TorchTrainer

    x, y = np.zeros((10, 3), np.float32), np.zeros(10, np.int64)
    trainer = TorchTrainer(lambda: torch.nn.Linear(3, 2), (x, y), (x, y), device="cpu")
    settings: dict[str, float | int | str | bool] = {"lr": 0.1, "local_steps": 8}
    for work, steps in ((1.0, 8), (0.25, 2), (0.0625, 1)):
        config = FitConfig({}, 1, settings, work=work)
        assert trainer.fit(trainer.parameters(1), config).steps == steps
