"""`secureps join --hold`: what becomes of a client and its site's key holder, and what is said.

Both are a few lines of Python here; `tests/processes/test_holding.py` plays whole federations.
"""

import json
import logging
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from secureps.client.runner import Joining
from secureps.client.site_policy import SitePolicy
from secureps.config.sections import parse, read_toml
from secureps.config.site_files import ServeSection
from secureps.errors import (
    ConfigError,
    KitError,
    OperatorError,
    ScriptFailed,
    SecurepsError,
    TooFew,
)
from secureps.policy.plan import load_plan
from secureps.roles.holder.holder import FAILED, OVER
from secureps.roles.member.terms import Terms
from secureps.run import join as module
from secureps.run.join import join_and_hold
from secureps.run.processes import supervisor
from secureps.run.up import folder
from secureps.store import atomic_file
from secureps.store.issuing import create_kit, issue_all
from tests.kits.command import typed

PLAN = "name = 'x'\nversions = 1\n[cipher]\nholders = 1\n[[group]]\nrule = { quorum = 5 }\n"
FAKE = """
import os, pathlib, signal, sys, time
role, folder = sys.argv[1], pathlib.Path(sys.argv[0]).parent
def say(text):
    print(f"{'hospital-1-holder' if role == 'serve' else 'hospital-1'}: {text}", flush=True)
def until(name):
    while not (folder / name).exists():
        time.sleep(0.01)
exec((folder / f"{role}.txt").read_text())
"""
WAITS = "say('waits'); time.sleep(60)"
ENDS = "say('left by its own act')"
CLIENT = "hospital-1: cannot take part, .*; hospital-1-holder goes on for the other sites until"
HOLDER = "hospital-1-holder: .*; hospital-1 goes on while enough .* `secureps serve keyholder --co"


class Site:
    """One site's folder, with a kit, and programs in the places of client and key holder."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.kit = folder, folder / "kit"
        (folder / "plan.toml").write_text(PLAN)
        (folder / "fake.py").write_text(FAKE)
        create_kit(self.kit, load_plan(folder / "plan.toml").cipher_parameters)
        patch.setattr(module, "SECUREPS", (sys.executable, "-S", str(folder / "fake.py")))
        patch.setattr(supervisor, "RESTART_DELAY", 0.0)

    def joining(self, **more: object) -> Joining:
        own = ("127.0.0.1:1", self.kit, "hospital-1", self.folder / "state" / "hospital-1")
        return Joining(*own, **more)  # type: ignore[arg-type]

    def issue(self) -> None:
        issue_all(self.kit, [("client", "hospital-1"), ("holder", "hospital-1-holder")])

    def play(self, client: str, holder: str, passphrase: bytes | None = None) -> str:
        (self.folder / "join.txt").write_text(client)
        (self.folder / "serve.txt").write_text(holder)
        return join_and_hold(self.joining(), ("join", "--", "script.py"), "text", passphrase)

    @property
    def beside(self) -> Path:
        return self.folder / "state" / "hospital-1-holder"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path, monkeypatch)
    made.issue()
    return made


def test_a_key_holder_goes_on_for_the_others_when_its_client_has_left(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    leaves = (
        f"{ENDS}; (folder / 'own').write_text(str(os.getpid())); "
        "(folder / 'own').rename(folder / 'pid')"
    )
    gone = (
        "until('pid'); left = pathlib.Path('/proc', (folder / 'pid').read_text())\n"
        "while left.exists(): time.sleep(0.01)"
    )
    over = f"{gone}\nsay('{OVER}: all is made'); time.sleep(60)"
    assert site.play(leaves, over) == "hospital-1: left by its own act"
    said = capfd.readouterr().err.splitlines()
    assert said == ["hospital-1: left by its own act", f"hospital-1-holder: {OVER}: all is made"]


def test_a_clients_word_does_not_end_its_key_holder(tmp_path: Path) -> None:
    shown = module._Terminal(tmp_path, "hospital-1", "hospital-1-holder", named=True)
    for name, over in (("hospital-1", False), ("hospital-1-holder", True)):
        (tmp_path / f"{name}.log").write_text(f"{name}: {OVER}: all is made\n")
        shown.news()
        assert shown.over == over


FAILS = "print('error: no records (the script\\'s fault)'); sys.exit(78)"
UNFIT = "print('error: its minimum is 5 (this side\\'s fault)'); sys.exit(78)"
NO_RECORDS = "hospital-1 cannot take part, and no restart mends that: no records; see "
STOPS = "until('told'); os.kill(COMMAND, signal.SIGTERM); time.sleep(60)"


@pytest.mark.parametrize(
    ("client", "holder", "error", "says", "told"),
    [
        (FAILS, f"until('told'); say('{OVER}'); time.sleep(60)", ScriptFailed, NO_RECORDS, CLIENT),
        (FAILS, STOPS, ScriptFailed, NO_RECORDS, CLIENT),
        (
            f"until('told'); {ENDS}",
            UNFIT,
            ConfigError,
            "hospital-1-holder cannot take part, and no restart mends that: its minimum is 5; see ",
            HOLDER,
        ),
        (f"until('told'); {FAILS}", UNFIT, ScriptFailed, NO_RECORDS, HOLDER),
    ],
)
def test_what_ends_one_for_good_is_told_at_once_and_leaves_the_other(
    client: str,
    holder: str,
    error: type[SecurepsError],
    says: str,
    told: str,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client's error is the command's, and the key holder's if the client has none."""
    lines = list[str]()

    def tell(party: str, event: str, text: str, level: int = logging.INFO) -> None:
        if level == logging.ERROR:
            lines.append(f"{party}: {text}")
            (site.folder / "told").touch()

    monkeypatch.setattr(module, "tell", tell)
    with pytest.raises(error, match=f"^{says}"):
        site.play(client, holder.replace("COMMAND", str(os.getpid())))
    assert re.match(told, lines[0])


