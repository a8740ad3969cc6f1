"""Who may say what to whom, as a page shows it: made from the table that servers ask.

`python -m tests.kits.permissions_page` writes it into docs/protocol.md.
"""

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
    """What stands between BEGIN and END: a table for each server, and one of orders."""
    parts = []
    for server, allowed in SERVERS.items():
        shown = {f"{_word(role)} says": allowed[role] for role in ROLES}
        parts.append(f"To {server}:\n\n" + _table("message", shown, by_method=True))
    shown = {f"{_word(role)} hears": kinds for role, kinds in ORDERS.items()}
    parts.append("From the coordinator:\n\n" + _table("order", shown, by_method=False))
    return "\n".join(parts)


def rows() -> set[str]:
    lines = [line.split("|")[1].strip() for line in tables().splitlines() if line[:3] == "| `"]
    return {line.strip("`") for line in lines}


def write(page: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}{tables()}{END}{rest.split(END)[1]}"


def _table(first: str, allowed: Mapping[str, frozenset[type]], by_method: bool) -> str:
    kinds = sorted(frozenset[type]().union(*allowed.values()), key=lambda kind: kind.__name__)
    lines = [[first, *(["method"] if by_method else []), *allowed]]
    lines.append(["---"] * len(lines[0]))
    for kind in kinds:
        marks = ["yes" if kind in said else "" for said in allowed.values()]
        lines.append([f"`{kind.__name__}`", *([method(kind)] if by_method else []), *marks])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _word(role: Role) -> str:
    return "key holder" if role == "holder" else role


if __name__ == "__main__":
    PAGE.write_text(write(PAGE.read_text()))
