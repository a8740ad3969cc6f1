"""A data holder's own mistake is one line, and the others go on."""

import dataclasses
import re
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import pytest

from secureps.crypto.identity import Identity
from secureps.crypto.roster import first_roster, next_roster
from secureps.errors import Diverged, ScriptFailed
from secureps.messages.format import FORMAT
from secureps.messages.member_records import Sealed
from secureps.messages.records import RunPinned
from secureps.messages.requests import Welcome
from secureps.messages.submission import UPDATE, Receipt, SubmissionId
from secureps.store.issuing import create_kit, issue
from secureps.store.journal import DatedJournal, SqliteJournal
from secureps.store.keyring import load_public, roster_file
from tests.kits.documented import check_line, says
from tests.kits.nursery import ROOT, spawn
from tests.kits.processes import PATIENCE, PLAN, Processes

SCRIPT = str(ROOT / "tests" / "kits" / "faulty_client.py")
HEALTHY = 6
SPARE = "client-06"
"""On the roster, and takes part in nothing."""

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d ")

FITTED = {
    "shape": "what fit returned: ... is ..., the run's is ...; nothing was sent: mend the script",
    "missing": "what fit returned: ... is missing; nothing was sent: mend the script",
    "more": "what fit returned: ... is not in the run's model; nothing was sent: mend the script",
    "list": (
        "what fit returned: ... is a ..., and must be a NumPy array; nothing was sent: mend the "
        "script"
    ),
    "nothing": (
        "what fit returned: it is a ..., and must be a FitResult; nothing was sent: mend the script"
    ),
    "nan": (
        "what fit returned: tensor ... has a value that is not a finite float32 after ... steps: "
        "look for NaN or infinity in the records, or lower the learning rate; nothing was sent"
    ),
    "raise": ("... raised ... (...:...); mend the script or its settings"),
    "loss": "fit: ...; nothing was sent",
}
"""What a client ends with whose training goes wrong, by its `fault`."""

DETAILS = {
    "shape": "body.weight is float32[29, 7], the run's is float32[30, 7]",
    "missing": "head.bias is missing",
    "more": "tail is not in",
    "list": "head.bias is a list",
    "nothing": "it is a NoneType",
    "nan": "tensor 'head.bias'",
    "raise": "fit raised RuntimeError: disk of patients (faulty_client.py:26 in fit)",
    "loss": "the loss is nan",
}
"""What the line must say besides."""

THE_SCRIPTS, DIVERGED = f" ({ScriptFailed.fault} fault)", f" ({Diverged.fault} fault)"
ENDS = {
    fault: line + (DIVERGED if fault in ("nan", "loss") else THE_SCRIPTS)
    for fault, line in FITTED.items()
}

JOIN = ("-m", "secureps", "join")
RIGHT = ("--set", "partition=7")
VERBOSE = "verbose"
NOBODY_THERE = ("nobody", "silent", "unknown")
UNREACHABLE = "no connection to coordinator at ... (UNAVAILABLE; is it up?); still trying"

BEFORE = {
    "no make": (
        "...: has no function make(settings) that returns a trainer, and is no Flower app "
        "(this side's fault)"
    ),
    "no script": "...: no such script (this side's fault)",
    "no value": "--set ...: expected KEY=VALUE (this side's fault)",
    "no number": FITTED["raise"] + THE_SCRIPTS,
    VERBOSE: FITTED["raise"] + THE_SCRIPTS,
    "no port": ("server ...: expected HOST:PORT, the coordinator's, as in ... (this side's fault)"),
    "no budget": "a budget is a finite epsilon above 0, got ... (this side's fault)",
    "budget": (
        "budget: the plan trains without privacy, and this client has a budget of its own: nothing "
        "was trained; ask for a plan with [privacy], or leave --budget out (the plan's or the "
        "site's fault)"
    ),
    "no threshold": "a threshold is 1 key holder or more, got ... (this side's fault)",
    "threshold": (
        "threshold: by the plan ... of ... key holders open a sum together, and this party insists "
        "on ...: ask for a plan with cipher.threshold = ... or more, or lower this party's own "
        "threshold (the plan's or the site's fault)"
    ),
    "schema": (
        "...'s model differs from the run's: ...; train the run's model (the sender's fault)"
    ),
    "shard": "no connection to coordinator at ...: who is there is certified as another party; "
    "check it (the other side's fault)",
    "other kit": (
        "no connection to coordinator at ...: who is there is certified by another CA; check kit "
        "and address. A proxy or balancer that opens TLS has to let this address pass, or you "
        "train inside Flower's engine (docs/flower.md) (the other side's fault)"
    ),
    "other key": (
        "... is not the key that the CA certified for ...: ask the CA for your own "
        "(this side's fault)"
    ),
    "old kit": (
        "the coordinator's roster differs from this kit's: get the current kit from the CA "
        "(the sender's fault)"
    ),
    "no kit": (
        "... is missing: ... is no start-up kit; name the folder that has public/ and private/NAME "
        "(this side's fault)"
    ),
    "nobody's name": (
        "... is missing: ... has private keys of ...; ... makes those of ..., and the CA approves "
        "them (this side's fault)"
    ),
    "a shard": (
        "name: ... is a ...'s and not a ...'s; on the roster as ...: ... (this side's fault)"
    ),
    "other run": (
        "... takes part in run ..., and the other side in ...: one of the two has another run's "
        "state folder. Start it with the folder of this run, or with a new one (--state), and keep "
        "the one that it has while its run goes on (the sender's fault)"
    ),
    "other format": (
        "... has format ... of secureps, and ... format ...: all parties of a run need one "
        "version: install the coordinator's on this party's machine, and start it again with a "
        "new state folder; keep the one that it has, which is of format ... (this side's fault)"
    ),
    "older state": (
        "...: format ..., and this version of secureps has format ...: finish the run with the "
        "version that began it; or begin a new run from its last checkpoint: secureps export "
        'writes the model, and the plan of the new run names it, initial = "FILE" '
        "(this side's fault)"
    ),
    "newer state": (
        "...: format ..., and this version of secureps knows formats up to ...: install the "
        "version that wrote it (this side's fault)"
    ),
    "other client": (
        "this state folder is ...'s: ... needs a --state folder of its own (this side's fault)"
    ),
}
"""What a client ends with that cannot take part, by its mistake."""


