"""The plans and keys of chaos: small, and the same in every process."""

from functools import cache
from typing import Any
from unittest.mock import patch

from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.identity import Identity
from secureps.messages.encoding import digest
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import MemoryKit, make_memory_kit
from tests.chaos.schedule import CLIENTS, HOLDERS, SHARDS, THRESHOLD, Setting
from tests.kits.evaluations import METRICS
from tests.kits.thin_group import FED_BACK, THIN

VERSIONS, SHAPE = 3, (9, 7)
STEPS = 2
FOREVER = 1e6
"""Seconds: a deadline that never comes."""

RULES: dict[str, dict[str, Any]] = {
    "all": {"name": "sync", "quorum": CLIENTS, "minimum": CLIENTS, "deadline": FOREVER},
    "sync": {"name": "sync", "quorum": 4, "minimum": 3, "deadline": 15.0, "extensions": 50},
    "ssp": {"name": "ssp", "slack": 1, "minimum": 3, "deadline": 60.0},
    "buffered": {
        "name": "buffered",
        "buffer": 4,
        "minimum": 3,
        "max_staleness": 3,
        "deadline": 30.0,
    },
    "priority": {
        "name": "priority",
        "buffer": 3,
        "pool": 4,
        "minimum": 3,
        "max_staleness": 3,
        "ageing": 30.0,
        "deadline": 30.0,
    },
    "own": {"name": "tests.chaos.rules:Share", "minimum": 3, "most": 8, "settings": {"share": 0.6}},
}

PRIVACY: dict[str, dict[str, Any]] = {
    "record": {
        "noise_multiplier": 20.0,
        "max_grad_norm": 1.0,
        "records": 10,
        "sample_rate": 1.0,
        "delta": 1e-6,
        "budget": 1000.0,
    },
    "client": {
        "unit": "client",
        "placement": "local",
        "noise_multiplier": 20.0,
        "delta": 1e-6,
        "budget": 1000.0,
    },
    "shards": {
        "unit": "client",
        "placement": "aggregator",
        "noise_multiplier": 20.0,
        "delta": 1e-6,
        "budget": 1000.0,
    },
}
"""Whose noise protects what; under the last, the shards add it."""

CODECS: dict[str, dict[str, Any]] = {
    "": {},
    "thin": FED_BACK | {"optimizer": {"name": "sgd"}, "pull_bits": 4},
    "noised": {"codec": THIN[:2], "feedback": True, "pull_bits": 4},
    "spans": {
        "codec": [{"name": "support", "one_in": 3}, "rotate", "round"],
        "bits": 6,
        "pull_bits": 3,
    },
}
"""What makes updates small; and what clients pull, small too: where nothing moves but what was
sent, all of it, and of values that stand still for some versions."""


@cache
def plan_of(setting: Setting) -> Plan:
    group: dict[str, Any] = {
        "clip": 3.0,
        "most_examples": 32,
        "rule": RULES[setting.rule],
        "optimizer": {"name": "adam", "learning_rate": 0.1},
    }
    cipher: dict[str, Any] = {"name": setting.cipher, "capacity": 40}
    if setting.cipher == "rlwe":
        cipher |= {"holders": HOLDERS, "threshold": THRESHOLD}
        group["pull_bits"] = 3
    changes: dict[str, Any] = {}
    if setting.privacy:
        changes["privacy"] = PRIVACY[setting.privacy]
        changes["training"] = {"local_steps": STEPS}
    if setting.privacy == "shards" and setting.rule in ("buffered", "priority"):
        group["rule"] = group["rule"] | {"power": 0.0}  # all weigh 1
    if setting.privacy in ("client", "shards"):
        group |= {"weighting": "uniform", "bits": 16}
    elif "codec" not in CODECS[setting.codec]:
        group["range"] = 1.0
    group |= CODECS[setting.codec]
    if setting.codec == "spans":
        group["rule"] = group["rule"] | {"max_staleness": 2}
    if setting.evaluated:
        changes["evaluation"] = {"every": 2, "metrics": METRICS, "most_examples": 4096}
    if setting.judge:
        changes["evaluation"] = {"every": 2, "metrics": METRICS, "evaluator": setting.judge}
        if setting.rule == "all":
            group["rule"] = group["rule"] | {"quorum": CLIENTS - 1, "minimum": CLIENTS - 1}
    if setting.frozen:
        changes["frozen"] = ["base.*"]
        if not (setting.codec or setting.privacy or setting.evaluated):
            del group["most_examples"]
    body = {
        "name": "chaos",
        "versions": VERSIONS,
        "shards": SHARDS,
        "replicas": setting.replicas,
        "block_size": 64,
        "local": ["*.count"],
        "newcomers_wait": 0.0,
        "cipher": cipher,
        "group": [group],
    }
    return Plan(parse(PlanSection, body | changes, "chaos"))


def kit_of(plan: Plan, clients: tuple[str, ...]) -> MemoryKit:
    """Keys that anybody can compute: a seed plays the same in every process."""
    count = [0]

    def secret() -> bytes:
        count[0] += 1
        return digest("chaos-key", count[0].to_bytes(8, "little"))

    with (
        patch.object(Identity, "generate", lambda: Identity(secret())),
        patch.object(EnvelopeKey, "from_os", lambda: EnvelopeKey(secret() + secret() + secret())),
    ):
        return make_memory_kit(plan, clients)
