"""Reads a node's kit, name and state folder, as its operator or a simulation gives them.

    --node-config 'secureps-kit="/srv/kit" secureps-name="north"'

The policy of its site says which messages the app is given. In Flower's simulation the run itself
names the kit that it made for all nodes, and a node's name follows from its `partition-id`. If the
node's operator gives any setting, the run's are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secureps.client.site_policy import NO_POLICY, SitePolicy, read_site
from secureps.errors import ConfigError
from secureps.flower.post import TOLD_KIT, TOLD_SEED
from secureps.roles.member.terms import Terms
from secureps.run.party_names import client_names
from secureps.store.keyring import default_state
from secureps.wording import meant

KIT, NAME, STATE = "secureps-kit", "secureps-name", "secureps-state"
SITE, UNSAFE, HOLDER = "secureps-site", "secureps-unsafe-seed", "secureps-holder"
KNOWN = (KIT, NAME, STATE, SITE, UNSAFE, HOLDER)

PREFIX = "secureps-"

PARTITION, PARTITIONS = "partition-id", "num-partitions"


@dataclass(frozen=True)
class NodeSettings:
    """The settings of one node.

    Args:
        state: folder of journal, outbox and seed.
        site: file of what its site allows; None for everything.
        unsafe_seed: makes its updates repeatable: tests alone, there is no privacy.
        simulated: a simulation started this node.
    """

    kit: Path
    name: str
    state: Path
    site: Path | None = None
    unsafe_seed: int | None = None
    simulated: bool = False

    @classmethod
    def of(cls, config: Mapping[str, object], told: Mapping[str, str | int]) -> NodeSettings:
        """Reads the node's own configuration, or a simulation's; else ConfigError."""
        own = {key: value for key, value in config.items() if key.startswith(PREFIX)}
        if unknown := own.keys() - set(KNOWN):
            name = min(unknown)
            raise ConfigError(f"--node-config: {name!r} is not known; {meant(name, KNOWN)}")
        if own:
            return cls._own(own)
        partition, count = config.get(PARTITION), config.get(PARTITIONS)
        kit = told.get(TOLD_KIT)
        if not isinstance(kit, str) or not isinstance(partition, int) or not isinstance(count, int):
            raise ConfigError(
                "this node has no start-up kit: start its SuperNode with "
                f"""--node-config '{KIT}="/path/of/kit" {NAME}="its name on the roster"'"""
            )
        name, seed = client_names(count)[partition], told.get(TOLD_SEED)
        state = default_state(Path(kit), name)
        own_seed = seed if isinstance(seed, int) else None
        return cls(Path(kit), name, state, None, own_seed, simulated=True)

    @classmethod
    def _own(cls, own: Mapping[str, object]) -> NodeSettings:
        for key in (KIT, NAME):
            if not own.get(key):
                raise ConfigError(f"--node-config: {key} is missing")
        kit, name = Path(str(own[KIT])), str(own[NAME])
        state = Path(str(own[STATE])) if STATE in own else default_state(kit, name)
        site, seed = own.get(SITE), own.get(UNSAFE)
        if seed is not None and not isinstance(seed, int):
            raise ConfigError(f"--node-config: {UNSAFE}: it is a number, got {seed!r:.80}")
        return cls(kit, name, state, None if site is None else Path(str(site)), seed)


def policy_of(site: Path | None) -> SitePolicy:
    """A site's limits; ConfigError for an unreadable file, or a key that cannot hold here."""
    if site is None:
        return NO_POLICY
    policy = read_site(site)
    for key, said in (("network", not policy.network), ("scripts", policy.scripts is not None)):
        if said:
            raise ConfigError(
                f"{site}: {key}: inside Flower's engine the run ships the app, and its SuperNode "
                "runs it: leave the key out, or take part by secureps join"
            )
    return policy


def objection(kind: str, terms: Terms) -> tuple[str, str]:
    """Why a site's app is not given messages of a type, and what the server hears of that."""
    action, _, name = kind.partition(".")
    if action == "evaluate" and not terms.evaluation:
        text = "evaluation = false: no record of this site judges a model"
        return text, terms.revealed(["evaluation"], text)
    if (name or action == "query") and (text := terms.of([kind])):
        return text, terms.revealed(["messages"], text)
    return "", ""
