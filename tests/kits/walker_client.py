"""A data holder's script without torch, for tests of real processes."""

import time
from collections.abc import Mapping
from typing import Any

from secureps.client.trainer import FitConfig, FitResult
from secureps.run.own_script import run_client
from tests.kits.walker import Tensors, Walker


class SlowWalker(Walker):
    """Takes `pace` seconds for a fit, so that a test can act in the middle of one."""

    def __init__(self, number: int, pace: float) -> None:
        super().__init__(number)
        self._pace = pace

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        time.sleep(self._pace)
        return super().fit(parameters, config)


def make(settings: Mapping[str, Any]) -> Walker:
    return SlowWalker(int(settings["partition"]), float(settings.get("pace", "0")))


if __name__ == "__main__":
    run_client(make)
