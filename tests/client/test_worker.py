"""What follows from a client's seed, its run and its update, and what does not."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.client.sealing import OutboxSealer, draft_receipt
from secureps.client.trainer import FitResult
from secureps.client.update import UpdateIntegers, clip_update, declared_magnitude
from secureps.client.worker import ClientWorker, Site
from secureps.crypto.sampling import SecretSeed, Seed, UnsafeSeed
from secureps.errors import DamagedStore, DiskFailed, Malformed, Refused
from secureps.messages import records
from secureps.messages.encoding import payload_digest
from secureps.messages.member_records import Sealed
from secureps.messages.orders import KeyCommittee
from secureps.messages.requests import GetBlock
from secureps.messages.run import GroupVersion
from secureps.messages.submission import UPDATE, SubmissionId
from secureps.policy.block_deltas import block_codes, block_delta
from secureps.policy.plan import Plan, most_counted
from secureps.policy.rules.registry import LARGEST
from secureps.policy.tensor_kinds import Kind
from secureps.roles.member.committees import Committees
from secureps.roles.member.member import Member
from secureps.roles.member.tasks import (
    NO_EXAMPLES,
    Aim,
    Contribute,
    Contributed,
    block_key,
    in_own_order,
)
from secureps.roles.pinned_run import Pinned
from secureps.store.budget import BudgetLedger
from secureps.store.spool import MemorySpool
from tests.kits.committee_kit import BASE, Bench
from tests.kits.federations import Walker
from tests.kits.member_kit import Client
from tests.kits.roles_kit import (
    ADDRESSES,
    IDENTITIES,
    PRIVACY,
    SCHEMA,
    make_placement,
    make_plan,
    make_run,
)
from tests.kits.sealed_blocks import cut, drawn, made_of, released
from tests.kits.thin_group import FED_BACK

CLIENT_PRIVACY: dict[str, Any] = {
    "group": [{"weighting": "uniform", "rule": {"quorum": 3, "minimum": 2}}],
    "privacy": {"unit": "client", "noise_multiplier": 1.0, "delta": 1e-5, "budget": 500.0}
    | {"placement": "local"},
}
VALUES = 60
SMALL = np.full(VALUES, 0.01, np.float32)


def worker(plan: Plan, folder: Path, seed: Seed, nonce: int = 0) -> ClientWorker:
    """Those of a client in a run of this nonce, with nobody around them."""
    run = make_run(plan, nonce=bytes([nonce]) * 32)
    pinned = Pinned.of(records.RunPinned(run, make_placement(plan), ADDRESSES))
    site = Site("c0", Walker(0), IDENTITIES["c0"], seed, {}, folder)
    machine = cast(Member, SimpleNamespace(pinned=pinned, is_over=False))
    return ClientWorker(site, machine, MemorySpool())


@pytest.mark.parametrize("private", [False, True])
def test_a_secret_seed_hides_in_every_run_by_other_noise(private: bool, tmp_path: Path) -> None:
    """The same noise in two runs would be subtracted. An unsafe seed hides nothing, and repeats."""
    plan = make_plan(**CLIENT_PRIVACY) if private else make_plan()
    for seed in (SecretSeed(bytes(range(32))), UnsafeSeed(3)):
        update, aim = made_of(np.full(VALUES, 0.01, np.float32)), Aim("all", 1, 4)
        made = [worker(plan, tmp_path, seed, nonce) for nonce in (1, 2)]
        first, second = (drawn(each, aim, update, 1) for each in made)
        assert np.array_equal(first, second) is not seed.private


def test_no_two_updates_have_one_noise(tmp_path: Path) -> None:
    """Else the difference of two that leave would tell what changed."""
    own = worker(make_plan(**CLIENT_PRIVACY), tmp_path, SecretSeed(bytes(32)))
    moved = SMALL.copy()
    moved[7] += 0.5
    one, other = (drawn(own, Aim("all", 1, 4), made_of(each), 1) for each in (SMALL, moved))
    assert np.count_nonzero(one - other) > VALUES // 2


def test_no_two_blocks_are_rounded_by_the_same_words(tmp_path: Path) -> None:
    own = worker(plan := make_plan(), tmp_path, SecretSeed(bytes(32)))
    layout = own._layout().group("all")
    halves = np.full(VALUES, plan.grid("all", layout.sent).step / 2, np.float32)
    made = drawn(own, Aim("all", 1, 4), made_of(halves), most_counted(plan.group("all")))
    blocks = [made[slice(*layout.sent_span(block))] for block in range(layout.blocks)]
    shortest = min(block.size for block in blocks)
    assert len({block[:shortest].tobytes() for block in blocks}) == len(blocks)


@pytest.mark.parametrize("seed", range(8))
def test_what_a_rotation_makes_longer_in_float32_is_clipped_again(
    seed: int, tmp_path: Path
) -> None:
    """By less than a unit in the last place, of an update that is just as long as the clip."""
    update = np.random.default_rng(seed).standard_normal(VALUES).astype(np.float32)
    norm = math.sqrt(math.fsum(update.astype(np.float64) ** 2))
    group = {"weighting": "uniform", "codec": ["rotate"], "rule": {"quorum": 3, "minimum": 2}}
    plan = make_plan(**CLIENT_PRIVACY | {"group": [group | {"clip": norm}]})
    own = worker(plan, tmp_path, UnsafeSeed(3))
    base = (bytes(32),) * own._layout().group("all").blocks
    assert drawn(own, Aim("all", 0, 4), made_of(update), 1, base).size == VALUES


def drafted(own: ClientWorker, values: NDArray[np.float32], weight: int = 1) -> Any:
    """An update that may be sealed, of a group's first version."""
    task, aim = Contribute((), (b"one",), ()), Aim("all", 0, 4)
    return own._draft(task, aim, bytes(32), made_of(values), weight)


