"""Flower: key holders may be nodes, records are durable, and what a node is its operator says."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import Result

from secureps.client.flower.trainer import FlowerModel
from secureps.errors import ConfigError, Malformed, Oversized, TermsRefused
from secureps.flower import SecureFedAvg, post
from secureps.flower.mod import NodeSettings, refuse_kind
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
from secureps.flower.strategy import Aggregator, simulated_kit
from secureps.policy.plan import load_plan
from secureps.roles.member.terms import NO_TERMS, Terms
from secureps.roles.pinned_run import PinnedRun
from secureps.run import assemble
from secureps.run.up.folder import client_names, holder_names
from secureps.store import durability
from tests.kits.engine_apps import CONFIG, initial, make_app, play, record, simulated, write_plan
from tests.kits.flower_grid import Fault, LocalGrid
from tests.kits.party_kits import part

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


def played(folder: Path, cipher: str) -> Result:
    grid = simulated()
    result = play(folder, grid, plan=write_plan(folder, cipher))
    assert {len(node.seen) for node in grid.nodes.values()} == {1 + 2}
    return result


def test_encrypted_it_is_the_same_model(tmp_path: Path) -> None:
    sealed, plain = (played(tmp_path / cipher, cipher) for cipher in ("rlwe", "plain"))
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
    played(tmp_path / "run", "plain")
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
    plain = played(tmp_path / "p", "plain")
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
