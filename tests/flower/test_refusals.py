"""What a strategy or a site refuses, and in which words.
Flower: key holders may be nodes, records are durable, and what a node is its operator says.
What goes with a round's messages is that round's; nodes without the mod end the run.
"""

import functools
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from secureps.client.flower.trainer import FlowerModel
from secureps.client.site_policy import NO_POLICY
from secureps.client.trainer import FitConfig
from secureps.config.site_files import SiteSection
from secureps.crypto.cipher import CipherParameters
from secureps.errors import (
    ConfigError,
    KitError,
    Malformed,
    NotReady,
    Oversized,
    ScriptFailed,
    TermsRefused,
    WrongRun,
)
from secureps.flower import SecureFedAvg, post, secureps_mod, strategy
from secureps.flower.mod import AppTrainer, NodeSettings, play_as_client, refuse_kind
from secureps.flower.post import (
    BATCH,
    FORM,
    MARKER,
    PAYLOADS,
    ModelForm,
    pack,
    read_wave,
    wrap_bytes,
)
from secureps.flower.strategy import Aggregator, Waves, simulated_kit
from secureps.messages.charge import Release
from secureps.messages.member_records import OwnAct, OwnDeed
from secureps.messages.orders import Invite, Published
from secureps.messages.requests import Prepared, Retire
from secureps.messages.run import TRAIN_METRICS
from secureps.policy.plan import load_plan
from secureps.roles.machine import Halt
from secureps.roles.member.member import LEFT, PAUSED
from secureps.roles.member.terms import NO_REASON, NO_TERMS, Terms
from secureps.roles.pinned_run import PinnedRun
from secureps.run import assemble
from secureps.run.up.folder import client_names, holder_names
from secureps.service.executor import Executor
from secureps.service.one_wave import explain_end
from secureps.store import durability
from secureps.store.act_lines import ActLines
from secureps.store.budget import BudgetLedger, default_ledger
from secureps.store.issuing import create_kit, issue
from secureps.store.journal import read_rows
from secureps.store.keyring import NATIVE, default_state, load_private
from secureps.wire.waves.batch import WAVE_DOMAIN, open_batch, seal_batch
from tests.kits.engine_apps import (
    CONFIG,
    SEED,
    Tensors,
    initial,
    make_app,
    play,
    record,
    record_dict,
    same,
    simulated,
    tensors,
    train,
    write_plan,
)
from tests.kits.federations import small_plan
from tests.kits.flower_grid import Fault, LocalGrid, Reply, a_task
from tests.kits.ledgers import charge
from tests.kits.party_kits import part

OTHER_RUN = bytes(range(32))


def signed(content: RecordDict, kit: Path, signer: str, **changes: Any) -> RecordDict:
    """A message whose batch somebody has signed, after a change."""
    data = content.array_records[post.BATCH]["batch"].data
    batch = replace(open_batch(data, len(data), lambda *signed: None), **changes)
    identity = load_private(kit, signer)
    again = seal_batch(batch, lambda own: identity.sign(WAVE_DOMAIN, own))
    return RecordDict({**content, post.BATCH: ArrayRecord({"batch": post.wrap_bytes(again)})})


def test_nobody_hears_anything_of_another_run(
    tmp_path: Path, unharmed: Tensors, caplog: pytest.LogCaptureFixture
) -> None:
    """The same parties', of the same kit: only the run tells them apart."""
    kit = tmp_path / "run" / "kit"

    def answered(message: Message, play: Reply) -> list[Message]:
        reply = play(message)
        reply.content = signed(reply.content, kit, "client-01", run=OTHER_RUN)
        return [reply]

    def asked(message: Message, play: Reply) -> list[Message]:
        message.content = signed(message.content, kit, "coordinator", run=OTHER_RUN)
        reply = play(message)
        assert post.BATCH not in reply.content
        return [reply]

    grid = simulated(faults={(1, 1): answered, (1, 3): asked})
    same(tensors(play(tmp_path, grid)), unharmed)
    assert grid.faults == {}
    assert "client-01 takes part in run 0001020304050607, and the other side in" in caplog.text
    assert "and the other side in 0001020304050607: one of the two has another run" in caplog.text


def others(*own: str) -> list[tuple[str, str]]:
    """Authors and signers of which none is a party's own word, by the roles of this kit."""
    parties = ("client-00", "client-01", "coordinator", "shard-0")
    pairs = [(author, author) for author in parties if author not in own]
    return pairs + [(author, signer) for author in own for signer in parties if signer != author]


