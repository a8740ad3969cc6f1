"""The sections of a server's optimizer and of its learning rate."""

from __future__ import annotations

from pydantic import Field

from secureps.config.sections import Table


class ScheduleSection(Table):
    """The learning rate over the server's steps; names as in `model.optimizer`."""

    name: str = "constant"
    total_steps: int = Field(default=100, ge=1)
    floor: float = Field(default=0.0, ge=0)
    decay: float = Field(default=0.99, gt=0, le=1)
    warmup_steps: int = Field(default=10, ge=1)


class OptimizerSection(Table):
    """The server's step on the averaged update; names as in `model.optimizer`."""

    name: str = "sgd"
    learning_rate: float = Field(default=1.0, gt=0)
    schedule: ScheduleSection = ScheduleSection()
    momentum: float = Field(default=0.9, ge=0, lt=1)
    betas: tuple[float, float] = (0.9, 0.99)
    tau: float = Field(default=1e-3, gt=0)