def test_an_update_that_counts_for_more_is_another_one(tmp_path: Path) -> None:
    """Its integers are others, so that its names are others, too."""
    own = worker(make_plan(), tmp_path, SecretSeed(bytes(32)))
    light, heavy, again = (drafted(own, SMALL, weight) for weight in (1, 2, 1))
    assert light.row.update == again.row.update != heavy.row.update
    assert light.receipt.update == again.receipt.update != heavy.receipt.update


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("at", [0, VALUES - 1])
def test_the_ledgers_name_of_an_update_is_of_all_its_integers(
    at: int, private: bool, tmp_path: Path
) -> None:
    plan = make_plan(**CLIENT_PRIVACY) if private else make_plan()
    own = worker(plan, tmp_path, UnsafeSeed(3))
    moved = SMALL.copy()
    moved[at] = -0.5
    assert len({drafted(own, values).row.update for values in (SMALL, moved)}) == 2


def test_the_ledgers_name_of_an_update_needs_no_secret(tmp_path: Path) -> None:
    """Whoever lost its seed and seals the same integers under another one names them alike."""
    seeds = SecretSeed(bytes(32)), SecretSeed(bytes(range(32)))
    nothing = np.zeros(VALUES, np.float32)
    one, other = (drafted(worker(make_plan(), tmp_path, seed), nothing) for seed in seeds)
    assert one.row.update == other.row.update
    assert one.receipt.update != other.receipt.update, "whoever guesses integers learns nothing"


def test_what_is_declared_of_an_update_is_what_its_clip_counts(tmp_path: Path) -> None:
    """No clip bounds running statistics: whoever has large ones would always go first."""
    rule = {"name": "priority", "buffer": 3, "minimum": 2, "score": "magnitude"}
    plan = make_plan(group=[{"clip": 8.0, "rule": rule}], capacity=16)
    layout = worker(plan, tmp_path, UnsafeSeed(1))._layout().group("all")
    update = np.zeros(VALUES, np.float32)
    update[:5], update[5] = 900.0, 1.0  # tensor "bias" of five values comes first
    bias: dict[str, Kind] = {"bias": "statistics"}
    for kinds, wanted in (({}, LARGEST), (bias, LARGEST - 2 * 3)):
        clipped = clip_update(plan, layout, np.array(update), None, kinds)
        assert declared_magnitude(plan, "all", clipped) == wanted


