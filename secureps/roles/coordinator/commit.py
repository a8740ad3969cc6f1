"""The six steps of a version, as the coordinator drives them.

1 close    the cohort and its weights are journalled before any message names them
2 hold     every shard verifies and sums; if blocks are missing, the cohort closes anew
3 open     key holders open the cohort, once all shards hold it
4 prepare  shards average and step; their new blocks are durable
5 commit   the version is journalled when all shards are prepared
6 publish  clients are told
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from secureps.crypto.cipher import Opening
from secureps.crypto.sharing import parse_vector
from secureps.errors import Conflict, Malformed
from secureps.messages import coordinator_records as records
from secureps.messages import orders, requests
from secureps.messages.encoding import DIGEST_BYTES, payload_digest
from secureps.messages.evaluation import VersionEvaluated
from secureps.messages.submission import (
    Cohort,
    Held,
    Member,
    Receipt,
    SubmissionId,
    opening_digest,
    shorten,
)
from secureps.policy.checks.evaluation import check_total, from_vector
from secureps.policy.cohorts.suspicion import Length
from secureps.policy.longest import ERROR, longest_sum, longest_usual, measure
from secureps.policy.plan import shares_in
from secureps.policy.rules.rule import Wait
from secureps.roles.coordinator import opening, recovery, termination
from secureps.roles.coordinator.group import MAKING, OPENS, REASON_LIMIT, GroupState, Phase
from secureps.roles.coordinator.state import REVOKED
from secureps.roles.coordinator.transaction import GOES_ON, Transaction
from secureps.roles.validation import check_digests, check_prepared
from secureps.wording import named

# --- before version 0 -------------------------------------------------------------


def found(tx: Transaction, group: GroupState, receipt: Receipt | None) -> None:
    """Has shards make version 0 of a client's founding model, or of the plan's file (None)."""
    for shard in tx.federation.owners(group.name):
        if shard not in group.coming:
            tx.order(shard, orders.Found(tx.federation.incarnation, group.name, receipt))


def founding_models(tx: Transaction, group: GroupState) -> tuple[Receipt | None, ...]:
    """Returns what version 0 may be made of: the plan's file (None), or clients' models."""
    return (None,) if tx.plan.is_given(group.name) else tuple(group.receipts.values())


# --- 1 close ----------------------------------------------------------------------


def close(tx: Transaction, group: GroupState, members: tuple[Member, ...], reason: str) -> None:
    """Closes a cohort; it is journalled before any message names it."""
    receipts = {m.id: group.receipts[m.id] for m in members}
    own = ((m, receipts[m.id]) for m in members)
    whole = (replace(m, step=r.step, update=r.update, examples=r.examples) for m, r in own)
    cohort = Cohort(
        group.name,
        group.number + 1,
        group.version + 1,
        tx.federation.placement.epoch,
        tuple(sorted(whole, key=lambda member: member.id)),
        group.scale,
        receipts[members[0].id].committee,
    )
    tx.write(records.CohortClosed(cohort, reason))
    hold_again(tx, group)


# --- 2 hold -----------------------------------------------------------------------


def make_hold(tx: Transaction, group: GroupState, blocks: tuple[int, ...]) -> orders.Hold:
    cohort = group.closed_cohort.cohort
    members = tuple(
        orders.MemberBlocks(m.id, tuple(group.receipts[m.id].blocks[b] for b in blocks))
        for m in cohort.members
    )
    return orders.Hold(tx.federation.incarnation, cohort, members)


def hold_again(tx: Transaction, group: GroupState) -> None:
    """Has every shard report once more that it holds the cohort, or which blocks it lacks."""
    tx.tell_shards(group.name, lambda blocks: make_hold(tx, group, blocks))


def resume_submission(tx: Transaction, group: GroupState, receipt: Receipt) -> None:
    if group.phase is Phase.FOUNDING:
        found(tx, group, receipt)
    elif receipt.id in tx.sessions.asked:
        send_again(tx, (receipt.id,))


def resume_steps(tx: Transaction, group: GroupState, receipt: Receipt) -> None:
    """Goes on with the steps that waited for a submission's blocks, which shards have again."""
    tx.sessions.asked.discard(receipt.id)
    if group.phase is Phase.FOUNDING:
        found(tx, group, receipt)
        return
    if not (group.is_opening and group.is_closed_over(receipt.id)):
        return
    if awaited := tx.sessions.asked.intersection(group.summed):
        group.reason = _describe_awaited(tx, awaited)
    else:
        hold_again(tx, group)


