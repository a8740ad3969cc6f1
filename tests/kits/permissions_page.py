"""Who may say what to whom, as a page shows it: made from the table that servers ask.

`python -m tests.kits.permissions_page` writes it into docs/protocol.md.
"""

import re
from collections.abc import Mapping
from typing import get_args

from secureps.crypto.identity import ROLES, Role
from secureps.messages.orders import ClientOrder, Finish, HolderOrder, ShardOrder
from secureps.messages.requests import GetBlock, GetSum, PutBlock, Subscribe
from secureps.messages.run import COORDINATOR
from secureps.roles.permissions import TO_COORDINATOR, TO_SHARD, Allowed
from secureps.wire.grpc import framing
from tests.kits.nursery import ROOT

PAGE = ROOT / "docs" / "protocol.md"
BEGIN, END = "<!-- permissions: begin -->\n", "<!-- permissions: end -->\n"
METHODS: Mapping[type, str] = {
    Subscribe: "Watch",
    PutBlock: "Put",
    GetBlock: "Get",
    GetSum: "Get",
}
"""Of messages that go by another method than `Tell`."""
SERVED = {
    COORDINATOR: (framing.COORDINATOR_TELL, framing.WATCH),
    "shard-0": (framing.SHARD_TELL, framing.PUT, framing.GET),
}
"""Methods of a server of each kind; health's are the same in both."""
SERVERS: Mapping[str, Allowed] = {"the coordinator": TO_COORDINATOR, "a shard": TO_SHARD}
ORDERS: Mapping[Role, frozenset[type]] = {
    "client": frozenset(get_args(ClientOrder | Finish)),
    "shard": frozenset(get_args(ShardOrder | Finish)),
    "holder": frozenset(get_args(HolderOrder | Finish)),
}


def method(kind: type) -> str:
    return METHODS.get(kind, "Tell")


def tables() -> str:
    """What stands between BEGIN and END: a row for each role, by server and for orders."""
    parts = []
    for server, allowed in SERVERS.items():
        parts.append(_table(f"to {server}", "says", {role: allowed[role] for role in ROLES}))
    parts.append(_table("from the coordinator", "hears", ORDERS))
    return "\n".join(parts)


def rows() -> set[str]:
    """The messages that a row names."""
    return set(re.findall(r"`(\w+)`", tables()))


def write(page: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}{tables()}{END}{rest.split(END)[1]}"


def _table(first: str, verb: str, allowed: Mapping[Role, frozenset[type]]) -> str:
    lines = [f"| {first} | {verb} |\n|---|---|\n"]
    for role, kinds in allowed.items():
        named = ", ".join(map(_shown, sorted(kinds, key=lambda kind: kind.__name__)))
        lines.append(f"| {_word(role)} | {named} |\n")
    return "".join(lines)


def _shown(kind: type) -> str:
    by = method(kind)
    return f"`{kind.__name__}`" + ("" if by == "Tell" else f" ({by})")


def _word(role: Role) -> str:
    return "key holder" if role == "holder" else role


if __name__ == "__main__":
    PAGE.write_text(write(PAGE.read_text()))