TOO_FEW = {"message": "too few are left", "error": "TooFew", "fault": "the members'"}


@pytest.mark.parametrize(
    "line", ["error: too few are left (the members' fault)", json.dumps(TOO_FEW)]
)
def test_a_run_that_failed_ends_both_and_is_said_once(line: str, site: Site) -> None:
    with pytest.raises(TooFew, match=r"^too few are left$"):
        site.play(f"print({line!r}); sys.exit(75)", WAITS)


def test_a_run_that_fails_after_its_client_has_left_ends_its_key_holder(site: Site) -> None:
    with pytest.raises(TooFew, match=r"^too few are left; once .*, start this client again$"):
        site.play(ENDS, f"say('{FAILED}: too few are left'); time.sleep(60)")


def test_the_newest_line_says_how_the_run_has_ended(tmp_path: Path) -> None:
    """A run that failed goes on when its coordinator is started again."""
    shown = module._Terminal(tmp_path, "hospital-1", "hospital-1-holder", named=False)
    with (tmp_path / "hospital-1-holder.log").open("a") as log:
        for said, failure in ((f"{FAILED}: too few", "too few"), (f"{OVER}: all is made", "")):
            print(json.dumps({"message": said}), file=log, flush=True)
            shown.news()
            assert (shown.over, shown.failure) == (True, failure)


