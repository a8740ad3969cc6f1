"""Refuses HTTP requests that name another host than this server.

A page in the operator's browser may point its own name at 127.0.0.1 and read what a server there
answers (DNS rebinding). Its requests still carry that page's name, so a server on loopback answers
to its own names alone. Metrics and dashboards ask here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from secureps.wording import named


def host_names(hosts: Iterable[str], port: int, default: int = 80) -> frozenset[str]:
    """What a Host header may say: HOST:PORT, and HOST alone where the port is the scheme's."""
    ends = ("", f":{port}") if port == default else (f":{port}",)
    return frozenset(f"{host}{end}".lower() for host in hosts for end in ends)


def refuse_host(headers: Sequence[str], target: str, names: frozenset[str]) -> str:
    """Says why a request is not for the server of these names; empty if it is.

    Args:
        headers: the values of all its Host headers.
        target: what it asks for: a path, or a whole URL, whose host counts too.
    """
    asked = list(headers)
    if not target.startswith("/"):
        asked.append(target.partition("://")[2].partition("/")[0])
    if len(headers) == 1 and names.issuperset(host.lower() for host in asked):
        return ""
    return f"this server answers to {named(sorted(names))}, and the request names another host"
