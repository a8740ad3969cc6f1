"""A data holder's script that does the wrong thing of its `fault` setting, for tests."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from secureps.client.trainer import FitConfig, FitResult
from secureps.errors import NotFinite
from secureps.run.own_script import run_client
from secureps.wire.grpc import framing
from tests.kits.federations import Tensors, Walker


class Faulty(Walker):
    """Has the run's model, and fails when it is to train it."""

    def __init__(self, number: int, fault: str) -> None:
        super().__init__(number)
        self._fault = fault

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        result = super().fit(parameters, config)
        match self._fault:
            case "raise":
                raise RuntimeError("disk\nof patients")
            case "loss":
                raise NotFinite("the loss is nan")
            case "nothing":
                return None  # type: ignore[return-value]
        moved = result.parameters
        match self._fault:
            case "shape":
                moved["body.weight"] = moved["body.weight"][:-1]
            case "missing":
                del moved["head.bias"]
            case "more":
                moved["tail"] = moved["head.bias"]
            case "list":
                moved["head.bias"] = ["x"] * 7  # type: ignore[assignment]
            case "nan":
                moved["head.bias"][3] = np.nan
        return FitResult(moved, result.examples, {}, result.steps)


class Startless(Walker):
    """Cannot make its model."""

    def parameters(self, seed: int) -> Tensors:
        raise FileNotFoundError("weights.npz")


def make(settings: Mapping[str, Any]) -> Walker:
    number, fault = int(settings["partition"]), settings.get("fault", "")
    if fault == "verbose":
        return Startless(number)
    if fault == "other format":
        vars(framing)["FORMAT"] += 1
    if fault == "schema":
        return Walker(number, shape=(31, 7))
    return Faulty(number, fault)


if __name__ == "__main__":
    run_client(make)
