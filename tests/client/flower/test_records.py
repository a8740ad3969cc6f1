"""Models as Flower's records, and `context.state` on disk: exactly what it was."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from safetensors.numpy import load_file

from secureps.client.flower.trainer import KEPT, FlowerModel, States, single_bytes
from secureps.errors import DamagedStore, WrongShape


def state(number: float) -> RecordDict:
    arrays = {
        "w": Array(np.array([[1.5, np.nan], [-0.0, np.inf]], np.float32)),
        "n": Array(np.array(7, np.int16)),
        "odd": Array("", (), "other", b"\x00any bytes"),
        "none": Array(np.zeros((0, 3))),
    }
    config: dict[str, Any] = {
        "text": "ä",
        "yes": True,
        "raw": b"\xff\x00",
        "raws": [b"", b"x"],
        "names": ["a", "b"],
        "empty": [],
    }
    return RecordDict(
        {
            "arrays": ArrayRecord(arrays),
            "metrics": MetricRecord({"x": number, "many": [1, 2], "huge": 2**62, "tiny": 5e-324}),
            "config": ConfigRecord(config),
            "nothing": ConfigRecord(),
        }
    )


@pytest.mark.parametrize("disk", [True, False], ids=["disk", "memory"])
def test_a_state_comes_back_as_it_was(disk: bool, tmp_path: Path) -> None:
    folder = tmp_path / "state" if disk else None
    states = States(folder)
    states.keep(0, state(0.1))
    again = States(folder) if disk else states
    found = again.load_before(1)
    assert found == state(0.1)
    assert list(found) == list(state(0.1))
    assert [type(record) for record in found.values()] == [type(r) for r in state(0.1).values()]
    assert type(found["config"]["yes"]) is bool
    found.metric_records["metrics"]["x"] = 5.0
    assert again.load_before(1) == state(0.1), "a fit that fails must not change what is kept"


@pytest.mark.parametrize("disk", [True, False], ids=["disk", "memory"])
def test_a_fit_finds_the_newest_state_before_it(disk: bool, tmp_path: Path) -> None:
    states = States(tmp_path if disk else None)
    assert states.load_before(9) == states.load_newest() == {}
    for version in (0, 1, 4, 6):
        states.keep(version, state(version))
    at = {n: dict(states.load_before(n)["metrics"])["x"] for n in (2, 4, 5, 6, 7, 99)}
    assert at == {2: 1.0, 4: 1.0, 5: 4.0, 6: 4.0, 7: 6.0, 99: 6.0}
    assert states.load_before(1) == {}, f"{KEPT} are kept"
    states.keep(4, state(40))
    assert states.load_newest() == states.load_before(99) == state(40), "what came later is gone"
    states.keep(7, RecordDict())
    assert states.load_before(8) == {}, "a state may become empty"


def test_states_that_are_empty_make_no_file(tmp_path: Path) -> None:
    States(tmp_path / "state").keep(0, RecordDict())
    assert not (tmp_path / "state").exists()


def test_a_state_is_a_safetensors_file_that_damage_does_not_pass(tmp_path: Path) -> None:
    states = States(tmp_path)
    states.keep(0, state(1.0))
    (path,) = tmp_path.iterdir()
    assert path.name == "state-000000000001.safetensors"
    assert {array.dtype for array in load_file(path).values()} == {np.dtype(np.uint8)}
    path.write_bytes(
        path.read_bytes().replace(b'\\"nothing\\", \\"config', b'\\"nothing\\", \\"c0nfig')
    )
    with pytest.raises(DamagedStore, match="not a state"):
        states.load_before(1)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DamagedStore, match=path.name):
        states.load_before(1)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((), np.float32),
        np.zeros((0, 3)),
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(12, dtype=np.float32)[::2],
        np.arange(5, dtype=">i4"),
        np.array([True, False]),
    ],
    ids=lambda each: f"{each.dtype.str}{each.shape}",
)
def test_a_record_is_the_one_that_flower_makes(values: np.ndarray[Any, Any]) -> None:
    (found,) = FlowerModel({"w": values}, nameless=False).record({"w": values}).values()
    by_flower = Array(values)
    assert found == by_flower
    assert found.data == by_flower.data
    assert bytes(single_bytes(values)) == values.tobytes()


def test_names_that_flower_makes_up_are_told_apart_from_real_ones() -> None:
    arrays = [np.full(n, n) for n in range(1, 4)]
    nameless = FlowerModel.of_record(ArrayRecord(arrays))
    assert list(nameless.tensors) == ["arr_0", "arr_1", "arr_2"]
    assert list(nameless.record(nameless.tensors)) == ["0", "1", "2"]
    record = ArrayRecord({"1": Array(arrays[0]), "0": Array(arrays[1])})
    assert list(FlowerModel.of_record(record).tensors) == ["1", "0"]
    named = FlowerModel.of_file({"b": arrays[0], "arr_0": arrays[1]})
    assert list(named.record(named.tensors)) == ["b", "arr_0"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (ArrayRecord(), "has no arrays"),
        (ArrayRecord({"_empty": Array("", (), "numpy.ndarray", b"")}), "has no arrays"),
        (ArrayRecord({"w": Array("", (), "torch", b"x")}), "'w' .* serialized as 'torch'"),
        (ArrayRecord({"w": Array("", (), "numpy.ndarray", b"x")}), "'w' .* only arrays of numb"),
    ],
)
def test_what_is_no_model_is_refused(record: ArrayRecord, reason: str) -> None:
    with pytest.raises(WrongShape, match=reason):
        FlowerModel.of_record(record)


def test_widths_of_floats_are_cast_and_other_types_are_not() -> None:
    model = FlowerModel.of_file({"w": np.zeros(2, np.float32), "n": np.zeros(2, np.int64)})
    given = {"w": Array(np.array([0.1, 2.0])), "n": Array(np.array([1, 2]))}
    before = {name: array + 4 for name, array in model.tensors.items()}
    read = model.read(ArrayRecord(given), before)
    assert read["n"].tolist() == [4, 4], "counters stay as they came"
    assert read["w"].dtype == np.float32
    assert read["w"].tolist() == np.array([0.1, 2.0], np.float32).tolist()
    for dtype in (np.int32, np.float64):
        with pytest.raises(WrongShape, match=rf"'n' is {np.dtype(dtype)}, the model's is int64"):
            model.read(ArrayRecord({**given, "n": Array(np.zeros(2, dtype))}), before)


def test_a_model_of_integers_alone_is_averaged() -> None:
    model = FlowerModel.of_file({"counts": np.zeros(2, np.int64)})
    read = model.read(ArrayRecord({"counts": Array(np.array([1, 2]))}), model.tensors)
    assert read["counts"].tolist() == [1, 2]
