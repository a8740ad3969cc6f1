"""The plan: the validated whole of rule, privacy, codec, cipher and placement.

`config` parses single keys; here the whole is refused, with a reason, when it is
unsound. Everything that a party computes from a plan is computed here, from the plan's
canonical text alone, so that all parties agree.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from secureps.codec.grid import Grid
from secureps.config import GroupSection, PlanSection, RuleSection, parse, read_toml
from secureps.crypto.cipher import CipherParameters, Opening
from secureps.crypto.suite import cipher
from secureps.errors import PlanRefused
from secureps.messages.schema import Schema
from secureps.model.layout import Layout
from secureps.model.optimizer import Optimizer, OptimizerSettings, ScheduleSettings, build_optimizer
from secureps.policy.rule import Rule
from secureps.policy.sync import Sync


@dataclass(frozen=True)
class Plan:
    """A sound plan. `initial_digest` pins the file of version 0 (hex BLAKE2b-256, or empty)."""

    section: PlanSection
    initial_digest: str = ""

    def __post_init__(self) -> None:
        _refuse_unsound(self)

    @property
    def text(self) -> str:
        """Canonical JSON: what the run id binds. Leaves out who takes part on this machine."""
        body = self.section.model_dump(mode="json", exclude={"federation"})
        return json.dumps(
            {"plan": body, "initial_digest": self.initial_digest},
            sort_keys=True,
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> Plan:
        """The plan that `text` came from; ConfigError or PlanRefused if it is not one."""
        try:
            body = json.loads(text)
            section, digest = body["plan"], str(body["initial_digest"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PlanRefused("the coordinator's plan is not a plan: join another run") from None
        return cls(parse(PlanSection, section, "the coordinator's plan"), digest)

    def group(self, name: str) -> GroupSection:
        """One group's section; KeyError if there is none."""
        for group in self.section.group:
            if group.name == name:
                return group
        raise KeyError(name)

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(group.name for group in self.section.group)

    def grid(self, group: str) -> Grid:
        """The integers that a group's values become."""
        section = self.group(group)
        return Grid(section.bits, section.range if section.range is not None else section.clip)

    @cached_property
    def cipher_parameters(self) -> CipherParameters:
        """One set for all groups: the finest grid decides."""
        levels = max(self.grid(name).levels for name in self.groups)
        section = self.section.cipher
        return CipherParameters(section.name, section.capacity, levels)

    @property
    def holders(self) -> int:
        """How many key holders the run waits for."""
        if cipher(self.cipher_parameters).opening is Opening.NOTHING:
            return 0
        return self.section.cipher.holders

    def rule(self, group: str) -> Rule:
        """The group's rule."""
        return build_rule(self.group(group).rule, self.section.cipher.capacity)

    def optimizer(self, group: str) -> Optimizer:
        """The group's server optimizer."""
        section = self.group(group).optimizer
        return build_optimizer(
            OptimizerSettings(
                name=section.name,
                learning_rate=section.learning_rate,
                schedule=ScheduleSettings(**section.schedule.model_dump()),
                momentum=section.momentum,
                betas=section.betas,
                tau=section.tau,
            )
        )

    def layout(self, schema: Schema) -> Layout:
        """Groups and blocks of a model; PlanRefused if a tensor has no group."""
        section = self.section
        patterns = tuple((group.name, group.pattern) for group in section.group)
        return Layout.build(schema, patterns, section.block_size, section.local)


RULES = {"sync": Sync}


def build_rule(section: RuleSection, capacity: int) -> Rule:
    """The rule that a section names; PlanRefused if there is none, or its numbers clash."""
    if section.name not in RULES:
        raise PlanRefused(f"no rule is called {section.name!r}; known: {', '.join(sorted(RULES))}")
    start = section.start if section.start is not None else section.quorum
    return Sync(
        quorum=section.quorum,
        minimum=section.minimum,
        start=start,
        most=section.most if section.most is not None else capacity,
        deadline=section.deadline,
        extensions=section.extensions,
    )


def load_plan(path: Path) -> Plan:
    """Reads and validates a plan file.

    `initial` is taken relative to the file, and pinned by its digest.

    Raises:
        ConfigError: the file does not parse, or a key has a bad value.
        PlanRefused: the plan is unsound.
    """
    section = parse(PlanSection, read_toml(path), str(path))
    if section.initial is None:
        return Plan(section)
    initial = (path.parent / section.initial).resolve()
    if not initial.is_file():
        raise PlanRefused(f"{path}: initial: no file {initial}")
    digest = hashlib.blake2b(initial.read_bytes(), digest_size=32).hexdigest()
    return Plan(section.model_copy(update={"initial": str(initial)}), digest)


def _refuse_unsound(plan: Plan) -> None:
    section = plan.section
    names = plan.groups
    if len(set(names)) != len(names):
        raise PlanRefused("two groups have the same name")
    for name in names:
        _refuse_rule(plan, name)
        plan.grid(name)
        plan.optimizer(name)
    cipher(plan.cipher_parameters)
    steps = section.training.get("local_steps")
    if section.privacy is not None and (type(steps) is not int or steps < 1):
        raise PlanRefused(
            "training.local_steps: a private plan states how many steps each version takes, "
            "so that a client knows what it will spend"
        )
    if section.cipher.name == "bfv" and section.cipher.holders != 1:
        raise PlanRefused(
            "cipher.holders: bfv has one holder of the whole secret key; "
            f"{section.cipher.holders} were asked for"
        )


def _refuse_rule(plan: Plan, name: str) -> None:
    section = plan.group(name).rule
    rule = plan.rule(name)
    where = f"group {name}"
    start = section.start if section.start is not None else section.quorum
    if section.minimum > section.quorum:
        raise PlanRefused(
            f"{where}: the quorum {section.quorum} is below the minimum cohort {section.minimum}; "
            "such a cohort would never be opened"
        )
    if start < section.quorum:
        raise PlanRefused(
            f"{where}: a round would open with {start} members and could never reach its "
            f"quorum of {section.quorum}"
        )
    if rule.most > plan.section.cipher.capacity:
        raise PlanRefused(
            f"{where}: a cohort of {rule.most} exceeds the cipher's capacity of "
            f"{plan.section.cipher.capacity}; raise cipher.capacity or lower rule.most"
        )
    if rule.most < start:
        raise PlanRefused(
            f"{where}: at most {rule.most} members are invited, but a round waits for {start}"
        )