@pytest.mark.parametrize("examples", [1, 7, 900])
def test_who_counts_by_a_public_number_weighs_the_same_whatever_it_holds(
    examples: int, tmp_path: Path
) -> None:
    """That a record was added or removed must not show in how much it counts."""
    public = make_plan(privacy=PRIVACY, training={"local_steps": 1})
    exact = make_plan()
    for plan, number in ((public, int(PRIVACY["records"])), (exact, min(examples, 32))):
        own = worker(plan, tmp_path, UnsafeSeed(1))
        assert own._count_publicly(Aim("all", 0, 4), examples) == number


@pytest.mark.parametrize("over", [False, True])
def test_without_examples_or_after_the_run_nothing_is_sent_or_charged(
    over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A null update that counts by its site's number would dilute the mean."""
    own = worker(make_plan(), tmp_path, UnsafeSeed(1))
    own._site = dataclasses.replace(own._site, records=7)
    cast(Any, own._machine).is_over = over
    result = FitResult(Walker(0).parameters(0), 5 if over else 0, {}, 1)
    monkeypatch.setattr(own, "_load_staying", lambda task: {})
    monkeypatch.setattr(own, "_train", lambda task, staying: (result, 0.0))
    made = own._contribute(Contribute((), (), (Aim("all", 0, 1),)))
    assert made.updates == ()
    assert list(made.unsent.values()) == ([] if over else [NO_EXAMPLES])
    assert not over or made == Contributed((), ())
    assert own._site.ledger.rows() == []


def test_what_has_no_privacy_is_on_record_before_any_of_it_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = worker(make_plan(), tmp_path, SecretSeed(bytes(32)))
    ledger = BudgetLedger(tmp_path / "own.db")
    own._site = dataclasses.replace(own._site, ledger=ledger)

    def seal(*_: Any) -> Any:
        assert [run.exact for run in BudgetLedger(ledger.path).spent()] == [1]
        raise Refused("it came to sealing")

    monkeypatch.setattr(own._sealer, "seal", seal)
    with pytest.raises(Refused, match="came to sealing"):
        released(own, Contribute((), (b"one",), ()), Aim("all", 0, 5), made_of(SMALL))


@pytest.mark.parametrize("lacking", [1, 0], ids=["its last block", "what it does not carry"])
def test_an_update_that_does_not_fit_on_the_disk_is_put_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: int
) -> None:
    """It is made anew when there is room; until then it would take up what there is."""
    plan = make_plan(group=[FED_BACK | {"most_examples": 32, "rule": {"quorum": 3, "minimum": 2}}])
    own = worker(plan, tmp_path, SecretSeed(bytes(32)))
    count = own._layout().group("all").blocks

    def filling(write: Callable[..., Any]) -> Callable[..., Any]:
        def written(*given: Any) -> Any:
            if len(own._outbox.keys("")) == count - lacking:
                raise DiskFailed("no space left")
            return write(*given)

        return written

    for name in ("keep", "put"):
        monkeypatch.setattr(own._outbox, name, filling(getattr(own._outbox, name)))
    blocks = tuple(bytes([k]) * 32 for k in range(count))
    own.pulled |= {block_key(digest): np.zeros(15, np.float32) for digest in blocks}
    task = Contribute((GroupVersion("all", 0),), blocks, ())
    update = made_of(np.full(VALUES, 0.01, np.float32))
    with pytest.raises(DiskFailed), own._sealer.all_or_none():
        released(own, task, Aim("all", 0, 4), update)
    assert own._outbox.keys("") == []


def test_an_update_whose_key_nobody_holds_is_put_away(tmp_path: Path) -> None:
    """Its blocks are sealed, and without the shares of their key of no use to anybody."""
    own = worker(make_plan("rlwe"), tmp_path, SecretSeed(bytes(32)))

    def nobody(group: str, version: int) -> KeyCommittee:
        assert len(own._outbox.keys("")) == own._layout().group(group).blocks
        raise Refused("other key holders came meanwhile")

    own._machine.committees = cast(Committees, SimpleNamespace(due_for_made=nobody))
    with pytest.raises(Refused, match="came meanwhile"), own._sealer.all_or_none():
        released(own, Contribute((), (b"one",), ()), Aim("all", 0, 4), made_of(SMALL))
    assert own._outbox.keys("") == []


