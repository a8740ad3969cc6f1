"""Which updates make a version where more of them arrive than the servers can make versions of.

    python -m benchmarks.queues [--loads 1 2 4] [--seeds 1 2 3]

`simulations/queues.toml`, in virtual time: first come first served beside the best of a pool by
freshness and by magnitude (`policy.rules.priority`). A load of 1 means that updates arrive as fast
as versions of them can be made: `delays.version` is that load times what a hundred updates of
clients that are never held back take to come. Judged are the virtual seconds from the first model
on to the scenario's target, as `secureps study` does.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.report import Row, report
from secureps.config.scenario import StudySection, VariantSection
from secureps.run.simulate.scenario_file import load_scenario
from secureps.run.study.trial import Candidate, Outcome, Trial, play, section_of
from secureps.run.warm import warm_once

ROOT = Path(__file__).parent.parent
ARRIVALS = 30.8
"""Updates a second of a thousand clients at work: they take 32.5 seconds for one, in the mean."""
COHORT = 100


def scenario(folder: Path, load: float) -> Path:
    """The scenario at a load."""
    text = (ROOT / "simulations" / "queues.toml").read_text().replace("../", f"{ROOT}/")
    path = folder / f"queues-{load:g}.toml"
    seconds = load * COHORT / ARRIVALS
    path.write_text(re.sub(r"(?m)^version = .*$", f"version = {seconds:.3f}", text))
    return path


def judged(path: Path, study: StudySection, variant: VariantSection, seed: int) -> Outcome:
    """One trial of one rule, at the rate that its scenario names."""
    candidate = Candidate(variant.name, 0, None, variant.rates[0])
    done = play(path, Trial(candidate, seed, study.seconds))
    assert isinstance(done, Outcome)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--loads", type=float, nargs="+", default=[2.0, 4.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given, rows, began = parser.parse_args(), list[Row](), time.process_time()
    warm_once(print)
    with tempfile.TemporaryDirectory(prefix="secureps-queues-") as folder:
        for load in given.loads:
            path = scenario(Path(folder), load)
            study = section_of(load_scenario(path))
            for variant in study.variant:
                found = [judged(path, study, variant, seed) for seed in given.seeds]
                reached = [each.reached or float("inf") for each in found]
                rows.append(
                    {
                        "load": load,
                        "rule": variant.name,
                        "seconds": statistics.median(reached),
                        "least": min(reached),
                        "most": max(reached),
                        "versions": statistics.median(each.versions for each in found),
                        "best": statistics.median(each.best for each in found),
                        "CPU s": sum(each.cpu for each in found),
                    }
                )
                print(rows[-1], flush=True)
    report("queues", "virtual seconds to the target, by load and by what is chosen", rows)
    print(f"{time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main()
