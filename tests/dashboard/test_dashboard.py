"""A served dashboard: over files of a run, on loopback and beyond, for its viewers."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secureps.client.runner import Joining
from secureps.client.site_policy import SitePolicy
from secureps.crypto.identity import tls_name
from secureps.dashboard.application import Looking, dashboard
from secureps.dashboard.command import show_own_page, show_run
from secureps.errors import ConfigError, KitError
from secureps.messages.charge import Release
from secureps.roles.member.terms import Terms
from secureps.run.status import StatusTarget, find
from secureps.run.up.folder import ORIGIN, claim_folder
from secureps.store.budget import BudgetLedger
from secureps.store.issuing import issue, revoke
from tests.kits.audited import begin
from tests.kits.dashboards import Browser, ended_up
from tests.kits.ledgers import charge
from tests.kits.nursery import ROOT

FACT = Release("client-00", "all", 0, 100.0, 1000.0, 300.0, 1, 0.0)
BEYOND = "127.0.0.2:0"
"""An address of this machine that is none of loopback's names."""


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = begin(tmp_path_factory.mktemp("looking") / "run")
    issue(folder / "kit", "observer", "observer")
    return folder / "kit"


def news(looking: Looking, wanted: Callable[[Any], object]) -> Any:
    with dashboard(looking) as address:
        return Browser(address).told(wanted)


def test_an_officer_reads_journal_ledgers_and_logs(run: Path) -> None:
    looking = Looking(
        run / "kit",
        "coordinator",
        state=run / "state" / "coordinator",
        ledger=run / "ledgers",
        logs=(run / "coordinator.jsonl",),
    )
    told = news(looking, lambda each: each["officer"]["holders"] and each["officer"]["logs"])
    assert told.keys() == {"operator", "officer", "troubles"}
    assert told["officer"]["explanation"]["name"] == "audited"
    assert [each["sound"] for each in told["officer"]["logs"]] == [True]


def of_up(folder: Path) -> Looking:
    target = find(folder, None, None, None)
    return Looking(target.kit, None, target)


def test_a_private_run_that_ended_is_shown_with_its_end_and_nothing_is_said_to_be_missing(
    run: Path, tmp_path: Path
) -> None:
    """Its coordinator is gone; the journal, the plan and the report have all facts."""
    told = news(
        of_up(ended_up(run, tmp_path / "up")),
        lambda each: each["operator"]["clients"] and each["operator"]["scores"]["judged"],
    )
    operator, officer = told["operator"], told["officer"]
    assert officer["unit"] == "one client's updates replaced by zeros"
    assert officer["explanation"]["price"]["budget"] == 500.0
    assert [each["name"] for each in officer["clients"]] == [f"client-0{i}" for i in range(3)]
    assert all(0 < float(each["epsilon"]) < 500 for each in officer["clients"])
    assert [cost["epsilon"] for cost in officer["costs"]] == [100.0, 200.0, 300.0]
    assert operator["headline"] == "finished: all 3 versions are made"
    assert (operator["blocking"], operator["calm"]) == ([], "Nobody is waited for.")
    assert {row["name"] for row in operator["parties"]} >= {"coordinator", "holder-0", "shard-0"}
    rows = operator["parties"] + operator["clients"]
    assert {row["state"] for row in rows} == {"ended"}, "red is for those who fail"
    assert [(each["version"], each["held_out"]) for each in operator["scores"]["judged"]] == [
        (3, {"loss": 2.0 / 3, "accuracy": 0.3 * 3}),
        (2, {"loss": 1.0, "accuracy": 0.6}),
    ]
    assert (operator["up"], operator["down"], operator["whole"]) == (9000.0, 1500.0, True)
    assert told["troubles"] == {}


