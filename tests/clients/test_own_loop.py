"""The client with a loop of its own: it learns digits in a federation of its likes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import secureps as ps
from tests.kits.disk_federation import DiskFederation
from tests.kits.federations import Walker
from tests.kits.nursery import ROOT

HOLDERS = 3
PLAN = """
name = "own-loop"
versions = 4
training = { lr = 1.0, local_steps = 8 }
cipher = { name = "plain" }
[[group]]
clip = 8.0
rule = { quorum = 3, minimum = 3, deadline = 60.0 }
[evaluation]
every = 2
metrics = { loss = 10.0, accuracy = 1.0 }
"""


@pytest.mark.slow
def test_it_learns_with_others_of_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "clients")
    import own_loop  # type: ignore[import-not-found]

    file = tmp_path / "plan.toml"
    file.write_text(PLAN)

    def play(number: int) -> str:
        name = federation.clients[number]
        arguments = ["--plan", str(file), "--server", federation.server, "--name", name]
        arguments += ["--kit", str(federation.directory), "--partition", str(number)]
        finished: str = own_loop.main([*arguments, "--partitions", str(HOLDERS)])
        return finished

    federation = DiskFederation(ps.load_plan(file), tmp_path, HOLDERS, Walker)
    federation.clients = federation.clients[:1]
    with federation, ThreadPoolExecutor(HOLDERS) as threads:
        federation.clients = tuple(f"client-{number:02d}" for number in range(HOLDERS))
        assert set(threads.map(play, range(HOLDERS))) == {"all 4 versions are made"}
        found, evaluation = federation.model(), federation.status().evaluation
    assert found is not None
    digits = own_loop.Digits(0, HOLDERS)
    before = {name: 0 * array for name, array in found[1].items()}
    assert digits.evaluate(found[1]).loss < digits.evaluate(before).loss - 0.5
    assert evaluation is not None
    metrics = {metric.name: metric.value for metric in evaluation.results[-1].metrics}
    assert metrics["accuracy"] > 0.5, "the holders' own evaluate=, inside the federation"