def _describe_awaited(tx: Transaction, ids: Collection[SubmissionId]) -> str:
    """Says which members must send their blocks again, and which of them have left the run."""
    clients = sorted(id.client for id in ids)
    text = f"a shard lost the sums and blocks of members: waits for {named(clients)} again"
    left = [client for client in clients if client in tx.federation.retired]
    return f"{text}; start {named(left)} again with the state folder of each" if left else text


def send_again(tx: Transaction, ids: tuple[SubmissionId, ...]) -> None:
    """Asks members for the same bytes once more, from their outboxes."""
    asked = tx.sessions.asked.union(ids)
    tx.sessions.asked = {id for id in asked if tx.federation.is_pending(id)}
    for id in ids:
        tx.order(id.client, orders.SendAgain(tx.federation.incarnation, id))


# --- 3 open -----------------------------------------------------------------------


def make_open(tx: Transaction, group: GroupState) -> orders.Open:
    making = group.closed_cohort
    receipts = tuple(shorten(group.receipts[m.id]) for m in making.cohort.members)
    shards = () if tx.plan.has_committee else sorted(making.held)
    held = tuple(making.held[shard] for shard in shards)
    return orders.Open(tx.federation.incarnation, making.cohort, receipts, held)


def open_held(tx: Transaction, group: GroupState) -> None:
    """Opens the cohort that every shard holds; in the clear there is nothing to open."""
    if tx.plan.opening is Opening.NOTHING:
        record_opening(tx, group, ())
    else:
        open_again(tx, group)


def open_again(tx: Transaction, group: GroupState) -> None:
    """Asks the holders to open the cohort that every shard holds."""
    order = make_open(tx, group)
    for holder in opening.asked_holders(tx, group):
        tx.order(holder, order)


def record_opening(
    tx: Transaction,
    group: GroupState,
    sums: tuple[bytes, ...],
    key: bytes | None = None,
    holders: tuple[str, ...] | None = None,
) -> None:
    """Journals the opening before it is forwarded to the shards."""
    tx.write(records.CohortOpened(group.name, group.number, sums, key, holders))
    tx.tell_shards(group.name, lambda blocks: make_prepare(tx, group, blocks))


def burn(
    tx: Transaction, group: GroupState, reason: str, spoilt: bool = False, length: Length = ()
) -> None:
    """Burns the cohort: it is never opened, and its members' submissions are dropped.

    `spoilt`: the update of a member is to blame. `length` is there if its sum is longer than usual.
    """
    ids = group.summed
    tx.write(records.CohortBurnt(group.name, group.number, reason, spoilt, length))
    tx.settle(ids)
    recovery.isolate(tx, group)


# --- a committee's answers --------------------------------------------------------


