"""What a server's file, plan or kit may not say is refused before anything is served."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from secureps.config.site_files import ServeSection
from secureps.crypto.cipher import CipherParameters
from secureps.errors import ConfigError, KitError, PlanRefused
from secureps.messages import orders
from secureps.messages.records import RunPinned
from secureps.messages.requests import Register, Trouble
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import load_plan
from secureps.roles.machine import Call, Halt
from secureps.roles.shard.state import Limit
from secureps.run import serve as module
from secureps.run.serve import serve
from secureps.service.environment import Environment, Stores
from secureps.store.envelope_keys import RUNS, ledger_height, read_served_runs, run_folder
from secureps.store.issuing import create_kit, issue, issue_all
from secureps.store.journal import SqliteJournal
from secureps.store.journal_rows import Record
from secureps.store.keyring import TlsFiles, load_public
from secureps.store.spool import MemorySpool
from secureps.wire.grpc.framing import PLAINTEXT, Tls
from secureps.wire.waves.batch import WaveTransport
from tests.kits.committee_kit import Site, committee_plan
from tests.kits.roles_kit import ADDRESSES, make_placement, make_plan, make_run

PLAN = """
name = "trial"
versions = 1
[cipher]
name = "{cipher}"
capacity = 8
[[group]]
bits = 12
rule = {{ quorum = 6 }}
"""


def folder(tmp_path: Path, kit: str, plan: str, holders: int) -> Path:
    """A coordinator's configuration, with a kit that was made for the cipher `kit`."""
    (tmp_path / "kit.toml").write_text(PLAN.format(cipher=kit))
    (tmp_path / "plan.toml").write_text(PLAN.format(cipher=plan))
    create_kit(tmp_path / "kit", load_plan(tmp_path / "kit.toml").cipher_parameters)
    issue(tmp_path / "kit", "coordinator", "coordinator")
    for i in range(holders):
        issue(tmp_path / "kit", "holder", f"holder-{i}")
    config = tmp_path / "coordinator.toml"
    config.write_text(
        'name = "coordinator"\nkit = "kit"\nstate = "state"\nplan = "plan.toml"\n'
        'checkpoints = "checkpoints"\n'
    )
    return config


@pytest.mark.parametrize(
    ("kit", "plan", "holders", "reason"),
    [
        ("rlwe", "rlwe", 3, "the plan has 4 key holders, and the kit keys of 3: have the missing"),
        ("rlwe", "rlwe", 5, "the plan has 4 key holders, and the kit keys of 5: take off"),
        ("rlwe", "bfv", 1, "made for another cipher than the plan's: its holders have rlwe keys"),
        ("plain", "rlwe", 4, "made for another cipher than the plan's: its holders have no keys"),
        ("rlwe", "plain", 4, "made for another cipher than the plan's"),
    ],
)
def test_a_coordinator_starts_with_a_kit_for_its_plan_alone(
    tmp_path: Path, kit: str, plan: str, holders: int, reason: str
) -> None:
    config = folder(tmp_path, kit, plan, holders)
    with pytest.raises(KitError, match=reason):
        serve("coordinator", config)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("holders", [3, 5])
def test_a_coordinator_of_a_run_comes_back_whoever_came_and_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holders: int
) -> None:
    config, served = folder(tmp_path, "rlwe", "rlwe", holders), list[Any]()

    def run(*own: Any) -> Halt:
        served.append(own)
        return Halt("over")

    monkeypatch.setattr(module, "_run", run)
    (tmp_path / "state").mkdir(mode=0o700)
    plan = make_plan("rlwe")
    pinned = RunPinned(make_run(plan), make_placement(plan), ADDRESSES)
    with closing(SqliteJournal(tmp_path / "state" / "journal.db")) as journal:
        with pytest.raises(KitError, match=f"the kit keys of {holders}"):
            serve("coordinator", config)
        journal.append(0.0, [pinned])
    serve("coordinator", config)
    assert len(served) == 1


SMALL = """
name = "small"
versions = 3
cipher = { name = "plain" }
[[group]]
rule = { quorum = 6 }
weighting = "uniform"
[privacy]
unit = "client"
placement = "local"
noise_multiplier = 1.0
delta = 1e-5
budget = 0.01
"""


def served(folder: Path, name: str) -> Path:
    create_kit(folder / "kit", CipherParameters("plain", 8, 14))
    issue(folder / "kit", "coordinator", "coordinator")
    issue(folder / "kit", "shard", "shard-0")
    issue(folder / "kit", "holder", "holder-0")
    (folder / "plan.toml").write_text(SMALL)
    lines = (f'name = "{name}"', 'kit = "kit"', f'state = "{name}"', 'coordinator = "127.0.0.1:1"')
    path = folder / f"{name}.toml"
    more = 'plan = "plan.toml"\ncheckpoints = "checkpoints"\n'
    path.write_text("\n".join(lines) + "\n" + more)
    return path


