"""Handles the answers of shards and key holders in the six steps of a version.

An answer may come late or twice. If its step is past, it changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from secureps.crypto.sharing import parse_vector
from secureps.errors import Conflict, Malformed
from secureps.messages.coordinator_records import CohortReopened, OpeningFailed
from secureps.messages.encoding import DIGEST_BYTES, payload_digest
from secureps.messages.evaluation import VersionEvaluated
from secureps.messages.requests import (
    Checkpointed,
    KeyShare,
    Missing,
    Opened,
    OpenRefused,
    Prepared,
    Spoilt,
)
from secureps.messages.submission import Held, SubmissionId, opening_digest
from secureps.policy.checks.evaluation import check_total, from_vector
from secureps.policy.counting import shares_in
from secureps.roles.coordinator import checkpointing, commit, opening, resharding, termination
from secureps.roles.coordinator.group import MAKING, OPENS, GroupState, Phase
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.validation import check_digests, check_part, check_prepared
from secureps.wording import named

# --- of shards --------------------------------------------------------------------


def take_held(tx: Transaction, event: Held) -> None:
    """Takes a shard's digests of its sums of a cohort, also again while that is opened."""
    group = tx.group(event.group)
    if group.phase not in MAKING or group.number != event.cohort:
        return
    owned = tx.federation.owners(event.group).get(event.shard, ())
    check_digests(event.shard, event.group, owned, event.sums)
    (_hold if group.phase is Phase.HOLDING else _hold_once_more)(tx, group, event)


def _hold(tx: Transaction, group: GroupState, said: Held) -> None:
    """Journals that a shard holds the cohort, and opens it when all shards do."""
    held, shard = group.closed_cohort.held, said.shard
    known = {name: each.sums for name, each in held.items()}
    if not commit.agrees(tx, group, f"sums of cohort {group.number}", known, shard, said.sums):
        return
    replaced = shard in held and held[shard] != said
    if held.get(shard) != said:  # after a lost disk it may have drawn new noise; none was opened
        tx.write(said)
    if replaced and group.phase is Phase.HOLDING:  # others may have disagreed with its old sums
        commit.hold_again(tx, group)
    if group.phase is Phase.OPENING:
        commit.open_held(tx, group)


def _hold_once_more(tx: Transaction, group: GroupState, said: Held) -> None:
    """Checks sums that a shard made anew, after it lost its journal.

    They must be the sums that key holders were shown. Others, for example with noise of another
    seed, are not what is being opened.
    """
    shard = said.shard
    if group.closed_cohort.held.get(shard) != said:
        text = f"{shard} lost the sums, and made again from the same blocks they came out different"
        commit.burn(tx, group, text)
    elif group.phase is Phase.PREPARING:
        blocks = tx.federation.owners(group.name)[shard]
        tx.order(shard, commit.make_prepare(tx, group, blocks))
    elif tx.sessions.asked.isdisjoint(group.summed):  # no member has to send again
        tx.reasons[group.name] = OPENS


def take_missing(tx: Transaction, event: Missing) -> None:
    """Has blocks or opened sums that a shard lacks sent to it again."""
    group = tx.group(event.group)
    wanted = tuple(id for id in event.ids if id in group.receipts)
    if group.phase is Phase.FOUNDING:
        commit.send_again(tx, wanted)
    elif group.is_opening and group.number == event.cohort:
        _lose_opened(tx, group, wanted)
    elif group.phase is Phase.HOLDING and group.number == event.cohort and wanted:
        # nothing was opened, so the members send again, and the rule closes another cohort
        tx.write(CohortReopened(group.name, group.number, wanted))
        commit.send_again(tx, wanted)


def _lose_opened(tx: Transaction, group: GroupState, ids: tuple[SubmissionId, ...]) -> None:
    """Has the holders open the same cohort once more, because a shard lost opened sums.

    If the shard lost blocks of members too, these members send again first. Only if they cannot is
    the cohort burnt, because no holder opens another cohort of this version with these clients.
    """
    gone = sorted(id.client for id in ids if id in tx.sessions.gone)
    if gone:
        names, have = named(gone), "has its own" if len(gone) == 1 else "have theirs"
        text = f"a shard lost the sums and blocks of members, and {names} {have} no more"
        commit.burn(tx, group, text)
    elif ids:
        commit.send_again(tx, ids)
        clients = named([id.client for id in ids])
        text = f"a shard lost the sums and blocks of members: waits for {clients} again"
        tx.reasons[group.name] = text
    elif group.closed_cohort.key is not None:
        commit.prepare_again(tx, group)
    else:
        commit.open_again(tx, group)


