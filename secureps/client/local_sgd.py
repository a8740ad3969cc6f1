"""The settings of local training by SGD, as a plan's `[training]` names them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from secureps.client.trainer import RecordPrivacy, Setting
from secureps.errors import ConfigError
from secureps.wording import meant


@dataclass(frozen=True)
class LocalSgd:
    """The settings of local training that `FitConfig.settings` may name, and their defaults.

    `local_steps` above 0 counts optimizer steps and overrides `local_epochs`. Under
    `RecordPrivacy` an epoch is 1 / sample_rate steps, so that the number of steps is public, and
    `batch_size` is refused: the sample rate decides.
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 32
    local_epochs: int = 1
    local_steps: int = 0

    @classmethod
    def of(cls, settings: Mapping[str, Setting], privacy: RecordPrivacy | None) -> LocalSgd:
        """Reads `settings`.

        Raises:
            ConfigError: an unknown name, a value of the wrong type or out of range.
        """
        kinds: dict[str, type] = {each.name: type(each.default) for each in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in kinds:
                raise ConfigError(f"unknown training setting {name!r}; {meant(name, kinds)}")
            if isinstance(value, bool | str) or not isinstance(value, kinds[name] | int):
                raise ConfigError(
                    f"training setting {name!r} must be of type {kinds[name].__name__}, "
                    f"got {value!r}"
                )
            lowest = 1 if name in ("batch_size", "local_epochs") else 0
            if not (math.isfinite(value) and value >= lowest) or (name == "lr" and value == 0):
                raise ConfigError(f"training setting {name!r} is out of range: {value!r}")
            values[name] = kinds[name](value)
        if privacy is not None and "batch_size" in values:
            raise ConfigError(
                "training setting 'batch_size': under record privacy the sample "
                "rate decides; remove it"
            )
        return cls(**values)

    def steps(self, records: int, privacy: RecordPrivacy | None) -> int:
        """Optimizer steps of one fit on `records` records; under privacy they do not count."""
        if self.local_steps:
            return self.local_steps
        if privacy is not None:
            return self.local_epochs * math.ceil(1 / privacy.sample_rate)
        return self.local_epochs * math.ceil(records / self.batch_size)
