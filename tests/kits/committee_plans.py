"""Plans under rlwe, for tests of what follows from their committee alone."""

from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.policy.plan import Plan


def committee_plan(
    holders: int = 4,
    threshold: int = 3,
    bits: int = 16,
    capacity: int = 32,
    most: int = 20,
    minimum: int = 5,
) -> Plan:
    """`threshold` of `holders` must agree; cohorts of `minimum` to `most`."""
    cipher = {"name": "rlwe", "capacity": capacity, "holders": holders, "threshold": threshold}
    group = {"bits": bits, "rule": {"quorum": 5, "minimum": minimum, "most": most}}
    body = {"name": "committee", "versions": 3, "cipher": cipher, "group": [group]}
    return Plan(parse(PlanSection, body, "a test"))
