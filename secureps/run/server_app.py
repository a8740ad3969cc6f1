"""Runs the ServerApp of a plan's Flower app once, and writes its results to plan and version 0.

`up`, `simulate`, `study` and `check` do this by themselves; `secureps flower` does it for
federations of several machines. The plan's own keys override the ServerApp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from secureps.client.initial_model import KEY, ServerAppResult, write_served
from secureps.client.script import Script, is_flower_app
from secureps.client.trainer import SEED_BITS, Setting
from secureps.config.plan import PlanSection
from secureps.config.sections import toml_tables
from secureps.crypto.sampling import SecretSeed, Seed
from secureps.errors import ConfigError, DamagedStore, OperatorError
from secureps.files.objects import initial_path
from secureps.policy.plan import Plan, load_plan
from secureps.store.atomic_file import replace_text
from secureps.store.checkpoint import read_metadata

MODEL = "initial.safetensors"
"""The file of version 0 in the folder of a founding; it includes the messages to clients."""

PLAN = "plan.toml"

NOT_RUN = (
    "number of rounds, fractions, minima, timeout and weights are the plan's: versions, rule and "
    "most_examples; evaluate_fn and what follows start(), a second start() too, do not run: "
    "`secureps export` gives the model"
)


@dataclass(frozen=True, eq=False)
class Founding:
    """A plan with the results of its ServerApp; `notes` say which results were taken."""

    section: PlanSection
    founded: ServerAppResult
    notes: tuple[str, ...]

    def write(self, folder: Path) -> Plan:
        initial = (folder / MODEL).resolve()
        made = self.founded
        write_served(initial, made.model, made.served, made.ties)
        section = self.section.model_copy(update={"initial": str(initial)})
        body = section.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        replace_text(folder / PLAN, toml_tables(body))
        return load_plan(folder / PLAN)

    def tell(self, console: Console) -> None:
        for note in self.notes:
            console.print(note, soft_wrap=True, highlight=False, markup=False)


def share_settings(
    plan: Plan, script: Path, settings: Mapping[str, Setting], clients: int
) -> dict[str, Setting]:
    """Returns the settings that a script's `make` gets for any client, without `partition`."""
    own: dict[str, Setting] = {**settings, "partitions": clients}
    initial = plan.section.initial
    return own if initial is None or not is_flower_app(script) else {**own, "initial": initial}


def run_server_app(
    plan: Plan, path: Path, settings: Mapping[str, Setting], clients: int, seed: Seed
) -> Founding | None:
    """Runs the ServerApp of a plan's script (`path`), drawing from `seed`; None if there is none.

    It is not run again if the plan already has its results. Raises ConfigError if the ServerApp
    fails, or has code that cannot be taken over.
    """
    initial = plan.section.initial
    if not is_flower_app(path) or (initial is not None and _is_founded(initial)):
        return None
    number = seed.derive("founding").integer(SEED_BITS)
    own = {**settings, **({} if initial is None else {"initial": initial})}
    founded = Script(path).run_server_app(own, plan.section.versions, number, clients)
    if founded is None:
        return None
    section, optimizer = with_optimizer(plan.section, founded.optimizer)
    model = "version 0" if initial is None else f"not version 0, which is the plan's {initial}"
    alike = all(group.weighting == "uniform" for group in section.group)
    notes = (
        f"of the ServerApp ({founded.strategy}) are taken what clients are told and {model}; "
        f"{optimizer}",
        NOT_RUN + ("; without most_examples all clients count alike" if alike else ""),
    )
    return Founding(section, founded, notes)


def with_optimizer(
    section: PlanSection, optimizer: Mapping[str, Any] | None
) -> tuple[PlanSection, str]:
    """Adds a strategy's optimizer to the groups without one; returns the plan and a note."""
    if optimizer is None:
        return section, "its step is the mean"
    told = ", ".join(f"{key} = {value}" for key, value in optimizer.items())
    if all("optimizer" in group.model_fields_set for group in section.group):
        names = ", ".join(sorted({group.optimizer.name for group in section.group}))
        return section, f"not its optimizer ({told}), because the plan says {names}"
    groups = tuple(
        group
        if "optimizer" in group.model_fields_set
        else group.model_copy(update={"optimizer": type(group.optimizer)(**optimizer)})
        for group in section.group
    )
    return section.model_copy(update={"group": groups}), f"its optimizer ({told})"


def _is_founded(initial: str) -> bool:
    try:
        return KEY in read_metadata(initial_path(initial))
    except DamagedStore:
        return False  # a later reader of the file reports the damage


def flower(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan whose federation names a Flower app.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the results are written.")],
) -> None:
    """`flower` writes DIR/plan.toml, with the strategy's optimizer, and
    DIR/initial.safetensors: version 0 and the messages to clients in every
    version. It says what was taken; a ServerApp with code of its own is refused.
    `up`, `simulate` and `check --run-script` do this by themselves.
    """
    read = load_plan(plan)
    federation = read.section.federation
    if federation is None:
        raise ConfigError(f"{plan}: federation: this section says which Flower app it is: script")
    script = (plan.parent / federation.script).resolve()
    seed = SecretSeed.from_os()
    founding = run_server_app(read, script, federation.settings, federation.clients, seed)
    if founding is None:
        raise ConfigError(f"{script}: there is no ServerApp to run, or the plan has its result")
    update = {"federation": federation.model_copy(update={"script": str(script)})}
    founding = replace(founding, section=founding.section.model_copy(update=update))
    if (out / PLAN).exists():
        raise ConfigError(f"{out / PLAN} is there already: name a new folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        founding.write(out)
    except OSError as error:
        raise OperatorError(f"{out}: cannot write what the ServerApp says: {error}") from None
    console = Console()
    founding.tell(console)
    model = out / MODEL
    for text in (
        f"plan: {out / PLAN}",
        f"version 0: {model}; give it to every holder: `secureps join --set initial={model}`",
    ):
        console.print(text, soft_wrap=True, highlight=False, markup=False)
