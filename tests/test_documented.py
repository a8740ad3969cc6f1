"""Every error that the operator's page explains is one that some test sees."""

from __future__ import annotations

import pytest

from tests import test_errors_rpc, test_errors_terminal, test_stolen_keys
from tests.documented import documented, says
from tests.nursery import ROOT

ELSEWHERE = {
    "...: an address has 300 letters, no more (the sender's fault)": (
        "test_extremes.py",
        "an address has 300 letters",
    ),
    "...: no file of a checkpoint: ... (the sender's fault)": (
        "test_extremes.py",
        "no file of a checkpoint",
    ),
    "...: ... has ... blocks, and is founded whole (the sender's fault)": (
        "test_shard_orders.py",
        "and is founded whole",
    ),
    "these are not the bytes that ... signed (the sender's fault)": (
        "test_floods.py",
        "these are not the bytes that",
    ),
    "...: it counts up to ... examples, and members of ... count up to ... (the sender's fault)": (
        "test_admission.py",
        "and members of ",
    ),
    "... has sent that once more already (the sender's fault)": (
        "test_stream_following.py",
        "has sent that once more already",
    ),
    "setting ... is not known; ... (the operator's fault)": ("test_settings.py", "is not known; "),
    "others wait, and this call has had its turn; go on with it later; still trying": (
        "test_places.py",
        "others wait, and this call has had its turn; go on with it later",
    ),
    "another connection of ... goes before a call on which nothing moves; still trying": (
        "test_places.py",
        "goes before a call on which nothing moves",
    ),
    "64 calls of ... are under way; still trying": ("test_floods.py", " are under way"),
    "the coordinator's is no placement of this run's blocks on shards of the roster: nothing was "
    "sent; ask the aggregator's operator (the sender's fault)": (
        "test_shard_orders.py",
        "no placement of this run's blocks",
    ),
    "... answered ... with ..., and not with ...: it is no secureps server of this version (the "
    "sender's fault)": ("test_executor.py", ": it is no secureps server of"),
    "...: ... ended the process it ran in, with ...; see ... (the script's fault)": (
        "test_script_process.py",
        "ended the process it ran in, with ",
    ),
    "a version has no held-out score: ...": ("test_up.py", "a version has no held-out score: "),
    "sends no evaluation: ...": ("test_evaluating_fails.py", "sends no evaluation: "),
    "update norm ..., clip ...: cut to ... %": ("test_batch_norm.py", "update norm"),
    "... of the update's ... values are beyond range ...: cut to it": (
        "test_batch_norm.py",
        "values are beyond range ",
    ),
    "not founded: waits for ...": ("test_standing.py", "not founded: waits for "),
    "waits for members: ... of ... are live": ("test_sync.py", "waits for members: "),
    "another version would bring epsilon to ..., the budget is ...: this client stops": (
        "test_member_sends.py",
        ": this client stops",
    ),
    "...: ... is left out of the run: ... spoils cohorts: ...": (
        "test_suspecting.py",
        " is left out of the run: ",
    ),
    "left out of this run: ... spoils cohorts: ... (the other side's fault)": (
        "test_suspecting.py",
        "left out of this run: ",
    ),
    "... cohorts in succession came to nothing at version ..., and every one was charged: ...": (
        "test_suspecting.py",
        " cohorts in succession came to nothing at version ",
    ),
    "fewer than ... clients are left for version ...: ...; suspected: ...": (
        "test_stream_following.py",
        " clients are left for version ",
    ),
    "... ended the simulation's process: ... (the script's fault)": (
        "test_last_words.py",
        " ended the simulation's process",
    ),
    "... died twice in the same way, with ..., and is not started again: ...; see ... (the "
    "operator's fault)": ("test_supervisor.py", "died twice in the same way, with "),
    "... cannot take part, and no restart mends that: ...; see ... (the operator's fault)": (
        "test_supervisor.py",
        " cannot take part, and no restart mends ",
    ),
    "... is given up: ...": ("test_suspecting.py", " is given up: "),
    "...: ... is not waited for: ... passed over after ... s": (
        "test_stream_lapses.py",
        " is not waited for: ",
    ),
    "... never comes: ...": ("test_stream_refusals.py", " never comes: "),
    "this holder takes no part in the run: ...": (
        "test_processes_holders.py",
        "this holder takes no part in the run: ",
    ),
    "blocks are sealed by 1 thread or more, got ... (the operator's fault)": (
        "test_blocks.py",
        "1 thread or more, got ",
    ),
    "the plan has ... key holders, and the kit keys of ...: issue the missing ones with ..., or "
    "change cipher.holders": ("test_serve.py", " key holders, and the kit keys of "),
    "the kit was made for another cipher than the plan's: its holders have ...; make a new kit "
    "with ...": ("test_serve.py", "made for another cipher than the plan's: its holders have "),
    "... has no cipher key of a holder called ...: under a cipher without one no key holder runs; "
    "otherwise ... makes it": ("test_serve.py", "has no cipher key of a holder called "),
    "... is signed by another CA: its fingerprint is ... and the pinned one ...": (
        "test_keyring.py",
        "another CA",
    ),
    "a CA's fingerprint has 64 hexadecimal digits, got ...: take it as ... prints it to the CA "
    "(the operator's fault)": (
        "test_pinned_ca.py",
        "a CA's fingerprint has 64 hexadecimal digits, got ",
    ),
    "the kit in ... is damaged: ...; fetch it anew": ("test_keyring.py", "damaged"),
    "... belongs to others or can be written to by them, and what is kept there is executed: chmod "
    "700 it, or name another folder (--kernels)": ("test_compiled.py", "chmod 700 it"),
    "... holds ...: name a folder of its own by --out, or remove this one": (
        "test_claim.py",
        "name a folder of its own by --out, or remove this one",
    ),
    "compiled kernels cannot be kept in ...: ...; name another folder (--kernels)": (
        "test_compiled.py",
        "name another folder",
    ),
    "...: ... found a flaw, not believed: ... finds flaws in what ... clients sent, and too few "
    "others do: ...": ("test_accusing.py", "clients sent, and too few others do"),
    "... has said three times within ... s that it takes part, and for what: it may say "
    "something else in ... s; still trying": (
        "test_stream_reception.py",
        "has said three times within ",
    ),
    "... is open to others: chmod 600 ...": ("test_keyring.py", "chmod 600 "),
    "the run is founded on another file than the one that this client was given: ask for the "
    "plan's file of version 0, and give that as the setting initial (the sender's fault)": (
        "test_initial.py",
        "founded on another file than the one that this client was given",
    ),
    "the run's plan is not the one that this client agreed to, in ...: ask the run's operator for "
    "the plan, see secureps check, and join with it (the sender's fault)": (
        "test_session.py",
        "agreed to, in ",
    ),
    "push: tensor ... has values that are NaN or infinite (the script's fault)": (
        "test_session.py",
        "has values that are NaN",
    ),
    "version 0 of the run is not the model of the file that this client was given (the "
    "setting initial); nothing was trained: ask the run's operator which file it is founded on "
    "(the sender's fault)": (
        "test_initial.py",
        "version 0 of the run is not the model of the file",
    ),
    "this folder holds another run: its plan or roster differs from what was given; start a new "
    "run in an empty folder": ("test_processes.py", "start a new run in an empty folder"),
    "...: a restore was cut short here: run secureps restore again (the operator's fault)": (
        "test_copies.py",
        "cut short here: run secureps restore again",
    ),
    "...: its journal is gone or an older copy, and no part of a checkpoint has version ... of "
    "...: ...": ("test_adopting.py", "no part of a checkpoint has version "),
    "... belongs to user ..., and this process runs as ...: chown -R ... ..., or run as the user "
    "whose it is (the operator's fault)": ("test_ownership.py", "and this process runs as "),
    "... can be written to by others, who may have changed what this party relies on: if they have "
    "not, chmod -R go-rwx ..., or give it a folder of its own (the operator's fault)": (
        "test_ownership.py",
        "chmod -R go-rwx ",
    ),
    "... parties take ... file descriptors, and this process may have ...: raise its limit (ulimit "
    "-n ..., LimitNOFILE=...) (the operator's fault)": ("test_limits.py", "parties take "),
    "... (ulimit ...: ..., or the container's own limit): this process ends; give it more and "
    "start it again, it goes on where it was (the operator's fault)": (
        "test_limits.py",
        "start it again",
    ),
    "another update would bring epsilon to ... over all runs that ... counts, and the budget is "
    "...: nothing more is sealed (the operator's fault)": (
        "test_budget.py",
        "nothing more is sealed",
    ),
    "the ledger counts single records in some runs and whole clients in others, and no epsilon is "
    "the sum of both: name another file by --ledger for this plan (the operator's fault)": (
        "test_budget.py",
        "no epsilon is the sum of both",
    ),
    "...: what is spent must be kept over all runs; name another file by --ledger (the operator's "
    "fault)": ("test_budget.py", "name another file by --ledger"),
    "this copy ends at row ..., and this ... has come to row ...: ...": (
        "test_copies.py",
        "ends at row ",
    ),
    "nothing says how far this ... had come: ...": ("test_copies.py", "nothing says how far this "),
    "...: ends at row ..., and ... rows were written: ...": (
        "test_height.py",
        " rows were written",
    ),
    "... takes part in run ..., and the coordinator's state folder holds no run: is a volume "
    "missing? ...": ("test_registration.py", "holds no run: is a volume missing?"),
    "... is asked, and this is ...; check the address (the other side's fault)": (
        "test_replays.py",
        "; check the address",
    ),
    "sign it under this challenge, and send it again (the other side's fault)": (
        "test_replays.py",
        "sign it under this challenge",
    ),
    "... answers for another cohort ... of ... (the sender's fault)": (
        "test_committee_runs.py",
        "answers for another cohort ",
    ),
    "... answers for another receipt of ... (the sender's fault)": (
        "test_committee_runs.py",
        "answers for another receipt of",
    ),
    "the coordinator's journal ends at version ... of ..., and ... has committed ...: ...": (
        "test_registration.py",
        "journal ends at version ",
    ),
    "... has opened cohort ... of ..., and the coordinator's journal ends at cohort ...: ...": (
        "test_registration.py",
        "the coordinator's journal ends at cohort ",
    ),
    "...'s ledger ends at cohort ... of ..., and it has answered for cohort ...: ...": (
        "test_registration.py",
        "and it has answered for cohort ",
    ),
    "this client's state folder ends before update ... of ..., and it has sent all before ...: "
    "...": ("test_registration.py", "and it has sent all before "),
    "...: advertise: ... is every address of this machine, and none that clients can dial: add "
    """advertise = "NAME:...", this machine's own name (the operator's fault)""": (
        "test_moving.py",
        "every address of this machine",
    ),
    "...; shard-0 waits for its own disk: ...: cannot write: No space left on device": (
        "test_own_disk.py",
        "shard-0 waits for its own disk: ",
    ),
    "...: advertise: ... is not HOST:PORT (the operator's fault)": (
        "test_moving.py",
        "is not HOST:PORT",
    ),
}
"""Messages that other files assert: which, and the part that it looks for."""


def test_every_documented_message_is_asserted() -> None:
    expected = test_errors_rpc.EXPECTED | test_errors_terminal.EXPECTED | test_stolen_keys.EXPECTED
    assert set(documented()) == expected | set(ELSEWHERE)


@pytest.mark.parametrize("pattern", ELSEWHERE)
def test_elsewhere_it_is(pattern: str) -> None:
    file, part = ELSEWHERE[pattern]
    assert part in pattern
    assert part in (ROOT / "tests" / file).read_text()


def test_every_message_comes_with_something_to_do() -> None:
    assert all(len(remedy) > 3 for remedy in documented().values())


def test_a_pattern_is_a_whole_line() -> None:
    assert says("no ... in ...", "no tea in China")
    assert not says("no ... in ...", "no tea in China today".replace("in", "at"))
    assert not says("no tea", "no tea at all")
    assert not says("... (x)", "(x)")
