"""A status as an operator and as a program see it, once and again."""

import dataclasses
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from secureps.dashboard.observation import presence
from secureps.messages.evaluation import (
    EvaluationSkipped,
    EvaluationStatus,
    Metric,
    VersionEvaluated,
)
from secureps.messages.requests import (
    CohortSteps,
    Figure,
    GroupStatus,
    Holding,
    Join,
    MemberStatus,
    Move,
    Register,
    ServerStatus,
    Status,
    Telemetry,
)
from secureps.messages.run import ShardAddress
from secureps.messages.scaling import ScalingStatus, ScalingStep, ShardLoad
from secureps.roles.coordinator import status
from secureps.roles.coordinator.group import Phase
from secureps.roles.shard.memory_report import HITS, MEMORY, RESIDENT, WAIT_SECONDS, WAITS
from secureps.run.report.status_tables import (
    evaluation_parts,
    record,
    scaling_lines,
    show,
    show_fitting,
    show_json,
)
from secureps.run.report.status_tables import skip_lines as reasons_of
from secureps.run.report.terminal import fold_rows, fold_versions, reason_line, table
from secureps.service.metrics import Metrics
from tests.kits.federations import small_federation, small_plan, status_of
from tests.kits.roles_kit import CLIENTS, SCHEMA, SHARDS, World, make_plan

STATUS = Status(
    run=b"\x01" * 32,
    incarnation=2,
    finished="",
    groups=(GroupStatus("all", 3, "collecting", "waits for 1 of 6", ("client-05",)),),
    members=(MemberStatus("client-00", True, "waits", 3, 3, math.inf, True),),
    shards=(ShardAddress("shard-0", "here:1", 1.0), ShardAddress("shard-1", "here:2", 0.5)),
    telemetry=(),
    holdings=(Holding("shard-0", 3, 768),),
)


def displayed(
    *parts: Any, by: Callable[[Status, Console], None] = show, width: int = 200, **screen: Any
) -> str:
    told = io.StringIO()
    console = Console(file=told, width=width, **screen)
    for part in parts:
        by(part, console) if isinstance(part, Status) else console.print(part)
    return told.getvalue()


def rows(text: str) -> list[list[str]]:
    """The words of each line, without what is drawn between columns."""
    return [line.split() for line in text.replace("\u2502", " ").splitlines()]


def test_tables_say_who_holds_what_and_what_a_group_waits_for() -> None:
    told = displayed(STATUS)
    assert "0101010101010101: started 2 times" in told
    assert "waits for 1 of 6" in told
    lines = rows(told)
    assert ["shard-0", "here:1", "1", "3", "768", "B"] in lines
    assert ["shard-1", "here:2", "0.5", "0", "0", "B"] in lines


def test_a_status_says_of_how_many_clients_a_version_is() -> None:
    made = [CohortSteps("all", n, 2 + n, 4 + n, 0.0, 1.0, committed=2.0) for n in range(2)]
    steps = (*made, CohortSteps("all", 2, 4, 1, 0.0, 1.0))
    assert "version 3 is of 5 clients" in displayed(dataclasses.replace(STATUS, steps=steps))
    groups = tuple(dataclasses.replace(STATUS.groups[0], name=name) for name in ("all", "counts"))
    both = (*steps, CohortSteps("counts", 0, 3, 5, 0.0, 1.0, committed=2.0))
    told = displayed(dataclasses.replace(STATUS, groups=groups, steps=both))
    assert "newest versions: of 5 clients (all, counts)" in told


def test_a_coordinator_moves_no_cursor() -> None:
    hostile = dataclasses.replace(
        STATUS,
        finished="\x1b]0;you\nwon\x07",
        groups=(GroupStatus("all", 3, "collecting", "\x1b[2Jwaits", ("\x1b[31mclient",)),),
        members=(MemberStatus("\u202eclient", True, "rests: \x9b2J", 3, 3, 1.0, False),),
        servers=(ServerStatus("\x1b[Hshard-0", "shard\r", True, True, trouble="\x08\x08ok"),),
        shards=(ShardAddress("\x1b[A", "here:1\x1b[2J", 1.0),),
    )
    for each in (hostile, dataclasses.replace(hostile, run=b"")):
        told = displayed(each)
        assert "[2J" in told, "it is told"
        assert all(line.isprintable() for line in told.split("\n"))


