"""A run's folder: one run at a time, a kit and a file for every party that the plan asks for."""

from pathlib import Path

import pytest

from secureps.config.sections import memory_bytes, parse, read_toml
from secureps.config.site_files import ServeSection
from secureps.crypto.cipher import Opening
from secureps.crypto.envelope import EnvelopeKey
from secureps.errors import ConfigError, OperatorError
from secureps.policy.plan import Plan, load_plan
from secureps.run.up.folder import (
    Cast,
    RunFolder,
    claim_folder,
    is_claimed,
    make_folder,
    named_folder,
    new_folder,
    write_servers,
)
from secureps.store import atomic_file
from secureps.store.keyring import check_fits, load_holder_secret, load_public

PLAN = """
name = "trial"
versions = 1
shards = 1
[cipher]
name = "{cipher}"
capacity = 8
{more}
[[group]]
bits = 12
rule = {{ quorum = 6, minimum = 5 }}
"""


def made(
    folder: Path, cipher: str, more: str = "", section: str = ""
) -> tuple[RunFolder, Plan, Cast]:
    path = folder / "plan.toml"
    path.write_text(PLAN.format(cipher=cipher, more=more) + section)
    plan = load_plan(path)
    cast = Cast.of(plan, 6)
    run = make_folder(folder / "run", path, plan, cast)
    write_servers(run, plan, cast, "127.0.0.1:7600")
    return run, plan, cast


def test_a_run_is_asked_at_the_coordinator_and_at_its_standby(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.server == ""
    for name, port in (("coordinator", 1), ("standby", 2)):
        assert run.rulers == (run.state("coordinator"),)
        run.state(name).mkdir(parents=True)
        (run.state(name) / "address").write_text(f"127.0.0.1:{port}\n")
    assert run.server == "127.0.0.1:1,127.0.0.1:2"
    assert run.rulers == (run.state("coordinator"), run.state("standby"))


@pytest.mark.parametrize(
    ("more", "holders"), [("", 4), ("holders = 3", 3), ("holders = 5\nthreshold = 4", 5)]
)
def test_a_committee_has_as_many_holders_as_the_plan_says(
    tmp_path: Path, more: str, holders: int
) -> None:
    run, plan, cast = made(tmp_path, "rlwe", more)
    assert cast.holders == tuple(f"holder-{i}" for i in range(holders))
    kit = load_public(run.kit)
    check_fits(kit, plan.opening, plan.holders)
    assert kit.opening is Opening.COMMITTEE
    states = set()
    for name in cast.holders:
        assert isinstance(load_holder_secret(run.kit, name), EnvelopeKey)
        section = parse(ServeSection, read_toml(run.config(name)), name)
        assert (section.name, section.coordinator) == (name, "127.0.0.1:7600")
        assert section.minimum == 5
        assert section.checkpoints is None
        states.add(section.state)
    assert len(states) == holders


def test_as_many_shards_are_started_as_may_hold_the_model(tmp_path: Path) -> None:
    assert made(tmp_path, "plain")[2].shards == ("shard-0",)
    path = tmp_path / "scaled.toml"
    path.write_text(PLAN.format(cipher="plain", more="[scaling]\nmost_shards = 3"))
    assert Cast.of(load_plan(path), 6).shards == ("shard-0", "shard-1", "shard-2")


def test_key_holders_are_those_of_the_sites_where_there_is_one_for_each(tmp_path: Path) -> None:
    """A run that an earlier version began goes on with the names that its kit has."""
    run, plan, cast = made(tmp_path, "rlwe", "holders = 6")
    assert cast.holders == tuple(f"client-{i:02d}-holder" for i in range(6))
    assert load_public(run.kit).roster.names("holder") == set(cast.holders)
    assert Cast.of(plan, 6, run.kit) == cast
    assert Cast.of(plan, 7).holders == tuple(f"holder-{i}" for i in range(6))
    assert Cast.of(plan, 6, tmp_path / "before").holders == Cast.of(plan, 7).holders


def test_shards_have_the_memory_that_the_plan_says(tmp_path: Path) -> None:
    federation = '[federation]\nscript = "x.py"\nclients = 6\nmemory = "64 MiB"\n'
    run, _, _ = made(tmp_path, "plain", section=federation)
    section = parse(ServeSection, read_toml(run.config("shard-0")), "shard-0")
    assert section.memory is not None
    assert memory_bytes(section.memory) == 64 << 20


def test_what_is_not_there_or_empty_is_made(tmp_path: Path) -> None:
    for _ in range(2):
        new_folder(tmp_path / "deep" / "run")
    assert list((tmp_path / "deep" / "run").iterdir()) == []


def test_a_folder_that_holds_anything_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match="is not empty: name a folder of its own by --out"):
        new_folder(tmp_path)


def test_runs_that_begin_in_one_second_have_a_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: form.replace("%Y%m%d-%H%M%S", "1"))
    with named_folder(None, "a") as first, named_folder(None, "a") as second:
        assert [first, second] == [Path("runs/a-1"), Path("runs/a-1-2")]
        (second / "origin.json").touch()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a-1-2"], "no run, no folder"
    with named_folder(tmp_path / "own", "a") as own:
        assert own == tmp_path / "own"
    assert not own.exists()


def test_of_two_runs_in_one_folder_the_later_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found it empty: the first one's plan stays."""
    run, plan, cast = made(tmp_path, "plain")
    monkeypatch.setattr("secureps.run.up.folder.new_folder", lambda root: None)
    (tmp_path / "other.toml").write_text("another plan")
    with pytest.raises(OperatorError, match=r"cannot make the run's folder: .*File exists"):
        make_folder(run.root, tmp_path / "other.toml", plan, cast)
    assert run.plan.read_text() == (tmp_path / "plan.toml").read_text()


def test_a_disk_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(37, "No locks available")

    for ask in ("lock_file", "is_held"):
        monkeypatch.setattr(atomic_file, ask, refused)
    said = "cannot lock: No locks available"
    with pytest.raises(OperatorError, match=said), claim_folder(tmp_path):
        pass
    with pytest.raises(OperatorError, match=said):
        is_claimed(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file is a file: name a folder"):
        new_folder(tmp_path / "file")
