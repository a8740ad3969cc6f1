"""A site that leaves a run by its own terms, and what the others do, as real processes."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from secureps.errors import MISCONFIGURED, UNFINISHED
from secureps.messages.orders import COME_BACK, TO_GO_ON
from tests.kits.nursery import prepare
from tests.kits.processes import ADAM, JOIN, ROUNDS, WALKERS, Processes, plan_text

REFUSES = "client-01"
ALL_THREE = plan_text(ROUNDS.replace("quorum = 6", "quorum = 3\nminimum = 3") + ADAM)


class Sites(Processes):
    """Clients of `secureps join`, each with its options if it has any."""

    options: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def _client(self, name: str) -> list[str]:
        return [*JOIN, WALKERS, *self._as_client(name), *self.options.get(name, ())]


@pytest.mark.timeout(120)
def test_a_run_that_one_of_three_leaves_fails_for_the_others_until_it_is_begun_again(
    tmp_path: Path,
) -> None:
    """They hear whom it lacks, why, and what to do, and end with a status that says so."""
    prepare("secureps.client.runner")
    with Sites(tmp_path / "run", "plain", clients=3, versions=1, plan=ALL_THREE) as processes:
        processes.options = {REFUSES: ("--budget", "8")}
        processes.start_all()
        others = [name for name in processes.clients if name != REFUSES]
        assert processes.exit_status(REFUSES) == MISCONFIGURED
        assert [processes.exit_status(name) for name in others] == [UNFINISHED] * 2
        said = (
            "too few clients are left for version 1 of all: takes part no more: by its own "
            f"terms: budget ({REFUSES})"
        )
        for name in others:
            last = processes.log(name).splitlines()[-1]
            assert last == f"error: {said}{COME_BACK} (the members' fault)"
        assert f"the run failed: {said}{TO_GO_ON}" in processes.log("coordinator")

        processes.options = {}
        processes.start(REFUSES)
        assert processes.exit_status(REFUSES) == UNFINISHED, "it is back, and the run has failed"
        processes.stop("coordinator")
        for name in ("coordinator", *processes.clients):
            processes.start(name)
        assert [processes.exit_status(name) for name in processes.clients] == [0] * 3
        assert "1 version is made" in processes.log(others[0])
