"""What a party hears before it takes part: a line for each thing that may be in the way."""

import dataclasses
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from secureps.crypto.cipher import CipherParameters
from secureps.messages.requests import AskStatus
from secureps.messages.run import COORDINATOR, ShardAddress
from secureps.run import preflight as module
from secureps.run.preflight import Departure, Finding, preflight
from secureps.store.issuing import create_kit, issue
from secureps.wire.grpc.servers import CoordinatorServer
from secureps.wire.transport import start_future
from tests.kits.command import typed
from tests.kits.relay import ConnectProxy, refusal
from tests.kits.transport_kit import EchoServer
from tests.run.report.test_status_tables import STATUS
from tests.wire.grpc.test_tls import tls_of

RLWE = CipherParameters("rlwe", 8, 14)
ME = "hospital-1"


class Asked(EchoServer):
    shards: tuple[ShardAddress, ...] = ()
    over = ""
    apart = 0.0
    """Seconds that its machine's clock is ahead."""

    def request(self, sender: str, message: Any) -> Future[Any]:
        future = start_future()
        assert isinstance(message, AskStatus), "looking changes nothing"
        future.set_result(dataclasses.replace(STATUS, shards=self.shards, finished=self.over))
        return future


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    made = tmp_path / "kit"
    create_kit(made, RLWE)
    issue(made, "coordinator", COORDINATOR)
    issue(made, "client", ME)
    issue(made, "holder", "holder-0")
    return made


@pytest.fixture
def server(kit: Path) -> Iterator[tuple[Asked, int]]:
    asked = Asked()
    tls, clock = tls_of(kit, COORDINATOR), lambda: time.time() + asked.apart
    made = CoordinatorServer(tls, asked, "127.0.0.1:0", lambda *_: None, clock=clock)
    made.start()
    yield asked, made.port
    made.stop(0)


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secureps.compiled.has_all_kernels", lambda: True)


def looked(whom: Departure) -> dict[str, Finding]:
    return {found.what: found for found in preflight(whom)}


def the_only_no(whom: Departure, what: str) -> str:
    found = looked(whom)
    assert [each.what for each in found.values() if each.outcome != "ok"] == [what]
    assert found[what].outcome == "no"
    return found[what].text


def test_who_has_all_that_it_takes_hears_of_nothing_in_the_way(
    kit: Path, server: tuple[Asked, int]
) -> None:
    asked, port = server
    asked.shards = (ShardAddress("shard-0", f"127.0.0.1:{port}", 1.0),)
    found = looked(Departure(kit, ME, f"127.0.0.1:{port}"))
    assert {each.outcome for each in found.values()} == {"ok"}, found
    assert list(found) == [
        *("kit", "keys", "roster", "TLS"),
        *("coordinator", "answer", "clock", "shard-0", "disk", "kernels"),
    ]
    assert found["kit"].text == f"client {ME} is on roster 3"
    assert f"it knows {ME}" in found["answer"].text
    assert not (kit / "state").exists(), "looking leaves nothing behind"


def test_without_a_kit_there_is_no_more_to_say(kit: Path, tmp_path: Path) -> None:
    (found,) = preflight(Departure(tmp_path / "none", ME))
    assert (found.what, found.outcome) == ("kit", "no")
    (found,) = preflight(Departure(kit, "hospital-2"))
    assert "hospital-2" in found.text
    (found,) = preflight(Departure(kit, ME, ca_fingerprint="ab" * 32))
    assert found.outcome == "no"


def test_keys_that_are_not_here_or_that_others_may_read(kit: Path) -> None:
    key = kit / "private" / ME / "identity.key"
    key.chmod(0o644)
    assert "chmod 600" in the_only_no(Departure(kit, ME), "keys")
    key.unlink()
    assert str(key) in the_only_no(Departure(kit, ME), "keys")
    (kit / "private" / "holder-0" / "envelope.key").unlink()
    assert "envelope.key" in the_only_no(Departure(kit, "holder-0"), "keys")


def test_who_has_no_keys_at_all_is_told_once_how_to_make_them(kit: Path) -> None:
    shutil.rmtree(kit / "private" / ME)
    text = the_only_no(Departure(kit, ME), "keys")
    assert f"--name {ME}` makes those of {ME}" in text


def test_a_certificate_that_was_not_copied(kit: Path) -> None:
    (kit / "public" / "tls" / f"{ME}.pem").unlink()
    assert "secureps keys renew" in the_only_no(Departure(kit, ME), "TLS")


def test_a_roster_by_this_machines_calendar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = {}
    for hours in (0, 24.0, 1.0, -1.0):
        kit = tmp_path / f"kit{hours}"
        monkeypatch.setattr("secureps.store.issuing.HOURS", hours)
        create_kit(kit, RLWE, hours=hours)
        issue(kit, "client", ME)
        found = looked(Departure(kit, ME))["roster"]
        outcomes[hours] = found.outcome
        assert ("`secureps roster renew`" in found.text) == (hours in (1.0, -1.0))
        assert ("this machine's clock is wrong" in found.text) == (hours == -1.0)
    assert outcomes == {0: "ok", 24.0: "ok", 1.0: "look", -1.0: "no"}


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("127.0.0.1:1", "127.0.0.1:1 cannot be reached (Connection refused): is it up"),
        ("no-such-host.invalid:7600", "nobody knows an address of no-such-host.invalid"),
        ("ps.example", "ps.example is not HOST:PORT"),
        ("ps.example:70000", "ps.example:70000 is not HOST:PORT"),
        ("ps..example:7600", "nobody knows an address of ps..example"),
    ],
)
def test_a_coordinator_that_is_not_there(kit: Path, address: str, text: str) -> None:
    assert the_only_no(Departure(kit, ME, address), "coordinator").startswith(text)


