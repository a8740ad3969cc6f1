"""Many seeds of faults of real processes, and what broke in each.

python -m tests.chaos.real                                 all seeds, two at a time
python -m tests.chaos.real --seed 7                        one, with all its faults
python -m tests.chaos.real --seed 7 --faults 'kill:shard-0@2+1'    one, with these
"""

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.chaos.real.container import Container, Outcome
from tests.chaos.real.schedule import faults_of, setting_of
from tests.kits.links import possible

SEEDS = 50


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.real")
    parser.add_argument("--seed", type=int, help="play this one alone")
    parser.add_argument("--faults", help="with these faults, not its own")
    parser.add_argument("--keep", type=Path, help="a folder for its journals and logs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many (default {SEEDS})")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    given = parser.parse_args(argv)
    if why := possible():
        print(f"no runs of real processes: {why}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if given.seed is not None:
        print(f"seed {given.seed}: {setting_of(given.seed)}")
        print(f"  {given.faults or ','.join(map(str, faults_of(given.seed)))}", flush=True)
        with Container(given.seed, given.faults, given.keep) as container:
            outcome = container.wait()
        print(f"ended: {outcome.ended}{_counted(outcome.happened)}")
        print("\n".join(f"  {each}" for each in outcome.ends))
        return _tell(outcome, given.faults)
    return _all(range(given.first, given.first + given.seeds), given.jobs)


def _tell(outcome: Outcome, faults: str | None = None) -> int:
    """Says what a seed broke, and how it is played again; how many promises."""
    if not outcome.complaints:
        return 0
    seed = outcome.seed
    text = faults or ",".join(map(str, faults_of(seed)))
    print(f"seed {seed} ({setting_of(seed)}) broke:")
    for complaint in outcome.complaints:
        print(f"  {complaint}")
    again = f".venv/bin/python -m tests.chaos.real --seed {seed} --faults '{text}'"
    print(f"  again: make chaos REAL={seed}, or {again}", flush=True)
    return len(outcome.complaints)


def _counted(happened: Mapping[str, int]) -> str:
    return "".join(f"; {what}: {times}" for what, times in happened.items() if times)


def _all(seeds: Sequence[int], jobs: int) -> int:
    began, running, bad = time.monotonic(), set[Container](), 0
    happened = Counter[str]()

    def played(seed: int) -> Outcome:
        with Container(seed) as container:
            running.add(container)
            try:
                return container.wait()
            finally:
                running.discard(container)

    pool = ThreadPoolExecutor(jobs)
    try:
        waiting = [pool.submit(played, seed) for seed in seeds]
        for number, done in enumerate(as_completed(waiting), 1):
            bad += bool(_tell(outcome := done.result()))
            happened.update(outcome.happened)
            if number % 10 == 0:
                seconds = time.monotonic() - began
                print(
                    f"{number} of {len(seeds)} runs of real processes, {seconds:.0f} s", flush=True
                )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for container in list(running):
            container.__exit__()
    seconds = time.monotonic() - began
    told = f"{bad} broke a promise{_counted(happened)}"
    print(f"{len(seeds)} runs of real processes in {seconds:.0f} s: {told}")
    return bool(bad)


if __name__ == "__main__":
    raise SystemExit(main())
