"""A status as tables: what `secureps status` prints."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from secureps.crypto.sampling import NO_PRIVACY
from secureps.messages.requests import MemberStatus, Status


def tables(status: Status) -> Iterable[Table | Text]:
    """Groups, clients and shards of a run."""
    if not status.run:
        yield Text("no run yet: the coordinator waits for shards, holders and a first client")
    else:
        started = f"started {status.incarnation} times" if status.incarnation > 1 else "running"
        yield Text(f"run {status.run.hex()[:16]}: {status.finished or started}")
    yield _table(
        "groups",
        ("group", "version", "step", "why", "late"),
        [(g.name, str(g.version), g.step, g.reason, ", ".join(g.late)) for g in status.groups],
    )
    yield _table(
        "clients",
        ("client", "state", "updates", "charges", "epsilon"),
        [(m.name, m.state, str(m.submissions), str(m.charges), spent(m)) for m in status.members],
    )
    yield _table(
        "shards",
        ("shard", "address", "weight"),
        [(s.name, s.advertise, f"{s.weight:g}") for s in status.shards],
    )


def spent(member: MemberStatus) -> str:
    """A client's epsilon, or that its seed protects nobody."""
    return NO_PRIVACY if member.unsafe else f"{member.epsilon:.3f}"


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
