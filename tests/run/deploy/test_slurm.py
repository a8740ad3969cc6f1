"""What `secureps deploy slurm` writes, read as sbatch and bash read it."""

import re
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from secureps.config.sections import parse
from secureps.config.site_files import ServeSection
from secureps.errors import ConfigError
from secureps.run.cli import deploy
from secureps.run.deploy.parties import Request
from secureps.run.deploy.slurm import Batch
from secureps.store.keyring import load_public
from tests.kits.command import said
from tests.run.deploy.kits import deployed


def written(out: Path, *more: str) -> str:
    home = deployed()
    options = ["--kit", home / "kit", "--out", out, "--script", home / "client.py"]
    return said(deploy, "slurm", home / "plan.toml", *map(str, options), *more)


def directives(text: str) -> dict[str, str]:
    found = re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, re.MULTILINE)
    assert len(found) == len(dict(found)), "an option is given twice"
    return dict(found)


def test_a_job_for_the_aggregator_and_one_for_each_other_party(tmp_path: Path) -> None:
    told = written(tmp_path / "run", "--sbatch=--partition=low", "--set", "partition={index}")
    jobs = {path.stem: path.read_text() for path in (tmp_path / "run").glob("*.sbatch")}
    wanted = {"holder-0", "south-holder", "north.clinic_1", "south"}
    assert set(jobs) == wanted | {"aggregator"}
    assert set(re.findall(r"^sbatch (\S+)$", told, re.MULTILINE)) == {
        str(tmp_path / "run" / f"{name}.sbatch") for name in jobs
    }
    for name, text in jobs.items():
        asked = directives(text)
        assert text.startswith("#!/bin/bash\n#SBATCH ")
        assert asked["partition"] == "low"
        assert asked["output"] == f"{tmp_path}/run/logs/{name}.log"
        assert (tmp_path / "run" / "logs").is_dir()
        if bash := shutil.which("bash"):
            assert subprocess.run([bash, "-n"], input=text, text=True, check=False).returncode == 0
    assert directives(jobs["aggregator"])["cpus-per-task"] == "3"
    assert "--set=partition=1" in jobs["south"]
    assert (
        f"--name south --kit {deployed() / 'kit'} --state {tmp_path}/run/state/south "
        in jobs["south"]
    )


def test_servers_files_are_ones(tmp_path: Path) -> None:
    written(tmp_path / "run", "--port", "7100")
    found = {}
    for path in (tmp_path / "run" / "config").iterdir():
        section = parse(ServeSection, tomllib.loads(path.read_text()), path.name)
        found[section.name] = section
    assert found["coordinator"].listen == "0.0.0.0:7100"
    assert (found["shard-0"].listen, found["shard-1"].listen) == ("0.0.0.0:7101", "0.0.0.0:7102")
    assert found["shard-1"].coordinator == "127.0.0.1:7100"
    assert found["shard-1"].advertise == "@HOST@:7102"
    assert found["holder-0"].coordinator == "@COORDINATOR@"
    assert (found["holder-0"].minimum, found["holder-0"].threshold) == (3, 2)
    assert len({each.state for each in found.values()}) == len(found)


def test_what_is_written_pins_the_kits_ca_and_takes_what_a_site_allows(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text("minimum = 4\n")
    url = "memory://bucket/run/checkpoints"
    more = ("--threshold", "3", "--site", str(site), "--copies", url)
    written(tmp_path / "run", *more)
    pinned = load_public(deployed() / "kit").ca.fingerprint
    for path in (tmp_path / "run" / "config").iterdir():
        section = parse(ServeSection, tomllib.loads(path.read_text()), path.name)
        assert section.ca_fingerprint == pinned
        limits = (section.checkpoint_copies, section.minimum, section.threshold)
        assert limits == ((None, 4, 3) if "holder" in section.name else (url, 5, None))
    job = (tmp_path / "run" / "south.sbatch").read_text()
    assert f" --threshold=3 --site={site} --ca-fingerprint={pinned} --server " in job
    with pytest.raises(ConfigError, match="--copies: bucket: no URL"):
        written(tmp_path / "again", "--copies", "bucket")
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):  # also if no client is deployed
        written(tmp_path / "again", "--set", "x", "--name", "holder-0")
    site.write_text("minimun = 3\n")
    with pytest.raises(ConfigError, match="did you mean minimum"):
        written(tmp_path / "again", "--site", str(site))


