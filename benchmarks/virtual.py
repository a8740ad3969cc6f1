"""What a simulation of many clients costs: seconds and memory, by how many clients there are.

    python -m benchmarks.virtual
    python -m benchmarks.virtual --scenario hundred_thousand --clients 5000 20000 100000

Both scenarios have 20 encrypted versions: `crowd` of 100,060 parameters with 32 updates each,
`hundred_thousand` of 1,210 parameters with 200 updates each. Time and memory should grow little
with clients. `--scenario` plays any other one of simulations/ too.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Row, report

ROOT = Path(__file__).parent.parent
CLIENTS = (100, 250, 500, 1000)


def play(folder: Path, name: str, clients: int) -> Row:
    """One run in a process of its own."""
    text = (ROOT / "simulations" / f"{name}.toml").read_text().replace("../", f"{ROOT}/")
    scenario = folder / f"{name}.toml"
    scenario.write_text(re.sub(r"(?m)^clients = .*$", f"clients = {clients}", text))
    command = ["-m", "secureps", "simulate", str(scenario), "--out", str(folder / "out")]
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the simulation of {clients} clients ended with {process.returncode}")
    return {
        "clients": clients,
        "seconds": time.monotonic() - began,
        "CPU s": used.ru_utime + used.ru_stime,
        "peak MB": used.ru_maxrss * 1024 / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenario", default="crowd", help="of simulations/ (default: crowd)")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    given, rows = parser.parse_args(), list[Row]()
    for clients in given.clients:
        with tempfile.TemporaryDirectory(prefix="secureps-virtual-") as folder:
            rows.append(play(Path(folder), given.scenario, clients))
    title = f"{given.scenario}: a whole simulation in virtual time"
    report(f"virtual-{given.scenario}", title, rows)


if __name__ == "__main__":
    main()
