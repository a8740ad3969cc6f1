"""Makes the folder of a run inside Flower's engine: its plan, version 0, kit, states, checkpoints.

RUN/plan.toml, RUN/initial.safetensors    what the run is founded on
RUN/kit/                                  of a simulation, whose parties are all here
RUN/state/NAME/, RUN/checkpoints/         of coordinator and shards
RUN/config/, RUN/logs/                    of key holders that are started here
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from secureps.client.flower.served import Served, write_served
from secureps.client.flower.server import optimizer_of
from secureps.client.trainer import Array
from secureps.config.plan import (
    GroupSection,
    OptimizerSection,
    PlanSection,
    RecordPrivacySection,
    SyncSection,
)
from secureps.config.sections import toml_tables
from secureps.crypto.cipher import Opening
from secureps.crypto.identity import Role
from secureps.errors import ConfigError, PlanRefused
from secureps.messages.run import COORDINATOR
from secureps.messages.schema import TRAIN_METRICS
from secureps.policy.plan import Plan, load_plan
from secureps.run.party_names import client_names, holder_names, shard_names
from secureps.run.run_lock import new_folder
from secureps.run.server_app import MODEL, PLAN, with_optimizer
from secureps.store.atomic_file import replace_text
from secureps.store.issuing import create_kit, issue_all
from secureps.store.keyring import FLOWER

KIT = "kit"


def found_run(
    root: Path,
    plan: PlanSection,
    model: Mapping[str, Array],
    strategy: Any,
    rounds: int,
    clients: int,
    metrics: Mapping[str, float],
) -> Plan:
    """Makes a run's folder with its plan and version 0, or continues an existing run.

    To the app's own plan Flower's `strategy` adds its optimizer and how many nodes train. `metrics`
    of training have the largest magnitude of each. Raises ConfigError or PlanRefused if the plan
    cannot be played inside Flower's engine.
    """
    if (root / PLAN).exists():
        return load_plan(root / PLAN)
    section, _ = with_optimizer(plan, optimizer_of(strategy))
    groups = tuple(_draw(group, strategy, clients) for group in section.group)
    if metrics:
        model = {**model, TRAIN_METRICS: np.zeros(len(metrics), np.float32)}
        groups = (_group_of_metrics(section, groups[0], len(metrics)), *groups)
    initial = (root / MODEL).resolve()
    update = {"group": groups, "versions": rounds, "initial": str(initial)}
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


def _draw(group: GroupSection, strategy: Any, clients: int) -> GroupSection:
    """Gives a group the fraction that draws as many nodes as Flower's strategy would."""
    fraction = float(getattr(strategy, "fraction_train", 1.0))
    least = int(getattr(strategy, "min_train_nodes", 1))
    rule, wanted = group.rule, max(int(clients * fraction), least)
    if not isinstance(rule, SyncSection) or "fraction" in rule.model_fields_set:
        return group
    if wanted >= clients:
        return group
    exact = int(clients * fraction) == wanted
    share = fraction if exact else (wanted + 0.5) / clients
    return group.model_copy(update={"rule": rule.model_copy(update={"fraction": share})})


def _group_of_metrics(section: PlanSection, first: GroupSection, count: int) -> GroupSection:
    """Makes the group of the metrics' tensor, which trains with the first group.

    Raises PlanRefused if the plan has noise: it would be charged for the metrics too.
    """
    if section.privacy is not None:
        raise PlanRefused(
            "train_metrics: under [privacy] they would have noise, and be charged, as the update "
            "is: leave them out"
        )
    step = OptimizerSection(name="sgd", learning_rate=1.0)
    own: dict[str, Any] = {"name": "train_metrics", "pattern": TRAIN_METRICS, "optimizer": step}
    # Each metric lies in [-1, 1] (`AppTrainer`), so its mean moves by 2 at most.
    bounds = {"range": 2.0, "clip": 2.0 * math.sqrt(count), "bits": 16}
    plain = {"adaptive": None, "codec": (), "feedback": False, "pull_bits": None}
    return first.model_copy(update=own | bounds | plain | {"sparse": None, "tier": None})


def refuse_unfit(section: PlanSection) -> None:
    """Raises PlanRefused, with the reason, for what a plan cannot have inside Flower's engine."""
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
    """Makes a kit for all parties of a simulation; KitError if the disk refuses."""
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
    """Finds the plan's file by its name, also in the app's own folders; ConfigError if it fails."""
    for place in (Path(), *places):
        if (place / given).is_file():
            return (place / given).resolve()
    raise ConfigError(
        f"{given}: no such plan in the working folder, nor among the app's files: is it part of "
        "what `flwr run` sends (fab-include in pyproject.toml)?"
    )
