"""Whatever a party of the roster says, in any field: it is refused, or it can be written and sent.

What the coordinator journals comes back at every start, and what it makes of it goes to everybody:
one number that no order can carry would end a run for good.
"""

import dataclasses
import math
from typing import Any

import pytest

from secureps.errors import Malformed, PlanRefused
from secureps.messages import requests
from secureps.messages.run import Schema, TensorSpec
from secureps.roles.coordinator.state import MOST_AHEAD
from secureps.roles.validation import check_part
from secureps.wire import msgpack
from secureps.wire.msgpack import encode
from tests.kits.extremes import UNSENDABLE, extremes
from tests.kits.roles_kit import HOLDER, World, collecting, make_plan, refused
from tests.kits.unset import unset


@pytest.mark.parametrize("name", sorted(msgpack.SENT))
def test_a_number_that_no_field_carries_is_not_sent(name: str) -> None:
    kind = msgpack.SENT[name]
    for other in extremes(unset(kind), kind, UNSENDABLE):
        reports = name in ("Status", "Telemetry") and math.inf in _floats(other)
        if not reports:
            with pytest.raises(Malformed):
                encode(other)


def _floats(value: Any) -> list[float]:
    if dataclasses.is_dataclass(value):
        return [x for f in dataclasses.fields(value) for x in _floats(getattr(value, f.name))]
    if isinstance(value, tuple):
        return [x for item in value for x in _floats(item)]
    return [abs(value)] if isinstance(value, float) else []


@pytest.mark.parametrize("party", ["shard-a", HOLDER])
@pytest.mark.parametrize("seen", [-1, MOST_AHEAD + 2, 2**63 - 2, 2**63 - 1])
def test_an_incarnation_that_cannot_have_been_is_not_believed(party: str, seen: int) -> None:
    """One holder's number was journalled, and then no order could be encoded any more."""
    world = collecting("bfv")
    event = requests.Register(party, "a:1", 1.0, seen)
    refused(world, party, event, Malformed, f"obeyed incarnation {seen}")
    world.give(party, requests.Register(party, "a:1", 1.0, 5))
    assert world.federation.incarnation == 6, "a journal that lost a few starts goes on above them"


def test_an_address_has_a_length() -> None:
    world = collecting("bfv")
    event = requests.Register("shard-a", "a" * 301, 1.0, 0)
    refused(world, "shard-a", event, Malformed, "an address has 300 letters")


@pytest.mark.parametrize("file", ["", "../f", "a/b", ".f", "x" * 129, "a\nb"])
def test_a_part_of_a_checkpoint_lies_in_its_folder(file: str) -> None:
    with pytest.raises(Malformed, match="shard-a: no file of a checkpoint"):
        check_part(requests.Checkpointed("shard-a", 0, file, 1, bytes(32)))
    with pytest.raises(Malformed, match="no file of a checkpoint"):
        check_part(requests.Checkpointed("shard-a", 0, "shard-a.safetensors", -1, bytes(32)))
    check_part(requests.Checkpointed("shard-a", 0, "shard-a.safetensors", 1, bytes(32)))


def test_a_model_of_billions_is_refused_before_it_is_laid_out() -> None:
    """Each such Join, with 2^33 values in blocks of 16, took the coordinator a minute."""
    world = World(make_plan())
    world.servers()
    schema = Schema((TensorSpec("w", (2**33,), "float32"),))
    text = "would have 536870912 blocks, and may have 16384: choose a larger block_size"
    refused(world, "c0", requests.Join("c0", schema), PlanRefused, text)