class Terminals(Processes):
    """Six walkers that need one another, and clients that come, say what is wrong, and go."""

    def run(self, case: str, *command: str) -> None:
        self._running[case] = spawn(command, self.folder, self.folder / f"{case}.log")

    def command(
        self, case: str, name: str, *own: str, settings: Sequence[str] = (), **changes: str
    ) -> list[str]:
        given = {"server": self.server, "kit": str(self.folder / "kit"), "name": name}
        given |= {"state": str(self.folder / f"state of {case}"), **changes}
        options = [part for key, value in given.items() for part in (f"--{key}", value)]
        sets = [part for setting in settings for part in ("--set", setting)]
        return [*own, *options, *sets]

    def ended(self, case: str) -> list[str]:
        status, shown = self._running[case].wait(PATIENCE), self.log(case)
        faults = ("(this side's fault)\n", "(the plan's or the site's fault)\n")
        assert status == (78 if shown.endswith(faults) else 1), shown
        return shown.splitlines()


@pytest.fixture(scope="module")
def terminals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminals]:
    plan = (
        PLAN.replace("deadline = 60.0", "minimum = 6\ndeadline = 1.0\nextensions = 1000")
        .replace("capacity = 8", "capacity = 32")
        .replace("block_size = 64", "block_size = 64\nlease = 5.0\ncheckpoint_every = 100")
    )
    folder, clients = tmp_path_factory.mktemp("terminals"), HEALTHY + 2 + len(FITTED)
    with ExitStack() as stack:
        federation = Terminals(folder, "plain", clients=clients, versions=100_000, plan=plan)
        stack.enter_context(federation)
        federation.pace = 0.3
        federation.start_all(clients=HEALTHY)
        federation.wait(lambda: federation.reached(1), "version 1")
        for name, fault in zip(federation.clients[HEALTHY + 2 :], FITTED):
            settings = ("partition=7", f"fault={fault}")
            federation.run(fault, *federation.command(fault, name, SCRIPT, settings=settings))
        for mistake in BEFORE:
            federation.run(mistake, *mistaken(mistake, federation))
        for kind in NOBODY_THERE:
            server = stack.enter_context(address(kind))
            federation.run(kind, *federation.command(kind, SPARE, SCRIPT, *RIGHT, server=server))
        yield federation


def test_the_others_go_on_and_lose_nothing(terminals: Terminals) -> None:
    for case in (*FITTED, *BEFORE):
        terminals.ended(case)
    terminals.check_goes_on(HEALTHY)


def check_one_line(shown: list[str], pattern: str) -> str:
    """A terminal's last line is the error; above it are lines of the log and nothing else."""
    assert all(LOG_LINE.match(line) for line in shown[:-1]), shown
    assert shown[-1].startswith("error: "), shown
    line = shown[-1].removeprefix("error: ")
    check_line(line, pattern)
    return line


@pytest.mark.parametrize("fault", FITTED)
def test_a_training_that_goes_wrong(fault: str, terminals: Terminals) -> None:
    line = check_one_line(terminals.ended(fault), ENDS[fault])
    assert DETAILS[fault] in line


@pytest.mark.parametrize("mistake", [name for name in BEFORE if name != VERBOSE])
def test_a_client_that_cannot_take_part(mistake: str, terminals: Terminals) -> None:
    check_one_line(terminals.ended(mistake), BEFORE[mistake])


def test_the_traceback_is_there_for_those_who_ask(terminals: Terminals) -> None:
    shown = terminals.ended(VERBOSE)
    assert "Traceback (most recent call last):" in shown
    check_one_line(shown[-1:], BEFORE[VERBOSE])
    assert "parameters raised FileNotFoundError: weights.npz (faulty_client.py:" in shown[-1]


