"""An update that a device rotates has the bits of one that the host rotates.

The device is the CPU, or that of SECUREPS_TEST_DEVICE.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.client import device_rotation
from secureps.client.device_rotation import rotation_on
from secureps.codec.chain import hadamard
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import ScriptFailed
from secureps.roles.member.tasks import Aim
from tests.client.test_worker import worker
from tests.kits.roles_kit import make_plan
from tests.kits.sealed_blocks import drawn, made_of
from tests.kits.torch_device import DEVICE

OTHER_BITS = f"{DEVICE} makes other bits than the host (sums): the host rotates updates"
NO_ROOM = f"{DEVICE} has no memory left for updates: the host rotates them, to the same bits"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    device_rotation.find_difference.cache_clear()
    yield
    device_rotation.find_difference.cache_clear()


def values(size: int, seed: int) -> NDArray[np.float64]:
    """Of every magnitude, denormals among them."""
    rng = np.random.default_rng(seed)
    made: NDArray[np.float64] = rng.standard_normal(size) * 10.0 ** rng.integers(-44, 18, size)
    return made


def on_host(x: NDArray[np.float64]) -> bytes:
    made = x.copy()
    hadamard(made)
    return made.tobytes()


def full(*given: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


sizes = st.one_of(st.integers(0, 200), st.sampled_from([1023, 1025, 4099, 70_000]))


@given(size=sizes, seed=st.integers(0, 99))
def test_a_device_rotates_to_the_hosts_bits(size: int, seed: int) -> None:
    told, x = list[str](), values(size, seed)
    expected = on_host(x)
    rotation_on(str(DEVICE), told.append)(x)
    assert x.tobytes() == expected
    assert not told


@pytest.mark.parametrize(
    ("part", "instead", "told"),
    [
        ("find_difference", lambda device: "sums", OTHER_BITS),
        ("find_difference", full, NO_ROOM),
        ("transform_there", full, NO_ROOM),
    ],
)
def test_what_a_device_cannot_rotate_is_rotated_on_the_host(
    part: str, instead: Callable[..., Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device_rotation.find_difference(DEVICE) == ""
    monkeypatch.setattr(device_rotation, part, instead)
    said, x = list[str](), values(5000, 1)
    expected = on_host(x)
    rotation_on(str(DEVICE), said.append)(x)
    assert x.tobytes() == expected
    assert said == [told]


def test_another_bit_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    own = device_rotation.transform_there

    def rounded(x: NDArray[np.float64], device: torch.device) -> NDArray[np.float64]:
        made = own(x, device)
        made[77] = np.nextafter(made[77], 0)
        return made

    monkeypatch.setattr(device_rotation, "transform_there", rounded)
    assert device_rotation.find_difference(DEVICE) == "sums or products"


@pytest.mark.parametrize(
    ("text", "told"), [("no float64 here\nand more", "no float64 here"), ("", "TypeError")]
)
def test_a_device_without_float64_says_so(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails without a word does not make the same bits."""

    def refuse(*given: object) -> None:
        raise TypeError(text)

    monkeypatch.setattr(device_rotation, "transform_there", refuse)
    assert device_rotation.find_difference(DEVICE) == told


def test_memory_that_does_not_suffice_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rotation, "transform_there", full)
    with pytest.raises(torch.OutOfMemoryError):
        device_rotation.find_difference(DEVICE)
    monkeypatch.undo()
    assert device_rotation.find_difference(DEVICE) == ""


CODECS: dict[str, dict[str, Any]] = {
    "rotated": {"codec": ["rotate"]},
    "thin": {"codec": [{"name": "support", "one_in": 3}, "rotate"]},
    "kept": {"codec": ["rotate"], "feedback": True},
}


@pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))
def test_a_client_seals_the_same_integers(
    codec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever device its trainer names; under feedback the same is left for the next update."""
    plan = make_plan(group=[{"clip": 1.0, "bits": 5, "rule": {"quorum": 3, "minimum": 2}, **codec}])
    calls, own = list[int](), device_rotation.transform_there

    def counted(x: NDArray[np.float64], device: torch.device) -> NDArray[np.float64]:
        calls.append(x.size)
        return own(x, device)

    monkeypatch.setattr(device_rotation, "transform_there", counted)
    made, rest = list[bytes](), list[bytes]()
    for name in ("", str(DEVICE)):
        (folder := tmp_path / (name or "host")).mkdir()
        party = worker(plan, folder, UnsafeSeed(1))
        party._site.trainer.codec_device = lambda: name  # type: ignore[attr-defined]  # noqa: B023
        layout = party._layout().group("all")
        update = made_of(np.random.default_rng(1).normal(0, 0.1, layout.size).astype(np.float32))
        integers = drawn(party, Aim("all", 3, 4), update, 1, (bytes(32),) * layout.blocks)
        made.append(integers.tobytes())
        rest.append(update.values.tobytes())
        assert bool(calls) is bool(name)
    assert made[0] == made[1]
    assert rest[0] == rest[1]


def test_what_is_no_device_is_the_scripts_fault(tmp_path: Path) -> None:
    plan = make_plan(group=[{"rule": {"quorum": 3, "minimum": 2}, "codec": ["rotate"]}])
    party = worker(plan, tmp_path, UnsafeSeed(1))
    party._site.trainer.codec_device = lambda: "nowhere"  # type: ignore[attr-defined]
    with pytest.raises(ScriptFailed, match="codec_device raised RuntimeError"):
        party._find_rotation()
