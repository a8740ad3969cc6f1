"""Runs a plan's ServerApp once, and writes its decisions to the plan and the file of version 0.

`up`, `simulate`, `study` and `check` do this by themselves, `secureps flower` does it for
federations of several machines. The plan's own settings override a ServerApp's. What must not live
here: running a ServerApp, and translating a strategy (`client.flower.script`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from secureps.client.flower.served import KEY, Fate, Founded, FoundingOrder, Wishes, write_served
from secureps.client.script import Script, speaks_flower
from secureps.client.trainer import SEED_BITS, Setting
from secureps.config.plan import GroupSection, PlanSection, SyncSection
from secureps.config.sections import refuse_misplaced, toml_tables
from secureps.crypto.sampling import Seed
from secureps.errors import ConfigError, DamagedStore, OperatorError, naming
from secureps.files.initial_file import initial_path
from secureps.policy.plan import Plan, load_plan
from secureps.run.report.tables import WholeTable
from secureps.store.atomic_file import replace_text
from secureps.store.checkpoint import read_metadata

MODEL = "initial.safetensors"
"""The file of version 0, with the ServerApp's decisions, in the folder of a founding."""

PLAN = "plan.toml"

TIMEOUT = 3600.0
"""Flower's default timeout of a round, in seconds: a ServerApp that has it asked for none."""


@dataclass(frozen=True, eq=False)
class Founding:
    """A plan with a ServerApp's decisions."""

    section: PlanSection
    founded: Founded
    fates: tuple[Fate, ...]

    def write(self, folder: Path) -> Plan:
        """Writes version 0 and the plan into a folder; returns the plan.

        Raises:
            ConfigError: clients are told more than fits.
            OperatorError: the disk refuses.
        """
        initial = (folder / MODEL).resolve()
        write_served(initial, self.founded.model, self.founded.served)
        section = self.section.model_copy(update={"initial": str(initial)})
        body = section.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        replace_text(folder / PLAN, toml_tables(body))
        return load_plan(folder / PLAN)

    @property
    def notes(self) -> tuple[str, ...]:
        """The outcome of each setting, as lines."""
        return tuple(
            f"the ServerApp's {fate.setting} ({fate.app}): {fate.here}" for fate in self.fates
        )

    def tables(self) -> Iterable[Table | Text]:
        """The outcome of each setting, as a table."""
        table = WholeTable(f"what became of the ServerApp: {self.founded.strategy}")
        for column in ("setting", "in the app", "here"):
            table.add_column(column, overflow="fold")
        for fate in self.fates:
            cells = (Text(cell) for cell in (fate.setting, fate.app, fate.here))
            table.add_row(*cells, style="yellow" if fate.lost else "")
        yield table


def found(
    plan: Plan, path: Path, settings: Mapping[str, Setting], clients: int, seed: Seed
) -> Founding | None:
    """Runs the ServerApp of a plan's script, if there is one that has not been run.

    Args:
        plan: with what it says itself; path: of the script.
        settings: of a client; clients: how many take part.
        seed: of what the ServerApp draws.

    Raises:
        ConfigError: the ServerApp fails, or asks for what cannot be had here.
        PlanRefused: what it asks for makes the plan unsound.
    """
    initial = plan.section.initial
    if not speaks_flower(path) or (initial is not None and _is_founded(initial)):
        return None
    federation = plan.section.federation
    drop = () if federation is None else federation.drop
    number = seed.derive("founding").integer(SEED_BITS)
    order = FoundingOrder(plan.section.versions, number, drop)
    own = {**settings, **({} if initial is None else {"initial": initial})}
    founded = Script(path).found(own, order)
    if founded is None:
        if drop:
            raise ConfigError("federation.drop: there is no ServerApp")
        return None
    section, fates = settled(plan.section, founded.wishes, clients)
    with naming(f"with what {founded.strategy} of the ServerApp asks for"):
        Plan(section)
    if initial is not None:
        fates.append(Fate("initial model", "its own", f"the plan's: {initial}"))
    return Founding(section, founded, (*fates, *founded.fates))


def _is_founded(initial: str) -> bool:
    try:
        return KEY in read_metadata(initial_path(initial))
    except DamagedStore:
        return False  # whoever reads it says what is wrong


