"""Survival: SIGKILL of any process, at any moment, leaves the same bits."""

import math
import os
from base64 import b64encode
from contextlib import suppress
from datetime import datetime, timedelta, tzinfo
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from zstandard import ZstdCompressor

from secureps.crypto import identity
from secureps.crypto.bfv import DEGREE
from secureps.crypto.envelope import SECRET_BYTES
from secureps.crypto.identity import Identity
from secureps.crypto.roster import first_roster, next_roster
from secureps.crypto.sampling import UnsafeSeed
from secureps.errors import MISCONFIGURED, OperatorError
from secureps.messages.coordinator_records import CohortBurnt
from secureps.messages.holder_records import KeyReplaced
from secureps.policy.plan import load_plan
from secureps.run.initial_schema import read_initial_schema
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
from secureps.store.checkpoint import write_state
from secureps.store.journal import SqliteJournal
from secureps.store.keyring import (
    default_state,
    load_holder_secret,
    load_private,
    load_public,
    renew_certificate,
    roster_file,
)
from tests.kits.federations import Walker, same, unharmed
from tests.kits.needles import Needles
from tests.kits.processes import PATIENCE, PLAN, Processes

BFV_SECRET, PUBLIC_BYTES = 2 * 8 * DEGREE, 4 * 8 * DEGREE
"""Of the coefficients of a BFV key; a tag precedes them."""


def test_each_machine_has_the_file_of_version_0_at_a_path_of_its_own(tmp_path: Path) -> None:
    """The plan pins its bytes; where they lie differs, also from one start to the next."""
    folder, model = tmp_path / "run", Walker(0).parameters(7)
    first, moved = folder / "first.safetensors", tmp_path / "elsewhere" / "v0.safetensors"
    for path in (first, moved):
        write_state(path, model, {})
    text = f'initial = "first.safetensors"\n{PLAN}'
    plan = load_plan(wrote(tmp_path / "plan.toml", text.format(cipher="plain", versions=4)), folder)
    trainers = {name: Walker(i) for i, name in enumerate(client_names(6))}
    cast = Cast(trainers, UnsafeSeed(3))
    simulation = Simulation(plan, cast, tmp_path / "simulation", initial=read_initial_schema(plan))
    simulation.run()
    with Processes(folder, "plain", plan=text) as processes:
        processes.pace = 0.1
        processes.start("coordinator")
        processes.wait((folder / "coordinator" / "address").is_file, "the coordinator")
        first.unlink()  # another machine's
        processes.settings["shard-0"] = 'initial = "../elsewhere/v0.safetensors"'
        for name in (*processes.shards, *processes.clients):
            processes.start(name)
        lacks = f"{first}: No such file or directory: bring shard-1 the file of version 0"
        processes.wait(lambda: lacks in processes.log("shard-1"), "the shard without the file")
        assert f"digest is {plan.initial_digest}" in processes.log("shard-1")
        processes.settings["shard-1"] = processes.settings["shard-0"]
        processes.start("shard-1")
        processes.wait(lambda: processes.reached(1), "version 1")
        processes.kill("coordinator")
        at = text.replace("first.safetensors", str(moved))
        wrote(folder / "plan.toml", at.format(cipher="plain", versions=4))
        processes.start("coordinator")
        processes.wait(processes.finished, "the end")
        assert same(processes.model()[1], simulation.model())