def test_servers_with_the_same_trouble_share_a_row() -> None:
    no = "takes no part in the run: no"
    servers = (
        *(ServerStatus(f"holder-{k}", "holder", False, False, trouble=no) for k in range(3)),
        ServerStatus("holder-3", "holder", True, True),
        ServerStatus("holder-4", "holder", True, True),
    )
    told = displayed(dataclasses.replace(STATUS, servers=servers))
    assert told.count(no) == 1
    assert "holder-0, holder-1, holder-2 │ key holder" in told
    assert ["holder-3", "key", "holder", "live"] in rows(told)
    assert ["holder-4", "key", "holder", "live"] in rows(told)


def test_without_privacy_there_is_no_epsilon() -> None:
    members = (MemberStatus("client-00", True, "waits", 3, 0, math.inf, False),)
    told = displayed(dataclasses.replace(STATUS, members=members))
    assert "no privacy" in told
    assert "inf" not in told


def test_what_follows_the_load_is_told_with_the_figures_that_it_goes_by() -> None:
    step = ScalingStep(312.0, "add-shard shard-2", "3 shards instead of 2")
    came = (ShardLoad("shard-0", 1200.0),)
    own = ScalingStatus("fitted", "", 1.0, 1.0, came, (step,), 0.614, 0.04)
    assert list(scaling_lines(own)) == [
        "scaling by fitted: on",
        "  came to shard-0 1.2 kB/s",
        "  0.614 updates/s that count, 4% lost",
        "  at 312 s: add-shard shard-2: 3 shards instead of 2",
    ]
    assert len(list(scaling_lines(dataclasses.replace(own, steps=(), loads=())))) == 1


def test_json_says_the_same_in_one_line() -> None:
    (line,) = displayed(STATUS, by=show_json).splitlines()
    told_record = json.loads(line)
    assert told_record["groups"][0]["late"] == ["client-05"]
    assert told_record["members"][0]["epsilon"] is None
    assert told_record["members"][0]["unsafe"]
    held = [(shard["name"], shard["blocks"], shard["bytes"]) for shard in told_record["shards"]]
    assert held == [("shard-0", 3, 768), ("shard-1", 0, 0)]


def test_shards_with_a_limit_say_how_full_it_is() -> None:
    values = (64e6, 48e6, 9.0, 1.0, 0.002)
    names = (MEMORY, RESIDENT, HITS, WAITS, WAIT_SECONDS)
    figures = tuple(Figure(name, value) for name, value in zip(names, values, strict=True))
    status = dataclasses.replace(STATUS, telemetry=(Telemetry("shard-0", "all", 3, figures),))
    told = displayed(status)
    assert "48.0 MB of 64.0 MB; 90% hits; 1 wait, 2.0 ms each" in told
    assert [shard["memory"] for shard in record(status)["shards"]] == [
        {
            "memory": 64_000_000,
            "resident": 48_000_000,
            "hits": 9,
            "waits": 1,
            "wait_seconds": 0.002,
        },
        None,
    ]


def test_a_watch_shows_what_the_terminal_has_room_for_and_who_is_gone_first() -> None:
    states = {77: "gone", 78: "revoked"}
    members = tuple(
        MemberStatus(f"client-{i:02d}", i not in states, states.get(i, "waits"), 3, 3, 1.0, False)
        for i in range(90)
    )
    status = dataclasses.replace(STATUS, members=members)
    shown = displayed(status, by=show_fitting, width=100, height=30, force_terminal=True)
    assert len(shown.splitlines()) == 28
    assert "waits for 1 of 6" in shown
    assert "client-77" in shown
    assert "client-78" in shown
    assert "client-89" not in shown
    assert "shard-1" in shown, "the servers are below the clients"
    rows = sum(line.startswith("\u2502 client-") for line in shown.splitlines())
    assert f"{90 - rows} more" in shown
    assert f"{90 - rows} waits" in shown


def test_where_all_fits_all_is_shown() -> None:
    fitting, plain = (displayed(STATUS, by=by, height=60) for by in (show_fitting, show))
    assert [line.rstrip() for line in fitting.split("\n")] == [
        line.rstrip() for line in plain.split("\n")
    ]


