"""Every option of a client that guards something holds, by each way to take part in a run."""

import dataclasses
import shutil
from collections.abc import Callable
from contextlib import closing, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import secureps as ps
from secureps.client import runner
from secureps.client.runner import Joining
from secureps.client.worker import Site
from secureps.config.site_files import SiteSection
from secureps.crypto.cipher import CipherParameters
from secureps.roles.machine import Halt
from secureps.roles.member.terms import NO_TERMS, MemberSettings, Terms
from secureps.run.cli import app
from secureps.run.own_script import run_client
from secureps.service.environment import Environment, Stores
from secureps.service.loop import WaveLoop
from secureps.service.process import Party
from secureps.store.budget import BudgetLedger, default_ledger
from secureps.store.issuing import create_kit, issue
from secureps.store.journal import SqliteJournal
from secureps.store.keyring import load_public
from secureps.store.spool import MemorySpool
from secureps.wire.grpc.framing import PLAINTEXT, Tls
from secureps.wire.waves.batch import WaveTransport
from tests.kits import walker_client
from tests.kits.command import invoked
from tests.kits.walker import Walker

NAME, SERVER = "client-00", "127.0.0.1:9"
GUARDED = {
    *("terms", "site", "ledger", "records", "ca_fingerprint", "insecure", "insecure_for_tests"),
    "unsafe_seed",
}
"""Options by which something is refused, bounded or kept secret; each is held by a test below."""
FREE = {"server", "kit", "name", "state", "threads", "passphrases", "model"}
DIGEST = "ab" * 32
POLICY = f"""minimum = 6
threshold = 3
budget = 8
ledger = "site.db"
plans = ["{DIGEST}"]
evaluation = false
updates_per_hour = 4
messages = ["query.ages"]
reveal = "values"
"""
PLAN = """name = "joined"
versions = 1
cipher = { name = "plain" }
[[group]]
rule = { quorum = 3, minimum = 2 }
"""
ALLOWS = Terms(8.0, 3, "", 6, (DIGEST,), False, 4, "values", ("query.ages",))


def test_no_option_is_forgotten() -> None:
    assert {each.name for each in dataclasses.fields(Joining)} == GUARDED | FREE
    held = {line.partition(" ")[0] for line in POLICY.splitlines()}
    # `test_site_policy` holds these.
    assert held | {"scripts", "network", "records"} == set(SiteSection.model_fields)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("joining") / "kit"
    create_kit(folder, CipherParameters("plain", 8, 14))
    issue(folder, "coordinator", "coordinator")
    issue(folder, "client", NAME)
    return folder


def words(options: dict[str, Any]) -> list[str]:
    said = list[str]()
    for key, value in options.items():
        said += [f"--{key.replace('_', '-')}", *([] if value is True else [str(value)])]
    return said


def by_script(kit: Path, folder: Path, options: dict[str, Any]) -> str:
    given = words({"server": SERVER, "kit": kit, "name": NAME, "state": folder / "state"})
    with redirect_stderr(StringIO()) as told:
        try:
            run_client(walker_client.make, [*given, *words(options), "--set", "partition=0"])
        except SystemExit:
            return told.getvalue()
    return ""


def by_command(kit: Path, folder: Path, options: dict[str, Any]) -> str:
    given = words({"server": SERVER, "kit": kit, "name": NAME, "state": folder / "state"})
    script = Path(walker_client.__file__)
    done = invoked(app, "join", script, *given, *words(options), "--set", "partition=0")
    return done.output if done.exit_code else ""


def by_session(kit: Path, folder: Path, options: dict[str, Any]) -> str:
    (folder / "plan.toml").write_text(PLAN)
    told = {"server": SERVER, "name": NAME, "state": folder / "state", "examples": 3, **options}
    try:
        with ps.join(kit, folder / "plan.toml", initial=Walker(0).parameters, **told):
            pass
    except ps.SecurepsError as error:
        return str(error)
    return ""


WAYS = {"script": by_script, "command": by_command, "session": by_session}