def mistaken(mistake: str, federation: Terminals) -> list[str]:
    folder, command = federation.folder, partial(federation.command, mistake)
    match mistake:
        case "no make":
            (folder / "no_make.py").write_text("x = 1\n")
            return command(SPARE, *JOIN, "no_make.py")
        case "no script":
            return command(SPARE, *JOIN, "nowhere.py")
        case "no value":
            return command(SPARE, SCRIPT, settings=("partition",))
        case "no number":
            return command(SPARE, SCRIPT, settings=("partition=seven",))
        case "no port":
            return command(SPARE, SCRIPT, *RIGHT, server="localhost")
        case "no budget":
            return command(SPARE, SCRIPT, *RIGHT, "--budget", "0")
        case "budget":
            return command("client-07", SCRIPT, *RIGHT, "--budget", "3")
        case "no threshold":
            return command(SPARE, SCRIPT, *RIGHT, "--threshold", "0")
        case "threshold":
            return command(SPARE, *JOIN, SCRIPT, *RIGHT, "--threshold", "3")
        case "schema" | "other format" | "verbose":
            settings = ("partition=7", f"fault={mistake}")
            return command(SPARE, SCRIPT, *["--verbose"][mistake != VERBOSE :], settings=settings)
        case "shard":
            server = (folder / "shard-0" / "address").read_text().strip()
            return command(SPARE, SCRIPT, *RIGHT, server=server)
        case "other kit":
            kit = folder / "other-kit"
            create_kit(kit, federation.plan.cipher_parameters)
            issue(kit, "client", SPARE)
            return command(SPARE, SCRIPT, *RIGHT, kit=str(kit))
        case "other key":
            kit = folder / "mixed-kit"
            shutil.copytree(folder / "kit", kit)
            (kit / "private" / SPARE / "identity.key").unlink()
            theirs = folder / "kit" / "private" / "client-00" / "identity.key"
            shutil.copy(theirs, kit / "private" / SPARE / "identity.key")
            return command(SPARE, SCRIPT, *RIGHT, kit=str(kit))
        case "old kit":
            kit = folder / "older-kit"
            shutil.copytree(folder / "kit", kit)
            ca, known = Identity((kit / "ca" / "ca.key").read_bytes()), load_public(kit).roster
            older = next_roster(ca, first_roster(ca, 0), known.certificates, 0, 0)
            roster_file(kit).write_bytes(older.to_bytes())
            return command(SPARE, SCRIPT, *RIGHT, kit=str(kit))
        case "no kit":
            return command(SPARE, SCRIPT, *RIGHT, kit="nowhere")
        case "nobody's name":
            return command("nobody", SCRIPT, *RIGHT)
        case "a shard":
            return command("shard-0", SCRIPT, *RIGHT)
        case "older state" | "newer state":
            write_state(federation, mistake)
            with closing(sqlite3.connect(folder / mistake / "journal.db")) as base:
                base.execute(f"PRAGMA user_version = {FORMAT + (1 if mistake[0] == 'n' else -1)}")
            return command(SPARE, SCRIPT, *RIGHT, state=str(folder / mistake))
        case "other run" | "other client":
            write_state(federation, mistake)
            return command(SPARE, SCRIPT, *RIGHT, state=str(folder / mistake))
    raise AssertionError(mistake)


def write_state(federation: Terminals, mistake: str) -> None:
    welcome = federation.observer()._run()
    assert isinstance(welcome, Welcome)
    run = welcome.run
    if mistake == "other run":
        run = dataclasses.replace(run, nonce=bytes(32))
    receipt = Receipt(
        run=run.id,
        id=SubmissionId("client-00", "all", 0),
        purpose=UPDATE,
        version=0,
        base=b"",
        blocks=(),
        root=b"",
        envelopes=(),
        commitments=(),
        size=0,
        charge=None,
        release=None,
        unsafe=False,
    )
    (federation.folder / mistake).mkdir()
    journal = DatedJournal(
        SqliteJournal(federation.folder / mistake / "journal.db"), SPARE, "client", time.time
    )
    pinned = RunPinned(run, welcome.placement, welcome.shards)
    journal.append(0.0, [pinned, Sealed(receipt, ())] if mistake == "other client" else [pinned])
    journal.close()


@contextmanager
def address(kind: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if kind == "nobody":
            server.close()
        yield f"{'no-such-host.invalid' if kind == 'unknown' else '127.0.0.1'}:{port}"


@pytest.mark.parametrize("kind", NOBODY_THERE)
def test_a_coordinator_that_cannot_be_reached(kind: str, terminals: Terminals) -> None:
    terminals.wait(lambda: "still trying" in terminals.log(kind), "a word about it")
    (line,) = terminals.log(kind).splitlines()
    assert says(f"... {SPARE}: {UNREACHABLE}", line), line
    assert terminals.alive(kind), "it goes on trying"