def test_a_node_obeys_the_coordinator_alone(tmp_path: Path, unharmed: Tensors) -> None:
    """Not another client, nor itself, nor a server: each of them is on the roster too."""
    refused = []

    def fault(message: Message, play: Reply) -> list[Message]:
        whole, kit, replies = message.content, tmp_path / "run" / "kit", list[Message]()
        for author, signer in others("coordinator"):
            message.content = signed(whole, kit, signer, sender=author)
            replies = [play(message)]
            if post.BATCH not in replies[0].content:
                refused.append((author, signer))
        return replies

    grid = simulated(faults={(1, 1): fault})
    same(tensors(play(tmp_path, grid)), unharmed)
    assert refused == others("coordinator")
    assert grid.nodes[11].state["fits"]["n"] == 2, "nothing was trained for them"


SERVERS = [(name, name) for name in ("coordinator", "shard-0")]
TWICE, THEN = (0, 1), (1, 2, 4)
"""Waves: while nobody knows whose node it is; two of the first round, and one of the second."""


@pytest.mark.parametrize(
    ("at", "wrong"),
    [(TWICE, SERVERS), (THEN, others("client-01")[:3]), (THEN, others("client-01")[3:])],
)
def test_the_servers_hear_of_a_node_what_its_own_client_signed(
    tmp_path: Path,
    unharmed: Tensors,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    at: tuple[int, ...],
    wrong: list[tuple[str, str]],
) -> None:
    monkeypatch.setattr(strategy.Waves._repeat_later, "__defaults__", (0.05,))

    def fault(author: str, signer: str) -> Fault:
        def changed(message: Message, play: Reply) -> list[Message]:
            reply = play(message)
            kit = tmp_path / "run" / "kit"
            reply.content = signed(reply.content, kit, signer, sender=author)
            return [reply]

        return changed

    faults = {(1, wave): fault(*pair) for wave, pair in zip(at, wrong, strict=True)}
    grid = simulated(faults=faults)
    same(tensors(play(tmp_path, grid)), unharmed)
    told = [text for each in caplog.records if "node 11" in (text := each.getMessage())]
    for (author, signer), text in zip(wrong, told, strict=True):
        why = "secureps-wave is wrong"
        if author == signer:
            client = author.startswith("client")
            why = "answered as client-00" if client else "takes no part by this run's roster"
        assert why in text


COUNTS: tuple[Any, ...] = ([31.25, 44.5], 31.25, float("nan"), float("inf"), -31.25)


def test_what_cannot_be_a_number_of_examples_stays_at_the_node(tmp_path: Path) -> None:
    """Whoever says which metric counts examples would read any of them in an error."""
    app = ClientApp(mods=[secureps_mod])

    @app.train()
    def fit(message: Message, context: Any) -> Message:
        reply = train(message, context)
        count = COUNTS[context.node_config["partition-id"]]
        reply.content["metrics"] = MetricRecord({"num-examples": count})
        return reply

    grid = LocalGrid.simulated(app, len(COUNTS))
    with pytest.raises(NotReady):
        play(tmp_path, grid, 1, timeout=1)
    for node in grid.nodes.values():
        replies = [str(reply.content) for reply in node.replies]
        assert any("the app's own code failed" in content for content in replies)
        assert not any(word in content for content in replies for word in ("31.25", "nan", "inf"))


