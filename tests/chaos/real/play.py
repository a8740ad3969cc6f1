"""Plays one seed, inside namespaces that take all of it along when they end.

python -m tests.chaos.real.play --seed 7 --faults 'kill:shard-0@2+1' --keep FOLDER

Nobody calls this but `tests.chaos.real.container`: network, mounts and processes of the run are
those of this process.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path

from tests.chaos.real.check import Check
from tests.chaos.real.federation import Machines, Played
from tests.chaos.real.schedule import faults_of, others_of, parsed, setting_of
from tests.kits.links import Links
from tests.kits.nursery import prepare

PLACE = Path("/run/chaos")
PATIENCE = 60.0
"""Seconds after the last fault until a run stands still."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--faults")
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    seed = given.seed
    faults = faults_of(seed) if given.faults is None else parsed(given.faults)
    setting, others = setting_of(seed), others_of(faults)
    with Links(seed) as links, Machines(PLACE, setting, links, others) as machines:
        played = Played(machines, faults, PATIENCE)
        prepare("tests.chaos.real.client")  # all imports are done before the clock starts
        try:
            played.play()
            check = Check(played, played.stop())
            wrong, ended, happened = check.complaints(), check.ended(), check.happened()
        except Exception:
            wrong, ended, happened = [traceback.format_exc()], "no end", {}
    if given.keep is not None:
        shutil.copytree(PLACE, given.keep, dirs_exist_ok=True)
    lines = Counter(f"{name} {status}: {line}" for name, status, line in played.ends)
    ends = [f"{line} ({times} times)" for line, times in lines.items()]
    told = {"ended": ended, "complaints": wrong, "ends": ends, "happened": happened}
    print(json.dumps(told), flush=True)
    os._exit(0)  # whatever is left here ends with this process


def _end_with_parent() -> None:
    """The container's other end is gone: so is its reader."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
