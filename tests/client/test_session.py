"""Training loops of one's own: what they pull and push, how they leave, and what is refused."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secureps as ps
from secureps.client.session import LEFT, Exchange, ExchangeTrainer
from secureps.client.trainer import RecordPrivacy, blamed
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import BudgetSpent, ConfigError, ScriptFailed, WrongRun
from secureps.messages.member_records import OwnDeed, Sealed
from secureps.messages.requests import MemberStatus
from secureps.policy.plan import Plan
from secureps.roles.machine import Leave
from secureps.roles.member.member import LEFT as BY_ITS_HOLDER
from secureps.roles.member.tasks import Aim, Contribute, Contributed
from secureps.service.process import act_text
from secureps.store.act_lines import ActLines
from secureps.store.journal import SqliteJournal
from secureps.store.keyring import load_private
from tests.client.test_worker import worker
from tests.kits.disk_federation import DiskFederation
from tests.kits.federations import Walker, small_plan
from tests.kits.roles_kit import PRIVACY, make_plan

RULE = {"quorum": 3, "minimum": 2, "start": 3, "deadline": 60.0}
SSP = {"name": "ssp", "slack": 2, "minimum": 2}
GROUP = small_plan().section.model_dump(mode="json")["group"][0]
LAST = "client-02"
SEED: dict[str, Any] = {"unsafe_seed": 3, "insecure_for_tests": True}


def plan(versions: int = 3, **rule: Any) -> Plan:
    """All three clients are waited for; two are enough once the third has left."""
    group = {**GROUP, "rule": {**RULE, **rule}}
    return small_plan(versions=versions, local=[], group=[group])


class Bare(Walker):
    def parameters(self, seed: int) -> ps.Parameters:
        return {n: a for n, a in super().parameters(seed).items() if n != "body.count"}


def joined(federation: DiskFederation, agreed: Plan | None = None, **options: Any) -> ps.Session:
    """A session of the last client, which trains as its walker would."""
    known: dict[str, Any] = {"name": LAST, "initial": Bare(2).parameters, "examples": 12, **SEED}
    return ps.join(
        federation.directory,
        agreed or federation.plan,
        server=federation.server,
        state=federation.folder / LAST,
        **{**known, **options},
    )


def trained(model: ps.PulledModel) -> ps.Parameters:
    return Bare(2).fit(dict(model), model.config).parameters


def play(session: ps.Session, heard: Callable[[tuple[str, ...]], None] = print) -> list[int]:
    versions = []
    with session:
        for model in session:
            versions.append(model.version)
            heard(session.push(parameters=trained(model)))
    return versions


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[DiskFederation]:
    with DiskFederation(plan(), tmp_path, 3, Bare) as federation:
        yield federation


@pytest.mark.slow
def test_a_loop_gives_the_model_of_a_trainer_bit_for_bit(
    federation: DiskFederation, tmp_path: Path
) -> None:
    pulled, pushed = [], []
    with joined(federation) as session:
        for model in session:
            assert not model["head.bias"].flags.writeable
            pulled.append(model.version)
            pushed.append(session.push(parameters=trained(model)))
    assert pulled == [0, 1, 2]
    assert [len(each) for each in pushed] == [1, 1, 1]
    assert len(set(pushed)) == 3
    assert session.finished == "all 3 versions are made"
    assert session.outcomes[pushed[0][0]] in ("included", "durable")
    own = federation.model()
    assert own is not None
    assert {n: a.tobytes() for n, a in session.model.items()} == {
        n: a.tobytes() for n, a in own[1].items()
    }, "the last version, which nobody was asked to train from"
    with DiskFederation(plan(), tmp_path / "other", 3, Bare) as other:
        other.start_last()
        other.until(other.over)
        theirs = other.model()
    assert theirs is not None
    assert {name: array.tobytes() for name, array in own[1].items()} == {
        name: array.tobytes() for name, array in theirs[1].items()
    }


class OnBase(Bare):
    def parameters(self, seed: int) -> ps.Parameters:
        return {**super().parameters(seed), "base": np.arange(4, dtype=np.float32)}

    def fit(self, parameters: ps.Parameters, config: ps.FitConfig) -> ps.FitResult:
        base = {"base": parameters.pop("base")}
        result = super().fit(parameters, config)
        return replace(result, parameters=base | result.parameters)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["delta", "parameters"])
def test_a_loop_leaves_frozen_tensors_out(tmp_path: Path, by: str) -> None:
    """They are in the model that it pulls, and need not be in what it pushes."""
    frozen = Plan(plan(2).section.model_copy(update={"frozen": ("base*",)}))
    with DiskFederation(frozen, tmp_path, 3, OnBase) as federation:
        with joined(federation, initial=OnBase(2).parameters) as session:
            for model in session:
                assert model["base"].tolist() == [0, 1, 2, 3]
                moved = {n: np.full_like(a, 0.01) for n, a in model.items() if n != "base"}
                whole = {n: model[n] + step for n, step in moved.items()}
                session.push(moved) if by == "delta" else session.push(parameters=whole)
        assert session.finished == "all 2 versions are made"
        made = federation.model()
    assert made is not None
    assert sorted(made[1]) == ["body.weight", "head.bias"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "neither delta nor parameters": ({}, "give the delta, or parameters="),
    "both": ({"delta": {}, "parameters": {}}, "give the delta, or parameters="),
    "a tensor too few": ({"delta": {}}, "tensor 'body.weight' is missing"),
    "a tensor too many": ({"delta": {"tail": 1}}, "tensor 'tail' is not one of this model's"),
    "another shape": (
        {"delta": {"head.bias": np.zeros(6)}},
        r"tensor 'head.bias' has shape \(6,\), the model's has \(7,\)",
    ),
    "NaN": ({"delta": {"head.bias": np.full(7, np.nan)}}, "'head.bias' has values that are NaN"),
    "a dtype that does not fit": (
        {"delta": {"head.bias": np.full(7, 1j)}},
        "tensor 'head.bias' is complex128, the model's is float32",
    ),
    "no examples": ({"delta": {"head.bias": np.zeros(7)}, "examples": 0}, "examples is 0"),
    "a metric that is no number": (
        {"delta": {"head.bias": np.zeros(7)}, "metrics": {"loss": np.inf}},
        "metric 'loss' is no finite number",
    ),
}


@pytest.mark.slow
def test_bad_use_is_refused_and_the_session_goes_on(federation: DiskFederation) -> None:
    session = joined(federation)
    with pytest.raises(ScriptFailed, match=r"with ps\.join"):
        session.pull()
    with session:
        with pytest.raises(ScriptFailed, match=r"call pull\(\) before each push"):
            session.push({})
        model = session.pull()
        assert model is not None
        with pytest.raises(ScriptFailed, match="version 0 was pulled before, and nothing was push"):
            session.pull()
        for update, said in BAD.values():
            whole = dict(update)
            if whole.get("delta"):
                whole["delta"] = {
                    **{name: np.zeros_like(array) for name, array in model.items()},
                    **whole["delta"],
                }
            with pytest.raises(ScriptFailed, match=said):
                session.push(**whole)
        assert len(session.push({name: 0 * array for name, array in model.items()})) == 1
        with pytest.raises(ScriptFailed, match=r"call pull\(\) before each push"):
            session.push({})
    with pytest.raises(ScriptFailed, match="join once more"), session:
        pass


@pytest.mark.slow
def test_who_leaves_early_is_not_waited_for_and_may_come_back(tmp_path: Path) -> None:
    endless = plan(versions=10_000, quorum=2, start=2, deadline=1000.0)
    with DiskFederation(endless, tmp_path, 3, Bare) as federation:
        with joined(federation) as session:
            model = session.pull()
            assert model is not None
        assert session.finished == LEFT
        left_at = model.version
        federation.until(lambda: federation.version > left_at or None)
        assert member(federation).state == "stopped"
        assert member(federation).submissions == 0
        with joined(federation) as again:
            model = again.pull()
            assert model is not None, again.finished
            assert model.version > left_at
            (sent,) = again.push(parameters=trained(model))
        assert sent.startswith(f"{LAST}/all/")
        # what was pushed arrives before its client is gone
        federation.until(lambda: member(federation).submissions or None)


@pytest.mark.slow
def test_a_loop_rests_goes_on_and_leaves_as_its_data_holder_acts(tmp_path: Path) -> None:
    endless = plan(versions=10_000, quorum=2, start=2, deadline=1000.0)
    with DiskFederation(endless, tmp_path, 3, Bare) as federation:
        key = load_private(federation.directory, LAST)
        acts = ActLines(federation.folder / LAST, LAST, key)
        with joined(federation) as session:
            model = session.pull()
            assert model is not None
            session.push(parameters=trained(model))
            acts.note(act_text(OwnDeed.PAUSE))
            federation.until(lambda: member(federation).state.startswith("rests") or None)
            acts.note(act_text(OwnDeed.GO_ON))
            federation.until(lambda: not member(federation).state.startswith("rests") or None)
            for number, model in enumerate(session):  # a model is on its way, or comes
                session.push(parameters=trained(model))
                if number == 1:
                    acts.note(act_text(OwnDeed.LEAVE))
        assert session.finished == BY_ITS_HOLDER


def member(federation: DiskFederation) -> MemberStatus:
    return next(each for each in federation.status().members if each.name == LAST)


@pytest.mark.slow
def test_a_loop_sends_several_updates_of_a_version_where_the_rule_asks(tmp_path: Path) -> None:
    ssp = small_plan(versions=4, local=[], group=[{**GROUP, "rule": SSP}])
    with DiskFederation(ssp, tmp_path, 3, Bare) as federation:
        session = joined(federation)
        sent = list[str]()
        pulled = play(session, sent.extend)
    assert pulled == sorted(pulled)
    assert len(set(sent)) == len(pulled) > 0
    assert session.finished == "all 4 versions are made"


def journalled(federation: DiskFederation) -> list[Any]:
    journal = SqliteJournal(federation.folder / LAST / "journal.db")
    try:
        return [record for _, record in journal.replay()]
    finally:
        journal.close()


@pytest.mark.slow
def test_an_exception_passes_and_what_was_pushed_is_kept(federation: DiskFederation) -> None:
    sent = list[str]()

    def fail(pushed: tuple[str, ...]) -> None:
        sent.extend(pushed)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        play(joined(federation), fail)
    kept = [str(each.receipt.id) for each in journalled(federation) if isinstance(each, Sealed)]
    assert len(sent) == 1
    assert set(sent) <= set(kept)
    again = joined(federation)
    assert play(again) == [1, 2], "version 0's is sent as it was sealed, and not made again"
    assert again.finished == "all 3 versions are made"


def test_a_run_of_another_plan_is_refused(federation: DiskFederation) -> None:
    with pytest.raises(WrongRun, match=r"agreed to, in group\.0\.rule\.deadline, versions: ask"):
        play(joined(federation, plan(versions=4, deadline=9.0)))
    assert journalled(federation) == [], "nothing was sealed"


def test_a_kit_for_somebody_else_is_told_where_the_with_begins(federation: DiskFederation) -> None:
    with pytest.raises(ps.errors.KitError, match="client-77"):
        joined(federation, name="client-77").__enter__()


def test_a_passphrase_that_cannot_be_read(federation: DiskFederation) -> None:
    number = 1 << 20  # no process has so many open files
    with pytest.raises(ConfigError, match=f"--passphrase-fd {number}: cannot read it"):
        joined(federation, passphrase_fd=number)


def test_who_is_interrupted_while_it_joins_leaves_nothing_behind(
    federation: DiskFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = joined(federation)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session._begun, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.__enter__()
    assert not session._thread.is_alive()


@pytest.mark.slow
def test_who_failed_to_join_joins_again_in_the_same_process(federation: DiskFederation) -> None:
    for wrong in ({"examples": -1}, {"initial": {"a": [1, "x"]}}):
        with pytest.raises(ScriptFailed):
            joined(federation, **wrong).__enter__()
    assert play(joined(federation)) == [0, 1, 2]


def test_a_private_plan_wants_a_loop_that_says_it_takes_private_steps(tmp_path: Path) -> None:
    private = small_plan(privacy=PRIVACY, training={"local_steps": 2})
    options: dict[str, Any] = {"server": "127.0.0.1:1", "name": LAST, "initial": {}, "examples": 9}
    with pytest.raises(ps.PlanRefused, match="private_steps=True"):
        ps.join(tmp_path, private, **options)
    ps.join(tmp_path, private, **options, private_steps=True)
    persons = small_plan(privacy=PRIVACY | {"unit": "person"}, training={"local_steps": 2})
    with pytest.raises(ps.PlanRefused, match="private_steps=True"):
        ps.join(tmp_path, persons, **options, persons=3)
    with pytest.raises(ScriptFailed, match=r"says how many by persons\(\) or join\(persons=\)"):
        ps.join(tmp_path, persons, **options, private_steps=True)
    session = ps.join(tmp_path, persons, **options, private_steps=True, persons=3)
    assert session._trainer.persons() == 3


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({"steps": 3}, "the plan charges for 2 private steps, and steps=3 were taken"),
        ({"steps": 2, "metrics": {"loss": 0.5}}, "computed without noise"),
    ],
)
def test_an_update_that_a_private_plan_refuses_is_not_handed_over(
    update: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ps.Session, "_summed_names", lambda session: frozenset())
    session = ps.join(
        tmp_path, small_plan(), server="127.0.0.1:1", name=LAST, initial={}, examples=9
    )
    privacy = RecordPrivacy(1.0, 1.0, 0.5, 1e-5)
    config = ps.FitConfig({"all": 0}, 1, {"local_steps": 2}, privacy, secret=bytes(32))
    session._entered, session._pulled = True, ps.PulledModel({"w": np.zeros(1)}, config)
    with pytest.raises(ScriptFailed, match=said):
        session.push({"w": np.ones(1)}, **update)


def test_the_holders_own_function_evaluates() -> None:
    judged = ps.EvaluateResult(0.5, 3, {})
    assert ExchangeTrainer(Exchange(), {}, 3, lambda parameters: judged).evaluate({}) is judged
    with pytest.raises(ScriptFailed, match="without evaluate="):
        ExchangeTrainer(Exchange(), {}, 3).evaluate({})


def test_a_training_that_nobody_waits_for_any_more_leaves_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker inside `fit` is let go, and blames no script."""
    exchange = Exchange()
    trainer = ExchangeTrainer(exchange, {}, 3)

    def training(*_: object) -> Any:
        with blamed("fit"):
            return trainer.fit({}, ps.FitConfig({"all": 0}, 1, {}))

    found, own = list[object](), worker(make_plan(), tmp_path, UnsafeSeed(1))
    monkeypatch.setattr(own, "_train", training)
    task = Contribute((), (), (Aim("all", 0, 1),))
    thread = threading.Thread(target=lambda: found.append(own.work(task)), daemon=True)
    thread.start()
    assert exchange.take() is not None
    exchange.close()
    thread.join(30)
    assert found == [Leave(LEFT)]
    assert exchange.take() is None
    assert exchange.give(ps.FitResult({}, 1, {}, 1)) == ()


def test_what_ended_the_client_is_raised_once(federation: DiskFederation) -> None:
    with joined(federation) as session:
        session._exchange.note_end(BudgetSpent("spent"))
        with pytest.raises(BudgetSpent):
            session.pull()
        assert session.finished == "spent"


def test_a_push_waits_while_its_site_rests() -> None:
    """No update came of it yet, and one will."""
    exchange = Exchange()
    for again in ((Aim("all", 0, 3),), ()):
        assert exchange._sealed is None
        exchange.on_work(Contribute((), (), ()), 0.0, Contributed((), (), again=again))
    assert exchange._sealed == set()
