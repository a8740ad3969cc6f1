"""A coordinator's machine is lost for good: what was acknowledged is there, and the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.messages.requests import AskStatus, Retire, Status
from secureps.messages.run import COORDINATOR, STANDBY
from tests.kits.federations import same, unharmed
from tests.kits.standbys import ends, followed, lose, reach, take_over


@pytest.mark.parametrize("cipher", ["plain", "rlwe"])
@pytest.mark.parametrize("version", [0, 2])
def test_the_model_is_the_same_bit_for_bit(version: int, cipher: str, tmp_path: Path) -> None:
    simulation = followed(tmp_path, cipher)
    reach(simulation, version)
    lose(simulation, COORDINATOR)
    take_over(simulation)
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])


def test_a_word_that_was_acknowledged_counts_after_it(tmp_path: Path) -> None:
    """A client has left, and heard that it is so, at the moment at which the machine is lost."""
    simulation = followed(tmp_path, "plain")
    reach(simulation, 1)
    client = "client-05"
    simulation.kill(client)
    answer = simulation.parties[COORDINATOR].request(client, Retire(client, "has other work"))
    simulation.run(answer.done)
    answer.result()
    lose(simulation, COORDINATOR)
    take_over(simulation)
    asked = simulation.parties[STANDBY].request("client-00", AskStatus())
    simulation.run(asked.done)
    status = asked.result()
    assert isinstance(status, Status)
    assert next(m.state for m in status.members if m.name == client) == "stopped: has other work"
