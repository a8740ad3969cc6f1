"""Logs: lines for people, or one JSON object a line.

A process goes on if its stdout and stderr refuse all writes.
"""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from secureps.messages.coordinator_records import CohortClosed, MemberJoined, VersionCommitted
from secureps.messages.submission import Cohort
from secureps.service.log_lines import log_fields
from tests.kits.federations import small_federation, small_plan
from tests.kits.nursery import ROOT
from tests.kits.processes import Processes

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def test_facts_of_records_are_plain_and_few() -> None:
    assert log_fields(VersionCommitted("all", 3)) == {"group": "all", "version": 3}
    assert log_fields(MemberJoined("client-00")) == {"client": "client-00"}
    closed = CohortClosed(Cohort("all", 7, 3, 1, ()), "all arrived")
    assert log_fields(closed) == {"group": "all", "version": 3, "cohort": 7, "members": 0}


CODE = """
import logging, logging.config, threading, warnings
from secureps.errors import WrongVersion
from secureps.service.logs import logging_as, tell
{first}
with logging_as({form!r}, "shard-0", ours={ours}):
    tell("shard-0", "VersionCommitted", "all: version 3", fields={{"group": "all", "version": 3}})
    logging.getLogger("other").warning("%s of\\n%s", 1, 2)
    {last}
"""


def lines(form: str, last: str, first: str = "", ours: bool = True) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(form=form, last=last, first=first, ours=ours)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.returncode, done.stderr.splitlines()


def objects(last: str) -> tuple[int, list[dict[str, Any]]]:
    code, found = lines("json", last)
    return code, [json.loads(line) for line in found]


@pytest.mark.slow
def test_an_object_a_line() -> None:
    code, (first, second) = objects("pass")
    assert code == 0
    assert STAMP.fullmatch(first.pop("ts"))
    assert first == {
        "level": "INFO",
        "party": "shard-0",
        "event": "VersionCommitted",
        "message": "all: version 3",
        "group": "all",
        "version": 3,
    }
    assert second["message"] == "1 of\n2"
    assert (second["party"], second["event"], second["level"]) == ("shard-0", "Log", "WARNING")


@pytest.mark.slow
def test_an_error_is_a_line_with_whose_fault_it_is() -> None:
    code, found = objects("raise WrongVersion('too\\n  old')")
    assert code == 1
    assert len(found) == 3
    assert found[2]["message"] == "too old"
    assert (found[2]["event"], found[2]["error"]) == ("Error", "WrongVersion")
    assert found[2]["fault"] == "the sender's"
    assert "traceback" not in found[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "code"),
    [("1 / 0", 1), ("t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", 0)],
)
def test_a_traceback_is_a_field(last: str, code: int) -> None:
    ended, found = objects(last)
    assert (ended, len(found)) == (code, 3)
    assert found[2]["error"] == "ZeroDivisionError"
    assert found[2]["traceback"].startswith("Traceback")
    assert found[2]["level"] == "CRITICAL"


def test_a_limit_that_is_met_is_a_line_that_names_it() -> None:
    """This holds also before a party begins to probe its limits."""
    code, found = objects("raise MemoryError")
    assert (code, len(found)) == (1, 3)
    assert (found[2]["error"], found[2]["fault"]) == ("OperatorError", "this side's")
    assert found[2]["message"].startswith("memory is used up (ulimit -v: ")
    assert "traceback" not in found[2]


GARBLED = """log = logging.getLogger("grpc._cython.cygrpc")
    try:
        b"\\xb0".decode()
    except UnicodeDecodeError:
        log.exception("Invalid encoding on %s", b"\\xb0")"""


def test_what_grpc_cannot_read_is_a_line_without_a_traceback() -> None:
    _, found = lines("text", GARBLED)
    assert len(found) == 4
    assert found[3].endswith("Invalid encoding on b'\\xb0'")