@pytest.mark.parametrize("first", [True, False])
def test_of_a_coordinator_and_its_standby_one_is_enough(
    kit: Path, server: tuple[Asked, int], first: bool
) -> None:
    here, gone = f"127.0.0.1:{server[1]}", "127.0.0.1:1"
    both = f"{here},{gone}" if first else f"{gone},{here}"
    found = list(preflight(Departure(kit, ME, both)))
    dialled = {each.text.partition(" ")[0]: each for each in found if each.what == "coordinator"}
    assert (dialled[here].outcome, dialled[gone].outcome) == ("ok", "look")
    assert "is it up" in dialled[gone].text
    assert next(each for each in found if each.what == "answer").outcome == "ok"


def test_a_coordinator_and_a_standby_that_are_both_away(kit: Path) -> None:
    found = list(preflight(Departure(kit, ME, "127.0.0.1:1,127.0.0.1:2")))
    wrong = [(each.what, each.text[:12]) for each in found if each.outcome == "no"]
    assert wrong == [("coordinator", "127.0.0.1:1 "), ("coordinator", "127.0.0.1:2 ")]
    assert "answer" not in {each.what for each in found}


def test_a_server_of_another_kit_a_shard_behind_a_wall(
    kit: Path, tmp_path: Path, server: tuple[Asked, int]
) -> None:
    asked, port = server
    other = tmp_path / "other"
    create_kit(other, RLWE)
    issue(other, "client", ME)
    assert the_only_no(Departure(other, ME, f"127.0.0.1:{port}"), "answer")
    asked.shards = (ShardAddress("shard-0", "127.0.0.1:1", 1.0),)
    assert "its port open" in the_only_no(Departure(kit, ME, f"127.0.0.1:{port}"), "shard-0")


def test_a_server_moves_no_cursor(kit: Path, server: tuple[Asked, int]) -> None:
    asked, port = server
    asked.shards = (ShardAddress("a\x1b[2J", "127.0.0.1\x1b[2J:1", 1.0),)
    asked.over = "\x1b]0;you\nwon\x07"
    found = list(preflight(Departure(kit, ME, f"127.0.0.1:{port}")))
    assert all((each.what + each.text).isprintable() for each in found)
    assert "over: ?]0;you won?" in {each.what: each.text for each in found}["answer"]


@pytest.mark.parametrize(
    ("apart", "outcome", "text"),
    [
        (-20.0, "ok", " s ahead of the coordinator's"),
        (45.0, "look", "s behind the coordinator's: certificates and rosters"),
        (-500.0, "look", "min ahead of the coordinator's: "),
        (700.0, "no", "min behind the coordinator's: "),
        (-86400.0, "no", "24.0 h ahead of the coordinator's: "),
        (1e300, "no", " h behind the coordinator's: "),
    ],
)
def test_a_clock_that_is_another(
    apart: float, outcome: str, text: str, kit: Path, server: tuple[Asked, int]
) -> None:
    server[0].apart = apart
    found = looked(Departure(kit, ME, f"127.0.0.1:{server[1]}"))["clock"]
    assert found.outcome == outcome
    assert text in found.text


def test_a_disk_that_is_slow_small_or_not_to_be_written(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: Any, **named: Any) -> Any:
        raise OSError(30, "Read-only file system")

    state = tmp_path / "not" / "there" / "yet"
    assert looked(Departure(kit, ME, state=state))["disk"].outcome == "ok"
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: usage)
        found = looked(Departure(kit, ME))["disk"]
    assert (found.outcome, found.text[:19]) == ("look", "1.0 kB are free for")
    with monkeypatch.context() as patched:
        patched.setattr(module, "SLOW", 0.0)
        assert "is it a network's?" in looked(Departure(kit, ME))["disk"].text
    monkeypatch.setattr(os, "fsync", refused)
    assert "Read-only file system" in the_only_no(Departure(kit, ME), "disk")


def test_a_server_is_looked_at_by_its_own_file(
    kit: Path, tmp_path: Path, server: tuple[Asked, int]
) -> None:
    file = tmp_path / "files" / "holder.toml"
    file.parent.mkdir()
    own = 'name = "holder-0"\nkit = "../kit"\nstate = "../a disk"\n'
    own += f'coordinator = "127.0.0.1:{server[1]}"\n'
    file.write_text(own)
    said = typed("preflight", "--config", file).out
    assert "holder holder-0 is on roster" in said
    assert f"are free for {tmp_path / 'a disk'};" in said
    assert "it knows holder-0" in said
    typed("preflight", "--config", file, "--server", "127.0.0.1:1", status=1)
    file.write_text(own + f'ca_fingerprint = "{"ab" * 32}"\n')
    typed("preflight", "--config", file, status=1)
    typed("preflight", kit, status=2)


