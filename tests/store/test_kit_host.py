"""A kit serves for one host: a native run, or Flower's engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.client.runner import Joining, join
from secureps.config.sections import toml_tables
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.identity import Identity
from secureps.crypto.roster import Roster, first_roster, next_roster
from secureps.errors import KitError
from secureps.messages.encoding import to_file
from secureps.run.serve import serve
from secureps.store.issuing import create_kit, issue, renew_roster, revoke
from secureps.store.keyring import FLOWER, NATIVE, demand_host, load_public
from tests.kits.federations import Walker

PLAIN = CipherParameters("plain", 8, 14)


def made(folder: Path, host: str) -> Path:
    create_kit(folder, PLAIN, hours=0, host=host)
    issue(folder, "client", "north")
    issue(folder, "shard", "shard-0")
    return folder


@pytest.mark.parametrize("host", [FLOWER, NATIVE])
def test_every_roster_of_a_kit_says_its_host(tmp_path: Path, host: str) -> None:
    kit = made(tmp_path / "kit", host)
    revoke(kit, ["shard-0"])
    renew_roster(kit)
    roster = load_public(kit).roster
    assert roster.host == host
    demand_host(roster, kit, host)
    with pytest.raises(KitError, match="make another kit"):
        demand_host(roster, kit, NATIVE if host else FLOWER)


def test_the_mark_is_signed() -> None:
    ca = Identity.generate()
    roster = next_roster(ca, first_roster(ca, 0, FLOWER), (), 0, 0)
    roster.verify(ca.public)
    native = Roster.from_bytes(to_file(roster).replace(b'"flower"', b'"native"'))
    with pytest.raises(Exception, match="signature"):
        native.verify(ca.public)


def test_a_native_kit_is_written_as_before_there_were_hosts() -> None:
    assert b"host" not in first_roster(Identity.generate(), 0).to_bytes()


def test_nobody_joins_a_native_run_with_flowers_kit(tmp_path: Path) -> None:
    kit = made(tmp_path / "kit", FLOWER)
    joining = Joining("127.0.0.1:1", kit, "north", tmp_path / "state")
    with pytest.raises(KitError, match="is the kit of a run inside Flower's engine"):
        join(joining, Walker(0))
    assert not (tmp_path / "state" / "journal.db").exists()


def test_no_server_of_a_native_run_has_flowers_kit(tmp_path: Path) -> None:
    kit = made(tmp_path / "kit", FLOWER)
    config = tmp_path / "shard.toml"
    own = {"name": "shard-0", "kit": str(kit), "state": "state", "checkpoints": "checkpoints"}
    config.write_text(toml_tables({**own, "coordinator": "127.0.0.1:1"}))
    with pytest.raises(KitError, match="is the kit of a run inside Flower's engine"):
        serve("shard", config)