class InThreeDays(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + timedelta(days=3)


def test_a_party_waits_until_its_clock_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a machine that begins in another year its certificate is one of the future."""
    early = ("shard-0", "client-00")
    with Processes(tmp_path, "plain", versions=1) as processes:
        kit = tmp_path / "kit"
        ca, roster = Identity((kit / "ca" / "ca.key").read_bytes()), load_public(kit).roster
        with monkeypatch.context() as patch:
            patch.setattr(identity, "datetime", InThreeDays)
            for name in early:
                renew_certificate(kit, ca, roster, name)
        processes.start_all()
        for name in early:
            told = f"{name}.pem: it begins on "
            processes.wait(partial(says, processes, name, told), f"{name} to wait")
            assert "waits until the clock is set" in processes.log(name)
        for name in early:
            assert processes.alive(name)
            renew_certificate(kit, ca, roster, name)  # as good as a clock that is set
        processes.wait(processes.finished, "the end")


def says(processes: Processes, name: str, text: str) -> bool:
    return text in processes.log(name)


def wrote(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


AGGREGATOR = (
    *("coordinator", "shard-0", "shard-1", "checkpoints"),
    *("kit/public", "kit/private/coordinator", "kit/private/shard"),
)


def files(folder: Path, owners: tuple[str, ...]) -> dict[str, bytes]:
    found = {}
    for path in (p for owner in owners for p in sorted(folder.glob(f"{owner}*"))):
        for file in (path, *path.rglob("*")):
            with suppress(OSError):
                found[str(file.relative_to(folder))] = file.read_bytes()
    return found


def caught(processes: Processes, folder: Path, owner: str, name: str) -> dict[str, bytes]:
    """The aggregator's files, and `owner`'s, at a moment when `owner` has one of this name."""
    found: dict[str, bytes] = {}

    def there() -> bool:
        found.clear()
        if any((folder / owner).rglob(name)):
            found.update(files(folder, (*AGGREGATOR, owner)))
        return any(fnmatch(key, f"{owner}/*{name}") for key in found)

    processes.wait(there, f"a {name} at {owner}")
    return found


def test_the_aggregator_never_has_the_secret_key(tmp_path: Path) -> None:
    """Every byte that went to and from its processes, and its files in mid-run and at the end."""
    with Processes(tmp_path, record=True) as processes:
        processes.pace = 0.15
        processes.start_all()
        sealed = caught(processes, tmp_path, "client-00", "update~*")
        opened = caught(processes, tmp_path, "shard-0", "opened~*")
        assert {"coordinator/journal.db", "shard-0/journal.db", "shard-1.log"} < opened.keys()
        processes.wait(processes.finished, "the end")
        streams = [bytes(s) for r in processes.recorders.values() for s in r.streams]
        seen = [*streams, *opened.values(), *files(tmp_path, AGGREGATOR).values()]
        kit = tmp_path / "kit"
        secret = Needles(load_holder_secret(kit, "holder-0").to_bytes()[-BFV_SECRET:])
        identity = Needles(load_private(kit, "holder-0").to_bytes())
        public = Needles((kit / "public/holders/holder-0.bfv.pub").read_bytes()[-PUBLIC_BYTES:])
    for needles in (secret, identity):
        assert [needles.found(each) for each in seen] == [set()] * len(seen)

    # ... and the search finds what is there: the recording is whole, and so is the search.
    payload = next(data for key, data in sealed.items() if "update~" in key)
    words = Needles(payload)
    recorded = set[int]().union(*(words.found(stream) for stream in streams))
    assert len(recorded) > 0.99 * len(words.words), "all but those that frames of HTTP/2 cut"
    assert public.found(b"x" + (kit / "public/holders/holder-0.bfv.pub").read_bytes()) == {
        int(word) for word in public.words
    }
    word = int(secret.words[1])
    raw = word.to_bytes(8, "little")
    for planted in (
        raw,
        ZstdCompressor().compress(bytes(1000) + raw + bytes(999)),
        f'{{"key": "{raw.hex()}"}}'.encode(),
        f'{{"key": "{b64encode(b"xy" + raw).decode()}"}}'.encode(),
    ):
        assert secret.found(payload[:999] + planted + payload[999:]) == {word}


def test_sigterm_ends_processes_cleanly(tmp_path: Path) -> None:
    """In the middle of a version, the others going on: status 0 and no traceback."""
    with Processes(tmp_path, "bfv") as processes:
        processes.start_all()
        processes.wait(lambda: processes.reached(0), "version 0")
        names = ("shard-0", "holder-0", "client-00", "client-01", "coordinator", "shard-1")
        for times, name in enumerate(names, start=1):
            # before that the interpreter is loading modules, and ends as any program does
            processes.wait((tmp_path / name / "journal.db").is_file, f"{name} to begin")
            assert processes.stop(name, times) == 0
            assert f"{name}: ends on SIGTERM" in processes.log(name)
            assert "Traceback" not in processes.log(name)


@pytest.mark.parametrize("change", ["plan", "kit"])
def test_a_coordinator_does_not_take_another_runs_folder(change: str, tmp_path: Path) -> None:
    with Processes(tmp_path, "plain") as processes:
        processes.start_all()
        processes.wait(lambda: processes.reached(1), "version 1")
        processes.kill("coordinator")
        kit = tmp_path / "kit"
        if change == "plan":
            other = PLAN.format(cipher="plain", versions=5)
            (tmp_path / "plan.toml").write_text(other)
        else:
            ca, known = Identity((kit / "ca" / "ca.key").read_bytes()), load_public(kit).roster
            other_line = next_roster(ca, first_roster(ca, 0), known.certificates, 0, 0)
            roster_file(kit).write_bytes(other_line.to_bytes())
        processes.start("coordinator")
        said = {
            "plan": "whose plan differs in versions from the one that was given",
            "kit": "which was founded with another kit, or a newer one, than was given",
        }[change]
        keep = "A new run takes a new state folder: keep this one"
        processes.wait(lambda: said in processes.log("coordinator"), "the refusal")
        processes.wait(lambda: keep in processes.log("coordinator"), "what to do")
        assert "Traceback" not in processes.log("coordinator")


def test_who_is_replaced_ends_with_an_error(tmp_path: Path) -> None:
    """Elsewhere, with a state folder of its own: nobody can know before its stream is taken."""
    with Processes(tmp_path, "plain") as processes:
        processes.start("coordinator")
        processes.wait(lambda: (tmp_path / "coordinator" / "address").is_file(), "the address")
        processes.start("shard-0")
        processes.wait(partial(processes.live, "shard-0"), "the stream")
        first = processes._running["shard-0"]
        (tmp_path / "elsewhere").mkdir()
        config = processes._server("shard-0")[-1]
        text = Path(config).read_text().replace('state = "shard-0"', 'state = "elsewhere/state"')
        other = tmp_path / "other.toml"
        other.write_text(text)
        command = ["-m", "secureps", "serve", "shard", "--config", str(other)]
        processes._running["elsewhere"] = processes._begin(command, tmp_path / "elsewhere.log")
        assert first.wait(PATIENCE) == MISCONFIGURED
        said = processes.log("shard-0")
        assert "another process with shard-0's kit has taken its orders over" in said
        assert "Traceback" not in said
        processes.wait(partial(processes.live, "shard-0"), "the stream of the one that is left")
        assert processes.alive("elsewhere")


def test_one_place_for_each_kit_from_wherever_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    here = default_state(Path("kit"), "ada")
    monkeypatch.chdir(tmp_path / "deep")
    assert default_state(Path("../kit"), "ada") == here == tmp_path / "kit" / "state" / "ada"
    here.mkdir(parents=True)
    first = SqliteJournal(here / "journal.db")
    try:
        with pytest.raises(OperatorError, match=rf"\(pid {os.getpid()} on "):
            SqliteJournal(here / "journal.db")
    finally:
        first.close()
    SqliteJournal(here / "journal.db").close()


def keys_of(processes: Processes, holder: str) -> list[Path]:
    return sorted((processes.kit(holder) / "private" / holder).glob("**/envelope*.key"))


def erased(processes: Processes) -> None:
    for holder in processes.holders:
        processes.wait(lambda name=holder: not keys_of(processes, name), "erased keys")  # type: ignore[misc]


@pytest.mark.timeout(240)
def test_parties_killed_one_after_another_end_in_the_simulated_model(tmp_path: Path) -> None:
    """SIGKILL of every kind of process; and no holder's key is in the aggregator's files."""
    with Processes(tmp_path / "run", "rlwe", versions=6) as processes:
        assert len(processes.holders) == 4
        processes.pace = 0.15
        processes.start_all()
        processes.kill_in_turn(*processes.holders, "shard-0")
        secrets = {name: keys_of(processes, name)[-1].read_bytes() for name in processes.holders}
        processes.kill_in_turn("client-03", "coordinator")
        processes.wait(processes.finished, "the end")
        versions, model = processes.model()
        status = processes.seen
        assert status.incarnation == 2
        marks = {m.name: (m.unsafe, m.epsilon) for m in status.members}
        assert marks == dict.fromkeys(processes.clients, (True, math.inf))
        erased(processes)
    assert versions == {"all": 6}
    assert same(model, unharmed(versions=6)[0])
    folder = tmp_path / "run"
    kept = [
        path.read_bytes()
        for party in ("coordinator", "shard-0", "shard-1", "checkpoints")
        for path in (folder / party).rglob("*")
        if path.is_file()
    ]
    for secret in secrets.values():
        needles = Needles(secret[-SECRET_BYTES:])
        assert [needles.found(data) for data in kept] == [set()] * len(kept)
        assert needles.found(b"x" + secret)


@pytest.mark.timeout(240)
def test_runs_of_one_kit_at_once_and_afterwards_have_keys_of_their_own(tmp_path: Path) -> None:
    """All end in the simulated model: two though holders are killed, and a third after them."""
    first = Processes(tmp_path / "first", "rlwe", versions=3)
    kit = first.kit("")
    second = Processes(tmp_path / "second", "rlwe", versions=3, kit=kit)
    with first, second:
        for processes in (first, second):
            processes.pace = 0.3
            processes.start_all()
        for processes in (first, second):
            processes.kill_in_turn("holder-0", "holder-1")
        for processes in (first, second):
            processes.wait(processes.finished, "the end")
            assert same(processes.model()[1], unharmed(versions=3)[0])
        erased(first)
    with Processes(tmp_path / "third", "rlwe", versions=3, kit=kit) as third:
        third.start_all()
        third.wait(third.finished, "the end")
        assert same(third.model()[1], unharmed(versions=3)[0])
        erased(third)
    for processes in (first, second, third):
        assert processes.journal("coordinator", CohortBurnt) == []
        (replaced, *_) = processes.journal("holder-0", KeyReplaced)[::-1]
        assert replaced.announced.number >= 1
