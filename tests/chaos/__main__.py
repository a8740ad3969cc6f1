"""`make chaos`: many seeds, what broke in each, shrunk, and what machines never had to do.

python -m tests.chaos                               all seeds, in as many processes as cores
python -m tests.chaos --seed 7                      one, with all its faults
python -m tests.chaos --seed 7 --faults 'kill:shard-0@120+2'    one, with these
python -m tests.chaos --out FILE                    all, and what was played, for tests.chaos.report
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from secureps import __version__
from tests.chaos.ends import WHOLE
from tests.chaos.kinds import never, stale, table
from tests.chaos.play import Outcome, play
from tests.chaos.schedule import Fault, faults_of, parsed, setting_of

T = TypeVar("T")


def shrunk(faults: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """The faults of which none can be left out alone, in their order.

    Args:
        faults: fail together; fails: whether these do, the same whenever it is asked.
    """
    left, parts = list(faults), 2
    while len(left) >= 2:
        size = -(-len(left) // parts)
        for start in range(0, len(left), size):
            rest = left[:start] + left[start + size :]
            if fails(rest):
                left, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(left):
                break
            parts = min(len(left), 2 * parts)
    return () if left and fails(()) else tuple(left)


SEEDS = 1000


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seed", type=int, help="play this one alone")
    parser.add_argument("--faults", help="with these faults, not its own")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many (default {SEEDS})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--out", type=Path, help="a file for what was played")
    parser.add_argument("--every", type=int, help=argparse.SUPPRESS)  # one of the processes
    given = parser.parse_args(argv)
    if given.seed is not None:
        faults = faults_of(given.seed) if given.faults is None else parsed(given.faults)
        return _one(given.seed, faults)
    if given.every is not None:
        return _some(range(given.first, given.seeds, given.every))
    return _all(given.first, given.seeds, given.jobs, given.out)


def _one(seed: int, faults: Sequence[Fault]) -> int:
    print(f"seed {seed}: {setting_of(seed)}")
    for fault in faults:
        print(f"  {fault}")
    outcome = play(seed, faults)
    print(f"ended: {outcome.ended}")
    if outcome.complaints:
        _tell(outcome)
    return bool(outcome.complaints)


def _tell(outcome: Outcome) -> None:
    """Says what a seed broke, and with how few of its faults it still does."""
    print(f"seed {outcome.seed} ({setting_of(outcome.seed)}) broke:", flush=True)
    for complaint in outcome.complaints:
        print(f"  {complaint}")
    few = shrunk(outcome.faults, lambda left: bool(play(outcome.seed, left).complaints))
    least = play(outcome.seed, few)
    print(f"  with {len(few)} of {len(outcome.faults)} faults: {least.complaints[:1]}")
    print(f"  again: {least.replay}", flush=True)


def _some(seeds: Sequence[int]) -> int:
    """One process: a line of JSON for every seed."""
    for seed in seeds:
        outcome = play(seed, faults_of(seed))
        said = {"seed": seed, "complaints": outcome.complaints, "kinds": outcome.kinds}
        print(json.dumps(said | {"whole": outcome.ended.startswith(WHOLE)}), flush=True)
    return 0


def _all(first: int, number: int, jobs: int, out: Path | None) -> int:
    began, kinds, bad, done = time.monotonic(), Counter[str](), list[int](), 0
    faults, whole = Counter[str](), 0
    for said in _lines(first, number, jobs):
        kinds.update(said["kinds"])
        faults.update(fault.kind for fault in faults_of(said["seed"]))
        whole += said["whole"] and not said["complaints"]
        done += 1
        if said["complaints"]:
            bad.append(said["seed"])
            print(f"seed {said['seed']}: {said['complaints'][0]}", flush=True)
        if done % 50 == 0:
            print(f"{done} of {number} seeds, {time.monotonic() - began:.0f} s", flush=True)
    for seed in sorted(bad):
        _tell(play(seed, faults_of(seed)))
    print(table(kinds))
    unmet = never(kinds) if number >= SEEDS else []
    wrong = [f"never met: {kind}" for kind in unmet]
    wrong += [f"no exception any more: {kind}" for kind in stale(kinds)]
    if done < number:
        wrong.append(f"{number - done} seeds were not played")
    print("\n".join(wrong))
    if out is not None:
        played: dict[str, Any] = {"version": __version__, "first": first, "seeds": done}
        played |= {"broke": sorted(bad), "whole": whole, "faults": faults, "kinds": kinds}
        out.write_text(json.dumps(played, indent=1, sort_keys=True) + "\n")
    print(f"{done} seeds in {time.monotonic() - began:.0f} s: {len(bad)} broke a promise")
    return bool(bad or wrong)


def _lines(first: int, number: int, jobs: int) -> Iterator[dict[str, Any]]:
    """What the processes say, of each seed as it is done; they take turns."""
    last = str(first + number)
    command = [sys.executable, "-m", "tests.chaos", "--seeds", last, "--every", str(jobs)]
    started = [
        subprocess.Popen([*command, "--first", str(first + k)], stdout=subprocess.PIPE, text=True)
        for k in range(jobs)
    ]
    try:
        open_ = list(started)
        while open_:
            for each in list(open_):
                assert each.stdout is not None
                line = each.stdout.readline()
                if line:
                    yield json.loads(line)
                else:
                    each.wait()
                    open_.remove(each)
    finally:
        for each in started:
            each.kill()
            each.wait()


if __name__ == "__main__":
    raise SystemExit(main())
