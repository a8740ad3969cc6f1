"""What of a kit and a site goes with the files of a deployment."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from secureps.errors import ConfigError, KitError
from secureps.policy.plan import load_plan
from secureps.run.check import PROGRAM_BYTES, check
from secureps.run.deploy.deployment import kubernetes_files, notes, yaml_text
from secureps.run.deploy.kubernetes import _PREPARE
from secureps.run.deploy.parties import Request, party_kits
from secureps.store.keyring import load_public
from tests.run.deploy.kits import deployed
from tests.run.deploy.test_kubernetes import CLUSTER, asked_memory, settings_in


def test_what_a_site_allows_goes_with_its_parties_and_the_kits_ca_is_pinned(tmp_path: Path) -> None:
    site, pinned = tmp_path / "own.toml", load_public(deployed() / "kit").ca.fingerprint
    site.write_text('minimum = 4\nledger = "/srv/data/ledger.db"\n')
    home = deployed()
    request = Request(
        home / "plan.toml", home / "kit", script=home / "client.py", site=site, threshold=3
    )
    found = kubernetes_files(request, CLUSTER)
    texts = {name: "".join(files.values()) for name, files in found.items()}
    for role in ("south", "north-clinic-1"):
        maps = [each for each in yaml.safe_load_all(texts[role]) if each and "data" in each]
        assert any(each["data"].get("site.toml") == site.read_text() for each in maps)
        for word in ("--site=/srv/config/site.toml", "--threshold=3", f"--ca-fingerprint={pinned}"):
            assert word in texts[role]
    for server in ("servers", "holder-0"):
        assert f'ca_fingerprint = "{pinned}"' in texts[server]
    made = settings_in(found["south"]["south-holder.yaml"], "south-holder.toml")
    assert (made["minimum"], made["threshold"]) == (4, 3)
    site.write_text('ledger = "ledger.db"\n')
    with pytest.raises(ConfigError, match="in a cluster nothing is written"):
        kubernetes_files(request, CLUSTER)


def test_a_shard_gets_what_it_needs_with_the_fewest_shards_that_the_load_may_leave(
    tmp_path: Path,
) -> None:
    home, scaled = deployed(), tmp_path / "plan.toml"
    scaling = 'block_size = 65536\n[scaling]\npolicy = "rule"\nleast_shards = 1\n[cipher]'
    scaled.write_text((home / "plan.toml").read_text().replace("[cipher]", scaling))
    need = check(scaled, 1_000_000).shard
    assert need is not None
    assert need.shards == 1
    found = kubernetes_files(Request(scaled, home / "kit", ("shard-0",), values=1_000_000), CLUSTER)
    asked = asked_memory(found["servers"]["shard-0.yaml"]) << 20
    assert 0 <= asked - need.memory - PROGRAM_BYTES < 1 << 20


def test_a_shard_with_a_limit_gets_room_for_pages_of_its_files(tmp_path: Path) -> None:
    """A container counts what the system keeps of files: without room, each pull reads the disk."""
    home, asked = deployed(), {}
    for memory in ("50 MB", "100 MB", "900 MB", "1 GB"):
        own = f'[federation]\nscript = "client.py"\nclients = 5\nmemory = "{memory}"\n'
        (tmp_path / "plan.toml").write_text((home / "plan.toml").read_text() + own)
        request = Request(tmp_path / "plan.toml", home / "kit", ("shard-0",), values=10**8)
        parts = kubernetes_files(request, CLUSTER)["servers"]
        asked[memory] = asked_memory(parts["shard-0.yaml"])
    assert asked["100 MB"] - asked["50 MB"] in (47, 48)
    assert asked["100 MB"] < asked["900 MB"] == asked["1 GB"], "no more than a version has"


def test_a_file_of_this_machine_is_in_no_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "south.csv").touch()
    home, settings = deployed(), ("data={name}.csv", "of=/srv/records/a.csv")
    request = Request(
        home / "plan.toml", home / "kit", script=home / "client.py", settings=settings
    )
    told = [line for line in notes(request, shared=False) if "--set" in line]
    assert told == [
        "--set data={name}.csv is a path on this machine, whose files no pod has: records come "
        "from a volume (--records)"
    ]
    (tmp_path / "south.csv").unlink()
    assert not [line for line in notes(request, shared=False) if "--set" in line]


texts = st.text(st.characters(codec="utf-8").filter(lambda c: c.isprintable() or c in "\n\t"))
scalars = texts | st.integers(-(1 << 53), 1 << 53) | st.booleans()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20
)


@given(st.lists(values, min_size=1, max_size=3))
def test_a_parser_reads_what_was_written(documents: list[object]) -> None:
    assert list(yaml.safe_load_all(yaml_text(documents))) == documents


def test_a_text_of_several_lines_stands_as_it_is() -> None:
    script = "set -e\n\n  indented $x\nlast\n"
    assert yaml_text([{"run": ["sh", "-c", script]}]) == (
        "---\nrun:\n- sh\n- -c\n- |\n  set -e\n\n    indented $x\n  last\n"
    )


def test_words_that_are_something_else_to_a_parser_stay_words() -> None:
    words = ["y", "No", "ON", "true", "null", "1e3", "0o7", "1_000", "0x1", "2026-11-24", "~", ""]
    others = [
        "a: b",
        "a #b",
        "-",
        ".inf",
        "=",
        "<<",
        "1:30",
        "+.5",
        "name",
        "app.kubernetes.io/name",
    ]
    value = {word: [word] for word in (*words, *others)}
    text = yaml_text([value])
    assert yaml.safe_load(text) == value
    assert all(f'- "{word}"\n' in text for word in words), "1.2 readers know other words than 1.1"
    assert "- name\n" in text


def test_what_is_there_twice_is_written_twice() -> None:
    same = {"cpu": "1"}
    assert yaml_text([{"limits": same, "requests": same}]).count('cpu: "1"') == 2


HOLDER = "holder-0"


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    return Path(shutil.copytree(deployed() / "kit", tmp_path / "kit"))


def test_what_a_link_leads_to_does_not_travel(kit: Path, tmp_path: Path) -> None:
    (tmp_path / "other.key").write_bytes(b"of somebody else")
    (tmp_path / "other.key").chmod(0o600)
    (kit / "private" / HOLDER / "other.key").symlink_to(tmp_path / "other.key")
    (found,) = party_kits(kit, load_plan(deployed() / "plan.toml"), (HOLDER,))
    assert "other.key" not in found.private
    assert "identity.key" in found.private


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604])
def test_no_key_travels_that_others_may_read(kit: Path, mode: int) -> None:
    own = kit / "private" / HOLDER
    names = {path.name for path in own.iterdir()}
    for name in names:
        (own / name).chmod(mode)
        with pytest.raises(KitError, match=f"{name}.*chmod 600"):
            party_kits(kit, load_plan(deployed() / "plan.toml"), (HOLDER,))
        (own / name).chmod(0o600)


def test_a_key_that_was_erased_does_not_come_back(tmp_path: Path) -> None:
    """A pod that starts again takes nothing from its Secret, unless that is of new keys."""
    places = {name: tmp_path / name for name in ("data", "keys", "public", "holders", "tls")}
    places["own"] = tmp_path / "data" / "kit" / "private" / HOLDER
    for path in places.values():
        path.mkdir(parents=True, exist_ok=True)

    def prepared() -> dict[str, str]:
        given = "".join(f"{name}={path}\n" for name, path in places.items())
        script = f"secureps() {{ :; }}\nrun=trial\n{given}{_PREPARE}"
        subprocess.run(["sh", "-c", script], check=True)
        return {path.name: path.read_text() for path in places["own"].iterdir()}

    (places["keys"] / "identity.key").write_text("me")
    (places["keys"] / "envelope.key").write_text("once")
    assert prepared() == {"identity.key": "me", "envelope.key": "once"}
    (places["own"] / "envelope.key").unlink()
    assert prepared() == {"identity.key": "me"}
    (places["keys"] / "identity.key").write_text("me anew")
    assert prepared() == {"identity.key": "me anew", "envelope.key": "once"}
    assert {path.stat().st_mode & 0o777 for path in places["own"].iterdir()} == {0o600}
