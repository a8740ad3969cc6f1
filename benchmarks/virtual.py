"""What a simulation of many clients costs: seconds and memory, by how many clients there are.

`simulations/crowd.toml` with fewer and with all of its clients: 20 versions of 100,060 parameters,
encrypted, each of 32 updates. The work is the same whoever does it, so time and memory should
hardly grow with the clients.
"""

from __future__ import annotations

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


def play(folder: Path, clients: int) -> Row:
    """One run in a process of its own."""
    text = (ROOT / "simulations" / "crowd.toml").read_text().replace("../", f"{ROOT}/")
    scenario = folder / "crowd.toml"
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
    rows: list[Row] = []
    for clients in CLIENTS:
        with tempfile.TemporaryDirectory(prefix="secureps-virtual-") as folder:
            rows.append(play(Path(folder), clients))
    report("virtual", "20 encrypted versions of 100k parameters in virtual time", rows)


if __name__ == "__main__":
    main()