def try_answers(tx: Transaction, group: GroupState) -> Wait:
    """Tries the next sum of keys that the holders' answers give, if there is one.

    While fewer than t holders have answered, the group waits, but not for holders off the roster.
    When all sums have been tried, silent holders have one deadline's time to answer.
    """
    making, t, n = group.closed_cohort, tx.plan.threshold, tx.plan.holders
    unanswered = opening.silent_holders(tx, group)
    gone = (holder for holder in unanswered if holder not in tx.holders)
    refusals = making.refusals | dict.fromkeys(gone, REVOKED)
    if len(refusals) > n - t:
        said = "; ".join(f"{h}: {reason}" for h, reason in sorted(refusals.items()))
        burn(tx, group, f"{len(refusals)} of {n} key holders refused: {said}")
        return tx.again
    if len(making.shares) < t:
        due = opening.asked_holders(tx, group)
        answered = [holder for holder in due if holder not in unanswered]
        return Wait(None, f"opens: {opening.describe_missing(tx, due, answered)}")
    for key, holders in opening.candidates(tx, group):
        record_opening(tx, group, (), key, holders)
        return GOES_ON
    in_vain = f"no {t} of {len(making.shares)} answers open it"
    late = [holder for holder in unanswered if holder in tx.holders]
    until = making.answered_at + tx.plan.group(group.name).rule.deadline
    if late and tx.now < until:
        return Wait(until, f"{in_vain}; waits for {', '.join(late)}")
    verdict = opening.judge_answers(tx, group)
    # More than t answers fit, which liars could only have arranged together: a client is to blame.
    burn(tx, group, f"{in_vain}: {verdict.reason}", spoilt=len(verdict.consistent) > t)
    return tx.again


# --- 4 prepare, 5 commit, 6 publish -----------------------------------------------


def make_prepare(tx: Transaction, group: GroupState, blocks: tuple[int, ...]) -> orders.Prepare:
    making = group.closed_cohort
    sums = tuple(making.opened[b] for b in blocks) if making.opened else ()
    return orders.Prepare(tx.federation.incarnation, making.cohort, sums, making.key)


def prepare_again(tx: Transaction, group: GroupState) -> None:
    """Repeats the order to prepare to shards that are not prepared, or may have lost it."""
    for shard, blocks in tx.federation.owners(group.name).items():
        unsure = (group.name, shard) in tx.sessions.unconfirmed
        if unsure or shard not in group.coming:
            tx.order(shard, make_prepare(tx, group, blocks))


def _repeat_prepare(tx: Transaction, group: GroupState) -> None:
    """Repeats the order to make the next version to shards that have not made it."""
    if group.phase is not Phase.FOUNDING:
        prepare_again(tx, group)
        return
    for receipt in founding_models(tx, group):
        found(tx, group, receipt)


def _note_prepared(tx: Transaction, group: GroupState, by: requests.Prepared) -> bool:
    """Notes that a shard is prepared; publishes once all are, and returns whether it did."""
    if _is_given_up(tx, group, by):
        _repeat_prepare(tx, group)
        return False
    version = group.version + 1
    coming = group.coming
    known = {shard: made.blocks for shard, made in coming.items()}
    if not agrees(tx, group, f"blocks of version {version}", known, by.shard, by.blocks):
        return False
    if not agrees_on_scale(tx, group, by):
        return False
    if known.get(by.shard) != by.blocks or by.scale not in (None, group.coming_scale):
        replaced = by.shard in known
        tx.write(by)
        if replaced:  # others may have disagreed with its earlier blocks
            _repeat_prepare(tx, group)
    tx.sessions.unconfirmed.discard((group.name, by.shard))
    tx.sessions.note_whole(by.shard, group.name)
    owners = tx.federation.owners(group.name)
    if not owners.keys() <= group.coming.keys():
        return False
    if unsure := [shard for shard in owners if _may_have_lost_it(tx, group, shard)]:
        for shard in unsure:
            tx.order(shard, make_hold(tx, group, owners[shard]))
        return False
    length, why, proven = _judge_length(tx, group)
    if why:
        burn(tx, group, why, proven, length)
        return False
    if group.making is not None and group.making.key is not None:
        names, reason = opening.liars(tx, group)
        if names:
            tx.write(records.LiarsNamed(group.name, group.number, names, reason))
    ids = group.summed
    tx.write(records.VersionCommitted(group.name, version, length))
    recovery.isolate(tx, group)
    tx.tell_shards(group.name, lambda blocks: make_commit(tx, group))
    tx.tell_clients(make_published(tx, group))
    tx.tell_fates(ids)
    if late := tuple(id for id in ids if not tx.federation.is_kept(id)):
        tx.discard(late)
    return True


