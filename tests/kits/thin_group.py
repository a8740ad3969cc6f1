"""A group whose codec sends a quarter of the values, rotated, in four bits, and the rest later."""

from typing import Any

RULE = {"quorum": 6, "deadline": 10.0}
THIN = ({"name": "support", "one_in": 4}, "rotate", "round")
FED_BACK: dict[str, Any] = {"codec": THIN, "clip": 2.0, "bits": 4, "feedback": True}
