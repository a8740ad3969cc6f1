"""`secureps up`, `resume` and `simulate`: play federations on this machine."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from secureps.dashboard.command import show_run
from secureps.run.options import (
    Copies,
    InsecureForTests,
    MLflow,
    Pin,
    RunOfUp,
    Shown,
    TensorBoard,
    UnsafeSeed,
)
from secureps.run.report.version_metrics import Extras
from secureps.run.simulate.simulate import simulate as play_scenario
from secureps.run.up.programs import Order
from secureps.run.up.up import resume as continue_run
from secureps.run.up.up import up as play_plan
from secureps.store.keyring import refuse_unsafe


def up(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan with a federation section.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The run's folder. Default: runs/NAME-DATE-TIME."),
    ] = None,
    unsafe_seed: UnsafeSeed = None,
    insecure_for_tests: InsecureForTests = False,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
    copies: Copies = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Play a standby of the coordinator, too.")
    ] = False,
    pin: Pin = "off",
    shown: Shown = False,
) -> None:
    """Makes keys, starts coordinator, shards, key holders and clients, shows their
    progress, and compares the result with training alone and training centrally.
    RUN gets everything: logs, checkpoints, a report with curves, model.safetensors.
    Ctrl-C stops all processes.
    """
    refuse_unsafe(unsafe_seed, insecure_for_tests)
    also = (Extras(tensorboard, mlflow), copies, show_run() if shown else nullcontext, standby, pin)
    play_plan(Order(plan, out, unsafe_seed, dict(os.environ), *also), Console())


def resume(
    run: RunOfUp,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
) -> None:
    """Every party starts from its journal, so the model is the same as without the stop."""
    continue_run(run, dict(os.environ), Console(), Extras(tensorboard, mlflow))


def simulate(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="A file of simulations/.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The report's folder. Default: runs/NAME.")
    ] = None,
    tensorboard: TensorBoard = None,
    mlflow: MLflow = None,
    engine: Annotated[
        Literal["here", "ray"], typer.Option(help="Where clients train: here, or on a Ray cluster.")
    ] = "here",
    copies: Copies = None,
) -> None:
    """The same scenario gives the same model, bit for bit, on whichever engine.
    Noise is seeded: no privacy.
    """
    play_scenario(scenario, out, extras=Extras(tensorboard, mlflow), engine=engine, copies=copies)