def _judge_length(tx: Transaction, group: GroupState) -> tuple[Length, str, bool]:
    """Returns an opened sum's length if the plan compares it with others, and why it is too long.

    The last value tells whether that proves that a member did not clip.
    """
    cohort, layout = group.cohort, tx.layout.group(group.name)
    most = None if cohort is None else longest_sum(tx.plan, layout, cohort)
    if cohort is None or most is None:
        return (), "", False
    squares = dict[int, float]()
    for shard, blocks in tx.federation.owners(group.name).items():
        for block, square in zip(blocks, group.coming[shard].squares, strict=True):
            squares[block] = max(square, squares.get(block, 0.0))  # of copies the worst
    norm = math.sqrt(sum(squares.values()))
    length = measure(tx.plan, layout, cohort, norm) if group.times else ()
    usual = longest_usual(tx.plan, cohort, group.lengths)
    usually = longest_sum(tx.plan, layout, cohort, usual) or most
    if norm <= usually:
        return length, "", False
    # With shards' own noise the same updates may be summed again, for one charge. What is usual may
    # be the length of such a sum.
    found, least = f"{norm:.3g}", f"{usually:.3g}"
    if tx.plan.noisy_shards:
        found, least = "too", "less"
    why = f"{group.times:g} times what is usual is {least}: a member, or all, sent more"
    if not group.lengths:
        why = "this run does not know yet what is usual: sets of its clients will show it"
    if norm > most:
        why = (
            f"all but {ERROR:g} of sums of clipped updates are at most {most:.3g} long: a member "
            "sent something else"
        )
    return length, f"its sum is {found} long, and {why}", norm > most


def _is_given_up(tx: Transaction, group: GroupState, by: requests.Prepared) -> bool:
    """True if a shard made version 0 of a founding model that has been given up since."""
    if group.phase is not Phase.FOUNDING or tx.plan.is_given(group.name):
        return False
    owned = tx.federation.owners(group.name)[by.shard]
    given = (tuple(r.blocks[block] for block in owned) for r in group.receipts.values())
    return by.blocks not in given


def _may_have_lost_it(tx: Transaction, group: GroupState, shard: str) -> bool:
    """True if a shard that was prepared may have lost its disk since.

    A shard that is away reports again when it comes back. If the version were committed before and
    the shard's disk were lost, its blocks of the version could not be made again.
    """
    away = group.phase is Phase.PREPARING and shard not in tx.watchers
    return away or (group.name, shard) in tx.sessions.unconfirmed


def make_commit(tx: Transaction, group: GroupState) -> orders.Commit:
    """Makes the order that commits the newest version, and names the oldest one to keep."""
    kept = [c.version_of(group.name) for c in tx.federation.checkpoints]
    keep = max(0, min([group.version - 1, *kept]))
    return orders.Commit(tx.federation.incarnation, group.name, group.version, keep)


def make_known(
    tx: Transaction, group: GroupState, shard: str, blocks: tuple[int, ...]
) -> orders.Commit:
    """Like `make_commit`, with all that a shard with these blocks needs to recover the version."""
    own = tuple(group.blocks[block] for block in blocks)
    return replace(make_commit(tx, group), blocks=own, state=group.states[shard])


def coming_blocks(tx: Transaction, group: str, shard: str) -> tuple[int, ...]:
    """Returns a shard's blocks by the coming placement; none if that does not change them."""
    before, coming = tx.federation.placement, tx.federation.coming
    blocks = () if coming is None else coming.blocks_of(group, shard)
    return () if blocks == before.blocks_of(group, shard) else blocks


def tell_coming(tx: Transaction, group: GroupState, shard: str) -> None:
    """Tells a shard of the newest version, if the coming placement changes its blocks of it."""
    if blocks := coming_blocks(tx, group.name, shard):
        own = tuple(group.blocks[block] for block in blocks)
        tx.order(shard, replace(make_commit(tx, group), blocks=own))


def make_published(tx: Transaction, group: GroupState) -> orders.Published:
    return orders.Published(tx.federation.incarnation, group.name, group.version, group.blocks)


