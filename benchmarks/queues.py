"""Which updates make a version where more of them arrive than the servers can make versions of.

    python -m benchmarks.queues [--loads 1 2 4] [--seeds 1 2 3] [--workers 2] [--out FOLDER]

`simulations/queues.toml` as a study at each load, in virtual time: first come first served beside
the best of a pool. At a load of 1 updates arrive as fast as versions of them can be made.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from benchmarks.report import Row, report
from secureps.run.study import study

ROOT = Path(__file__).parent.parent
ARRIVALS = 30.8
"""Updates a second of a thousand clients at work: they take 32.5 seconds for one, in the mean."""
COHORT = 100


def scenario(folder: Path, load: float, seeds: list[int]) -> Path:
    """The scenario at a load."""
    text = (ROOT / "simulations" / "queues.toml").read_text().replace("../", f"{ROOT}/")
    path = folder / f"queues-{load:g}.toml"
    seconds = load * COHORT / ARRIVALS
    text = re.sub(r"(?m)^version = .*$", f"version = {seconds:.3f}", text)
    path.write_text(re.sub(r"(?m)^seeds = .*$", f"seeds = {seeds}", text))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--loads", type=float, nargs="+", default=[2.0, 4.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=1, help="trials that are played at once")
    parser.add_argument("--out", type=Path, default=Path("runs") / "queues")
    given, rows = parser.parse_args(), list[Row]()
    given.out.mkdir(parents=True, exist_ok=True)
    for load in given.loads:
        path = scenario(given.out, load, given.seeds)
        for each in study(path, given.out / f"load-{load:g}", given.workers):
            inf = float("inf")
            reached = [*each.seconds, *[inf] * (len(given.seeds) - len(each.seconds))]
            rows.append(
                {
                    "load": load,
                    "rule": each.variant,
                    "seconds": each.median or inf,
                    "least": min(reached),
                    "most": max(reached),
                    "sooner": each.times or "",
                    "versions": each.versions,
                    "best": each.best,
                }
            )
    report("queues", "virtual seconds to the target, by load and by what is chosen", rows)


if __name__ == "__main__":
    main()