def test_who_is_away_is_named_by_the_group_that_waits(tmp_path: Path) -> None:
    simulation = small_federation(small_plan("bfv"), tmp_path)
    simulation.run(lambda: simulation.versions()["all"] >= 1)
    states = {s.name: (s.role, s.registered, s.live) for s in status_of(simulation).servers}
    assert states == {
        "holder-0": ("holder", True, True),
        "shard-0": ("shard", True, True),
        "shard-1": ("shard", True, True),
    }
    assert "away" not in status_of(simulation).groups[0].reason
    simulation.kill("shard-1")
    simulation.run(lambda: not all(s.live for s in status_of(simulation).servers))
    status = status_of(simulation)
    assert [s.name for s in status.servers if not s.live] == ["shard-1"]
    assert status.groups[0].reason.endswith("; shard-1 is away")
    metrics = Metrics()
    metrics.on_state(simulation.coordinator, simulation.loop.now())
    away = partial(metrics.registry.get_sample_value, "secureps_servers_away")
    assert (away({"role": "shard"}), away({"role": "holder"})) == (1, 0)
    assert record(status)["servers"][2] == {
        "name": "shard-1",
        "role": "shard",
        "registered": True,
        "live": False,
        "accuses": 0,
        "trouble": "",
        "state": "away",
    }
    told = displayed(status)
    lines = rows(told)
    assert ["shard-1", "shard", "away"] in lines
    assert ["holder-0", "key", "holder", "live"] in lines


def test_a_key_holder_that_left_after_the_run_has_ended() -> None:
    """As that of `join --hold` does; a shard is not meant to go, and a failed run needs both."""
    servers = (
        ServerStatus("client-00-holder", "holder", True, False),
        ServerStatus("holder-1", "holder", True, True),
        ServerStatus("shard-0", "shard", True, False),
    )
    over = dataclasses.replace(STATUS, servers=servers, finished="all 3 versions are made")
    states = ["ended", "live", "away"]
    assert [each["state"] for each in record(over)["servers"]] == states
    assert ["client-00-holder", "key", "holder", "ended"] in rows(displayed(over))
    assert presence(over)["client-00-holder"] == ("holder", "ended")
    for other in (STATUS, dataclasses.replace(over, failure="TooFew")):
        going_on = dataclasses.replace(other, servers=servers)
        assert record(going_on)["servers"][0]["state"] == "away"


def test_a_move_of_blocks_is_shown() -> None:
    move = Move("drain-shard", "shard-1", 1, 4, 256, 1024)
    told = displayed(dataclasses.replace(STATUS, move=move))
    assert "drain-shard shard-1: 1 of 4 blocks, 256 B of 1.0 kB" in told.splitlines()
    assert record(dataclasses.replace(STATUS, move=move))["move"]["moved"] == 1
    assert record(STATUS)["move"] is None


def test_members_that_a_round_waits_for_are_named() -> None:
    world = World(make_plan())
    world.servers()
    for client in CLIENTS:
        world.give(client, Join(client, SCHEMA))
    world.group().phase, world.group().reason = Phase.WAITING, "waits"
    tx = world.coordinator._tx(10_000.0)
    assert status.status(tx, ()).groups[0].reason == "waits; c0, c1, c2 are away"
    tx.live = frozenset({"c0", "c2"})
    assert status.status(tx, ()).groups[0].reason == "waits; c1 is away"
    tx.live = frozenset()
    gone = tuple(ServerStatus(name, "shard", True, False) for name in SHARDS)
    told = status.status(tx, (), gone).groups[0].reason
    assert told == "waits; shard-a, shard-b, c0 and 2 more are away"
    state = world.coordinator.federation
    state.why_gone.update(c1="by its own terms: budget", c2="by its own terms")
    state.retired.add("c1")
    told = status.status(tx, ()).groups[0].reason
    assert told == "waits; c0 is away; c1 stopped; c2 rests"
    world.group().phase = Phase.COLLECTING
    assert status.status(tx, ()).groups[0].reason == "waits"


def test_before_there_is_a_run_it_says_who_is_missing() -> None:
    world = World(make_plan("bfv"))
    names = [server.name for server in world.coordinator.servers]

    def told() -> str:
        tx, servers = world.coordinator._tx(0.0), world.coordinator.servers
        return " ".join(displayed(status.status(tx, (), servers)).split())

    for place, name in enumerate(names):
        here, missing = ", ".join(names[:place]) or "nobody", ", ".join(names[place:])
        wanted = f"not founded: waits for {missing} and a first client (registered: {here})"
        assert told().startswith(wanted)
        world.give(name, Register(name, "a:1", 1.0, 0))
    assert told().startswith("not founded: waits for a first client (registered: ")
    assert "-1" not in told()
    assert "why" not in told(), "nothing else is known of groups"
    world.give(CLIENTS[0], Join(CLIENTS[0], SCHEMA))
    assert f"not founded: waits for the first model of {CLIENTS[0]}" in told()


