"""What clients/README.md says becomes of a Flower app's settings is what the code does."""

from __future__ import annotations

from collections.abc import Iterator

import flwr.serverapp.strategy as flowers

from secureps.client.flower.mods import NEEDS_SERVER
from secureps.client.flower.served import Wishes
from secureps.client.flower.strategy import (
    MEAN_METRICS,
    MEANS,
    NOISE,
    REFUSED,
    REPLACED,
    _optimizer,
)
from secureps.config.plan import EvaluationSection, PlanSection
from secureps.policy.plan import Plan
from secureps.roles.member.terms import Terms
from secureps.run.server_app import settled
from tests.kits.nursery import ROOT

PAGE = ROOT / "clients" / "README.md"
BEGIN, END = "<!-- honoured -->\n", "<!-- /honoured -->"
DROP = "unless `federation.drop` gives it up"

PLAN = PlanSection.model_validate(
    {
        "name": "any",
        "versions": 3,
        "group": [{"rule": {"name": "sync", "quorum": 5}}],
        "evaluation": {"every": 1, "metrics": {"loss": 10.0}},
    }
)
WISHES = Wishes(fraction=0.5, least=5, start=8, rounds=9, timeout=60.0, evaluate_fraction=0.5)


def rows() -> Iterator[tuple[str, str, str]]:
    """What an app has, what becomes of it, and how or why."""
    for name in MEANS:
        optimizer = _optimizer(_made(name))
        how = "the mean, weighted by `weighted_by_key`"
        if optimizer is not None:
            how = f'that mean, and `optimizer.name = "{optimizer["name"]}"`'
        yield f"`{name}`", "honoured", how
    yield from ((f"`{name}`", "refused", why) for name, why in REFUSED.items())
    yield "`DifferentialPrivacy...`", "refused", NOISE
    for name, why in REPLACED.items():
        yield f"`{name}` of the app's own", f"refused, {DROP}", why
    for name in MEAN_METRICS:
        yield (
            f"`{name}`",
            "honoured",
            "if it is the mean weighted by examples",
        )
    for message in ("train", "query.ages", "evaluate.fair"):
        plan = Plan(PLAN.model_copy(update={"evaluation": reporting(message)}))
        by_default, allowed = Terms().verdicts(plan), Terms(messages=(message,)).verdicts(plan)
        refused = [each for each in by_default if each.objection]
        assert not [each for each in allowed if each.objection]
        assert f"{message}.score" in reporting(message).magnitudes
        here = f"refused, unless the site's `{refused[0].key}` allow it" if refused else "honoured"
        how = f"`[evaluation.reports]`, seen as `{message}.score`"
        yield function(message), here, how
    for fate in settled(PLAN, WISHES, 10)[1]:
        here, plans = fate.here.removesuffix(": the plan's"), fate.here.endswith("the plan's")
        decides = "the plan decides" if plans else "honoured"
        yield f"`{fate.setting} = {fate.app}`", decides, f"`{here}`" if "=" in here else here
    for name, why in NEEDS_SERVER.items():
        yield f"mod `{name}`", "refused", why
    yield "any other mod", "honoured", "runs around the app"


def reporting(message: str) -> EvaluationSection:
    return EvaluationSection(every=1, metrics={"loss": 10.0}, reports={message: {"score": 1.0}})


def function(message: str) -> str:
    kind, _, name = message.partition(".")
    return f'`@app.{kind}("{name}")`' if name else f"metrics of `@app.{kind}()`"


def _made(name: str) -> object:
    """A strategy with Flower's defaults; momentum has to be asked for."""
    if name == "FedAvgM":
        return flowers.FedAvgM(server_momentum=0.9)
    return flowers.FedProx(proximal_mu=1.0) if name == "FedProx" else getattr(flowers, name)()


def table() -> str:
    grouped: dict[tuple[str, str], list[str]] = {}
    for what, here, how in rows():
        grouped.setdefault((here, how), []).append(what)
    head = "| of a Flower app | here | how, or why |\n|---|---|---|\n"
    lines = (f"| {', '.join(names)} | {here} | {how} |\n" for (here, how), names in grouped.items())
    return head + "".join(lines)


def test_the_table_is_what_the_code_does() -> None:
    _, _, after = PAGE.read_text().partition(BEGIN)
    found, _, _ = after.partition(END)
    assert found == table(), f"the table has to be:\n{table()}"


def test_the_table_has_every_strategy_of_flowers() -> None:
    known = {*MEANS, *REFUSED}
    own = {name for name in flowers.__all__ if name not in ("Result", "Strategy")}
    assert {name for name in own - known if not name.startswith("DifferentialPrivacy")} == set()
