"""The privacy officer's page, from the available facts."""

from dataclasses import replace

from secureps.dashboard.holder_view import OwnLedger
from secureps.dashboard.observation import Course, Facts, Observation, Seen
from secureps.dashboard.operator_view import officer_view
from secureps.store.budget import RunSpent
from tests.kits.dashboards import STATUS
from tests.kits.federations import OF_RECORDS, small_plan


def seen() -> Seen:
    return Observation().take(STATUS, 1.0)


def test_epsilon_of_each_client_is_of_this_run_and_mark_unit() -> None:
    ledgers = {
        "client-00": OwnLedger((RunSpent(b"\x07" * 32, 2, 0.5),), 0.5),
        "somebody": OwnLedger((), None, None, "it is damaged"),
    }
    view = officer_view(Facts(seen=seen(), ledgers=ledgers))
    told = {
        each["name"]: (each["epsilon"], each["total"], each["trouble"]) for each in view["clients"]
    }
    assert told["client-00"] == ("1.250", 0.5, "")
    assert told["client-01"] == ("1.250", None, "")
    assert told["somebody"] == ("has not joined", None, "it is damaged")
    assert [each["ledger"] for each in view["clients"]] == [True, False, False, True]
    assert view["clients"][0]["runs"].keys() == {"07" * 8}
    assert (view["unit"], view["delta"]) == (STATUS.adjacency, 1e-5)
    assert [cost["epsilon"] for cost in view["costs"]] == [1.25]


def test_what_nobody_told_is_not_known_and_not_none() -> None:
    """Only a plan without privacy has an empty unit."""
    ledgers = {"client-00": OwnLedger()}
    unknown = Facts(ledgers=ledgers)
    view = officer_view(unknown)
    assert (view["unit"], [each["epsilon"] for each in view["clients"]]) == (None, ["not known"])
    plain = officer_view(replace(unknown, plan=small_plan("rlwe")))
    assert plain["unit"] == ""
    private = officer_view(replace(unknown, plan=small_plan("rlwe", **OF_RECORDS)))
    assert (private["unit"], private["delta"]) == ("one record added or removed", 1e-5)
    ended = replace(STATUS, finished="all 4 versions are made", members=())
    never = officer_view(replace(unknown, seen=Observation().take(ended, 1.0)))
    assert [each["epsilon"] for each in never["clients"]] == ["never joined"]


def test_openings_and_logs_are_told_as_they_are() -> None:
    holders = ({"name": "holder-0", "opened": 3, "why": "its ledger says no"},)
    logs = ({"file": "a.jsonl", "sound": False, "text": "entry 3 was changed"},)
    course = Course(7, holders=holders)
    view = officer_view(Facts(seen=seen(), course=course, logs=logs))
    assert (view["holders"], view["rows"], view["logs"], view["refused"]) == (holders, 7, logs, [])