@dataclasses.dataclass
class Client:
    way: Callable[[Path, Path, dict[str, Any]], str]
    kit: Path
    folder: Path
    party: Party = dataclasses.field(init=False)
    settings: MemberSettings = dataclasses.field(init=False)
    site: Site = dataclasses.field(init=False)

    def joins(self, **options: Any) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        assert self.refuses(**options) == ""

    def refuses(self, **options: Any) -> str:
        """Why it does not take part; empty if it does."""
        self.folder.mkdir(exist_ok=True)
        return self.way(self.kit, self.folder, options)

    def run(self, party: Party, addresses: object, build: Any) -> Halt:
        self.party = party
        with closing(SqliteJournal(self.folder / "journal.db")) as journal:
            stores = Stores(journal, MemorySpool(), self.folder)
            build(stores, Environment(WaveTransport(), WaveLoop(0.0), lambda: 1.0))
        return Halt("over")

    @property
    def terms(self) -> Terms:
        """What it insists on; a session insists on the plan too, which it was given."""
        return dataclasses.replace(self.settings.terms, plan="")

    @property
    def ledger(self) -> BudgetLedger:
        return self.site.ledger


@pytest.fixture(params=WAYS)
def client(
    request: pytest.FixtureRequest, kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Client:
    made = Client(WAYS[request.param], kit, tmp_path / "own")
    together = runner.assemble_member

    def noted(settings: MemberSettings, site: Site, *rest: Any) -> Any:
        made.settings, made.site = settings, site
        return together(settings, site, *rest)

    monkeypatch.setattr(runner, "assemble_member", noted)
    monkeypatch.setattr(runner, "run_process", made.run)
    return made


def bounds(ledger: BudgetLedger) -> tuple[Path, float | None, int | None]:
    return ledger.path, ledger.budget, ledger.updates_per_hour


def test_what_its_data_holder_says_holds(client: Client, tmp_path: Path) -> None:
    client.joins(budget=2.5, threshold=2, ledger=tmp_path / "own.db", records=70)
    assert client.terms == Terms(2.5, 2)
    assert bounds(client.ledger) == (tmp_path / "own.db", 2.5, None)
    assert client.site.records == 70


def test_without_a_word_it_has_tls_a_ledger_and_a_seed_of_its_own(client: Client) -> None:
    client.joins()
    assert client.terms == NO_TERMS
    assert bounds(client.ledger) == (default_ledger(client.kit, NAME), None, None)
    assert isinstance(client.party.link, Tls)
    assert client.site.seed.private


def test_its_sites_policy_holds_and_of_two_limits_the_stricter(
    client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "site.toml"
    path.write_text(POLICY)
    client.joins(site=path)
    assert client.terms == ALLOWS
    assert bounds(client.ledger) == (tmp_path / "site.db", 8.0, 4)
    client.joins(site=path, budget=2.0, threshold=2)
    assert client.terms == dataclasses.replace(ALLOWS, budget=2.0)
    assert bounds(client.ledger) == (tmp_path / "site.db", 2.0, 4)
    client.joins(site=path, budget=9.0, threshold=4)
    assert client.terms == dataclasses.replace(ALLOWS, threshold=4)
    assert "counts for all runs of this" in client.refuses(site=path, ledger=tmp_path / "own.db")


def test_it_takes_the_kit_of_its_own_ca_alone(client: Client) -> None:
    client.joins(ca_fingerprint=load_public(client.kit).ca.fingerprint)
    assert "is signed by another CA" in client.refuses(ca_fingerprint="0" * 64)


def test_a_name_joins_in_its_own_role(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it waits for a coordinator, or leaves a folder."""
    monkeypatch.setitem(globals(), "NAME", "coordinator")
    told = "name: coordinator is a coordinator's and not a client's; on the roster as client: "
    assert told in client.refuses()
    assert not (client.folder / "state").exists()


def test_what_protects_nobody_is_asked_for_by_name(client: Client) -> None:
    client.joins(insecure=True)
    assert client.party.link is PLAINTEXT
    assert "insecure-for-tests" in client.refuses(unsafe_seed=3)
    client.joins(unsafe_seed=3, insecure_for_tests=True)
    assert not client.site.seed.private