def drafts_by_rote(own: ClientWorker, patch: pytest.MonkeyPatch, seal: Any) -> None:
    """Of no training; all may leave."""
    patch.setattr(own, "_draft_update", lambda aim, *_: SimpleNamespace(aim=aim))
    patch.setattr(own, "_release", lambda drafts: (drafts, ()))
    patch.setattr(own, "_seal", seal)


@pytest.mark.parametrize("deletes", [True, False])
def test_what_a_disk_refuses_is_sealed_again_and_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletes: bool
) -> None:
    """Of several groups all are put away; of a disk that is read-only now nothing can be."""
    own, made = worker(make_plan(), tmp_path, SecretSeed(bytes(32))), Client().joined().sealed(0, 3)

    def seal(draft: Any) -> object:
        if draft.aim.sequence == 4:
            raise DiskFailed("cannot write")
        for header in made.headers:
            own._outbox.put(header.key, b"sealed")
            own._sealer._put_now.append(header.key)
        return made

    def read_only(_: str) -> None:
        raise OSError("Read-only file system")

    trained = np.ones(5, np.float32)
    result = FitResult({"bias": trained}, 7, {}, 1)
    monkeypatch.setattr(own, "_train", lambda *_: (result, 2.0))
    drafts_by_rote(own, monkeypatch, seal)
    if not deletes:
        monkeypatch.setattr(own._outbox, "delete", read_only)
    task = Contribute((), (), (Aim("all", 0, 3), Aim("all", 0, 4)))
    with pytest.raises((DiskFailed, OSError)):
        own.work(task)
    assert own._early is not None
    assert own._early[0] is task
    assert own._early[2] == 2.0
    trained[:] = 2.0  # the trainer's own array, and only one update of a version may leave
    assert own._early[1].parameters["bias"].tolist() == [1.0] * 5
    assert own._outbox.keys("") == ([] if deletes else sorted(h.key for h in made.headers))


def test_each_step_of_a_version_is_trained_with_a_seed_of_its_own(tmp_path: Path) -> None:
    """Else a client that runs ahead would repeat its step, and what it drew for it."""
    model, aims = (GroupVersion("all", 3),), [(Aim("all", 3, 7, step=k),) for k in range(3)]
    tasks = [Contribute(model, (b"one",), each) for each in aims]
    tasks.append(Contribute((GroupVersion("all", 4),), (b"one",), aims[0]))
    tasks.append(Contribute(model, (b"another",), aims[0]))
    own = worker(make_plan(), tmp_path, UnsafeSeed(1))
    assert len({own._labels(task) for task in tasks}) == len(tasks)


@pytest.mark.parametrize("values", [15, 17])
def test_a_block_is_as_long_as_its_layout_says(values: int, tmp_path: Path) -> None:
    own = worker(make_plan(), tmp_path, UnsafeSeed(1))
    ask = GetBlock(bytes(32), "all", 0, 1)
    with pytest.raises(Malformed, match="block 1 of all has a wrong length"):
        own.keep(ask, bytes(4 * values), bytes(32))
    own.keep(ask, bytes(4 * 16), bytes(32))
    assert [len(block) for block in own.pulled.values()] == [16]


