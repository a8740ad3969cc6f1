"""Of many that die alike a person reads one log, and of each that it died."""

from __future__ import annotations

import io

from rich.console import Console

from secureps.run.processes.supervisor import Died, Finished
from secureps.run.report.terminal import Progress
from secureps.run.up.programs import Deaths


def test_the_log_of_all_who_die_alike_is_told_once() -> None:
    told = io.StringIO()
    deaths = Deaths(Progress(Console(file=told, width=200), "test", False))
    how = "exit status 1"

    def died(number: int, line: str, how: str = how) -> Died:
        tail = (f"12:00:0{number} starts", f"error: {line} at client-0{number}") if line else ()
        return Died(f"client-0{number}", how, 1, tail)

    deaths.tell([died(0, "no data"), died(1, "no data"), Finished("client-09", "over")])
    deaths.tell([died(number, "no data") for number in range(2, 8)])
    deaths.tell([died(8, "no rows"), died(1, "no data", "signal SIGABRT")])
    deaths.tell([died(0, "", "signal SIGKILL"), died(1, "", "signal SIGKILL")])
    again = "it is started again, restart 1"
    assert [line.strip() for line in told.getvalue().splitlines()] == [
        "client-00: 12:00:00 starts",
        "client-00: error: no data at client-00",
        f"client-00 died ({how}); {again}",
        f"client-01 died as client-00 did ({how}); started again",
        f"client-02, client-03, client-04 and 3 more died as client-00 did ({how}); started again",
        "client-08: 12:00:08 starts",
        "client-08: error: no rows at client-08",
        f"client-08 died ({how}); {again}",
        "client-01: 12:00:01 starts",
        "client-01: error: no data at client-01",
        f"client-01 died (signal SIGABRT); {again}",
        f"client-00 died (signal SIGKILL); {again}",
        f"client-01 died (signal SIGKILL); {again}",
    ]