def agrees(
    tx: Transaction,
    group: GroupState,
    what: str,
    known: Mapping[str, tuple[bytes, ...]],
    shard: str,
    digests: tuple[bytes, ...],
) -> bool:
    """True if a shard's digests agree with those of other holders; if not, names both shards.

    Args:
        what: words for what is compared: "sums of cohort 3".
        known: by shard, the digests of its own blocks in their order.
    """
    if tx.federation.placement.replicas is None:
        return True
    owners = tx.federation.owners(group.name)
    mine = dict(zip(owners[shard], digests, strict=True))
    for other in owners.keys() & known.keys() - {shard}:
        for block, digest in zip(owners[other], known[other], strict=True):
            if mine.get(block, digest) != digest:
                _differ(tx, group, f"{shard} and {other} have different {what}, block {block}")
                return False
    return True


def agrees_on_scale(tx: Transaction, group: GroupState, said: requests.Prepared) -> bool:
    """Like `agrees`, for the scale of a clip or range, which the last block's holders report."""
    scale, shard = group.coming_scale, said.shard
    others = [s for s in tx.federation.last_owners(group.name) if s in group.coming and s != shard]
    if said.scale is None or not others or said.scale == scale:
        return True
    found = f"{shard} and {others[0]} have different scales of version {said.version}"
    _differ(tx, group, f"{found}, {said.scale} and {scale}")
    return False


def _differ(tx: Transaction, group: GroupState, found: str) -> None:
    text = (
        f"{found}: one of the two computes wrongly, and nothing is made of it until they agree; "
        "start the faulty one on a sound machine, with a new state folder"
    )
    if group.reason != text:
        tx.step.say(f"{tx.plan.head(group.name)}{text}")
    group.reason = text


# --- answers of shards ------------------------------------------------------------
#
# An answer may come late or twice. If its step is past, it changes nothing.


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
    if not agrees(tx, group, f"sums of cohort {group.number}", known, shard, said.sums):
        return
    replaced = shard in held and held[shard] != said
    if held.get(shard) != said:
        # A shard that lost its disk may draw new noise: no sum with the older noise was opened.
        tx.write(said)
    if replaced and group.phase is Phase.HOLDING:  # others may have disagreed with its old sums
        hold_again(tx, group)
    if group.phase is Phase.OPENING:
        open_held(tx, group)


def _hold_once_more(tx: Transaction, group: GroupState, said: Held) -> None:
    """Checks sums that a shard made anew, after it lost its journal.

    They must be the sums that key holders were shown. Others, for example with noise of another
    seed, are not what is being opened.
    """
    shard = said.shard
    if group.closed_cohort.held.get(shard) != said:
        text = f"{shard} lost the sums, and made again from the same blocks they came out different"
        burn(tx, group, text)
    elif group.phase is Phase.PREPARING:
        blocks = tx.federation.owners(group.name)[shard]
        tx.order(shard, make_prepare(tx, group, blocks))
    elif tx.sessions.asked.isdisjoint(group.summed):  # no member has to send again
        group.reason = OPENS


def take_missing(tx: Transaction, event: requests.Missing) -> None:
    """Has blocks or opened sums that a shard lacks sent to it again."""
    group = tx.group(event.group)
    wanted = tuple(id for id in event.ids if id in group.receipts)
    if group.phase is Phase.FOUNDING:
        send_again(tx, wanted)
    elif group.is_opening and group.number == event.cohort:
        _lose_opened(tx, group, wanted)
    elif group.phase is Phase.HOLDING and group.number == event.cohort and wanted:
        # nothing was opened, so the members send again, and the rule closes another cohort
        tx.write(records.CohortReopened(group.name, group.number, wanted))
        send_again(tx, wanted)