# --- behind a proxy ----------------------------------------------------------------

HERE, SHARD = "ps.study.example:443", "shard-0.study.example:443"
SECRET = "s3cret"


@pytest.fixture
def behind(server: tuple[Asked, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectProxy]:
    """A proxy with a password, which alone knows where the servers are."""
    server[0].shards = (ShardAddress(COORDINATOR, SHARD, 1.0),)
    places = dict.fromkeys((HERE, SHARD), lambda: f"127.0.0.1:{server[1]}")
    with ConnectProxy(places, user=f"me:{SECRET}") as proxy:
        monkeypatch.setenv("https_proxy", f"http://me:{SECRET}@{proxy.address}")
        yield proxy


def test_servers_that_only_a_proxy_reaches(kit: Path, behind: ConnectProxy) -> None:
    said = typed("preflight", kit, "--name", ME, "--server", HERE).out
    text = " ".join(said.split())
    for address in (HERE, SHARD):
        assert f"{address} takes a connection within" in text
    assert text.count(f"through the proxy {behind.address}") == 2
    assert SECRET not in said
    assert set(behind.asked) == {HERE, SHARD}


def test_a_server_on_this_machine_is_dialled_directly(
    kit: Path, server: tuple[Asked, int], behind: ConnectProxy
) -> None:
    server[0].shards = ()
    found = looked(Departure(kit, ME, f"127.0.0.1:{server[1]}"))
    assert found[COORDINATOR].text.endswith(", directly")
    assert behind.asked == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (refusal(407), "the proxy wants name and password (407): https_proxy=http://NAME"),
        (refusal(403), "the proxy refuses: its operator must allow CONNECT to this address"),
        (refusal(504), "the proxy cannot reach it: is it up, and open to the proxy?"),
        (b"", "did not answer in time"),
    ],
)
def test_what_the_proxy_refuses(
    kit: Path, behind: ConnectProxy, monkeypatch: pytest.MonkeyPatch, answer: bytes, text: str
) -> None:
    monkeypatch.setattr(module, "TRIED", 2.0)
    behind.answer = answer
    said = the_only_no(Departure(kit, ME, HERE), COORDINATOR)
    assert f"coordinator at {HERE} through the proxy {behind.address}" in said
    assert text in said
    assert SECRET not in said


def test_a_shard_that_the_proxy_does_not_let_pass(kit: Path, behind: ConnectProxy) -> None:
    del behind.servers[SHARD]
    found = list(preflight(Departure(kit, ME, HERE)))
    (wrong,) = [each for each in found if each.outcome == "no"]
    assert f"{SHARD} through the proxy {behind.address}: the proxy refuses" in wrong.text


def test_who_opens_tls_on_the_way(kit: Path, tmp_path: Path, behind: ConnectProxy) -> None:
    other = tmp_path / "other"
    create_kit(other, RLWE)
    issue(other, "client", ME)
    text = the_only_no(Departure(other, ME, HERE), COORDINATOR)
    assert "A proxy or balancer that opens TLS has to let this address pass" in text
    assert "Flower's engine" in text


def test_a_proxy_that_is_not_there(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whom = Departure(kit, ME, HERE)
    for place, text in (
        ("127.0.0.1:1", "the proxy 127.0.0.1:1 cannot be reached (Connection refused)"),
        ("no-such-host.invalid:1", "nobody knows an address of no-such-host.invalid"),
        ("socks", "https_proxy names no HTTP proxy"),
    ):
        monkeypatch.setenv("https_proxy", f"http://me:{SECRET}@{place}")
        said = the_only_no(whom, COORDINATOR)
        assert said.startswith(text)
        assert "https_proxy" in said
        assert SECRET not in said
    monkeypatch.delenv("https_proxy")
    said = the_only_no(whom, COORDINATOR)
    assert "nobody knows an address of ps.study.example" in said
    assert "https_proxy as this network needs it?" in said


def test_kernels_that_are_yet_to_be_compiled(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secureps.compiled.has_all_kernels", lambda: False)
    found = looked(Departure(kit, ME))["kernels"]
    assert (found.outcome, "secureps warm" in found.text) == ("look", True)


def test_a_plan_that_the_site_refuses_and_the_exit_status(kit: Path, tmp_path: Path) -> None:
    plan, site = tmp_path / "plan.toml", tmp_path / "site.toml"
    plan.write_text('name = "p"\nversions = 1\n[[group]]\nrule = { quorum = 4, minimum = 3 }\n')
    site.write_text("minimum = 3\n")
    both = ("--plan", plan, "--site", site)
    own = ("preflight", kit, "--name", ME)
    assert f"{site} allows {plan}" in typed(*own, *both).out.replace("\n", "")
    site.write_text("minimum = 5\n")
    assert "by minimum: `secureps check --site`" in typed(*own, *both, status=1).out
    typed(*own, "--site", site, status=2)
