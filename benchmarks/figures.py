"""`make numbers`: figures of the README and docs/, measured again; those that differ are printed.

Each has a spread, within which it may differ by the machine or by chance: 0 where it follows from
plans and bytes alone. Costs that other benchmarks measure, in seconds of a machine, and studies of
more than ten minutes are not here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.suite import cipher
from secureps.messages.charge import Charge
from secureps.policy.plan import load_plan
from secureps.privacy.accountant import epsilon

ROOT = Path(__file__).parent.parent
DEMO_VALUES = 9610
PAGES = ("docs/benchmarks.md", "README.md")
"""Whose figures these are."""


@dataclass(frozen=True)
class Figure:
    """One number of the pages.

    Args:
        name: what it is.
        pattern: finds it, as the one group, in the text of all pages.
        measure: makes it again.
        spread: how far it may lie from what is told; beside rounding to the digits told.
        quick: whether it takes no run.
    """

    name: str
    pattern: str
    measure: Callable[[], float]
    spread: float = 0.0
    quick: bool = True

    def told(self, text: str) -> tuple[float, float]:
        """The number that the pages tell, and half a unit of its last digit.

        Raises:
            ValueError: it is not there once.
        """
        found = re.findall(self.pattern, text)
        if len(found) != 1:
            raise ValueError(f"{self.name}: the pages have it {len(found)} times")
        digits = found[0].replace(",", "")
        return float(digits), 0.5 * 10.0 ** -len(digits.partition(".")[2])

    def differs(self, text: str) -> str:
        """What is told and what is measured, if they are further apart than may be; else empty."""
        told, rounding = self.told(text)
        now = self.measure()
        if abs(now - told) <= self.spread + rounding * (1 + 1e-9):
            return ""
        return f"{self.name}: {told:g} is told, {now:.6g} is measured (spread {self.spread:g})"


def bytes_a_value(name: str) -> Callable[[], float]:
    """Of a full block of 16 bits."""
    slots = 1 << 18
    made = CipherParameters(name, 32, 65_534)
    return lambda: cipher(made).adder().block_bytes(slots) / slots


def bytes_of_an_update(plan: str) -> float:
    """Of the digits' model under a plan."""
    made = load_plan(ROOT / "policies" / plan)
    (group,) = made.lay_out_sizes({"all": DEMO_VALUES})
    adder = made.cipher_of(group).adder()
    return float(sum(adder.block_bytes(group.slots(block)) for block in range(group.blocks)))


def summary(command: str, file: str) -> dict[str, Any]:
    """What a run came to, by the command and with its report."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        line = [sys.executable, "-m", "secureps", command, str(ROOT / file), "--out", str(out)]
        subprocess.run(line, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        report = out / "report" if command == "up" else out
        found: dict[str, Any] = json.loads((report / "summary.json").read_text())
        return found


def score(command: str, file: str) -> Callable[[], float]:
    """The held-out score at the end."""
    return lambda: float(summary(command, file)["score"]["value"])


_ACCURACY = r" \| ([\d.]+) held-out accuracy"
FIGURES = (
    Figure("rlwe, bytes a value", r"block, rlwe, 16 bits \| ([\d.]+) bytes", bytes_a_value("rlwe")),
    Figure("bfv, bytes a value", r"bfv and `plain` \| ([\d.]+) and", bytes_a_value("bfv")),
    Figure(
        "plain, bytes a value",
        r"bfv and `plain` \| [\d.]+ and ([\d.]+) bytes",
        bytes_a_value("plain"),
    ),
    Figure(
        "an update of the demo, kB",
        r"9,610 values\) \| ([\d.]+) kB",
        lambda: bytes_of_an_update("digits.toml") / 1000,
    ),
    Figure(
        "an update of the demo to fp32",
        r"9,610 values\) \| [\d.]+ kB, ([\d.]+) times",
        lambda: bytes_of_an_update("digits.toml") / (4 * DEMO_VALUES),
    ),
    Figure(
        "an update of 50 holders, bytes",
        r"`simulations/digits.toml` ([\d,]+) up",
        lambda: bytes_of_an_update("digits_50.toml"),
    ),
    Figure(
        "epsilon of the demo",
        r"epsilon of the demo, RDP \(delta 1e-5\) \| ([\d.]+)",
        lambda: epsilon([Charge("me", "all", 0, 3.66, 0.5, 15 * 8)], 1e-5),
    ),
    Figure(
        "epsilon of the demo, on the first page",
        r"epsilon of ([\d.]+) \(delta 1e-5\)",
        lambda: epsilon([Charge("me", "all", 0, 3.66, 0.5, 15 * 8)], 1e-5),
    ),
    Figure(
        "an update of the demo to fp32, on the first page",
        r"takes ([\d.]+) times the bytes of plain float32",
        lambda: bytes_of_an_update("digits.toml") / (4 * DEMO_VALUES),
    ),
    Figure(
        "50 clients, accuracy",
        r"\| 50 clients, 20 versions, simulated" + _ACCURACY,
        score("simulate", "simulations/digits.toml"),
        spread=0.005,
        quick=False,
    ),
    Figure(
        "1000 clients, accuracy",
        r"buffered, encrypted, simulated" + _ACCURACY,
        score("simulate", "simulations/crowd.toml"),
        spread=0.005,
        quick=False,
    ),
    Figure(
        "100 clients protected as a whole, accuracy",
        r"delta 1e-5, 10 versions, simulated" + _ACCURACY,
        score("simulate", "simulations/digits_client.toml"),
        spread=0.015,
        quick=False,
    ),
    Figure(
        "a plain NumPy client for Flower, accuracy",
        r"NumPy client for Flower: ([\d.]+) held-out",
        score("up", "policies/digits_numpy.toml"),
        spread=0.01,
        quick=False,
    ),
    Figure(
        "four hospitals, accuracy",
        r"with scikit-learn: ([\d.]+), as if",
        score("up", "policies/breast_cancer.toml"),
        spread=0.015,
        quick=False,
    ),
)
"""In the order of what they take."""


def pages() -> str:
    """The text of all pages that tell figures."""
    return "\n".join((ROOT / page).read_text() for page in PAGES)


def differences(figures: tuple[Figure, ...] = FIGURES) -> Iterator[str]:
    """A line for each figure that differs."""
    text = pages()
    for figure in figures:
        print(f"{figure.name} ...", file=sys.stderr, flush=True)
        if line := figure.differs(text):
            yield line


if __name__ == "__main__":
    found = list(differences())
    print("\n".join(found) or f"all {len(FIGURES)} figures are as the pages tell them")
    sys.exit(bool(found))
