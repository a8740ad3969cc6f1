"""For whom a run waits, and which viewers see names."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from secureps.dashboard import Json
from secureps.dashboard.observation import KEPT, Course, Facts, Observation, Seen, add_journal
from secureps.dashboard.operator_view import AT, NAMED, ROWS, STEPS, blockers, operator_view
from secureps.messages.requests import (
    CohortSteps,
    Figure,
    MemberStatus,
    Move,
    ServerStatus,
    Status,
    Telemetry,
)
from secureps.roles.coordinator.group import Phase
from tests.kits.dashboards import CLIENTS, STATUS, without
from tests.kits.federations import small_plan

PLAN = small_plan("rlwe")


def change(at: float, party: str, role: str, state: str, before: str, seconds: float) -> Json:
    made = {"at": at, "party": party, "role": role, "state": state}
    return made | {"before": before, "seconds": seconds}


def text_of(page: Json) -> str:
    return json.dumps(page, default=asdict)


def seen(status: Status, *before: Status) -> Seen:
    looks = Observation()
    for at, each in enumerate((*before, status)):
        looks.take(each, float(at))
    return looks.seen


def waits(status: Status, plan: object = PLAN) -> list[tuple[str, str]]:
    return [(each["name"], each["why"]) for each in blockers(seen(status), PLAN if plan else None)]


def test_a_shard_that_is_away_is_named_before_a_client_that_is_late() -> None:
    assert waits(without(STATUS, "shard-1")) == [
        ("shard-1", "is away"),
        ("hospital-of-st.-anne", "owes an update"),
    ]
    (shard, _) = blockers(seen(without(STATUS, "shard-1"), STATUS), PLAN)
    assert shard["since"] == 1.0


def test_key_holders_that_others_can_stand_in_for_keep_nobody_waiting() -> None:
    """Three of four must agree."""
    assert waits(without(STATUS, "holder-3")) == waits(STATUS)
    two = waits(without(STATUS, "holder-2", "holder-3"))
    assert [name for name, _ in two] == ["holder-2", "holder-3", "hospital-of-st.-anne"]


def test_before_version_0_every_key_holder_is_needed() -> None:
    (group,) = STATUS.groups
    unfounded = replace(STATUS, groups=(replace(group, version=-1, late=()),))
    assert waits(without(unfounded, "holder-3")) == [("holder-3", "is away")]
    assert waits(replace(without(unfounded, "holder-3"), run=b""), None) == [
        ("holder-3", "is away")
    ]


def test_who_never_came_is_said_so_and_trouble_too() -> None:
    for changes, why in (
        ({"registered": False, "live": False}, "was never here"),
        ({"trouble": "waits for its own disk"}, "waits for its own disk"),
    ):
        assert waits(with_server("shard-1", **changes))[0] == ("shard-1", why)


def with_server(name: str, **changes: Any) -> Status:
    servers = (replace(s, **changes) if s.name == name else s for s in STATUS.servers)
    return replace(STATUS, servers=tuple(servers))


def test_a_client_that_is_late_and_gone_is_said_so() -> None:
    late = waits(without(STATUS, CLIENTS[2]))
    assert late == [(CLIENTS[2], "owes an update, and is gone")]


def test_a_client_that_is_just_at_work_is_no_trouble() -> None:
    for away, ill in (((), [False]), ((CLIENTS[2],), [True]), (("shard-0",), [True, False])):
        assert [each["ill"] for each in blockers(seen(without(STATUS, *away)), PLAN)] == ill


def test_of_many_who_are_awaited_some_are_named() -> None:
    (group,) = STATUS.groups
    many = tuple(f"c-{i}" for i in range(5000))
    view = shown(seen(replace(STATUS, groups=(replace(group, late=many),))))
    assert len(view["blocking"]) == NAMED
    assert (len(view["groups"][0]["late"]), view["groups"][0]["late_in_all"]) == (ROWS, 5000)


def test_a_silent_coordinator_is_who_blocks_and_a_run_that_is_over_waits_for_nobody() -> None:
    looks = Observation()
    looks.take(STATUS, 1.0)
    silent = looks.miss("no connection to coordinator", 2.0)
    (first, *_) = blockers(silent, PLAN)
    assert (first["name"], first["why"], first["since"]) == (
        *("coordinator", "no connection to coordinator", 2.0),
    )
    assert blockers(looks.miss("all 4 versions are made", 3.0, over=True), PLAN) == []
    over = replace(without(STATUS, "shard-1"), finished="all 4 versions are made")
    assert waits(over) == []
    assert shown(seen(over))["over"]


def states(view: Json) -> set[str]:
    """Returns the states of all parties and clients except the coordinator."""
    servers = {row["state"] for row in view["parties"] if row["name"] != "coordinator"}
    return servers | {row["state"] for row in view["clients"]}


def shown(looks: Seen, course: Course | None = None, names: bool = True) -> Json:
    return operator_view(Facts(seen=looks, plan=PLAN, course=course), names)


def test_while_the_coordinator_is_silent_nobody_knows_who_is_there() -> None:
    looks = Observation()
    looks.take(without(STATUS, "shard-1", CLIENTS[2]), 1.0)
    view = shown(looks.miss("no connection to coordinator", 2.0))
    assert states(view) == {"not known"}
    assert {row["live"] for row in view["clients"]} == {None}
    assert [(row["state"], row["since"]) for row in view["parties"][:1]] == [("silent", 2.0)]
    assert [each["name"] for each in view["blocking"]] == ["coordinator"]
    assert (view["calm"], view["fresh"], view["states"]) == ("", False, {"not known": 3})
    assert states(shown(looks.take(STATUS, 3.0))) == {"here", "waits"}, "it has answered again"


def test_a_run_that_ended_is_calm_whoever_is_there() -> None:
    gone = without(STATUS, "shard-1", "holder-0", *CLIENTS)
    looks = Observation()
    looks.take(gone, 1.0)
    finished = replace(gone, finished="all 4 versions are made")
    for ended, headline in (
        (looks.miss("stopped; secureps resume goes on", 2.0, over=True), "stopped; secureps"),
        (seen(finished), "finished: all 4 versions are made"),
        (Seen(finished, over=True, silent="all 4 versions are made", recalled=True), "finished: "),
        (seen(replace(finished, failure="Refused")), "failed: all 4 versions are made"),
    ):
        view = shown(ended)
        assert states(view) == {"ended"}
        assert [row["state"] for row in view["parties"][:1]] == ["ended"]
        assert {row["live"] for row in view["clients"]} == {None}
        assert (view["blocking"], view["calm"], view["over"]) == ([], "Nobody is waited for.", True)
        assert view["headline"].startswith(headline)


def test_what_a_client_was_told_or_said_stays_known() -> None:
    said = ("left out: by the operator", "stopped: its budget is spent", "revoked", "gone")
    members = tuple(
        replace(each, live=False, state=state)
        for each, state in zip(
            (*STATUS.members, replace(STATUS.members[0], name="client-09")), said, strict=True
        )
    )
    status = replace(STATUS, members=members, finished="all 4 versions are made")
    assert sorted(row["state"] for row in shown(seen(status))["clients"]) == sorted(
        (*said[:3], "ended")
    )


def test_by_the_journal_alone_it_is_known_how_a_run_stands_and_not_who_is_there() -> None:
    view = shown(add_journal(Seen(), without(STATUS, "shard-1", "client-00")))
    assert states(view) == {"not known"}
    assert view["parties"][0]["state"] == "not known", "nobody asked it"
    assert (view["blocking"], view["calm"], view["asked"]) == ([], "", True)
    assert view["headline"].startswith("this is by the coordinator's journal")
    assert [row["epsilon"] for row in view["clients"]] == ["1.250"] * 3
    assert (view["up"], view["down"]) == (None, None)


def test_before_any_status_nothing_is_said_to_be_well() -> None:
    view = shown(Seen())
    assert (view["calm"], view["asked"], view["up"], view["timeline"]) == ("", False, None, None)
    assert [(row["name"], row["state"]) for row in view["parties"]] == [
        ("coordinator", "not known")
    ]
    unfounded = shown(Seen(), Course(rows=1))
    assert unfounded["asked"], "the journal says that no run is founded"


def test_the_journals_status_stands_where_the_coordinators_is_missing_or_its_last() -> None:
    newer = replace(STATUS, incarnation=2)
    looks = Observation()
    assert add_journal(looks.seen, newer).status == newer
    live = looks.take(STATUS, 1.0)
    assert add_journal(live, newer) is live
    silent = looks.miss("no connection", 2.0)
    assert add_journal(silent, newer).status == STATUS, "it may come again"
    over = looks.miss("stopped", 3.0, over=True)
    assert add_journal(over, newer).status == newer
    assert add_journal(over, None) is over


def test_every_phase_is_at_a_step_and_steps_go_on() -> None:
    assert {phase.value for phase in Phase} - AT.keys() == {"founding"}
    at = [AT[phase] for phase in ("collecting", "holding", "opening", "preparing", "waiting")]
    assert at == sorted(at)
    assert [STEPS[number - 1] for number in at] == ["close", "hold", "open", "prepare", "publish"]


def test_a_group_says_how_far_it_is_and_of_how_much() -> None:
    view = shown(seen(STATUS))
    (group,) = view["groups"]
    assert tuple(group[key] for key in ("version", "wanted", "step", "late")) == (
        3,
        4,
        1,
        CLIENTS[2:],
    )
    assert operator_view(Facts(seen=seen(STATUS)), True)["groups"][0]["wanted"] is None


def test_servers_have_a_row_each_with_what_they_hold() -> None:
    view = shown(seen(replace(STATUS, incarnation=2)))
    rows = {row["name"]: (row["state"], row["detail"]) for row in view["parties"]}
    assert rows["coordinator"] == ("here", "started 2 times")
    assert rows["shard-1"] == ("here", "2 blocks")
    assert len(rows) == 7


def test_clients_in_trouble_come_first_and_not_all_of_many_are_listed() -> None:
    many = tuple(
        MemberStatus(f"c-{i:05d}", i != 777, "gone" if i == 777 else "waits", 1, 1, 0.5, False)
        for i in range(5000)
    )
    view = shown(seen(replace(STATUS, members=many)))
    assert len(view["clients"]) == ROWS
    assert view["clients"][0]["name"] == "c-00777"
    assert view["states"] == {"waits": 4999, "gone": 1}


STEPS_BURNT = CohortSteps("all", 2, 3, 3, 0.0, 1.0, ended="burnt", why="client-00 sent nonsense")
COURSE = Course(40, (STEPS_BURNT,))


def test_without_the_journal_a_page_has_its_timeline_of_the_status() -> None:
    made = CohortSteps("all", 1, 2, 3, 0.0, 1.0, 1.5, 2.0, 2.5, 3.0)
    status = replace(STATUS, steps=(made, STEPS_BURNT), burnt=7, checkpoint=2)
    view = shown(seen(status))
    assert view["timeline"] == [made, STEPS_BURNT]
    assert (view["burnt"], view["burnt_in_all"], view["checkpoint"]) == ([STEPS_BURNT], 7, 2)
    hidden = shown(seen(status), names=False)
    assert hidden["timeline"] is not None
    assert "client-00" not in text_of(hidden)
    nothing = shown(seen(replace(STATUS, run=b"")))
    assert (nothing["timeline"], nothing["burnt"], nothing["checkpoint"]) == (None, None, None)
    known = shown(seen(replace(status, steps=())), COURSE)
    assert (known["burnt"], known["burnt_in_all"]) == ([STEPS_BURNT], 7), "of the journal"


@pytest.mark.parametrize("over", ["", "stopped: client-00 left, hospital-of-st.-anne rests"])
def test_who_may_not_know_clients_reads_no_name_of_one(over: str) -> None:
    paused = "paused by the operator, client-00 asked for it"
    trouble = with_server("holder-0", trouble="finds flaws of client-01")
    status = replace(without(trouble, "client-00"), finished=over)
    looks = seen(replace(status, paused=paused, move=MOVE), STATUS)
    view = shown(looks, COURSE)
    move = "add-shard shard-9: 1 of 4 blocks, 256 B of 1.0 kB; waits for client-00"
    assert (view["paused"], view["move"]) == (paused, move)
    assert shown(seen(status), COURSE)["move"] == ""
    named = text_of(view)
    unnamed = text_of(shown(looks, COURSE, names=False))
    assert all(name in named for name in CLIENTS)
    assert not any(name in unnamed for name in CLIENTS)
    assert "clients sent nonsense" in unnamed


@pytest.mark.parametrize("over", [False, True])
def test_words_of_whoever_ended_a_run_are_for_those_who_may_know_names(over: bool) -> None:
    """No status arrived, so it is unknown which words are names."""
    silent = Observation().miss("failed: client-05 cannot take part", 1.0, over)
    assert "client-05" in shown(silent)["headline"]
    unnamed = shown(silent, names=False)
    assert "client-05" not in text_of(unnamed)
    assert unnamed["headline"] == ("it has ended" if over else "the coordinator is silent")


SPARE = ServerStatus("shard-9", "shard", True, False, trouble="has left: removed by the operator")
MOVE = Move("add-shard", "shard-9", 1, 4, 256, 1024, "waits for client-00")


def test_nobody_waits_for_a_shard_that_holds_nothing() -> None:
    status = replace(STATUS, servers=(*STATUS.servers, SPARE))
    assert [each["name"] for each in blockers(seen(status), PLAN)] == [
        each["name"] for each in blockers(seen(STATUS), PLAN)
    ]
    (row,) = [each for each in shown(seen(status))["parties"] if each["name"] == "shard-9"]
    assert row["detail"] == "0 blocks; has left: removed by the operator"


def test_who_goes_and_comes_back_is_told_with_how_long() -> None:
    looks = Observation()
    assert looks.take(STATUS, 100.0).changes == ()
    gone = looks.take(without(STATUS, "shard-1"), 101.0)
    assert gone.changes == (change(101.0, "shard-1", "shard", "away", "here", 1.0),)
    assert gone.since["shard-1"] == 101.0
    assert gone.since["shard-0"] == 100.0
    back = looks.take(STATUS, 103.5)
    assert back.changes[0] == change(103.5, "shard-1", "shard", "here", "away", 2.5)
    assert len(back.changes) == 2


def test_a_client_that_trains_is_no_other_than_one_that_waits() -> None:
    looks = Observation()
    looks.take(STATUS, 1.0)
    trains = replace(STATUS, members=tuple(replace(m, state="trains") for m in STATUS.members))
    assert looks.take(trains, 2.0).changes == ()
    gone = looks.take(without(STATUS, "client-00"), 3.0).changes
    assert [(each["party"], each["state"]) for each in gone] == [("client-00", "gone")]


def test_a_silent_coordinator_is_one_change_and_keeps_what_was_known() -> None:
    looks = Observation()
    looks.take(STATUS, 10.0)
    looks.miss("no connection", 11.0)
    seen = looks.miss("still none", 12.0)
    assert (seen.silent, seen.silent_since, seen.status) == ("still none", 11.0, STATUS)
    assert [(each["party"], each["state"]) for each in seen.changes] == [("coordinator", "silent")]
    again = looks.take(STATUS, 14.0)
    assert (again.silent, again.silent_since) == ("", None)
    assert again.changes[0] == change(14.0, "coordinator", "coordinator", "here", "silent", 3.0)


def test_before_a_first_answer_silence_is_no_change() -> None:
    seen = Observation().miss("is being started", 5.0)
    assert (seen.status, seen.silent, seen.silent_since, seen.changes) == (
        *(None, "is being started", 5.0, ()),
    )


def test_costs_are_those_of_all_statuses_and_of_none_twice() -> None:
    looks = Observation()
    looks.take(STATUS, 1.0)
    seen = looks.take(STATUS, 2.0)
    cost = seen.costs[-1]
    assert (cost["group"], cost["version"], cost["up"], cost["epsilon"]) == ("all", 3, 1000.0, 1.25)
    assert cost["seconds"]["adding"] == 0.25
    assert seen.up == 1000.0
    later = (Telemetry("client-01", "all", 3, (Figure("bytes_up", 24.0),)),)
    assert looks.take(replace(STATUS, telemetry=later), 3.0).up == 1024.0


def test_what_is_kept_is_bounded() -> None:
    looks = Observation()
    for at in range(3 * KEPT):
        seen = looks.take(without(STATUS, "shard-1") if at % 2 else STATUS, float(at))
    assert len(seen.changes) == KEPT
    (group,) = STATUS.groups
    far = replace(STATUS, groups=(replace(group, version=10_000),))
    assert looks.take(far, 0.0).costs == (), "of versions that nobody reported of it is not known"
    reports = (Telemetry("c", "all", v, (Figure("bytes_up", 1.0),)) for v in range(9900, 10_001))
    known = looks.take(replace(far, telemetry=tuple(reports)), 0.0).costs
    assert [cost["version"] for cost in known] == list(range(9961, 10_001))