def test_the_coordinator_counts_blocks_and_bytes_by_placement(tmp_path: Path) -> None:
    simulation = small_federation(small_plan(), tmp_path)
    simulation.run(lambda: simulation.versions()["all"] >= 1)
    status = status_of(simulation)
    held = {h.shard: h for h in status.holdings}
    assert set(held) == {"shard-0", "shard-1"}
    # 30 x 7 weights and 7 biases, in blocks of 64
    assert sum(h.blocks for h in held.values()) == 4
    assert sum(h.bytes for h in held.values()) == 4 * (30 * 7 + 7)
    federation = simulation.coordinator.federation
    for shard, blocks in federation.owners("all").items():
        assert held[shard].blocks == len(blocks)


def test_a_metric_has_no_more_digits_than_its_noise_leaves() -> None:
    result = VersionEvaluated(2, (Metric("accuracy", 3.3412), Metric("loss", -24.31)))
    own = EvaluationStatus("waiting", "", (), (result,), 0, ())
    assert "3.3412" in displayed(*evaluation_parts(own))
    noisy = dataclasses.replace(own, noise=(Metric("accuracy", 0.034), Metric("loss", 19.0)))
    told = displayed(*evaluation_parts(noisy))
    assert "3.341 +- 0.034" in told
    assert "-24 +- 19" in told


def skips(*reasons: str) -> EvaluationStatus:
    """Of versions 2, 4, ..."""
    found = tuple(EvaluationSkipped(2 * i + 2, reason) for i, reason in enumerate(reasons))
    return EvaluationStatus("done", "all versions are made", (), (), 0, found)


def test_evaluations_that_were_all_skipped_are_told_with_the_reasons() -> None:
    own = skips("client-06 is not there", "client-06 is not there", "given up: too few")
    told = displayed(dataclasses.replace(STATUS, evaluation=own))
    lines = told.splitlines()
    assert "the federation's own evaluation, 0 versions" in lines
    assert "skipped: version 2, 4: client-06 is not there" in lines
    assert "skipped: version 6: given up: too few" in lines
    assert list(reasons_of(skips("no data (a, b)", "no data (c)", "no key (c)"))) == [
        "skipped: version 2, 4: no data (a, b)",
        "skipped: version 6: no key (c)",
    ]
    told_record = record(dataclasses.replace(STATUS, evaluation=own))
    assert told_record["evaluation"]["skipped"][2] == {"version": 6, "reason": "given up: too few"}


def test_reasons_of_skipped_evaluations_take_little_room() -> None:
    own = skips(*["away"] * 40, *(f"reason {i}" for i in range(10)))
    lines = displayed(*evaluation_parts(own)).splitlines()
    assert lines[1:3] == ["skipped: 44 versions before these", "skipped: version 90: reason 4"]
    assert len(lines) == 8
    told = displayed(*evaluation_parts(skips(*["away"] * 40)))
    assert "skipped: version 2, 4, 6, 8, 10, 12 and 34 more: away" in told


def test_a_status_tells_the_newest_reasons_and_not_the_whole_of_a_long_one() -> None:
    world = World(make_plan(evaluation={"every": 1, "metrics": {"loss": 4.0}}))
    world.servers()
    for version in range(1, 60):
        world.coordinator.apply(0.0, EvaluationSkipped(version, f"{version} " + "x" * 1000))
    own = status.status(world.coordinator._tx(0.0), ()).evaluation
    assert own is not None
    assert [each.version for each in own.skipped] == list(range(1, 60))
    told = [each for each in own.skipped if each.reason]
    assert [each.version for each in told] == list(range(40, 60))
    assert max(len(each.reason) for each in told) == 200


PRIVATE = {
    "privacy": {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "sample_rate": 0.5,
        "delta": 1e-5,
        "budget": 9.0,
        "adjacency": "zero-out",
    },
    "training": {"local_steps": 1},
}


@pytest.mark.parametrize(
    ("own", "says"), [(PRIVATE, "one record replaced by nothing"), ({}, "")], ids=["private", ""]
)
def test_a_status_says_what_its_epsilons_are_of(own: dict[str, Any], says: str) -> None:
    world = World(make_plan(**own))
    world.servers()
    for client in CLIENTS:
        world.give(client, Join(client, SCHEMA))
    shown = status.status(world.coordinator._tx(0.0), ())
    assert (shown.adjacency, shown.delta) == (says, 1e-5 if says else 0.0)
    assert record(shown)["adjacency"] == says
    assert record(shown)["delta"] == (1e-5 if says else None)
    for by in (show, show_fitting):
        told = displayed(shown, by=by, height=60)
        assert (f"clients; epsilon (delta 1e-05) is of {says}" in told) is bool(says)
        assert ("epsilon (delta" in told) is bool(says)