def test_shards_go_with_their_coordinator(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shard-0 runs in the coordinator's job"):
        written(tmp_path / "run", "--name", "shard-0")


@pytest.mark.parametrize(
    ("out", "more", "reason"),
    [
        ("a run", (), "sbatch takes no such path for a log"),
        ("run\nreboot", (), "sbatch takes no such path for a log"),
        ("run-%j", (), "sbatch takes no such path for a log"),
        ("run", ("--sbatch=--partition=low\nreboot",), "is no option in one line"),
        ("run", ("--sbatch=partition=low",), "is no option in one line"),
        ("run", ("--time=1:00:00\nreboot",), "is no time of sbatch's"),
    ],
)
def test_what_sbatch_would_read_as_something_else_is_refused(
    tmp_path: Path, out: str, more: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        written(tmp_path / out, *more)
    assert not (tmp_path / out).exists()


def test_words_of_a_client_are_words_to_bash(tmp_path: Path) -> None:
    odd = "a 'b\" $(touch bad) `x` ; {name}\nnext"
    written(tmp_path / "run", f"--set=who={odd}")
    text = (tmp_path / "run" / "south.sbatch").read_text()
    begin = text.partition("server=$(cat coordinator.address)\n")[2].partition(" & parties=")[0]
    fake = f'secureps() {{ printf "%s\\0" "$@"; }}; server=here\n{begin}'
    words = subprocess.run(["bash", "-c", fake], capture_output=True, text=True, check=True).stdout
    assert f"--set=who={odd.replace('{name}', 'south')}" in words.split("\0")


def test_a_file_that_a_setting_names_is_found_from_a_jobs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "south.csv").write_text("1\n")
    given = ("data=data/{name}.csv", "split=3", "kind=small", "url=s3://b/c.csv", "more=no.npz")
    told = written(tmp_path / "run", *(f"--set={each}" for each in given))
    job = (tmp_path / "run" / "south.sbatch").read_text()
    whole = f"data={tmp_path}/data/south.csv"
    assert re.findall(r"--set=(\S+)", job) == [whole, *given[1:]]
    (note,) = [line for line in told.splitlines() if "--set" in line]
    assert note == (
        f"note: --set {given[0]} is a path from here: jobs have data={tmp_path}/data/{{name}}.csv; "
        "nothing is there for north.clinic_1"
    )


def test_no_party_takes_the_place_of_the_servers() -> None:
    request = Request(deployed() / "plan.toml", deployed() / "kit")
    batch = Batch(request, Path("/shared"), "1:00:00", {"coordinator": 1}, (), 7600, None)
    kits = {kit.name: kit for kit in request.kits}

    def jobs(**named: str) -> dict[str, str]:
        own = replace(request)
        own.__dict__["kits"] = [replace(kits[like], name=name) for name, like in named.items()]
        return replace(batch, request=own).files()[""]

    with pytest.raises(ConfigError, match="aggregator is what the servers' job is called"):
        jobs(aggregator="south")
    made = jobs(**{"coordinator": "coordinator", "coordinator-2": "shard-0"})["aggregator.sbatch"]
    chosen = made.partition("case $file in ")[2].partition(" esac")[0]
    for name, role in (("coordinator", "coordinator"), ("coordinator-2", "shard")):
        script = f"file={name}.toml; case $file in {chosen} esac; echo $role"
        said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        assert said.stdout == f"{role}\n"


def test_without_a_script_there_are_no_clients(tmp_path: Path) -> None:
    home = deployed()
    told = said(deploy, "slurm", home / "plan.toml", "--kit", home / "kit", "--out", tmp_path / "r")
    assert "note: clients are left out: name what they run by --script" in told
    assert not (tmp_path / "r" / "south.sbatch").exists()


def test_a_site_alone_is_told_where_to_say_who_coordinates(tmp_path: Path) -> None:
    note = "the coordinator runs elsewhere: jobs wait for its HOST:PORT in"
    assert note not in written(tmp_path / "all")
    told = written(tmp_path / "run", "--name", "south")
    assert f"note: {note} {tmp_path}/run/coordinator.address" in told.replace("\n", " ")
    batch = (tmp_path / "run" / "south.sbatch").read_text()
    assert 'echo "waits for $PWD/coordinator.address' in batch
