"""A kit and a plan for tests of deployments."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import yaml

from secureps.crypto.identity import Role
from secureps.policy.plan import load_plan
from secureps.store.issuing import create_kit, issue

PLAN = """
name = "trial"
versions = 3
shards = 2
[cipher]
name = "rlwe"
holders = 2
threshold = 2
capacity = 8
[[group]]
rule = { quorum = 4, minimum = 3 }
"""
PARTIES: dict[str, Role] = {
    "coordinator": "coordinator",
    "shard-0": "shard",
    "shard-1": "shard",
    "holder-0": "holder",
    "south-holder": "holder",
    "north.clinic_1": "client",
    "south": "client",
    "observer": "observer",
}


@cache
def deployed() -> Path:
    folder = Path(mkdtemp(prefix="secureps-deploy-"))
    (folder / "plan.toml").write_text(PLAN)
    (folder / "client.py").write_text("def make(settings):\n    ...\n")
    kit = folder / "kit"
    create_kit(kit, load_plan(folder / "plan.toml").cipher_parameters)
    for name, role in PARTIES.items():
        issue(kit, role, name)
    return folder


def parsed(text: str, kind: str) -> list[dict[str, Any]]:
    """The objects of a kind in a file of manifests."""
    return [each for each in yaml.safe_load_all(text) if each["kind"] == kind]