def test_a_name_serves_in_its_own_role(tmp_path: Path) -> None:
    path = served(tmp_path, "shard-0")
    told = r"shard-0 is a shard's and not a holder's; on the roster as holder: holder-0"
    with pytest.raises(ConfigError, match=told):
        serve("keyholder", path)
    assert not (tmp_path / "shard-0").exists()


def test_a_coordinator_founds_no_run_whose_budget_is_too_small(tmp_path: Path) -> None:
    path = served(tmp_path, "coordinator")
    with pytest.raises(PlanRefused, match=r"plan\.toml: privacy\.budget: 0\.01 allows no version"):
        serve("coordinator", path)
    assert not (tmp_path / "coordinator").exists()


def test_a_coordinator_alone_has_a_standby_that_knows_whom_it_follows(tmp_path: Path) -> None:
    config = folder(tmp_path, "plain", "plain", 0)
    issue(tmp_path / "kit", "shard", "shard-0")
    (tmp_path / "shard.toml").write_text('name = "shard-0"\nkit = "kit"\nstate = "s"\n')
    with pytest.raises(ConfigError, match="a shard has no standby: --standby is for a coord"):
        serve("shard", tmp_path / "shard.toml", standby=True)
    with pytest.raises(ConfigError, match="coordinator that it follows is missing"):
        serve("coordinator", config, standby=True)


def test_a_server_is_pinned_to_a_node_that_is_there_before_anything_else(tmp_path: Path) -> None:
    """Nothing of it is there yet: neither its kit nor its state."""
    config = tmp_path / "shard-0.toml"
    config.write_text('name = "shard-0"\nkit = "kit"\nstate = "state"\npin = "999"\n')
    with pytest.raises(ConfigError) as caught:
        serve("shard", config)
    assert str(caught.value).startswith(f"{config}: pin: there is no NUMA node 999: ")
    config.write_text('name = "shard-0"\nkit = "kit"\nstate = "state"\npin = "both"\n')
    with pytest.raises(ConfigError, match="pin: must be auto, off, or the number of a NUMA node"):
        serve("shard", config)


class BegunError(Exception):
    """The process would run from here on."""


HOLDER, SHARD = "holder-0", "shard-0"
GUARDED = {
    *("ca_fingerprint", "insecure", "minimum", "threshold", "metrics", "memory", "advertise"),
    *("unsafe_seed", "insecure_for_tests", "socket", "listen"),
}
"""Settings by which something is refused, bounded or kept secret; each is held by a test below."""
FREE = {
    *("name", "kit", "state", "coordinator", "standby", "plan", "plan_base", "checkpoints"),
    *("checkpoint_copies", "weight", "threads", "pin", "initial"),
}


def test_no_setting_is_forgotten() -> None:
    assert set(ServeSection.model_fields) == GUARDED | FREE


@pytest.fixture(scope="module")
def committee(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Site]:
    """A kit of four key holders, of whom three must agree, and a run by it."""
    plan, kit = committee_plan(4, 3), tmp_path_factory.mktemp("committee") / "kit"
    create_kit(kit, plan.cipher_parameters)
    issue_all(kit, [*(("holder", f"holder-{k}") for k in range(4)), ("shard", SHARD)])
    made: Any = SimpleNamespace(public=load_public(kit))
    return kit, Site(plan, made)


@dataclass
class Server:
    folder: Path
    kit: Path
    site: Site
    monkeypatch: pytest.MonkeyPatch

    def begin(self, name: str, **settings: Any) -> tuple[Any, ...]:
        given: tuple[Any, ...] = ()
        said = {
            "name": name,
            "kit": str(self.kit),
            "state": name,
            "coordinator": "127.0.0.1:9",
            "checkpoints": "checkpoints",
            **settings,
        }
        config = self.folder / f"{name}.toml"
        config.write_text("".join(f"{key} = {json.dumps(said[key])}\n" for key in said))

        def run(*own: Any) -> NoReturn:
            nonlocal given
            given = own
            raise BegunError

        self.monkeypatch.setattr(module, "run_process", run)
        with pytest.raises(BegunError):
            serve("keyholder" if name == HOLDER else "shard", config)
        return given

    def built(self, name: str, *records: Record, **settings: Any) -> Any:
        build = self.begin(name, **settings)[2]
        with closing(SqliteJournal(self.folder / "journal.db")) as journal:
            stores = Stores(journal, MemorySpool(), self.folder)
            loop: Any = None
            made = build(stores, Environment(WaveTransport(), loop, lambda: 1.0))
            if records:
                made._journal.append(0.0, records)
        return made

    def refuses(self, **settings: Any) -> str:
        """Why a key holder takes no part in the run that it is told of; empty if it does."""
        order = orders.Configure(1, self.site.run, self.site.placement, self.site.addresses)
        step = self.built(HOLDER, **settings).machine.handle(0.0, COORDINATOR, order)
        said = (each.message for each in step.effects if isinstance(each, Call))
        return "".join(each.reason for each in said if isinstance(each, Trouble))


