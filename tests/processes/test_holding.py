"""`join --hold` runs a key holder at each site beside one server."""

import re
from pathlib import Path

import psutil
import pytest

from secureps.run.up.folder import site_holder
from secureps.store.issuing import issue
from tests.kits.federations import same, unharmed
from tests.kits.nursery import prepare
from tests.kits.processes import ADAM, JOIN, ROUNDS, WALKERS, Processes, plan_text

PLAN = (
    plan_text(ROUNDS.replace("quorum = 6", "quorum = 2\nminimum = 2") + ADAM)
    .replace("shards = 2", "shards = 1")
    .replace("[cipher]", "[cipher]\nholders = {holders}\nthreshold = {holders}")
)


class Sites(Processes):
    """Data holders whose sites hold keys; no key holder is started by itself."""

    def __init__(self, folder: Path, clients: int, versions: int) -> None:
        plan = PLAN.replace("{holders}", str(clients))
        super().__init__(folder, "rlwe", clients, versions, plan=plan)
        (folder / "site.toml").write_text("minimum = 2\n")

    def _make_kit(self) -> None:
        self.holders = ()
        super()._make_kit()
        for name in self.clients:
            issue(self._kit, "holder", site_holder(name))

    def _client(self, name: str) -> list[str]:
        site = ["--site", str(self.folder / "site.toml")]
        site += ["--budget", "8"] if name == "client-02" else []  # it refuses a plan without noise
        return [*JOIN, WALKERS, "--hold", *self._as_client(name), *site]

    def both(self, name: str) -> dict[str, psutil.Process]:
        """The two processes of a site that run now, by their parties' names."""
        found = {}
        for each in psutil.Process(self.pid(name)).children(recursive=True):
            words = each.cmdline()
            if "keyholder" in words:
                found[site_holder(name)] = each
            elif "join" in words:
                found[name] = each
        return found


@pytest.mark.timeout(300)
def test_sites_and_one_server_make_the_same_model_though_a_site_is_killed_and_a_client_fails(
    tmp_path: Path,
) -> None:
    """All key holders must answer, also that of the third site, whose client ends at once: none
    is at the server, or anywhere but at the sites."""
    prepare("secureps.run.join")
    with Sites(tmp_path / "run", clients=3, versions=4) as sites:
        sites.pace = 0.2
        sites.start_all()
        sites.wait(lambda: sites.reached(1), "version 1")
        sites.both("client-00")["client-00-holder"].kill()  # nothing is opened until it is back
        left = sites.both("client-01")
        assert set(left) == {"client-01", "client-01-holder"}
        sites.kill("client-01")
        sites.start("client-01")  # at once: it waits until what was left behind has ended
        assert [sites.exit_status(name) for name in sites.clients] == [0, 0, 78]
        assert not any(each.is_running() for each in left.values())
        assert same(sites.model()[1], unharmed(versions=4, clients=2)[0])
        said, refused = sites.log("client-00"), sites.log("client-02")
    assert "client-00-holder: died (signal SIGKILL); it is started again, restart 1" in said
    for name in ("client-00", "client-00-holder"):
        assert f" {name}: " in said
    assert "client-00-holder: the run is over: all 4 versions are made" in said
    assert said.splitlines()[-1] == "all 4 versions are made"
    assert re.search("client-00-holder: ends on SIGTERM", said)
    told, over = "client-02: cannot take part, ", "client-02-holder: the run is over"
    assert -1 < refused.find(told) < refused.find(over)
    assert refused.splitlines()[-1].startswith("error: client-02 cannot take part, ")
    for name in sites.clients:
        own = sites.folder / f"{name}-holder"
        assert (own / "state" / "journal.db").is_file()
        assert "minimum = 2\n" in (own / "keyholder.toml").read_text()