def test_holders_of_data_and_of_keys_have_a_line_a_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    simulation = small_federation(small_plan("rlwe"), tmp_path)
    with caplog.at_level(logging.INFO, "secureps"):
        simulation.run(lambda: simulation.versions()["all"] >= 1)
    lines = [record.getMessage() for record in caplog.records]
    trained = r"client-03: version 1: 13 records, \d+\.\d kB to send, unsafe seed: no privacy"
    assert sum(re.fullmatch(trained, line) is not None for line in lines) == 1
    opened = r"holder-2: version 1: opens cohort \d+, of 6 clients"
    assert sum(re.fullmatch(opened, line) is not None for line in lines) == 1


THEIRS = 'logging.basicConfig(level=logging.ERROR, format="theirs: %(message)s")'


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    ("first", "last"),
    [
        (THEIRS, "pass"),
        ("pass", f"{THEIRS[:-1]}, force=True)"),
        ("pass", 'logging.config.dictConfig({"version": 1})'),
        ("pass", "logging.root.handlers.clear(); logging.root.setLevel(logging.CRITICAL)"),
    ],
)
@pytest.mark.parametrize("ours", [True, False])
def test_our_lines_are_there_whatever_others_do_to_the_root(
    ours: bool, first: str, last: str, form: str
) -> None:
    """opacus changes the root logger at its import, and scripts do by `logging.config`."""
    again = f'{last}; tell("shard-0", "Said", "range cut it")'
    code, found = lines(form, again, first, ours)
    told = [line for line in found if "range cut it" in line or "all: version 3" in line]
    assert code == 0
    assert len(told) == 2
    assert all(("theirs" not in line) and ("shard-0" in line) for line in told)


@pytest.mark.parametrize(("ours", "shown"), [(True, "mine, as ours"), (False, "theirs: mine")])
def test_other_lines_are_configured_by_whose_process_it_is(ours: bool, shown: str) -> None:
    """A command configures all lines; a script that calls `run_client` keeps its own."""
    said = 'logging.info("mine, as ours"); logging.error("mine")'
    found = [line for line in lines("text", said, THEIRS, ours)[1] if "mine" in line]
    assert len(found) == 1 + ours
    assert found[0].endswith(shown)


def test_real_processes_in_json(tmp_path: Path) -> None:
    with Processes(tmp_path, "plain", versions=2, json_logs=True) as processes:
        processes.start_all()
        processes.wait(processes.finished, "the end")
        processes.wait(lambda: '"Commit"' in processes.log("shard-0"), "the shard's log")
        told = [json.loads(line) for line in processes.log("coordinator").splitlines()]
        assert processes.stop("coordinator") == 0
    committed = [line for line in told if line["event"] == "VersionCommitted"]
    assert [(line["group"], line["version"]) for line in committed] == [
        ("all", v) for v in (0, 1, 2)
    ]
    assert {line["party"] for line in told} == {"coordinator"}
    closed = [line for line in told if line["event"] == "CohortClosed"]
    assert [line["members"] for line in closed] == [6, 6]


PRINTS = """
import logging, os, sys
from secureps.service.logs import ignore_output_errors
ignore_output_errors()
logging.basicConfig(stream=sys.stderr)
for number in range(1000):
    print("a line", number, "\\u2713")
    logging.warning("another")
sys.stdout.flush()
with open("/dev/null") as file:
    assert file.fileno() > 2, "a file that is opened later would be written to by print"
sys.exit(7)
"""


@pytest.mark.parametrize(
    "output", [">/dev/full 2>/dev/full", ">&- 2>&- <&-", "2>&1 | true", ">/dev/null 2>&1"]
)
def test_nothing_that_is_told_ends_it(output: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -c '{PRINTS}'; echo $? >{tmp_path}/status"
    done = subprocess.run(
        f"({command}) {output}",
        shell=True,
        cwd=ROOT,
        env={"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert ((tmp_path / "status").read_text(), done.stdout, done.stderr) == ("7\n", "", "")


def test_what_can_be_told_is_told_as_ever() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 7
    assert len(done.stdout.splitlines()) == len(done.stderr.splitlines()) == 1000