def test_the_plan_of_a_run_that_failed_before_it_was_founded_is_explained(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    (run / "state" / "coordinator").mkdir(parents=True)
    folder = ended_up(run, tmp_path / "up", versions=0)
    (folder / "report" / "failed.txt").write_text("client-00 died")
    told = news(of_up(folder), lambda each: each["officer"]["explanation"])
    assert told["officer"]["unit"] == "one client's updates replaced by zeros"
    price, (group,) = (told["officer"]["explanation"][part] for part in ("price", "groups"))
    assert (price["budget"], price["epsilon_run"]) == (500.0, None)
    assert group["values"] is None, "by that the page tells not known from infinite"


def test_a_silent_coordinator_alone_is_red_and_of_the_others_nothing_is_known(run: Path) -> None:
    target = StatusTarget(run / "kit", "coordinator", "127.0.0.1:9", insecure=True)
    looking = Looking(run / "kit", "coordinator", target)
    told = news(looking, lambda each: each["operator"]["blocking"])
    assert [row["state"] for row in told["operator"]["parties"]] == ["silent"]
    assert (told["officer"]["unit"], told["operator"]["asked"]) == (None, False)
    assert told["operator"]["scores"]["nothing"].startswith("Not known: ")
    journal = replace(looking, state=run / "state" / "coordinator")
    told = news(journal, lambda each: each["operator"]["clients"])
    assert [row["state"] for row in told["operator"]["parties"][:1]] == ["ended"]
    other = replace(looking, state=run / "state" / "client-00")
    (why,) = news(other, lambda each: each["troubles"])["troubles"].values()
    assert "another party's journal" in why


def test_where_it_may_not_be_served_is_said(kit: Path) -> None:
    def refused(listen: str, name: str = "coordinator") -> str:
        with pytest.raises(ConfigError) as error, dashboard(Looking(kit, name, listen=listen)):
            pass
        return str(error.value)

    for listen in ("0.0.0.0:0", "[::]:0", ":0", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536"):
        assert refused(listen).endswith("is not HOST:PORT, with the host that a browser names")
    for name in ("observer", "client-00"):
        said = refused(BEYOND, name)
        assert said.startswith(f"dashboard: {BEYOND} is not on loopback, and {name}'s certificate")
    with pytest.raises(KitError), dashboard(Looking(kit.parent / "nowhere", None)):
        pass


def acted(browser: Browser, what: str = "pause") -> tuple[int, str]:
    status, _, text = browser.get(f"/act/{what}", "POST", Origin=f"http://{browser.host}")
    return status, text


def posted(looking: Looking) -> int:
    with dashboard(looking) as address:
        browser = Browser(address)
        assert browser.enter() == 303
        return acted(browser)[0]


@pytest.mark.parametrize("name", ["observer", "client-00", "shard-0", "coordinator"])
def test_acts_are_on_loopback_and_of_the_coordinators_own_key(kit: Path, name: str) -> None:
    target = StatusTarget(kit, name, "127.0.0.1:9", insecure=True)
    wrong = [Looking(kit, name, target, acts=True, listen=BEYOND)]
    if name != "client-00":
        wrong.append(Looking(kit, name, acts=True))
    if name not in ("client-00", "coordinator"):
        wrong.append(Looking(kit, name, target, acts=True))
    for looking in wrong:
        with pytest.raises(ConfigError, match="on loopback"), dashboard(looking):
            pass
    if name in ("client-00", "coordinator"):  # of a client: on its own
        assert posted(Looking(kit, name, target, acts=True)) == 409, "nobody answers it"
    assert posted(Looking(kit, name, target)) == 403, "looking alone changes nothing"


def over_tls(kit: Path, name: str, address: str, server: str = "coordinator") -> bytes:
    """Returns the answer to a party with a certificate; empty if it is not let in."""
    host, port = address.removeprefix("https://").rstrip("/").rsplit(":", 1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(kit / "public" / "tls" / "ca.pem")
    if name:
        certificate = kit / "public" / "tls" / f"{name}.pem"
        context.load_cert_chain(certificate, kit / "private" / name / "tls.key")
    said = f"GET /news HTTP/1.1\r\nHost: {tls_name(server)}:{port}\r\n\r\n".encode()
    with (
        closing(socket.create_connection((host, int(port)), 20)) as line,
        suppress(ssl.SSLError, ConnectionResetError),
        context.wrap_socket(line, server_hostname=tls_name(server)) as secured,
    ):
        secured.sendall(said)
        found = b""
        while b"troubles" not in found and (more := secured.recv(1 << 16)):
            found += more
            if b" 401 " in found:
                break
        return found
    return b""


@pytest.fixture
def beyond(kit: Path) -> Iterator[str]:
    with dashboard(Looking(kit, "coordinator", listen=BEYOND)) as address:
        assert address.startswith("https://127.0.0.2:")
        assert "token" not in address
        yield address


def test_beyond_loopback_a_certificate_of_the_kit_lets_in_and_its_role_counts(
    kit: Path, beyond: str
) -> None:
    assert b'"officer"' in over_tls(kit, "observer", beyond)
    assert b'"officer"' not in over_tls(kit, "holder-0", beyond)
    assert b"HTTP/1.0 200 " in over_tls(kit, "holder-0", beyond)


def test_without_a_certificate_or_with_a_strangers_nothing_is_answered(
    kit: Path, beyond: str, tmp_path: Path
) -> None:
    assert over_tls(kit, "", beyond) == b""
    other = begin(tmp_path / "other") / "kit"
    (other / "public" / "tls" / "ca.pem").write_bytes(
        (kit / "public" / "tls" / "ca.pem").read_bytes()
    )
    assert over_tls(other, "coordinator", beyond) == b""
    port = int(beyond.rsplit(":", 1)[1][:-1])
    with closing(socket.create_connection(("127.0.0.2", port))) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with suppress(ConnectionResetError):
            assert not plain.recv(100).startswith(b"HTTP")


def test_who_was_revoked_is_let_in_no_more(tmp_path: Path) -> None:
    kit = begin(tmp_path / "run") / "kit"
    issue(kit, "observer", "observer")
    with dashboard(Looking(kit, "coordinator", listen=BEYOND)) as address:
        assert b"HTTP/1.0 200 " in over_tls(kit, "observer", address)
        own = Path(shutil.copytree(kit, tmp_path / "own"))
        revoke(kit, ["observer"])
        assert b"HTTP/1.0 401 " in over_tls(own, "observer", address)


def test_a_client_that_takes_part_has_its_page_beside_it(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    site = SitePolicy(Terms(3.0), tmp_path / "site.db")
    own = (run / "kit", "client-00", run / "state" / "client-00")
    joining = Joining("127.0.0.1:9", *own, terms=Terms(budget=8.0), site=site)
    charge(BudgetLedger(tmp_path / "site.db"), b"\x05" * 32, FACT)
    with show_own_page(joining, True):
        browser = Browser(capsys.readouterr().out.split()[-1])
        told = browser.told(lambda each: "holder" in each)["holder"]
    assert told["own_budget"] == 3.0, "the stricter of both"
    assert [*told["runs"]] == ["05" * 8], "its site's ledger"
    with show_own_page(joining, False):
        assert capsys.readouterr().out == ""


def test_a_run_of_up_is_shown_before_its_coordinator_is_there(
    kit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = {"plan": "plan.toml", "directory": ".", "unsafe_seed": None, "began": 0.0}
    (kit.parent / ORIGIN).write_text(json.dumps(origin))
    with claim_folder(kit.parent), show_run(kit.parent):
        browser = Browser(capsys.readouterr().out.split()[-1])
        told = browser.told(lambda each: each["operator"]["blocking"])["operator"]
        assert acted(browser)[0] == 403, "it was not begun with --act"
    assert told["headline"] == "the coordinator is being started"
    assert [each["name"] for each in told["blocking"]] == ["coordinator"]


def test_the_command_prints_an_address_and_ends_on_a_signal(run: Path) -> None:
    words = ("--kit", run / "kit", "--name", "client-00", "--state", run / "state" / "client-00")
    process = subprocess.Popen(
        [sys.executable, "-m", "secureps", "dashboard", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        assert process.stdout is not None
        told = process.stdout.readline()
        browser = Browser(told.split()[-1])
        assert browser.enter() == 303
        assert browser.news()
        assert acted(browser)[0] == 403, "it was not begun with --act"
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert browser.address.query.removeprefix("token=") not in rest + errors
    assert errors == ""