def _lose_opened(tx: Transaction, group: GroupState, ids: tuple[SubmissionId, ...]) -> None:
    """Has the holders open the same cohort once more, because a shard lost opened sums.

    If the shard lost blocks of members too, these members send again first. Only if they cannot is
    the cohort burnt, because no holder opens another cohort of this version with these clients.
    """
    gone = sorted(id.client for id in ids if id in tx.sessions.gone)
    if gone:
        text = f"a shard lost the sums and blocks of members, and so did {named(gone)}"
        burn(tx, group, text)
    elif ids:
        send_again(tx, ids)
        group.reason = _describe_awaited(tx, ids)
    elif group.closed_cohort.key is not None:
        prepare_again(tx, group)
    else:
        open_again(tx, group)


def take_spoilt(tx: Transaction, event: requests.Spoilt) -> None:
    """Burns a cohort whose sum a shard cannot use, or has another sum of keys tried.

    If no holder was asked yet, the same updates are added up anew, as another cohort.
    """
    group = tx.group(event.group)
    if group.phase not in MAKING or group.number != event.cohort:
        return
    making = group.closed_cohort
    if event.key is None and group.is_opening:
        burn(tx, group, f"{event.shard} cannot use the sum: {event.reason}")
    elif event.key is None:
        tx.write(records.CohortReopened(group.name, group.number, ()))
    elif group.phase is not Phase.PREPARING:
        return
    elif making.key is not None and event.key == payload_digest(making.key):
        text = f"with the answers of {', '.join(making.opened_by)}, {event.shard} says: "
        text = f"{text}{event.reason}"[:REASON_LIMIT]
        tx.write(records.OpeningFailed(group.name, group.number, making.opened_by, text))
    else:  # the shard was still trying an earlier sum when it was told of this one
        prepare_again(tx, group)


def take_prepared(tx: Transaction, event: requests.Prepared) -> None:
    """Notes that a shard has made its blocks of the next version."""
    group = tx.federation.groups.get(event.group)
    if group is None or event.version != group.version + 1:
        return
    if group.phase not in (Phase.PREPARING, Phase.FOUNDING):
        return
    if event.cohort != (-1 if group.cohort is None else group.number):
        return  # of a burnt cohort of this version
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
    if _note_prepared(tx, group, event) and result is not None:
        termination.take_evaluation(tx, result)


# --- answers of key holders -------------------------------------------------------


def take_opened(tx: Transaction, event: requests.Opened) -> None:
    """Takes the digests of the sums that a decrypting holder opened."""
    if tx.plan.has_committee:
        raise Malformed(f"{event.holder}: a committee gives shares of keys, and opens no sums")
    group, sums = _find_answered(tx, event), event.sums
    if group is None:
        return
    if group.phase is Phase.PREPARING:
        if group.closed_cohort.opened == sums:
            prepare_again(tx, group)
        return
    blocks = tx.layout.group(event.group).blocks
    if len(sums) != blocks or any(len(d) != DIGEST_BYTES for d in sums):
        raise Malformed(f"{event.holder}: {event.group} has {blocks} blocks, each one digest")
    record_opening(tx, group, sums, holders=(event.holder,))


def take_key_share(tx: Transaction, event: requests.KeyShare) -> None:
    """Keeps a holder's share of a sum of keys. It may be needed even if there are enough others."""
    group = _find_answered(tx, event)
    parse_vector(event.share, tx.plan.key_length(tx.layout.group(event.group)))
    if group is not None and event.holder in opening.silent_holders(tx, group):
        tx.write(event)


def take_refusal(tx: Transaction, event: requests.OpenRefused) -> None:
    """Notes that a holder refuses to open a cohort; burns it unless other holders may suffice."""
    if not (group := _find_answered(tx, event)):
        return
    holder, reason = event.holder, event.reason
    if tx.plan.has_committee:
        if holder in opening.silent_holders(tx, group):
            tx.write(replace(event, reason=reason[:REASON_LIMIT]))
    elif group.phase is Phase.OPENING:
        burn(tx, group, f"{holder} refused: {reason}")
    else:
        group.reason = f"a shard lost the opened sum, and {holder} refuses: {reason}"


def _find_answered(
    tx: Transaction, answer: requests.Opened | requests.KeyShare | requests.OpenRefused
) -> GroupState | None:
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
