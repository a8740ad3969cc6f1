"""What a server is called; what is refused: `test_metrics`, `dashboard.test_application`."""

from __future__ import annotations

from secureps.service.metrics import host_names


def test_the_schemes_own_port_may_go_without_saying() -> None:
    assert host_names(["127.0.0.1"], 80) == {"127.0.0.1", "127.0.0.1:80"}
    assert host_names(["Ps"], 443, 443) == {"ps", "ps:443"}
    assert host_names(["ps"], 80, 443) == {"ps:80"}
