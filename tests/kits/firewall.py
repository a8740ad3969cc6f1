"""NetworkPolicies as rules of iptables in a pod's own network namespace.

What Kubernetes says of them: a pod that a policy selects is cut off but for what some policy of it
allows, in each direction by itself; replies to what was allowed pass.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Selects = Callable[[Mapping[str, str]], Iterable[str]]
"""The addresses of the pods of this namespace with these labels."""

ENDS = {"INPUT": ("ingress", "from", "-s"), "OUTPUT": ("egress", "to", "-d")}
"""By chain: the direction and the peers of a policy's rule, and the option for an address."""


def possible() -> str:
    """Why no rule can be enforced here; empty if it can."""
    found = shutil.which("iptables-restore")
    return "" if found else "NetworkPolicies are enforced by iptables-restore"


def rules(policies: Iterable[Mapping[str, Any]], selects: Selects) -> str:
    """What iptables-restore reads: the rules of a pod that these policies select."""
    lines = ["*filter"]
    for chain, device in (("INPUT", "-i"), ("FORWARD", ""), ("OUTPUT", "-o")):
        lines.append(f":{chain} DROP")
        if device:
            lines.append(f"-A {chain} {device} lo -j ACCEPT")
            lines.append(f"-A {chain} -m conntrack --ctstate ESTABLISHED -j ACCEPT")
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        for chain in ENDS:
            lines += _allowed(chain, policy["spec"], selects)
    for chain in ENDS:  # a packet that is lost would have a test wait
        lines.append(f"-A {chain} -p tcp -j REJECT --reject-with tcp-reset")
    return "\n".join([*lines, "COMMIT", ""])


def _allowed(chain: str, spec: Mapping[str, Any], selects: Selects) -> Iterator[str]:
    direction, peers, option = ENDS[chain]
    for rule in spec[direction]:
        assert rule.keys() <= {peers, "ports"}
        for place in _places(rule.get(peers), option, selects):
            for port in rule["ports"]:
                to = f"-p {port['protocol'].lower()} --dport {port['port']}"
                yield f"-A {chain} {place}{to} -j ACCEPT"


def _places(peers: list[dict[str, Any]] | None, option: str, selects: Selects) -> Iterator[str]:
    if peers is None:
        yield ""
        return
    for peer in peers:
        match peer:
            case {"podSelector": {"matchLabels": labels}, **more} if not more:
                yield from (f"{option} {address} " for address in selects(labels))
            case {"ipBlock": {"cidr": network}, **more} if not more:
                if ":" not in network:  # iptables is of IPv4 alone, as all pods here
                    yield f"{option} {network} "
            case {"namespaceSelector": _, **more} if not more:
                pass  # no other namespace is played
            case _:
                raise AssertionError(peer)


def enforce(space: str, text: str) -> None:
    command = ["ip", "netns", "exec", space, "iptables-restore"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{text}"