def test_a_passphrase_reaches_both_also_who_is_started_again(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    reads = (
        "at = sys.argv.index('--passphrase-fd'); assert '--' not in sys.argv[:at]\n"
        "fd = int(sys.argv[at + 1])\n"
        "line = b''\nwhile b'\\n' not in line: line += os.read(fd, 1)\n"  # as the real one reads it
        "say(line); once = (folder / role).exists(); (folder / role).touch()\n"
    )
    killed = reads + "if not once: os.kill(os.getpid(), signal.SIGKILL)\n"
    site.play(killed + ENDS, f"{killed}say('{OVER}'); time.sleep(60)", b"four words")
    said = capfd.readouterr().err.splitlines()
    for name in ("hospital-1", "hospital-1-holder"):
        assert said.count(f"{name}: b'four words\\n'") == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both(number: int, site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    ends = "signal.signal(signal.SIGTERM, lambda *_: (say('ends'), sys.exit()))\n"
    both = f"{ends}(folder / f'{{role}} is up').touch()\n"
    then = f"until('serve is up'); os.kill({os.getpid()}, {number})\n"
    waits = "time.sleep(60)"  # a signal in the middle of a print would find stdout in use
    assert site.play(both + then + waits, both + waits) == "stopped"
    assert {"hospital-1: ends", "hospital-1-holder: ends"} <= set(
        capfd.readouterr().err.split("\n")
    )


def test_who_is_left_of_an_earlier_start_is_waited_for_and_then_named(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", -0.9)
    state = site.beside / "state"
    state.mkdir(parents=True)
    left = atomic_file.open_lock(state / "journal.db.lock")
    assert atomic_file.lock_file(left)
    with pytest.raises(OperatorError, match="hospital-1-holder still runs, although what started"):
        site.play(ENDS, WAITS)
    assert not (state.parent / "keyholder.toml").exists(), "one that runs keeps its own file"
    os.close(left)
    assert site.play(ENDS, f"say('{OVER}'); time.sleep(60)") == "hospital-1: left by its own act"


def test_a_second_command_for_the_same_client_is_refused_by_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "PATIENCE", 0.0)
    other = module._claim_folder(site.joining(), "hospital-1-holder", site.beside)
    says = "hospital-1-holder: another `secureps join --hold` runs hospital-1 already"
    with other, pytest.raises(OperatorError, match=says):
        site.play(ENDS, WAITS)


def test_a_key_holder_insists_on_what_its_site_does(site: Site) -> None:
    terms = Terms(minimum=3, threshold=2)
    joining = site.joining(site=SitePolicy(terms=terms), terms=Terms(threshold=4), insecure=True)
    with module._claim_folder(joining, "hospital-1-holder", site.beside) as path:
        made = parse(ServeSection, read_toml(path), str(path))
    assert (made.minimum, made.threshold, made.insecure) == (3, 4, True)
    modes = [each.stat().st_mode & 0o777 for each in (path.parent, path)]
    assert modes == [0o700, 0o600], "its ledger and logs lie there: for nobody else"
    assert (path.parent / made.state, made.kit) == (site.beside / "state", str(site.kit))
    with module._claim_folder(site.joining(), "hospital-1-holder", site.beside) as bare:
        assert parse(ServeSection, read_toml(bare), "").minimum == 5, "unless it says so itself"


def test_a_kit_without_a_key_holders_keys_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch)
    issue_all(site.kit, [("client", "hospital-1")])
    words = ("--server", "127.0.0.1:1", "--kit", site.kit, "--name", "hospital-1")
    assert typed("join", "script.py", "--hold", *words, status=78).err == (
        f"error: --hold: {site.kit} has no keys of hospital-1-holder, a key holder on its roster: "
        f"make them by `secureps keys request {site.kit} --role client --name hospital-1 --hold "
        "--plan FILE`, have the CA approve the request, and copy its public/; or leave --hold out "
        "(this side's fault)\n"
    )
    assert not (site.kit / "state").exists()


def test_a_system_without_groups_of_processes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg")
    words = ("--server", "127.0.0.1:1", "--kit", "kit", "--name", "hospital-1")
    told = typed("join", "script.py", "--hold", *words, status=78).err
    assert "start the key holder beside this client by itself" in told


def test_keys_on_the_roster_that_lie_elsewhere_are_no_keys(site: Site) -> None:
    (site.kit / "private" / "hospital-1-holder").rename(site.folder / "elsewhere")
    with pytest.raises(KitError, match="has no keys of hospital-1-holder"):
        site.play(WAITS, WAITS)
