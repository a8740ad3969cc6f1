"""A user's rule, which is imported at the coordinator and checked at every answer.

Whatever the class does, the coordinator gets a valid answer of `policy.rules.rule` or a
`RuleFailed` that says what is wrong, on which the run ends in order.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast

from secureps.config.plan import OwnRuleSection
from secureps.crypto.cipher import WEIGHTS
from secureps.errors import PlanRefused, RuleFailed, SecurepsError
from secureps.messages.submission import Member
from secureps.policy.rules.rule import (
    Admission,
    Admit,
    Arrival,
    Close,
    Decision,
    Drop,
    Refuse,
    Rule,
    RuleState,
    Wait,
    too_stale,
)
from secureps.tracebacks import describe_error, find_place
from secureps.wording import suggest

log = logging.getLogger("secureps")


@dataclass(frozen=True, slots=True)
class Guarded:
    """Wraps another rule, and checks each of its answers.

    Args:
        name: of the user's class or function.
        stale: how many versions a base may be behind; older updates never reach the rule.
    """

    name: str
    rule: Rule
    stale: int

    def enter(self, state: RuleState) -> int:
        clock = self._call("enter", _freeze(state))
        if type(clock) is not int or clock < 0:
            raise self._fault("enter", clock, "a clock is a whole number from 0 on")
        return clock

    def admit(self, now: float, member: str, state: RuleState) -> Admission:
        answer = self._call("admit", now, member, _freeze(state))
        if not isinstance(answer, Admit | Wait | Refuse):
            raise self._fault("admit", answer, "Admit, Wait or Refuse is wanted")
        self._check_reason("admit", answer)
        return answer

    def decide(self, now: float, arrivals: tuple[Arrival, ...], state: RuleState) -> Decision:
        """Drops stale updates, then asks the rule; RuleFailed for an invalid answer."""
        if stale := too_stale(arrivals, state.version, self.stale):
            return stale
        answer = self._call("decide", now, arrivals, _freeze(state))
        if not isinstance(answer, Close | Wait | Drop):
            raise self._fault("decide", answer, "Close, Wait or Drop is wanted")
        self._check_reason("decide", answer)
        match answer:
            case Wait(until, _):
                timed = isinstance(until, int | float) and now < until < math.inf
                if until is not None and not timed:
                    raise self._fault("decide", answer, f"it is {now:g} s, and until is later")
                if answer.arrivals:
                    return replace(answer, arrivals=0)  # a user's rule is asked at each arrival
            case Drop(ids, _):
                here = {arrival.id for arrival in arrivals}
                if not isinstance(ids, tuple) or not ids or not here.issuperset(ids):
                    raise self._fault("decide", answer, "ids are some of those that arrived")
            case Close(members, reason):
                return Close(self._check_members(members, arrivals), reason)
        return answer

    def _check_members(self, members: object, arrivals: tuple[Arrival, ...]) -> tuple[Member, ...]:
        here = {arrival.id: (arrival.version, arrival.step) for arrival in arrivals}
        if not isinstance(members, tuple):
            raise self._fault("decide", members, "the members of Close are a tuple")
        for member in members:
            if not isinstance(member, Member) or member.id not in here:
                raise self._fault("decide", member, "a member has the id of one that arrived")
            if (member.version, member.step) != here[member.id]:
                raise self._fault("decide", member, "its version and step are the arrival's")
            if type(member.weight) is not int or member.weight not in WEIGHTS:
                known = ", ".join(map(str, WEIGHTS))
                raise self._fault("decide", member, f"a weight is one of {known}")
        return tuple(sorted(members, key=lambda member: member.id))

    def _call(self, method: str, *arguments: object) -> object:
        try:
            return getattr(self.rule, method)(*arguments)
        except SecurepsError as error:
            raise RuleFailed(f"{self.name}: {error}") from None
        except Exception as error:  # the user's code may raise anything
            log.error("%s: %s failed", self.name, method, exc_info=error)  # for its author
            raise RuleFailed(
                f"{self.name}: {method} raised {describe_error(error)} ({find_place(error)})"
            ) from None

    def _check_reason(self, method: str, answer: Admission | Decision) -> None:
        if not isinstance(answer.reason, str) or not answer.reason:
            raise self._fault(method, answer, "every answer has its reason, in words")

    def _fault(self, method: str, answer: object, wanted: str) -> RuleFailed:
        return RuleFailed(f"{self.name}: {method} answered {answer!r:.200}: {wanted}")


def own_rule(section: OwnRuleSection) -> Guarded:
    """Builds the rule of a user's class.

    Raises:
        PlanRefused: it cannot be imported or built, or it is no rule without rounds.
    """
    make = import_callable("rule", section.name)
    try:
        made = make(minimum=section.minimum, **section.settings)
    except Exception as error:  # the user's code may raise anything
        given = ", ".join(("minimum", *section.settings))
        raise PlanRefused(
            f"rule: {section.name} cannot be made with {given}: {describe_error(error)}"
        ) from None
    lacking = [m for m in ("enter", "admit", "decide") if not callable(getattr(made, m, None))]
    if lacking:
        raise PlanRefused(
            f"rule: {section.name} makes a {type(made).__name__} without {', '.join(lacking)}: a "
            "rule answers as secureps.policy.rules.rule.Rule says"
        )
    if getattr(made, "rounds", False):
        raise PlanRefused(
            f'rule: {section.name} wants rounds: only "sync" has them; leave `rounds` False'
        )
    return Guarded(section.name, cast(Rule, made), section.max_staleness)


def import_callable(key: str, name: str, known: Iterable[str] = ()) -> Callable[..., Any]:
    """Imports "package.module:name"; PlanRefused if that fails."""
    module, colon, attribute = name.partition(":")
    if not colon:
        hint = f'{suggest(name, known)}, or your own as "package.module:name"'
        raise PlanRefused(f"{key}: there is no {name!r}; {hint}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing a module may raise anything
        raise PlanRefused(
            f"{key}: {name} cannot be imported ({describe_error(error)}): install its package "
            "where the coordinator runs, or name its folder in PYTHONPATH there"
        ) from None
    if not callable(found):
        raise PlanRefused(f"{key}: {name} is a {type(found).__name__}, and cannot be called")
    return cast(Callable[..., Any], found)


def _freeze(state: RuleState) -> RuleState:
    """Copies the state so that the rule cannot write into it."""
    return replace(
        state,
        live=frozenset(state.live),
        clocks=MappingProxyType(state.clocks),
        moved=MappingProxyType(state.moved),
        passed=frozenset(state.passed),
        sent=MappingProxyType(state.sent),
        training=None if state.training is None else tuple(state.training),
    )
