"""Flower: what a strategy or a site refuses, and in which words."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from secureps.client.flower.trainer import FlowerModel
from secureps.client.site_policy import NO_POLICY
from secureps.client.trainer import FitConfig
from secureps.config.site_files import SiteSection
from secureps.crypto.cipher import CipherParameters
from secureps.errors import ConfigError, KitError, NotReady, ScriptFailed, TermsRefused, WrongRun
from secureps.flower import post, secureps_mod, strategy
from secureps.flower.mod import AppTrainer, NodeSettings, play_as_client
from secureps.flower.post import ModelForm
from secureps.messages.charge import Release
from secureps.messages.requests import Retire
from secureps.messages.run import TRAIN_METRICS
from secureps.roles.machine import Halt
from secureps.roles.member.terms import NO_REASON
from secureps.run.up.folder import client_names
from secureps.service.one_wave import explain_end
from secureps.store.budget import BudgetLedger, default_ledger
from secureps.store.issuing import create_kit, issue
from secureps.store.journal import read_rows
from secureps.store.keyring import NATIVE, load_private
from secureps.wire.waves.batch import WAVE_DOMAIN, open_batch, seal_batch
from tests.kits.engine_apps import (
    SEED,
    Tensors,
    initial,
    make_app,
    play,
    record_dict,
    same,
    simulated,
    tensors,
    train,
    write_plan,
)
from tests.kits.flower_grid import Fault, LocalGrid, Reply, a_task
from tests.kits.ledgers import charge

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
    for value, part in ((9.0, 1.0), (-9.0, -1.0), (-1.0, -0.5)):  # beyond its magnitude it is cut
        told["far"] = value
        assert trainer.fit(parameters, config).parameters[TRAIN_METRICS].tolist() == [part]
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
