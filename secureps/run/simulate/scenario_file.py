"""Reads a scenario file: its plan, script, delays, and which clients come and go."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from secureps.client.script import Script, refuse_privacy
from secureps.client.trainer import Setting
from secureps.config.scenario import ScenarioSection, StaySection
from secureps.config.sections import parse, read_toml, resolve_paths
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import ConfigError
from secureps.policy.plan import Plan, load_plan
from secureps.run.report.version_metrics import Heading
from secureps.run.server_app import Founding, run_server_app, share_settings
from secureps.run.up.folder import client_names, shard_names
from secureps.scenario.delays import Delays
from secureps.wording import counted, suggest


@dataclass(frozen=True)
class Scenario:
    """A scenario file and the files that it names, read and checked."""

    section: ScenarioSection
    plan: Plan
    script: Callable[[], Script]
    """Imports the script at its first call."""
    delays: Delays
    plans: Mapping[str, Plan]
    """The plans of its study's variants, by name."""
    source: Path
    """The script's file."""

    @cached_property
    def clients(self) -> tuple[str, ...]:
        return client_names(self.section.clients)

    @property
    def stays(self) -> dict[str, StaySection]:
        names, stays = self.clients, self.section.stay
        return {names[s.first + k]: s for s in stays for k in range(s.count)}

    @property
    def records(self) -> dict[str, int]:
        return dict(zip(self.clients, _records(self.plan), strict=False))

    def settings(self, partition: int) -> dict[str, Setting]:
        own = self.section
        shared = share_settings(self.plan, self.source, own.settings, own.clients)
        return {**shared, "partition": partition}

    def founding(self, plan: Plan, seed: int) -> Founding | None:
        """Runs the script's ServerApp for a plan, if it has one whose results the plan lacks."""
        own = self.section
        return run_server_app(plan, self.source, own.settings, own.clients, UnsafeSeed(seed))

    def heading(self, folder: Path) -> Heading:
        settings = {
            "scenario": self.section.model_dump(mode="json"),
            "plan": self.plan.section.model_dump(mode="json", exclude={"federation"}),
        }
        groups = len(self.plan.groups)
        return Heading(self.section.name, folder.resolve().name, settings, groups, True)


def load_scenario(path: Path, fetch: bool = True, runs: bool = True) -> Scenario:
    """Reads a scenario file; ConfigError or PlanRefused if it, its plan or its script is wrong.

    Args:
        fetch: as in `load_plan`.
        runs: whether the script may run; if not, it is not checked.
    """
    values = read_toml(path)
    if "plan" not in values and "group" in values:
        raise ConfigError(f"{path} is a plan: name the scenario that plays it (simulations/)")
    section = parse(ScenarioSection, values, str(path))
    settings = resolve_paths(section.settings, path.parent)
    section = section.model_copy(update={"settings": settings})
    script = path.parent / section.script
    plan = load_plan(path.parent / section.plan, fetch=fetch)
    if runs and not os.path.exists(script):
        raise ConfigError(f"{script}: no such script")
    variants = () if section.study is None else section.study.variant
    plans = {
        variant.name: plan
        if variant.plan is None
        else load_plan(path.parent / variant.plan, fetch=fetch)
        for variant in variants
    }
    for each in (plan, *plans.values()) if runs else ():
        refuse_privacy(script, each)
    refuse_few(path, plan, section.clients, "clients")
    for each in plans.values():
        _refuse_other_records(path, each, section.clients)
    _refuse_stays(section, path)
    _refuse_unknown_shards(section, (plan, *plans.values()), path)
    delays = Delays(**dict(section.delays))
    return Scenario(section, plan, cache(lambda: Script(script)), delays, plans, script)


def _records(plan: Plan) -> tuple[int, ...]:
    return () if plan.section.federation is None else plan.section.federation.records


def refuse_few(
    where: Path | str, plan: Plan, clients: int, key: str = "federation.clients"
) -> None:
    """Refuses too few clients for a group, or too few or many numbers of records (ConfigError)."""
    _refuse_other_records(where, plan, clients)
    trainers = clients - (plan.evaluator != "")
    for name in (*plan.groups, *plan.all_groups):  # the evaluation's is often the model's
        start = plan.bounds(name).start
        if trainers < start:
            raise ConfigError(
                f"{where}: {key}: {trainers} take part, but a version{plan.of(name)} waits for "
                f"{start}: raise it, or lower start, quorum and minimum of its rule"
            )


def _refuse_other_records(where: Path | str, plan: Plan, clients: int) -> None:
    if (stated := len(_records(plan))) not in (0, clients):
        raise ConfigError(
            f"{where}: federation.records: {stated} numbers for {counted(clients, 'client')}: "
            "state one of each, or leave it out for privacy.records"
        )


def _refuse_stays(section: ScenarioSection, path: Path) -> None:
    taken = set[int]()
    for number, stay in enumerate(section.stay, 1):
        own = range(stay.first, stay.first + stay.count)
        if own.stop > section.clients:
            raise ConfigError(
                f"{path}: stay {number}: there are clients 0 to {section.clients - 1} and no others"
            )
        if not taken.isdisjoint(own):
            raise ConfigError(f"{path}: stay {number}: a client of it has another stay: join them")
        if stay.leaves is not None and stay.leaves <= stay.comes:
            raise ConfigError(f"{path}: stay {number}: it leaves before it comes")
        taken.update(own)


def _refuse_unknown_shards(section: ScenarioSection, plans: Iterable[Plan], path: Path) -> None:
    known = shard_names(max(plan.section.most_shards for plan in plans))
    for name in section.shards.slow:
        if name not in known:
            text = f"no shard is called {name!r}; {suggest(name, known)}"
            raise ConfigError(f"{path}: shards.slow: {text}")
