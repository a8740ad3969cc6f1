"""An audit log as one page to print, by an auditor's questions: HTML that loads nothing."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from secureps.audit.entries import AuditLog, Chapter, Entry, Json, Spent, chapter_of
from secureps.policy.plan import Plan
from secureps.policy.spending import adjacency
from secureps.wording import counted

CHAPTERS: dict[Chapter, str] = {
    "who": "Who took part",
    "openings": "What was opened, and for how many",
    "privacy": "What was spent",
    "refused": "What was refused or came to nothing",
    "course": "The course of the run",
}

_STYLE = (
    "body{font:11pt/1.4 serif;margin:2em;max-width:60em}"
    "table{border-collapse:collapse;width:100%;font-size:9pt}"
    "td,th{border-bottom:1px solid #bbb;padding:.2em .6em .2em 0;text-align:left;"
    "vertical-align:top;overflow-wrap:anywhere}"
    "thead{display:table-header-group}tr{break-inside:avoid}code{font-size:9pt}"
    "@media print{body{margin:0}}"
)


def build_page(log: AuditLog, digest: str) -> str:
    begin, end = log.begin, log.end
    plan = Plan.from_text(begin.run.plan)
    title = f"Audit log of {begin.party} ({begin.role})"
    facts = (
        ("run", begin.id.hex()),
        ("plan", plan.section.name),
        ("roster", begin.run.roster.hex()),
        ("cipher", _cipher(plan)),
        ("fewest in an opening", _minimum(plan)),
        ("privacy", _privacy(plan)),
        ("entries", str(end.entries)),
        ("rows of the journal", str(end.row)),
        ("this log's digest (BLAKE2b, 256 bits)", digest),
        ("signature", end.signature.hex()),
    )
    parts = [
        f"<h1>{_text(title)}</h1>",
        "<p>Made from a signed file, and no proof by itself: secureps audit-log verify reads that "
        "file.</p>",
        _table((), ((_text(name), f"<code>{_text(value)}</code>") for name, value in facts)),
    ]
    for chapter, heading in CHAPTERS.items():
        entries = [entry for entry in log.entries if chapter_of(entry.what) == chapter]
        parts.append(f"<h2>{heading}</h2>")
        if chapter == "privacy" and log.end.epsilon is not None:
            parts.append(_epsilons(log, log.end.epsilon))
        parts.append(_entries(entries) if entries else "<p>No entry.</p>")
    parts.append(f"<h2>The plan</h2><p><code>{_text(begin.run.plan)}</code></p>")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_text(title)}</title>'
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</html>\n"
    )


def _cipher(plan: Plan) -> str:
    name = plan.section.cipher.name
    if not plan.holders:
        return f"{name}: nothing is hidden from the aggregator"
    return f"{name}, {plan.threshold} of {counted(plan.holders, 'key holder')} open a cohort"


def _minimum(plan: Plan) -> str:
    return ", ".join(f"{group}: {plan.bounds(group).minimum}" for group in plan.all_groups)


def _privacy(plan: Plan) -> str:
    privacy = plan.section.privacy
    if privacy is None:
        return "none: the plan adds no noise"
    return f"epsilon of {adjacency(plan)}, at delta {privacy.delta:g}; budget {privacy.budget:g}"


def _epsilons(log: AuditLog, spent: Sequence[Spent]) -> str:
    unsafe = {
        str(entry.facts.get("update")).partition("/")[0]
        for entry in log.entries
        if entry.facts.get("unsafe")
    }
    rows = []
    for each in spent:
        epsilon = "unbounded" if each.epsilon is None else f"{each.epsilon:.3f}"
        warning = " (not private: its noise came of a known seed)" if each.client in unsafe else ""
        rows.append((_text(each.client), f"{epsilon}{warning}"))
    return _table(("client", "epsilon"), rows)


def _entries(entries: Sequence[Entry]) -> str:
    rows = (
        (_text(entry.date or f"{entry.at:.1f} s"), entry.what, _text(describe(entry)))
        for entry in entries
    )
    return _table(("when (UTC)", "what", "who, how many, why"), rows)


def describe(entry: Entry) -> str:
    """Describes an entry's facts in words: who, how many and why."""
    shown = {name: fact for name, fact in entry.facts.items() if name != "digest"}
    return "; ".join(f"{name} {_word(fact)}" for name, fact in shown.items())


def _word(fact: Json) -> str:
    if isinstance(fact, list):
        return ", ".join(map(_word, fact))
    if isinstance(fact, dict):
        return ", ".join(f"{name} {_word(inner)}" for name, inner in fact.items())
    if isinstance(fact, bool) or fact is None:
        return "yes" if fact else "no"
    return str(fact)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(text: str) -> str:
    return html.escape(text)