@pytest.mark.parametrize(
    ("halt", "heard"),
    [
        (
            Halt("minimum: this site wants 77", TermsRefused),
            "TermsRefused; the node's log says why",
        ),
        (Halt("num-examples: got 31.25", ConfigError), "ConfigError; the node's log says why"),
        (Halt("another run's state folder", WrongRun), "another run's state folder"),
        (Halt("the run is over"), "the run is over"),
    ],
)
def test_why_a_node_takes_part_no_more_is_for_its_own_log(
    halt: Halt, heard: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert explain_end("client-01", halt) == heard
    assert halt.error is None or halt.reason in caplog.text


def test_what_nobody_expected_says_nothing_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise OSError("/srv/records/smith.csv")

    monkeypatch.setattr("secureps.flower.mod._seal", fails)
    grid = LocalGrid.simulated(make_app(), 1)
    (reply,) = grid.send_and_receive([Message(record_dict(), 10, "train")])
    said = reply.content.config_records["secureps"]["error"]
    assert said == "OSError: the node's log says where"


@pytest.mark.parametrize("allowed", [True, False])
def test_a_site_that_judges_nothing_takes_no_part_where_metrics_are_told(
    tmp_path: Path, allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The other nodes' mean would be told of one node, where that alone lets its metrics out."""
    site, grid = tmp_path / "site.toml", simulated()
    site.write_text("" if allowed else "evaluation = false")
    grid.nodes[11].config |= {
        "secureps-kit": str(tmp_path / "run" / "kit"),
        "secureps-name": "client-01",
        "secureps-site": str(site),
    }
    if allowed:
        result = play(tmp_path, grid, rounds=1, train_metrics={"loss": 1.0})
        assert result.train_metrics_clientapp == {1: {"loss": pytest.approx(0.5, abs=1e-3)}}
        return
    with pytest.raises(NotReady, match="all: 2 of 3 have arrived; waits for client-01"):
        play(tmp_path, grid, rounds=1, timeout=3, train_metrics={"loss": 1.0})
    assert "client-01: its site lets no metrics out (evaluation = false)" in caplog.text


def test_a_node_does_not_show_its_engine_the_kit_of_a_native_run(tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    create_kit(kit, CipherParameters("plain", 8, 14), host=NATIVE)
    issue(kit, "client", "client-00")
    settings = NodeSettings(kit, "client-00", tmp_path / "state")
    trainer = AppTrainer(
        ModelForm(FlowerModel(initial(), False)),
        Message(record_dict(), 10, "train"),
        lambda _: pytest.fail("it trained"),
    )
    with pytest.raises(KitError, match="is the kit of a native run"):
        play_as_client(settings, NO_POLICY, trainer, b"", {})
    assert not settings.state.exists()


def test_a_node_without_a_metric_takes_no_part(tmp_path: Path) -> None:
    """A mean of the others could be the metric of one."""
    form = ModelForm(
        FlowerModel(initial(), False), "arrays", "config", "num-examples", {"far": 2.0}
    )
    told: dict[str, Any] = {"far": 9.0, "num-examples": 3}

    def answers(message: Message) -> Message:
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord(told)}
        return Message(RecordDict(content), reply_to=message)

    trainer = AppTrainer(form, Message(record_dict(), 10, "train"), answers)
    parameters, config = trainer.parameters(0), FitConfig({"all": 0}, 1, {})
    for value, kept in ((9.0, 1.0), (-9.0, -1.0), (-1.0, -0.5)):  # beyond its magnitude it is cut
        told["far"] = value
        assert trainer.fit(parameters, config).parameters[TRAIN_METRICS].tolist() == [kept]
    del told["far"]
    with pytest.raises(ScriptFailed, match="train_metrics: far is nan, and must be a finite"):
        trainer.fit(parameters, config)


@pytest.mark.parametrize("kind", ["evaluate", "query", "train.other"])
def test_a_site_keeps_messages_from_its_app(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    site = tmp_path / "site.toml"
    site.write_text('evaluation = false\nreveal = "nothing"\n')
    app, asked = ClientApp(mods=[secureps_mod]), list[str]()

    def answers(message: Message, context: Any) -> Message:
        asked.append(message.metadata.message_type)
        return Message(message.content, reply_to=message)

    app.train("other")(answers)
    app.evaluate()(answers)
    app.query()(answers)
    grid = LocalGrid.simulated(app, 1)
    grid.nodes[10].config["secureps-site"] = str(site)
    (reply,) = grid.send_and_receive([Message(record_dict(), 10, kind)])
    said = reply.error.reason if reply.has_error() else reply.content[post.MARKER]["error"]
    assert said == NO_REASON
    assert asked == []
    assert "evaluation = false" in caplog.text or "which this site does not allow" in caplog.text


ROUNDS = 3
PRIVACY = """[privacy]
unit = "client"
placement = "local"
noise_multiplier = 5.0
delta = 1e-5
budget = 1000.0
"""


@dataclass(frozen=True)
class Kept:
    """A site's policy, and what comes of it.

    Args:
        trains: how often its node trains.
        retired: why its client takes part no more, as the coordinator hears; None: nothing.
        says: part of what the node answers beside its batch.
    """

    policy: str
    trains: int = 0
    retired: str | None = None
    says: str = ""


KEPT = {
    "minimum": Kept('minimum = 3\nreveal = "nothing"', retired=NO_REASON),
    "threshold": Kept("threshold = 2", retired=f"{NO_REASON}: threshold"),
    "plans": Kept(f'plans = ["{"0" * 64}"]\nreveal = "values"', retired="plans: the plan's digest"),
    "budget": Kept('budget = 1.5\nledger = "budget.db"', retired=""),
    "updates_per_hour": Kept(
        'updates_per_hour = 1\nledger = "updates_per_hour.db"',
        trains=1,
        retired=f"{NO_REASON}: updates_per_hour",
    ),
    "network": Kept("network = false", says="inside Flower's engine the run ships the app"),
    "scripts": Kept(f'scripts = ["{"0" * 64}"]', says="inside Flower's engine the run ships"),
}
"""By the key that each is about."""
OPEN = client_names(3)
"""Clients whose sites have no policy."""
NAMES = dict(zip(KEPT, client_names(3 + len(KEPT))[3:], strict=True))


def test_no_key_is_forgotten() -> None:
    """`evaluation` and `messages` keep messages from the app: see above.

    Of `records` see `test_public_numbers`.
    """
    held = {*KEPT, "ledger", "reveal"}
    assert held | {"evaluation", "messages", "records"} == set(SiteSection.model_fields)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A run's folder, and its nodes by their clients' names: of each policy one, and three more."""
    folder = tmp_path_factory.mktemp("policies")
    names = (*OPEN, *NAMES.values())
    configs = [{"partition-id": k, "num-partitions": len(names)} for k in range(len(names))]
    own: list[dict[str, Any]] = [dict(each) for each in configs]
    for key, name in NAMES.items():
        site = folder / f"{key}.toml"
        site.write_text(f"{KEPT[key].policy}\n")
        own[names.index(name)] |= {
            "secureps-kit": str(folder / "run" / "kit"),
            "secureps-name": name,
            "secureps-site": str(site),
            "secureps-unsafe-seed": SEED,
        }
    # What another run took of the same records: of the budget there is no update left.
    spent = Release(NAMES["budget"], "all", 0, 100.0, 1000.0, 300.0, 1, 0.0)
    charge(BudgetLedger(folder / "budget.db"), bytes(32), spent)
    plan = write_plan(folder, more='most_examples = 32\nweighting = "uniform"')
    plan.write_text(plan.read_text().replace("range = 1.0\n", "") + PRIVACY)
    with a_task():
        grid = LocalGrid(make_app(), own)
        play(folder, grid, ROUNDS, plan)
        yield folder, dict(zip(names, grid.nodes.values(), strict=True))


@pytest.mark.parametrize("key", KEPT)
def test_a_node_keeps_to_its_sites_policy(played: tuple[Path, dict[str, Any]], key: str) -> None:
    folder, nodes = played
    kept, node = KEPT[key], nodes[NAMES[key]]
    assert node.state.get("fits", {"n": 0})["n"] == kept.trains
    said = [str(dict(reply.content[post.MARKER])) for reply in node.replies]
    assert any(kept.says in each for each in said), said
    (journal,) = folder.rglob("coordinator/journal.db")
    gone = [row.record for row in read_rows(journal) if isinstance(row.record, Retire)]
    heard = {each.reason for each in gone if each.client == NAMES[key]}
    if kept.retired is None:
        assert not heard
    elif 'reveal = "values"' in kept.policy:
        assert [each.startswith(kept.retired) for each in heard] == [True]
    else:
        assert heard == {kept.retired}


@pytest.mark.parametrize("key", ["budget", "updates_per_hour"])
def test_a_node_counts_in_its_sites_ledger(played: tuple[Path, dict[str, Any]], key: str) -> None:
    folder, nodes = played
    kit = folder / "run" / "kit"
    assert len(BudgetLedger(folder / f"{key}.db").rows()) > KEPT[key].trains
    assert not default_ledger(kit, NAMES[key]).exists()
    for name in OPEN:
        assert nodes[name].state["fits"]["n"] == ROUNDS, "a site without a policy is free"
        assert len(BudgetLedger(default_ledger(kit, name)).facts()) == ROUNDS


PARTITION: dict[str, Any] = {"partition-id": 0, "num-partitions": 3}
OWN = {"secureps-kit": "/srv/kit", "secureps-name": "north"}
SIMULATES: dict[str, str | int] = {
    "kit": "/run/kit",
    "unsafe-seed": 5,
    "simulated": 1,
    "durable": 0,
}
"""What a ServerApp may say that would have nodes wait for nothing."""


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each wave of a node waits for the disk."""
    found = list[bool]()

    def noting(*given: object) -> tuple[bytes, str]:
        found.append(durability.must_wait())
        return b"", ""

    monkeypatch.setattr("secureps.flower.mod.play_as_client", noting)
    return found


@pytest.mark.parametrize(
    ("config", "waits"), [(PARTITION, False), (PARTITION | OWN, True), (OWN, True)]
)
def test_a_node_that_somebody_deploys_waits_whatever_its_run_says(
    config: Mapping[str, Any], waits: bool, waited: list[bool]
) -> None:
    form = ModelForm(FlowerModel({"values": np.zeros(3, np.float32)}, False)).to_json()
    content = post.pack({**SIMULATES, FORM: form}, b"a batch")
    grid = LocalGrid(make_app(), [dict(config)])
    (reply,) = grid.send_and_receive([Message(content, 10, "train")])
    assert dict(reply.content[post.MARKER]) == {"wave": 1}
    assert waited == [waits]
    assert durability.must_wait()


def test_key_holders_whose_keys_are_in_the_kit_are_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In deployment and in a simulation; not where nodes relay to them.

    If this process crashes, no core file gets their keys.
    """
    plan = load_plan(write_plan(tmp_path, "rlwe"))
    kit = simulated_kit(tmp_path, plan, 3)
    part(kit, tmp_path / "server", "coordinator", "shard-0", "holder-1")
    told, guarded = list[object](), list[str]()
    monkeypatch.setattr(post.log, "info", lambda *said: told.append(said[1]))
    disabled = "secureps.flower.strategy.disable_core_dumps"
    monkeypatch.setattr(disabled, lambda: guarded.append("once"))
    for own_kit, listen, own in (
        (kit, "127.0.0.1:0", ["holder-0", "holder-1", "holder-2"]),
        (tmp_path / "server", "127.0.0.1:0", ["holder-1"]),
        (tmp_path / "server", "", []),
    ):
        servers = Aggregator(plan, own_kit, tmp_path / f"run-{len(own)}", listen, False)
        guarded.clear()
        with servers:
            holders = servers.kit.roster.names("holder")
            assert sorted(holders & servers._parties.keys()) == own
            assert guarded == ["once"] * bool(own)
            assert servers.relayed_holders == (frozenset() if listen else holders)
    assert told == ["holder-0", "holder-2"]


def play_run(folder: Path, cipher: str) -> Result:
    grid = simulated()
    result = play(folder, grid, plan=write_plan(folder, cipher))
    assert {len(node.seen) for node in grid.nodes.values()} == {1 + 2}
    return result


def test_encrypted_it_is_the_same_model(tmp_path: Path) -> None:
    sealed, plain = (play_run(tmp_path / cipher, cipher) for cipher in ("rlwe", "plain"))
    for name, array in plain.arrays.items():
        assert sealed.arrays[name].data == array.data
    states = {path.name for path in (tmp_path / "rlwe" / "run" / "state").iterdir()}
    assert states >= set(holder_names(3))


def test_in_a_simulation_no_round_waits_until_envelopes_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned_run, examined = assemble.pinned_run, []

    def noted(*given: Any) -> PinnedRun:
        made = pinned_run(*given)
        examined.append(made.examined)
        return made

    monkeypatch.setattr(assemble, "pinned_run", noted)
    play_run(tmp_path / "run", "plain")
    assert examined == [False]


@contextmanager
def served(folder: Path, whole: Path) -> Iterator[dict[str, Path]]:
    """Key holders, each with its own kit in a process of its own, by their sockets."""
    sockets, running = {}, list[subprocess.Popen[bytes]]()
    try:
        for name in holder_names(3):
            home = folder / name
            kit, sockets[name] = part(whole, home / "kit", name), home / "waves"
            (home / "holder.toml").write_text(
                f'name = "{name}"\nkit = "{kit}"\nstate = "{home / "state"}"\nminimum = 2\n'
                f'socket = "{sockets[name]}"\ninsecure_for_tests = true\n'
            )
            program = [sys.executable, "-m", "secureps", "serve", "keyholder"]
            running.append(subprocess.Popen([*program, "--config", str(home / "holder.toml")]))
        until = time.monotonic() + 60
        while not all(path.exists() for path in sockets.values()):
            assert time.monotonic() < until
            time.sleep(0.05)
        yield sockets
    finally:
        for process in running:
            process.terminate()
        assert {process.wait(30) for process in running} == {0}


def test_key_holders_may_be_nodes_and_no_app_reads_their_keys(tmp_path: Path) -> None:
    plain = play_run(tmp_path / "p", "plain")
    plan = write_plan(tmp_path, "rlwe")
    whole = simulated_kit(tmp_path / "all", load_plan(plan), 3)
    server = part(whole, tmp_path / "server", "coordinator", "shard-0", "shard-1")
    configs: list[dict[str, Any]] = [
        {
            "partition-id": k,
            "secureps-kit": str(part(whole, tmp_path / name, name)),
            "secureps-name": name,
            "secureps-unsafe-seed": 5,
        }
        for k, name in enumerate(client_names(3))
    ]
    with served(tmp_path / "holders", whole) as sockets:
        configs += [{"secureps-holder": str(path)} for path in sockets.values()]
        # once the run is founded one of them is away
        away: dict[tuple[int, int], Fault] = {(5, wave): lambda *_: [] for wave in range(1, 9)}
        grid = LocalGrid(make_app(), configs, away)
        strategy = SecureFedAvg(
            plan, kit=server, run=tmp_path / "run", holders="nodes", fraction_evaluate=1.0
        )
        result = strategy.start(grid, record(initial()), 2, train_config=CONFIG, timeout=60)
    for name, array in plain.arrays.items():
        assert result.arrays[name].data == array.data
    # hello, and one for each version; a holder's second says which run it is
    trained = [kinds(grid, id) for id in (10, 11, 12)]
    assert trained == [["train"] * 2 + ["evaluate", "train", "evaluate"]] * 3
    assert [kinds(grid, id).count("train") for id in (13, 14)] == [2 + 2] * 2
    # whatever the run's code can name, no key of a holder lies there
    known = [server, *(Path(each["secureps-kit"]) for each in configs[:3]), tmp_path / "run"]
    names = {path.name for folder in known for path in folder.rglob("*")}
    assert not names & {*holder_names(3), "rlwe.key", "envelope.key"}
    assert all("fits" not in grid.nodes[id].state for id in (13, 14, 15))
    assert result.evaluate_metrics_clientapp.keys() == {1, 2}


def kinds(grid: LocalGrid, id: int) -> list[str]:
    return [message.metadata.message_type for message in grid.nodes[id].seen]


def test_a_simulation_has_no_nodes_of_key_holders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in a simulation"):
        SecureFedAvg(write_plan(tmp_path), holders="nodes")


SIMULATED: dict[str, object] = {"partition-id": 2, "num-partitions": 12}
TOLD: dict[str, str | int] = {"kit": "/run/kit", "unsafe-seed": 4}


def test_where_the_operator_says_anything_the_run_says_nothing() -> None:
    found = NodeSettings.of({**SIMULATED, **OWN}, TOLD)
    assert (found.kit, found.name, found.unsafe_seed) == (Path("/srv/kit"), "north", None)
    assert found.state == Path("/srv/kit/state/north")
    own = NodeSettings.of({**OWN, "secureps-state": "/var/lib/north", "secureps-site": "s"}, TOLD)
    assert (own.state, own.site) == (Path("/var/lib/north"), Path("s"))


@pytest.mark.parametrize(
    ("config", "told", "why"),
    [
        ({}, TOLD, "has no start-up kit"),
        (SIMULATED, {}, "has no start-up kit"),
        ({"secureps-kit": "/srv/kit"}, TOLD, "secureps-name is missing"),
        ({"secureps-name": "north"}, TOLD, "secureps-kit is missing"),
        ({**OWN, "secureps-sate": "x"}, {}, "is not known"),
        ({**OWN, "secureps-unsafe-seed": "x"}, {}, "is a number"),
    ],
)
def test_what_is_not_enough(
    config: dict[str, object], told: dict[str, str | int], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        NodeSettings.of(config, told)


ALLOWS = Terms(messages=("query.ages",))


@pytest.mark.parametrize(
    ("kind", "terms", "own", "heard"),
    [
        ("train", NO_TERMS, "", ""),
        ("evaluate", NO_TERMS, "", ""),
        ("query.ages", ALLOWS, "", ""),
        ("query.Ages", ALLOWS, "the run uses query.Ages", "by its own terms: messages"),
        ("query", ALLOWS, "the run uses query of the app", "by its own terms: messages"),
        ("train.other", ALLOWS, "the run uses train.other", "by its own terms: messages"),
        ("evaluate.other", NO_TERMS, "the run uses evaluate.other", "its own terms: messages"),
        ("evaluate", Terms(evaluation=False), "evaluation = false", "its own terms: evaluation"),
        ("evaluate", Terms(evaluation=False, reveal="nothing"), "evaluation", "by its own te"),
    ],
)
def test_an_app_is_given_what_its_site_allows(
    kind: str, terms: Terms, own: str, heard: str
) -> None:
    if not own:
        refuse_kind(kind, terms)
        return
    with pytest.raises(TermsRefused, match=own) as refused:
        refuse_kind(kind, terms)
    assert heard in refused.value.revealed


DIGEST = b"d" * 32
MOST = 1000


def test_the_same_payload_is_one_array_for_all() -> None:
    known: dict[bytes, Array] = {}
    one, two = (pack({}, b"batch", {DIGEST: b"payload"}, known) for _ in range(2))
    name = DIGEST.hex()
    assert one.array_records[PAYLOADS][name] is two.array_records[PAYLOADS][name]


def test_nobody_takes_ours_for_a_model() -> None:
    with pytest.raises(TypeError):
        wrap_bytes(b"sealed").numpy()


def content(**records: ArrayRecord) -> RecordDict:
    made = RecordDict({MARKER: ConfigRecord({})})
    for name, each in records.items():
        made[{"batch": BATCH, "payloads": PAYLOADS}[name]] = each
    return made


def test_records_that_are_none() -> None:
    plain = Array("uint8", (1,), "numpy.ndarray", b"x")
    for wrong in (
        content(batch=ArrayRecord({"other": wrap_bytes(b"x")})),
        content(batch=ArrayRecord({"batch": plain})),
        content(payloads=ArrayRecord({"short": wrap_bytes(b"x")})),
        content(payloads=ArrayRecord({"Z" * 64: wrap_bytes(b"x")})),
        content(payloads=ArrayRecord({"abc": wrap_bytes(b"x")})),
        content(payloads=ArrayRecord({"ab" * 33: wrap_bytes(b"x")})),
        RecordDict({MARKER: ConfigRecord({"a": 1.5})}),
    ):
        with pytest.raises(Malformed):
            read_wave(wrong, MOST)


def test_lengths_are_looked_at_first() -> None:
    for records in (
        content(batch=ArrayRecord({"batch": wrap_bytes(bytes(MOST + 1))})),
        content(payloads=ArrayRecord({DIGEST.hex(): wrap_bytes(bytes(MOST + 1))})),
    ):
        with pytest.raises(Oversized, match="at most 1000"):
            read_wave(records, MOST)


FOUR_ROUNDS = 4


class Marked(SecureFedAvg):
    """Tells nodes the number of the round, in its own words."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        told = ConfigRecord({**dict(config), "mark": server_round})
        return super().configure_train(server_round, arrays, told, grid)


class Late:
    """Says that a round is over only once whoever composes messages has found it so."""

    def __init__(self, over: Callable[[], bool], late: bool) -> None:
        self._over, self._late = over, late

    def truly(self) -> bool:
        if found := self._over():
            self._late = False
        return found

    def __call__(self) -> bool:
        return not self._late and self._over()


def play_waves(
    folder: Path, app: Any, faults: dict[tuple[int, int], Fault] | None = None, **settings: Any
) -> LocalGrid:
    grid = simulated(app, faults)
    play(folder, grid, FOUR_ROUNDS, kind=Marked, **settings)
    return grid


@pytest.mark.slow
def test_a_wave_of_the_next_round_does_not_go_with_this_ones_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until, push = Waves.until, Waves._push
    round, messages = [0], [0]

    def pushed(self: Waves, records: RecordDict, kind: str, over: Any) -> None:
        sent = self.sent
        push(self, records, kind, over.truly)
        messages[0] += self.sent - sent

    def late(self: Waves, over: Callable[[], bool], records: RecordDict, kind: str) -> None:
        """As if each version but the last were made just after it was asked for."""
        round[0] += 1
        until(self, Late(over, round[0] < FOUR_ROUNDS), records, kind)

    monkeypatch.setattr(Waves, "until", late)
    monkeypatch.setattr(Waves, "_push", pushed)
    seen: list[tuple[Any, Any]] = []

    def marked(message: Message, context: Context) -> Message:
        config: Any = message.content.config_records["config"]
        seen.append((config["mark"], config["server-round"]))
        return train(message, context)

    app = ClientApp(mods=[secureps_mod])
    app.train()(marked)
    grid = play_waves(tmp_path, app)
    assert round[0] == FOUR_ROUNDS
    # one to found and one a round for each: the nodes of a wave may be ready one after another
    assert messages[0] == (1 + FOUR_ROUNDS) * len(grid.nodes)
    assert len(seen) == FOUR_ROUNDS * len(grid.nodes)
    assert all(mark == number for mark, number in seen), seen


def test_a_node_waits_until_all_groups_that_move_together_have_invited_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two groups is committed well before the other, in every round."""
    admit, push = Executor._admit, Waves._push
    late: list[tuple[Executor, Prepared, functools.partial[None]]] = []
    looks = [0]

    def admitted(self: Executor, sender: str, message: Any, answer: Any) -> None:
        own = functools.partial(admit, self, sender, message, answer)
        if isinstance(message, Prepared) and message.group == "train_metrics":
            late.append((self, message, own))
        else:
            own()

    def pushed(self: Waves, *given: Any) -> None:
        """Lets the late group go on a few looks after the other one's version is published."""
        versions = self._versions()
        if late and versions["all"] >= late[0][1].version:
            looks[0] += 1
        push(self, *given)
        if looks[0] >= 3:
            looks[0] = 0
            for executor, _, own in late:
                executor.later(own)
            late.clear()

    monkeypatch.setattr(Executor, "_admit", admitted)
    monkeypatch.setattr(Waves, "_push", pushed)
    grid = play_waves(tmp_path, make_app(), train_metrics={"loss": 2.0})
    assert [len(node.seen) for node in grid.nodes.values()] == [1 + FOUR_ROUNDS] * len(grid.nodes)


@pytest.mark.parametrize(
    ("version", "versions", "early"),
    [
        (2, {"all": 2, "beside": 1, "alone": 0}, True),
        (2, {"all": 2, "beside": 2, "alone": 0}, False),
        (4, {"all": 4, "beside": 3, "alone": 0}, False),  # which makes no more
        (1, {"all": 1, "beside": 2, "alone": 0}, False),  # its own round is played again
        (-1, {"all": -1, "beside": -1, "alone": -1}, False),
    ],
)
def test_an_invitation_is_early_while_a_group_that_moves_along_is_behind(
    version: int, versions: dict[str, int], early: bool
) -> None:
    rule = {"quorum": 6, "deadline": 10.0}
    group = {"clip": 3.0, "range": 1.0, "rule": rule}
    groups = [
        {"name": "all", **group},
        {"name": "beside", "pattern": "b", "versions": 3, **group},
        {"name": "alone", "pattern": "a", **group, "rule": {**rule, "quorum": 5}},
    ]
    plan = small_plan(group=groups, local=[])
    assert strategy.is_early(plan, Invite(1, "all", 0, version, 1.0), versions) is early
    assert not strategy.is_early(plan, Published(1, "all", version, ()), versions)


def test_an_app_without_the_mod_ends_the_run_at_once(tmp_path: Path) -> None:
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Any) -> Message:
        raise ValueError("Traceback of a worker " + "x" * 900 + " KeyError: 'arrays'")

    with pytest.raises(NotReady) as caught:
        play(tmp_path, grid := simulated(app))
    said = str(caught.value)
    assert re.match(r"the app fails at every node .*, each asked 3 times: node \d+: <class", said)
    assert said.endswith("KeyError: 'arrays''>; has the ClientApp mods=[secureps_mod]?")
    assert len(said) < 700
    assert [len(node.seen) for node in grid.nodes.values()] == [3] * 3


def test_an_app_that_answers_in_the_clear_ends_the_run_at_once(tmp_path: Path) -> None:
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Any) -> Message:
        return Message(content=RecordDict({"metrics": MetricRecord({"n": 1})}), reply_to=message)

    with pytest.raises(NotReady, match="answered in the clear; has the ClientApp mods="):
        play(tmp_path, simulated(app))


def test_an_app_of_the_old_kind_ends_the_run_at_once_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = ClientApp(lambda context: NumPyClient().to_client(), mods=[secureps_mod])
    why = (
        r"the app fails at every node that is there, each asked 3 times: node 10 \(client-00\): the"
    )
    with pytest.raises(NotReady, match=why):
        play(tmp_path, simulated(app))
    assert "is of Flower's old kind (client_fn), which hears other messages: write" in caplog.text


def test_what_nodes_say_is_one_line_of_a_log() -> None:
    assert strategy._shorten("one\n\x1b[2Jtwo") == "one ?[2Jtwo"
    told = strategy._shorten("one\n\x1b[2Jtwo" + "x" * 600 + "KeyError")
    assert told == "one ?[2Jtwo" + "x" * 89 + " ... " + "x" * 387 + "KeyError"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["pause", "leave"])
