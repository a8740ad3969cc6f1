"""Whose files travel to a cluster, and what becomes of keys there."""

import shutil
import subprocess
from pathlib import Path

import pytest

from secureps.errors import KitError
from secureps.policy.plan import load_plan
from secureps.run.deploy.kubernetes import _PREPARE
from secureps.run.deploy.parties import party_kits
from tests.run.deploy.kits import deployed

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
