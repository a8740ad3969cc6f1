"""What of a kit and a site goes with the files of a deployment."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from secureps.errors import ConfigError
from secureps.run.deploy.deployment import Request, kubernetes_files
from secureps.run.deploy.kubernetes import Cluster
from secureps.store.keyring import load_public
from tests.run.deploy.kits import deployed

CLUSTER = Cluster("registry.example/secureps:1", "trial", "", "ps.example", "fast", "monitoring")


def test_what_a_site_allows_goes_with_its_client_and_the_kits_ca_is_pinned(tmp_path: Path) -> None:
    site, pinned = tmp_path / "own.toml", load_public(deployed() / "kit").ca.fingerprint
    site.write_text('minimum = 3\nledger = "/srv/data/ledger.db"\n')
    home = deployed()
    request = Request(
        home / "plan.toml", home / "kit", script=home / "client.py", site=site, threshold=2
    )
    found = kubernetes_files(request, CLUSTER, None, None)
    texts = {name: "".join(files.values()) for name, files in found.items()}
    for role in ("south", "north-clinic-1"):
        maps = [each for each in yaml.safe_load_all(texts[role]) if each and "data" in each]
        assert any(each["data"].get("site.toml") == site.read_text() for each in maps)
        for word in ("--site=/srv/config/site.toml", "--threshold=2", f"--ca-fingerprint={pinned}"):
            assert word in texts[role]
    for server in ("servers", "holder-0"):
        assert f'ca_fingerprint = "{pinned}"' in texts[server]
    site.write_text('ledger = "ledger.db"\n')
    with pytest.raises(ConfigError, match="in a cluster nothing is written"):
        kubernetes_files(request, CLUSTER, None, None)