def test_a_node_hears_what_its_data_holder_wants(tmp_path: Path, what: str) -> None:
    state: list[Path] = []

    def acts(message: Message, reply: Reply) -> list[Message]:
        name = client_names(3)[2]
        (kit,) = tmp_path.rglob(f"private/{name}")
        state.append(default_state(kit.parent.parent, name))
        ActLines(state[0], name, load_private(kit.parent.parent, name)).note(what)
        return [reply(message)]

    grid = play_waves(tmp_path, make_app(), {(2, 2): acts})
    fits = [node.state["fits"]["n"] for node in grid.nodes.values()]
    assert fits == [4, 4, 1], "nothing is trained from the wave on in which it was wanted"
    acted = [row.record for row in read_rows(state[0] / "journal.db")]
    assert OwnAct(1, what) in acted
    # Whoever has this on record joins anew when its process starts, as it does in every wave: no
    # node that left has it, and a ServerApp that asks again hears again that it is gone.
    assert OwnAct(1, OwnDeed.LEFT) not in acted
    (journal,) = tmp_path.rglob("coordinator/journal.db")
    gone = [row.record for row in read_rows(journal) if isinstance(row.record, Retire)]
    assert {(each.reason, each.returns) for each in gone} == {
        (PAUSED, True) if what == "pause" else (LEFT, False)
    }