@pytest.fixture
def server(tmp_path: Path, committee: tuple[Path, Site], monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(tmp_path, *committee, monkeypatch)


def test_a_holder_insists_on_its_own_minimum_and_threshold(server: Server) -> None:
    assert server.refuses(minimum=2, threshold=3) == ""
    assert "this holder opens none of fewer than 3" in server.refuses(minimum=3)
    assert "this holder opens none of fewer than 5" in server.refuses(), "where it says nothing"
    assert "insists on 4" in server.refuses(minimum=2, threshold=4)


def test_a_holder_serves_no_run_again_with_an_empty_ledger(server: Server) -> None:
    """Beside its key stands which runs it has served: its ledger may be lost, the key is not."""
    private, run = server.kit / "private" / HOLDER, server.site.run.id
    try:
        server.built(HOLDER, RunPinned(server.site.run, server.site.placement, ()))
        assert read_served_runs(private / RUNS) == {run}
        assert "has served this run, and its ledger is not here" in server.refuses(minimum=2)
    finally:
        for path in (private / RUNS, ledger_height(run_folder(private, run))):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("name", [HOLDER, SHARD])
def test_a_server_has_tls_and_takes_its_own_ca_alone(server: Server, name: str) -> None:
    assert isinstance(server.begin(name)[0].link, Tls)
    assert server.begin(name, insecure=True)[0].link is PLAINTEXT
    own = server.site.kit.public.ca.fingerprint
    assert server.begin(name, ca_fingerprint=own)
    with pytest.raises(KitError, match="is signed by another CA"):
        server.begin(name, ca_fingerprint="0" * 64)


@pytest.mark.parametrize("name", [HOLDER, SHARD])
def test_metrics_are_shown_with_tls(server: Server, name: str) -> None:
    """Off loopback they would be refused without it."""
    shown = list[tuple[str, Any]]()

    @contextmanager
    def exposed(metrics: Any, listen: str, folder: Path, tls: Any) -> Iterator[str]:
        shown.append((listen, tls))
        yield listen

    server.monkeypatch.setattr(module, "serve_metrics", exposed)
    server.built(name, metrics="10.0.0.1:9")
    server.built(name, metrics="10.0.0.1:9", insecure=True)
    (secured, plain) = shown
    assert isinstance(secured[1], TlsFiles)
    assert plain == ("10.0.0.1:9", None)


def test_a_shard_keeps_to_its_memory(server: Server) -> None:
    assert server.built(SHARD).machine._limit == Limit(None, 1)
    assert server.built(SHARD, memory="3 MiB", threads=2).machine._limit == Limit(3 << 20, 2)


def test_a_shard_says_whether_its_noise_is_anybodys(server: Server) -> None:
    """A client that trains with real records then refuses the run."""

    def is_unsafe(**settings: Any) -> bool:
        effects = server.built(SHARD, **settings).machine.resume(0.0).effects
        said = (each.message for each in effects if isinstance(each, Call))
        return any(each.unsafe for each in said if isinstance(each, Register))

    assert not is_unsafe()
    with pytest.raises(ConfigError, match="insecure_for_tests"):
        server.begin(SHARD, unsafe_seed=3)
    assert is_unsafe(unsafe_seed=3, insecure_for_tests=True)


def test_a_shard_names_an_address_that_others_can_dial(server: Server) -> None:
    all_of_them = r"is every address of this machine, .* add advertise = \"NAME:9\""
    for told, given in (
        (all_of_them, {"listen": "0.0.0.0:9"}),
        (all_of_them, {"listen": "[::]:9"}),
        (all_of_them, {"listen": "127.0.0.1:9", "advertise": "0.0.0.0:9"}),
        ("is not HOST:PORT", {"listen": "0.0.0.0:9", "advertise": "shard.example"}),
        ("is not HOST:PORT", {"listen": "0.0.0.0:9", "advertise": "shard.example:0"}),
    ):
        with pytest.raises(ConfigError, match=told):
            server.begin(SHARD, **given)
    assert server.begin(SHARD, listen="0.0.0.0:9", advertise="shard.example:9")[4] == "0.0.0.0:9"


@pytest.mark.parametrize("test", [False, True])
def test_a_holder_looks_at_who_asks_at_its_socket(server: Server, test: bool) -> None:
    """But where no real records are at stake."""
    heard = list[bool]()

    def answering(party: str, path: Path, answer: Any, test: bool) -> NoReturn:
        heard.append(test)
        raise BegunError

    server.monkeypatch.setattr(module, "answer_batches", answering)
    server.monkeypatch.setattr(module, "demand_host", lambda *given: None)  # the kit is no node's
    server.begin(HOLDER, socket="waves", insecure_for_tests=test)
    assert heard == [test]