def prepare(plan: Path, folder: Path, seed: Seed, console: Console) -> None:
    """`secureps flower`: writes a plan and version 0, and prints the outcome of each setting.

    Raises:
        ConfigError: the plan has no federation, or its script no ServerApp.
    """
    read = load_plan(plan)
    federation = read.section.federation
    if federation is None:
        raise ConfigError(f"{plan}: federation: this section says which Flower app it is: script")
    refuse_misplaced(federation.settings, plan)
    script = (plan.parent / federation.script).resolve()
    founding = found(read, script, federation.settings, federation.clients, seed)
    if founding is None:
        raise ConfigError(f"{script}: there is no ServerApp to run, or the plan has its result")
    update = {"federation": federation.model_copy(update={"script": str(script)})}
    founding = replace(founding, section=founding.section.model_copy(update=update))
    if (folder / PLAN).exists():
        raise ConfigError(f"{folder / PLAN} is there already: name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        founding.write(folder)
    except OSError as error:
        raise OperatorError(f"{folder}: cannot write what the ServerApp says: {error}") from None
    for part in founding.tables():
        console.print(part)
    model = folder / MODEL
    for text in (
        f"plan: {folder / PLAN}",
        f"version 0: {model}; give it to every holder: `secureps join --set initial={model}`",
    ):
        console.print(text, soft_wrap=True, highlight=False, markup=False)


# --- what a plan takes over -------------------------------------------------------


def settled(section: PlanSection, wishes: Wishes, clients: int) -> tuple[PlanSection, list[Fate]]:
    """Fills a plan's gaps with a strategy's settings; returns their outcomes too."""
    groups, fates = list[GroupSection](), list[Fate]()
    for number, group in enumerate(section.group):
        group, own = _group(group, wishes, clients)
        groups.append(group)
        fates += own if number == 0 else []
    section = section.model_copy(update={"group": tuple(groups)})
    if wishes.rounds is not None:
        text = f"versions = {section.versions}: the plan's"
        fates.append(Fate("num_rounds", str(wishes.rounds), text))
    section, evaluated = _evaluation(section, wishes)
    return section, [*fates, *evaluated]


def _group(group: GroupSection, wishes: Wishes, clients: int) -> tuple[GroupSection, list[Fate]]:
    fates = list[Fate]()
    if wishes.optimizer is not None:
        told = ", ".join(f"{key} = {value}" for key, value in wishes.optimizer.items())
        if "optimizer" in group.model_fields_set:
            told = f"optimizer.name = {group.optimizer.name}: the plan's"
        else:
            made = type(group.optimizer)(**wishes.optimizer)
            group = group.model_copy(update={"optimizer": made})
            told = f"optimizer: {told}"
        fates.append(Fate("server optimizer", str(wishes.optimizer["name"]), told))
    rule = group.rule
    if not isinstance(rule, SyncSection):
        if wishes.fraction is not None:
            text = f'the plan\'s rule "{rule.name}" decides who trains'
            fates.append(Fate("fractions and minima", f"{wishes.fraction:g}", text))
        return group, fates
    rule, own = _rounds(rule, wishes, clients)
    return group.model_copy(update={"rule": rule}), fates + own


def _rounds(rule: SyncSection, wishes: Wishes, clients: int) -> tuple[SyncSection, list[Fate]]:
    """The rule with the strategy's number of members for a round."""
    given, update, fates = rule.model_fields_set, dict[str, Any](), list[Fate]()
    if wishes.fraction is not None:
        share = _share(wishes.fraction, wishes.least, clients)
        if "fraction" in given:
            here = f"rule.fraction = {rule.fraction:g}: the plan's"
        elif share < 1:
            update["fraction"] = share
            here = f"rule.fraction = {share:g}, members drawn anew for each version"
        else:
            here = "all who are live are invited"
        fates.append(Fate("fraction_train", f"{wishes.fraction:g}", here))
        least = max(rule.quorum, rule.minimum)
        text = f"in rule.fraction; never fewer than the plan's quorum of {least}"
        fates.append(Fate("min_train_nodes", str(wishes.least), text))
    if wishes.start is not None:
        if "start" not in given and wishes.start > rule.quorum:
            if wishes.start > clients:
                raise ConfigError(
                    f"the ServerApp waits for {wishes.start} nodes (min_available_nodes), and "
                    f"{clients} take part"
                )
            update["start"] = wishes.start
            here = f"rule.start = {wishes.start}"
        else:
            start = rule.start if rule.start is not None else rule.quorum
            here = f"rule.start = {start}: the plan's"
        fates.append(Fate("min_available_nodes", str(wishes.start), here))
    if wishes.timeout is not None and wishes.timeout != TIMEOUT:
        if "deadline" not in given:
            update["deadline"] = wishes.timeout
        deadline = update.get("deadline", rule.deadline)
        whose = "" if "deadline" in update else ": the plan's"
        fates.append(Fate("timeout", f"{wishes.timeout:g}", f"rule.deadline = {deadline:g}{whose}"))
    return rule.model_copy(update=update), fates


def _share(fraction: float, least: int | None, clients: int) -> float:
    """The fraction that gives max(int(clients * fraction), least) clients, as Flower counts."""
    wanted = max(int(clients * fraction), least or 0)
    if wanted >= clients:
        return 1.0
    return fraction if int(clients * fraction) == wanted else (wanted + 0.5) / clients


def _evaluation(section: PlanSection, wishes: Wishes) -> tuple[PlanSection, list[Fate]]:
    fraction, own = wishes.evaluate_fraction, section.evaluation
    if fraction is None:
        return section, []
    told = f"{fraction:g}"
    if own is None:
        text = "the plan has no [evaluation]: clients evaluate nothing inside the federation"
        return section, [Fate("fraction_evaluate", told, text)]
    rule = own.rule if own.rule is not None else section.group[0].rule
    if fraction == 0 or own.evaluator is not None or not isinstance(rule, SyncSection):
        return section, [Fate("fraction_evaluate", told, "the plan's [evaluation]")]
    if own.rule is not None and "fraction" in own.rule.model_fields_set:
        text = f"evaluation.rule.fraction = {own.rule.fraction:g}: the plan's"
        return section, [Fate("fraction_evaluate", told, text)]
    rule = rule.model_copy(update={"fraction": fraction})
    section = section.model_copy(update={"evaluation": own.model_copy(update={"rule": rule})})
    return section, [Fate("fraction_evaluate", told, f"evaluation.rule.fraction = {told}")]
