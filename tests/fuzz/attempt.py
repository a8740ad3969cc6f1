"""Tries one target many times, and says what it came to: findings, speed, memory."""

import resource
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from cryptography.utils import CryptographyDeprecationWarning

from tests.fuzz.target import Target

GROWTH = 64 << 20
"""Bytes by which a process may be larger at the end than after a fifth of its inputs."""
MOST = 16 << 30
"""Bytes of addresses that a process may take: what an input announces is not taken at its word."""
LONGEST = 20
"""Seconds of a processor after which an input counts as one that hangs."""
FINDINGS = 5
"""After so many a target is not tried further."""


@dataclass(frozen=True)
class Attempt:
    """What became of a target's inputs; `seconds` are of a processor, `grown` is in bytes."""

    target: str
    inputs: int
    accepted: int
    seconds: float
    grown: int
    findings: tuple[tuple[int, str], ...]

    @property
    def complaint(self) -> str | None:
        """What is wrong beside the findings."""
        if self.grown > GROWTH:
            return f"{self.target} grew by {self.grown >> 20} MiB"
        return None


def number_of(target: Target, inputs: int, targets: dict[str, Target]) -> int:
    """Inputs of a target, of so many in all: as many more as they cost less."""
    return max(1000, round(inputs / target.cost / sum(1 / t.cost for t in targets.values())))


def drawn(target: Target, seed: int, number: int) -> bytes:
    """Input `number` of a target under a seed: the same each time, where its corpus is."""
    return target.draw(Random(f"{seed}:{target.name}:{number}"))


def attempt(target: Target, seed: int, first: int, last: int) -> Attempt:
    findings: list[tuple[int, str]] = []
    accepted, small, number = 0, resident(), first
    began = time.process_time()
    with _guarded():
        for number in range(first, last):
            if number == first + (last - first) // 5:
                small = resident()
            data = drawn(target, seed, number)
            signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
            complaint = target.complaint(data)
            if complaint is not None:
                findings.append((number, complaint))
                if len(findings) >= FINDINGS:
                    break
            elif not number % 16:  # a sample: it is read a second time
                accepted += target.accepts(data)
    seconds, grown = time.process_time() - began, resident() - small
    made = number + 1 - first
    return Attempt(target.name, made, accepted, seconds, grown, tuple(findings))


@contextmanager
def _guarded() -> Iterator[None]:
    def hangs(*_: Any) -> None:
        raise TimeoutError(f"an input took more than {LONGEST} seconds of a processor")

    before = signal.signal(signal.SIGVTALRM, hangs)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST, limits[1]))
    try:
        with warnings.catch_warnings():
            # a certificate's number may be negative: it is refused in words of its own later on
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def resident(process: str = "self") -> int:
    """Bytes that a process has in memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) << 10
