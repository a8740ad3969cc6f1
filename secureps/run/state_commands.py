"""`secureps backup`, `restore` and `budget`: the commands about a party's state.

What must not live here: the rules of restoring (`store.backup`), and of counting
(`store.budget`). Errors go up to `run.cli`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

State = Annotated[Path, typer.Argument(metavar="STATE", help="A party's state folder.")]


def backup(
    state: State,
    out: Annotated[Path, typer.Option(metavar="COPY", help="A folder of its own, to be made.")],
) -> None:
    """Make a whole copy of a party's state folder, while it runs or not.

    Journal and log are copied as one. Keep it as secret as the folder: a
    client's holds its seed. The kit is not in it.
    """
    from secureps.store.backup import backup as copy

    typer.echo(f"copied {state} to {out}: {copy(state, out)} rows of its journal")


def restore(
    copy: Annotated[Path, typer.Argument(metavar="COPY", help="What `backup` made.")],
    state: Annotated[Path, typer.Option(metavar="DIR", help="The state folder to bring back.")],
    kit: Annotated[Path, typer.Option(metavar="DIR", help="The party's start-up kit.")],
    name: Annotated[str, typer.Option(help="Whose it is, on the kit's roster.")],
) -> None:
    """Bring a copy back, if nothing is forgotten by that; killed midway, do it again.

    A shard's may always come back. A copy of a coordinator's, a key holder's
    or a client's that is older than the party has come is refused.
    """
    from secureps.store.backup import restore as bring_back
    from secureps.store.keyring import load_public

    role = load_public(kit).roster.find(name).role
    rows = bring_back(copy, state, role, kit / "private" / name)
    typer.echo(f"restored {state}: {rows} rows of its journal")


budget = typer.Typer(
    help="What a data holder's records have spent, over all runs.",
    no_args_is_help=True,
    add_completion=False,
)


@budget.callback()
def ledgers() -> None:
    """What a data holder's records have spent, over all runs."""


@budget.command()
def show(
    ledger: Annotated[Path, typer.Argument(metavar="LEDGER", help="ledgers/NAME.db by default.")],
) -> None:
    """List what every run spent, and what they come to together."""
    from secureps.errors import ConfigError
    from secureps.store.budget import OWN_DELTA, BudgetLedger, epsilon_of, unit_of

    if not ledger.is_file():
        raise ConfigError(f"{ledger}: no ledger; a client makes it when it first spends")
    own = BudgetLedger(ledger)
    for run in own.spent():
        typer.echo(f"run {run.run.hex()[:16]}  {run.facts} updates  epsilon {run.epsilon:.3f}")
    facts = [fact for _, fact in own.facts()]
    total = epsilon_of(facts, OWN_DELTA)
    typer.echo(f"together  epsilon {total:.3f} at delta {OWN_DELTA:g}, of {unit_of(facts)}")