def test_differences_are_from_the_block_that_is_named(tmp_path: Path) -> None:
    group = {"rule": {"quorum": 3, "minimum": 2}, "most_examples": 32, "pull_bits": 5}
    plan = make_plan(group=[group])
    own = worker(plan, tmp_path, UnsafeSeed(1))
    first = np.arange(16, dtype="<f4")
    base = payload_digest(first.tobytes())
    assert own.keep(GetBlock(bytes(32), "all", 0, 1), first.tobytes(), base) == base
    delta = block_delta(plan, own._layout().group("all"), 1)
    assert delta is not None
    values = (first + np.float32(0.25)).astype(np.float32)
    codes = delta.publish(values, first.astype(np.float32), None).tobytes()
    ask = GetBlock(bytes(32), "all", 1, 1, base=base)
    assert own.keep(ask, codes, payload_digest(codes)) == payload_digest(values.tobytes())
    assert own.pulled[block_key(payload_digest(values.tobytes()))].tobytes() == values.tobytes()
    assert own.pulled[block_key(base)].tobytes() == first.tobytes(), "it may be asked from again"
    for unknown in (b"", bytes(32)):
        with pytest.raises(Malformed, match="block 1 of all has a wrong length"):
            own.keep(GetBlock(bytes(32), "all", 1, 1, base=unknown), codes, bytes(32))
    with pytest.raises(Malformed, match="no differences of 16 values"):
        own.keep(ask, codes[:-1], bytes(32))


def test_a_receipt_has_blocks_in_order_in_whatever_order_they_are_sealed() -> None:
    bench, outbox = Bench(), MemorySpool()
    id = SubmissionId("c1", "all", 1)
    receipt = draft_receipt(bench.pinned.run.id, id, UPDATE, 0, BASE, None, False)
    sealer = OutboxSealer(bench.kit.identities["c1"], {}, bench.sealed_for, outbox)
    layout = bench.pinned.layout.group("all")
    blocks = reversed(list(cut(layout, np.arange(layout.size))))
    made = sealer.seal(bench.pinned, receipt, blocks)
    assert [header.block for header in made.headers] == [0, 1, 2, 3]
    assert made.receipt.blocks == tuple(header.digest for header in made.headers)
    assert set(outbox.keys("")) == {header.key for header in made.headers}


def damaged(pinned: Pinned, sealer: OutboxSealer, outbox: MemorySpool, sent: Sealed) -> str:
    """What a sealer says of an update of which one bit in the outbox is another one."""
    again = sealer.seal_again(pinned, sent.receipt, sent.headers, 8)
    assert again.receipt.update == sent.receipt.update
    key = sent.headers[2].key
    right = outbox.get(key)
    outbox.put(key, bytes([right[0] ^ 1]), right[1:])
    before = outbox.keys("")
    with pytest.raises(DamagedStore) as found, sealer.all_or_none():
        sealer.seal_again(pinned, sent.receipt, sent.headers, 9)
    assert outbox.keys("") == before
    return str(found.value)


def test_a_block_that_was_damaged_in_the_outbox_is_not_sealed_again(tmp_path: Path) -> None:
    """Other integers under the same name in a second sum would tell of its members."""
    own, bench, outbox = worker(make_plan(), tmp_path, UnsafeSeed(3)), Bench(), MemorySpool()
    plain = own._seal(drafted(own, SMALL))
    text = damaged(own._machine.pinned, own._sealer, cast(MemorySpool, own._outbox), plain)
    assert "block 2 of c0/all/4 in this client's outbox is damaged" in text
    sealer = bench.sealer("c1", outbox)
    sent = bench.send("c1", by=(sealer, outbox))
    damaged(bench.pinned, sealer, outbox, Sealed(sent.receipt, sent.headers))


@pytest.mark.parametrize("private", [False, True])
def test_every_client_seals_in_its_own_order(private: bool) -> None:
    """Else all of them would send their first blocks to the same few shards at once."""
    plan = make_plan(**CLIENT_PRIVACY) if private else make_plan()
    layout, update = plan.layout(SCHEMA).group("all"), made_of(np.full(60, 0.01, np.float32))
    codes, aim = block_codes(plan, layout, 0, ()), Aim("all", 0, 4)
    starts = set()
    for client in ("c0", "c1", "c2", "c3"):
        made = UpdateIntegers(client, plan, layout, aim, UnsafeSeed(3).derive)
        _, blocks = made.make(codes, update, 1, 1.0)
        found = [block for block, _ in blocks]
        assert found == in_own_order(client, range(layout.blocks))
        starts.add(found[0])
    assert len(starts) > 1
