"""The folder of a run inside Flower's engine: its plan, version 0, kit, states and checkpoints.

    RUN/plan.toml, RUN/initial.safetensors    what the run is founded on
    RUN/kit/                                  of a simulation, whose parties are all here
    RUN/state/NAME/, RUN/checkpoints/         of coordinator and shards
    RUN/config/, RUN/logs/                    of key holders that are started here

What must not live here: Flower, and processes (`flower.holders`).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secureps.client.flower.served import Served, Wishes, write_served
from secureps.client.trainer import Array
from secureps.config.plan import PlanSection, RecordPrivacySection
from secureps.config.sections import toml_tables
from secureps.crypto.cipher import Opening
from secureps.crypto.identity import Role
from secureps.errors import ConfigError, PlanRefused
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import Plan, load_plan
from secureps.run.party_names import client_names, holder_names, shard_names
from secureps.run.run_lock import new_folder
from secureps.run.server_app import MODEL, PLAN, settled
from secureps.store.atomic_file import replace_text
from secureps.store.issuing import create_kit, issue_all
from secureps.store.kit_host import FLOWER

KIT = "kit"


@dataclass(frozen=True)
class Founder:
    """What a ServerApp decides of a run.

    Args:
        plan: its own file; rounds: how many versions.
        wishes: of its strategy; clients: how many nodes there are.
    """

    plan: Path
    rounds: int
    wishes: Wishes
    clients: int

    @property
    def name(self) -> str:
        """The plan's own name, by which its runs are called."""
        return load_plan(self.plan).section.name

    def found(self, root: Path, model: Mapping[str, Array]) -> Plan:
        """Makes a run's folder with its plan and version 0; goes on with one that is there.

        Raises:
            ConfigError, PlanRefused: the plan cannot be played inside Flower's engine.
        """
        if (root / PLAN).exists():
            return load_plan(root / PLAN)
        section = load_plan(self.plan).section
        section, _ = settled(section, self.wishes, self.clients)
        initial = (root / MODEL).resolve()
        update = {"versions": self.rounds, "initial": str(initial)}
        section = section.model_copy(update=update)
        refuse_unfit(section)
        new_folder(root)
        write_served(initial, model, Served(names=tuple(model)))
        body = section.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        fresh = root / f"{PLAN}.new"
        replace_text(fresh, toml_tables(body))
        load_plan(fresh)
        shutil.move(fresh, root / PLAN)
        return load_plan(root / PLAN)


def refuse_unfit(section: PlanSection) -> None:
    """PlanRefused for what a plan cannot have inside Flower's engine, and why."""
    if isinstance(section.privacy, RecordPrivacySection):
        raise PlanRefused(
            'privacy: a Flower app takes steps of its own, which nobody accounts: unit = "client" '
            "protects its updates as a whole, inside Flower too"
        )
    if section.evaluation is not None:
        raise PlanRefused(
            "evaluation: inside Flower's engine its own messages evaluate: fraction_evaluate of "
            "SecureFedAvg; their metrics are not encrypted"
        )
    for key in ("frozen", "local"):
        if getattr(section, key):
            raise PlanRefused(
                f"{key}: inside Flower's engine a node has no model of its own before the run: "
                "send only the tensors that are trained, as the app's ArrayRecord"
            )
    if Plan(section).opening is Opening.HOLDER:
        raise PlanRefused(
            'cipher.name = "bfv": its key holder fetches sums from shards, which are reached by '
            'nobody inside Flower\'s engine: take "rlwe"'
        )


def simulated_kit(root: Path, plan: Plan, clients: int) -> Path:
    """Makes a kit for all parties of a simulation, which are all on this machine.

    Raises:
        KitError: the disk refuses.
    """
    kit = root / KIT
    if kit.exists():
        return kit.resolve()
    create_kit(kit, plan.cipher_parameters, hours=0, host=FLOWER)
    parties: dict[Role, tuple[str, ...]] = {
        "coordinator": (COORDINATOR,),
        "shard": shard_names(plan.section.shards),
        "holder": holder_names(plan.holders),
        "client": client_names(clients),
    }
    issue_all(kit, [(role, name) for role, names in parties.items() for name in names])
    return kit.resolve()


def find_plan(given: str | Path, places: tuple[Path, ...]) -> Path:
    """The plan's file: as it is named, or in one of the app's own folders.

    Raises:
        ConfigError: it is nowhere.
    """
    for place in (Path(), *places):
        if (place / given).is_file():
            return (place / given).resolve()
    raise ConfigError(
        f"{given}: no such plan in the working folder, nor among the app's files: is it part of "
        "what `flwr run` sends (fab-include in pyproject.toml)?"
    )