def take_spoilt(tx: Transaction, event: Spoilt) -> None:
    """Burns a cohort whose sum a shard cannot use, or has another sum of keys tried."""
    group = tx.group(event.group)
    if group.phase is not Phase.PREPARING or group.number != event.cohort:
        return
    making = group.closed_cohort
    if event.key is None:
        commit.burn(tx, group, f"{event.shard} cannot use the sum: {event.reason}")
    elif making.key is not None and event.key == payload_digest(making.key):
        text = f"with the answers of {', '.join(making.opened_by)}, {event.shard} says: "
        text = f"{text}{event.reason}"[: commit.REASON_LIMIT]
        tx.write(OpeningFailed(group.name, group.number, making.opened_by, text))


def take_prepared(tx: Transaction, event: Prepared) -> None:
    """Notes that a shard has made its blocks of the next version."""
    group = tx.federation.groups.get(event.group)
    if group is not None and event.epoch:
        resharding.take_prepared(tx, group, event)
        return
    if group is None or event.version != group.version + 1:
        return
    if group.phase not in (Phase.PREPARING, Phase.FOUNDING):
        return
    owned = tx.federation.owners(event.group).get(event.shard, ())
    check_digests(event.shard, event.group, owned, event.blocks)
    check_prepared(tx.plan, event, tx.federation.last_owners(event.group))
    section, result = tx.plan.section.evaluation, None
    if section is not None and group.trails and event.version > 0:
        shares = shares_in(tx.plan.group(event.group), group.closed_cohort.cohort)
        metrics = from_vector(section, event.total, shares)
        check_total(event.shard, event.total, event.blocks[0])
        result = VersionEvaluated(tx.federation.trail.subject, metrics)
    elif event.total:
        raise Malformed(
            f"{event.shard}: nobody asks for the total of version {event.version} of {event.group}"
        )
    if commit.take_prepared(tx, group, event) and result is not None:
        termination.take_evaluation(tx, result)


def take_checkpointed(tx: Transaction, event: Checkpointed) -> None:
    """Notes that a shard has written its part of the newest checkpoint."""
    last = tx.federation.last_checkpoint
    if last is None or last.number != event.number:
        return
    check_part(event)
    if event.shard not in last.parts:
        tx.write(event)
        checkpointing.write_manifest_if_whole(tx)


# --- of key holders ---------------------------------------------------------------


def take_opened(tx: Transaction, event: Opened) -> None:
    """Takes the digests of the sums that a decrypting holder opened."""
    if opening.has_committee(tx.plan):
        raise Malformed(f"{event.holder}: a committee gives shares of keys, and opens no sums")
    group, sums = _find_answered(tx, event), event.sums
    if group is None:
        return
    if group.phase is Phase.PREPARING:
        if group.closed_cohort.opened == sums:
            commit.prepare_again(tx, group)
        return
    blocks = tx.layout.group(event.group).blocks
    if len(sums) != blocks or any(len(d) != DIGEST_BYTES for d in sums):
        raise Malformed(f"{event.holder}: {event.group} has {blocks} blocks, each one digest")
    commit.record_opening(tx, group, sums, holders=(event.holder,))


def take_key_share(tx: Transaction, event: KeyShare) -> None:
    """Keeps a holder's share of a sum of keys. It may be needed even if there are enough others."""
    group = _find_answered(tx, event)
    parse_vector(event.share, tx.plan.key_length(tx.layout.group(event.group)))
    if group is not None and event.holder in opening.silent_holders(tx, group):
        tx.write(event)


def take_refusal(tx: Transaction, event: OpenRefused) -> None:
    """Notes that a holder refuses to open a cohort; burns it unless other holders may suffice."""
    if not (group := _find_answered(tx, event)):
        return
    holder, reason = event.holder, event.reason
    if opening.has_committee(tx.plan):
        if holder in opening.silent_holders(tx, group):
            tx.write(replace(event, reason=reason[: commit.REASON_LIMIT]))
    elif group.phase is Phase.OPENING:
        commit.burn(tx, group, f"{holder} refused: {reason}")
    else:
        tx.reasons[group.name] = f"a shard lost the opened sum, and {holder} refuses: {reason}"


def _find_answered(tx: Transaction, answer: Opened | KeyShare | OpenRefused) -> GroupState | None:
    """Returns the group whose cohort a holder answers for; None if that cohort is past."""
    name, number = answer.group, answer.cohort
    group = tx.group(name)
    if not group.is_opening or group.number != number:
        return None
    cohort = group.closed_cohort.cohort
    known = tx.federation.settled.receipts
    receipts = (known[member.id] for member in cohort.members)
    if answer.about != opening_digest(tx.federation.run.id, cohort, receipts):
        raise Conflict(f"{answer.holder} answers for another cohort {number} of {name}")
    return group