def block(number: int, version: int, step: str = "collecting", why: str = "waits") -> GroupStatus:
    late = (f"client-{number}",)
    return GroupStatus(f"table.{number}", version, step, why, late)


def test_row_blocks_are_one_row_with_the_slowests_reason() -> None:
    blocks = [block(k, 5 + k % 3, why=f"{k} of 8 updates are here") for k in range(40)]
    blocks[17] = block(17, 2, "opening", "waits for key holders")
    tower = GroupStatus("tower", 9, "waiting", "waits for members", ())
    found = fold_rows([*blocks, tower])
    assert [row["group"] for row in found] == ["table.0-39", "tower"]
    assert found[0]["version"] == "2 to 7"
    assert found[0]["step"] == "39 collecting, 1 opening"
    assert found[0]["why"] == "table.17: waits for key holders"
    assert found[0]["waits for"] == "client-0, client-1, client-10, client-11 and 36 more"


def test_whoever_is_done_holds_nobody_up() -> None:
    (row,) = fold_rows([block(0, 4, "done", "is over"), block(1, 6, why="1 of 5 updates are here")])
    assert row["why"] == "table.1: 1 of 5 updates are here"


def test_names_that_only_look_alike_are_rows_of_their_own() -> None:
    names = ["layer.0", "layer.2", "other.3", "other.x", "body"]
    found = fold_rows(GroupStatus(name, 1, "waiting", "waits", ()) for name in names)
    assert [row["group"] for row in found] == names


def test_an_only_group_is_not_named() -> None:
    only = GroupStatus("all", 3, "collecting", "4 of 6 have arrived; waits for eve", ("eve",))
    assert reason_line([only]) == "collecting: 4 of 6 have arrived; waits for eve"
    heads, cells = table([only])
    assert heads == ("version", "step", "why", "waits for")
    assert cells == [("3", "collecting", "4 of 6 have arrived; waits for eve", "eve")]
    assert (fold_versions({"all": 3}), fold_versions({"all": 3}, {"all": 15})) == ("3", "3 of 15")


def test_several_are_named_and_stand_side_by_side() -> None:
    blocks = [block(0, 5, "holding", "all are here"), block(1, 3, why="2 of 5 are here")]
    tower = GroupStatus("tower", 2, "waiting", "waits for members", (), 0.123456)
    assert reason_line([*blocks, tower]) == (
        "table.0-1 1 holding, 1 collecting: table.1: 2 of 5 are here / tower waiting: waits for "
        "members"
    )
    heads, cells = table([*blocks, tower])
    assert (heads[0], heads[-1]) == ("group", "clip")
    assert [(row[0], row[1], row[-1]) for row in cells] == [
        ("table.0-1", "3 to 5", "-"),
        ("tower", "2", "0.1235"),
    ]


def test_a_line_of_several_has_what_goes_on_and_no_clients() -> None:
    why = "2 of 8 have arrived; waits for client-03, client-04, client-05 and 3 more"
    tower = GroupStatus("tower", 14, "done", "all 14 versions are made", ())
    assert reason_line([*(block(k, 3, why=why) for k in range(40)), tower]) == (
        "table.0-39 collecting: 2 of 8 have arrived"
    )
    assert reason_line([tower, replace(tower, name="body")]).count("all 14 versions are made") == 2


def test_of_row_blocks_it_says_how_many_are_done() -> None:
    versions = {f"table.{k}": 12 if k < 12 else k % 3 for k in range(40)}
    wanted = dict.fromkeys([*versions, "tower"], 12)
    assert fold_versions(versions, wanted) == "12 of 40 row-blocks done"
    beside = fold_versions(versions | {"tower": 4}, wanted)
    assert beside == "table: 12 of 40 row-blocks done / tower 4 of 12"
    assert fold_versions(versions) == "0 to 12"


def test_what_is_not_founded_says_once_what_it_waits_for() -> None:
    why = "not founded: waits for shard-1 and a first client"
    blocks = [block(k, -1, "founding", why) for k in range(3)]
    tower = GroupStatus("tower", -1, "founding", why, ())
    assert reason_line([*blocks, tower]) == why
    assert [row[1] for row in table([*blocks, tower])[1]] == ["none", "none"]
