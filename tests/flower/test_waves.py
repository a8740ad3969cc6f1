"""What goes with a round's messages is that round's; nodes without the mod end the run."""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from secureps.errors import NotReady
from secureps.flower import SecureFedAvg, secureps_mod, strategy
from secureps.flower.strategy import Waves
from secureps.messages.member_records import OwnAct, OwnDeed
from secureps.messages.orders import Invite, Published
from secureps.messages.requests import Prepared, Retire
from secureps.roles.member.member import LEFT, PAUSED
from secureps.run.up.folder import client_names
from secureps.service.executor import Executor
from secureps.store.act_lines import ActLines
from secureps.store.journal import read_rows
from secureps.store.keyring import default_state, load_private
from tests.kits.engine_apps import make_app, play, simulated, train
from tests.kits.federations import small_plan
from tests.kits.flower_grid import Fault, LocalGrid, Reply

ROUNDS = 4


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


def played(
    folder: Path, app: Any, faults: dict[tuple[int, int], Fault] | None = None, **settings: Any
) -> LocalGrid:
    grid = simulated(app, faults)
    play(folder, grid, ROUNDS, kind=Marked, **settings)
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
        until(self, Late(over, round[0] < ROUNDS), records, kind)

    monkeypatch.setattr(Waves, "until", late)
    monkeypatch.setattr(Waves, "_push", pushed)
    seen: list[tuple[Any, Any]] = []

    def marked(message: Message, context: Context) -> Message:
        config: Any = message.content.config_records["config"]
        seen.append((config["mark"], config["server-round"]))
        return train(message, context)

    app = ClientApp(mods=[secureps_mod])
    app.train()(marked)
    grid = played(tmp_path, app)
    assert round[0] == ROUNDS
    # one to found and one a round for each: the nodes of a wave may be ready one after another
    assert messages[0] == (1 + ROUNDS) * len(grid.nodes)
    assert len(seen) == ROUNDS * len(grid.nodes)
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
    grid = played(tmp_path, make_app(), train_metrics={"loss": 2.0})
    assert [len(node.seen) for node in grid.nodes.values()] == [1 + ROUNDS] * len(grid.nodes)


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
    assert said.startswith("no node answers as secureps does, each asked 3 times: <class")
    assert said.endswith("KeyError: 'arrays''>; has the ClientApp mods=[secureps_mod]?")
    assert len(said) < 700
    assert [len(node.seen) for node in grid.nodes.values()] == [3] * 3


def test_an_app_that_answers_in_the_clear_ends_the_run_at_once(tmp_path: Path) -> None:
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Any) -> Message:
        return Message(content=RecordDict({"metrics": MetricRecord({"n": 1})}), reply_to=message)

    with pytest.raises(NotReady, match="it answered in the clear; has the ClientApp mods="):
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

    grid = played(tmp_path, make_app(), {(2, 2): acts})
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
