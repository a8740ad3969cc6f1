"""Who upgrades from version 0.2.0 keeps kits, ledgers, audit logs and checkpoints."""

import shutil
import tarfile
from pathlib import Path

import pytest

from secureps.audit.entries import Spent, epsilons
from secureps.errors import ConfigError, DamagedStore, KitError
from secureps.messages.format import FINGERPRINT, FORMAT
from secureps.policy.plan import Plan
from secureps.run.audit_log import verify
from secureps.run.export import read_model
from secureps.store.budget import BudgetLedger
from secureps.store.checkpoint import load_checkpoint, load_newest
from secureps.store.envelope_keys import EnvelopeKeys, load_keys
from secureps.store.issuing import issue
from secureps.store.keyring import load_private, load_public
from tests.golden.schema import fingerprint
from tests.kits.audited import PARTIES
from tests.kits.nursery import ROOT
from tests.kits.stage import Stage

ARCHIVE = Path(__file__).parent / "version-0.2.0" / "run.tar.xz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE, "r:xz") as tar:
        tar.extractall(tmp_path / "run", filter="data")
    for path in (tmp_path / "run").rglob("*"):
        if path.is_dir():
            path.chmod(0o700)
    return tmp_path / "run"


def test_a_checkpoint_is_read_to_the_same_bits(folder: Path) -> None:
    directory, manifest, complaints = load_newest(folder / "state" / "checkpoints")
    assert (manifest.format, manifest.number, complaints) == (4, 1, ())
    model = read_model(directory)
    assert model.versions == {"all": 1}
    assert model.tensors["body.weight"].astype("<f4").tobytes().hex()[:16] == "bb092740a03163be"
    bias = model.tensors["head.bias"].astype("<f4").tobytes()
    assert bias.hex() == "e29acc3d7f09cc3d0259ccbdac80cb3df4fdcbbd908eccbd9f87cbbd"


def test_a_changed_checkpoint_is_refused(folder: Path) -> None:
    directory, manifest, _ = load_newest(folder / "state" / "checkpoints")
    path = directory / manifest.files[0].file
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DamagedStore, match="its digest is another"):
        load_checkpoint(directory)


def test_a_kit_serves_a_new_run(folder: Path) -> None:
    kit = folder / "kit"
    issue(kit, "client", "client-03")
    public = load_public(kit)
    assert {each.name for each in public.roster.certificates} == {*PARTIES, "shard-0", "client-03"}
    for name in (*PARTIES, "shard-0", "client-03"):
        assert load_private(kit, name).public == public.roster.find(name).identity
    for holder in public.holder_keys:
        keys = load_keys(kit, holder)
        assert isinstance(keys, EnvelopeKeys)


def test_a_ledger_keeps_what_was_spent(folder: Path) -> None:
    (spent,) = BudgetLedger(folder / "ledgers" / "client-00.db").spent()
    assert (spent.facts, spent.exact, spent.epsilon) == (2, 0, 7.087862732690706)


def test_a_ledger_of_version_0_1_0_keeps_what_was_spent(tmp_path: Path) -> None:
    for path in (ARCHIVE.parents[1] / "version-0.1.0").iterdir():
        shutil.copy(path, tmp_path)
    (spent,) = BudgetLedger(tmp_path / "client-00.db").spent()
    assert (spent.facts, spent.exact, spent.epsilon) == (3, 0, 9.087862181155273)


def test_audit_logs_are_verified_and_agree(folder: Path) -> None:
    logs = verify([folder / "audit" / f"{name}.jsonl" for name in PARTIES], folder / "kit")
    assert [log.begin.party for log in logs] == list(PARTIES)
    assert min(len(log.entries) for log in logs) > 2
    path = folder / "audit" / "holder-0.jsonl"
    path.write_text(path.read_text().replace("share given", "share gone"))
    with pytest.raises(DamagedStore):
        verify([path], folder / "kit")


def test_an_audit_log_states_the_epsilon_of_its_time(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE.with_name("records.tar.xz"), "r:xz") as tar:
        tar.extractall(tmp_path, filter="data")
    path = tmp_path / "audit" / "client-00.jsonl"
    (log,) = verify([path], tmp_path / "kit")
    assert log.end.epsilon == (Spent("client-00", 7.875),)
    assert epsilons(Plan.from_text(log.begin.run.plan), log.entries) == (Spent("client-00", 7.86),)


def test_its_journals_are_refused_with_what_to_do(folder: Path) -> None:
    with pytest.raises((ConfigError, KitError), match="finish the run with the version that began"):
        Stage(folder)
    assert FORMAT > 4


def test_no_format_changes_under_the_same_number() -> None:
    assert fingerprint() == FINGERPRINT, (
        "a field of a message, record, fold or file is another than FORMAT says: raise "
        f"FORMAT, unless it was raised since the last release, and write down {fingerprint()!r} "
        "as its FINGERPRINT"
    )


def test_parties_of_one_format_cannot_tell_each_others_versions() -> None:
    """So any versions of one format mix, and each process may be upgraded by itself."""
    # to a person, in a process's own log, and in its traces
    saying = {"__init__.py", "run/cli.py", "service/process.py", "service/tracing.py"}
    package = ROOT / "secureps"
    known = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "__version__" in path.read_text().replace("numba.__version__", "")
    }
    assert known == saying
