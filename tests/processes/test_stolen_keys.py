"""Hostile input: a stolen key of any role stops no run.

Each attack is refused, or does no harm: nobody ends, and versions have all that the honest send.
"""

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest

from secureps.crypto.suite import key_length
from secureps.errors import ClientError, Malformed, Refused, SecurepsError, UnknownParty, Unsigned
from secureps.messages.evaluation import Evaluated
from secureps.messages.requests import (
    AskBlock,
    AskRun,
    Examined,
    GetBlock,
    GetSum,
    Join,
    KeyShare,
    Missing,
    Noted,
    Opened,
    OpenRefused,
    PutBlock,
    Register,
    Retire,
    Stored,
    Submit,
    Telemetry,
    Withdraw,
)
from secureps.messages.run import COORDINATOR, GroupVersion
from secureps.messages.submission import (
    FOUNDING,
    OPENED,
    Receipt,
    SubmissionId,
    ciphertext_root,
    cohort_digest,
)
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.validation import LAST_SEQUENCE
from secureps.wire.grpc import framing
from secureps.wire.msgpack import decode
from tests.kits.documented import check_error
from tests.kits.federations import small_plan
from tests.kits.hostile_peer import PATIENCE, HostilePeer
from tests.kits.one_process import OBSERVER, OneProcess, Watch

GROUP = {"clip": 3.0, "range": 1.0, "most_examples": 32}
RULE = {"quorum": 3, "minimum": 2, "most": 4, "deadline": 60.0}
VICTIM = "client-00"
HUGE = 2**63 - 1


class Thief(HostilePeer):
    """Who has a key of the roster, and listens at the coordinator."""

    def __init__(self, around: OneProcess, name: str) -> None:
        super().__init__(name, around.kit.identities[name], around.addresses)
        self.around = around

    @property
    def known(self) -> CoordinatorState:
        machine = self.around.parties[COORDINATOR].machine
        assert isinstance(machine, Coordinator)
        return machine.federation

    def stolen(self) -> Receipt:
        return self.around.until(
            lambda: next((r for r in tuple(self.known.groups["all"].receipts.values())), None)
        )


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneProcess]:
    plan = small_plan("rlwe-2-of-3", versions=100_000, group=[GROUP | {"rule": RULE}])
    with OneProcess(plan, tmp_path_factory.mktemp("thief"), clients=4) as made:
        made.makes(2)
        yield made


def all_take_part(around: OneProcess) -> None:
    status = around.status()
    sent = {member.name: member.submissions for member in status.members}
    assert min(sent[name] for name in around.clients[:-1]) >= status.groups[0].version - 1


@pytest.fixture(scope="module")
def watch(around: OneProcess) -> Iterator[Watch]:
    with closing(Watch(around, 8, lambda: all_take_part(around))) as made:
        yield made


@pytest.fixture(autouse=True)
def all_goes_on(watch: Watch, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    watch.tried(request.node.name)


@pytest.fixture
def client(around: OneProcess) -> Iterator[Thief]:
    with closing(Thief(around, around.clients[-1])) as thief:
        yield thief


@pytest.fixture
def holder(around: OneProcess) -> Iterator[Thief]:
    with closing(Thief(around, around.holders[0])) as thief:
        yield thief


FROM = slice(None)
Attack = Callable[[Thief], Any]


def tells(message: Callable[[Thief], Any]) -> Attack:
    return lambda thief: thief.ask(COORDINATOR, message(thief))


def asks(kind: Any = GetBlock, **changes: Any) -> Attack:
    def ask(thief: Thief) -> Any:
        names = {"run": thief.run.id, "group": "all", "block": 0}
        numbers = {"version": thief.around.version} if kind is GetBlock else {"cohort": 0}
        return thief.ask(thief.owner(), kind(**{**names, **numbers, **changes}))

    return ask


def puts_at(offset: int, of: slice = FROM) -> Attack:
    def put(thief: Thief) -> Any:
        message = thief.block(sequence=9)
        cut = dataclasses.replace(message, offset=offset)
        return decode(thief.say(framing.PUT, cut, message.payload[of]))

    return put


def reads_from(offset: int) -> Attack:
    def read(thief: Thief) -> Any:
        ask = GetBlock(thief.run.id, "all", thief.around.version, 0, offset)
        return thief.say(framing.GET, ask)

    return read


def puts(**changes: Any) -> Attack:
    return lambda thief: thief.put(**changes)


def submits(**changes: Any) -> Attack:
    """The victim's receipt in which something is another, signed by the thief."""

    def submit(thief: Thief) -> Any:
        receipt = dataclasses.replace(thief.stolen(), **changes)
        if "correction" in changes:
            root = ciphertext_root(receipt.blocks, receipt.correction)
            receipt = dataclasses.replace(receipt, root=root)
        return thief.ask(COORDINATOR, Submit(thief.signed(receipt)))

    return submit


THEIRS = SubmissionId(VICTIM, "all", 1)
OWN = SubmissionId("client-03", "all", 0)

BY_CLIENT: dict[str, tuple[Attack, type[SecurepsError]]] = {
    # --- in another's name --------------------------------------------------------
    "a withdrawal": (tells(lambda _: Withdraw(VICTIM, THEIRS, 0, 0, "no")), UnknownParty),
    "its own withdrawal of theirs": (
        tells(lambda it: Withdraw(it.name, THEIRS, 0, 0, "no")),
        Malformed,
    ),
    "a retirement": (tells(lambda _: Retire(VICTIM)), UnknownParty),
    "a retirement of who never came": (tells(lambda it: Retire(it.name)), UnknownParty),
    "a join": (tells(lambda it: Join(VICTIM, it.run.schema)), UnknownParty),
    "a loss": (tells(lambda _: Missing(VICTIM, "all", -1, (THEIRS,))), UnknownParty),
    "figures": (tells(lambda _: Telemetry(VICTIM, "all", 1, ())), UnknownParty),
    "an evaluation": (tells(lambda it: Evaluated(it.run.id, VICTIM, 1, (), (), 1)), UnknownParty),
    "their receipt": (tells(lambda it: Submit(it.stolen())), UnknownParty),
    "their receipt, signed by the thief": (submits(), UnknownParty),
    "their receipt under its own name": (submits(id=OWN), SecurepsError),
    "their receipt of another run": (submits(id=OWN, run=bytes(32)), ClientError),
    "their receipt with their envelopes turned": (
        lambda it: submits(id=OWN, envelopes=it.stolen().envelopes[::-1])(it),
        SecurepsError,
    ),
    "their receipt with an envelope for all": (
        lambda it: submits(id=OWN, envelopes=it.stolen().envelopes[:1] * 3)(it),
        SecurepsError,
    ),
    "a receipt of no envelopes": (submits(id=OWN, envelopes=()), Malformed),
    "a receipt without a correction": (submits(id=OWN, correction=None), Malformed),
    "a receipt of a longer correction": (submits(id=OWN, correction=bytes(1 << 16)), ClientError),
    "a receipt of version -1": (submits(id=OWN, version=-1), ClientError),
    "a receipt of a far version": (submits(id=OWN, version=HUGE), ClientError),
    "a receipt of a far step": (submits(id=OWN, step=HUGE), Malformed),
    "a receipt of a far sequence": (submits(id=SubmissionId("client-03", "all", HUGE)), Malformed),
    "a receipt that founds": (submits(id=OWN, purpose=FOUNDING), ClientError),
    "a receipt for a sum": (submits(id=OWN, purpose=OPENED), Malformed),
    "a receipt of another group": (submits(id=SubmissionId("client-03", "other", 0)), ClientError),
    # --- blocks -------------------------------------------------------------------
    "a block below 0": (puts(block=-1), Malformed),
    "a block beyond the last": (puts(block=1 << 20), Malformed),
    "a far block": (puts(block=HUGE), Malformed),
    "a far sequence": (puts(sequence=HUGE), Malformed),
    "an offset below 0": (puts_at(-1), Malformed),
    "an offset beyond the end": (puts_at(1 << 40), Malformed),
    "more than the rest": (puts_at(7), Malformed),
    "less than the rest": (puts_at(7, slice(8, None)), Malformed),
    "a length of 0": (puts(payload=b""), Malformed),
    "is theirs there": (
        lambda it: it.ask(it.owner(), AskBlock(it.block(author=VICTIM).header)),
        UnknownParty,
    ),
    "an upload of nothing": (lambda it: it.say(framing.PUT, AskRun(), b"x"), Malformed),
    "a download of nothing": (lambda it: it.say(framing.GET, AskRun()), Malformed),
    # --- what it would like to have -----------------------------------------------
    "a block of the model below 0": (asks(block=-1), Malformed),
    "a far block of the model": (asks(block=HUGE), Malformed),
    "a version below 0": (asks(version=-5), SecurepsError),
    "a far version": (asks(version=HUGE), SecurepsError),
    "a model of another run": (asks(run=bytes(32)), ClientError),
    "from before its begin": (reads_from(-1), ClientError),
    "from beyond its end": (reads_from(1 << 40), ClientError),
    "a group that there is not": (asks(group="../all"), Malformed),
}


@pytest.mark.parametrize("attack", BY_CLIENT)
def test_a_client_s_key(attack: str, client: Thief) -> None:
    does, refused = BY_CLIENT[attack]
    with pytest.raises(refused) as error:
        does(client)
    if attack in CLIENT_HEARS:
        check_error(error.value, CLIENT_HEARS[attack])


def test_a_block_from_where_it_is_not_is_asked_for_from_where_it_is(client: Thief) -> None:
    message = client.block(sequence=11)
    cut = dataclasses.replace(message, offset=16)
    assert decode(client.say(framing.PUT, cut, message.payload[16:])) == Stored(
        message.header.digest, 0
    )
    assert client.ask(client.owner(), message) == Stored(message.header.digest)


def test_a_far_sequence_of_blocks_leaves_room_for_others(client: Thief) -> None:
    for sequence in (LAST_SEQUENCE, LAST_SEQUENCE - 1, *range(40)):
        message = client.block(sequence=sequence)
        assert client.ask(client.owner(), message).digest == message.header.digest


def test_a_loss_of_what_is_another_s_changes_nothing(client: Thief) -> None:
    lost = Missing(client.name, "all", -1, (client.stolen().id, THEIRS))
    assert client.ask(COORDINATOR, lost) == Noted()


def number(thief: Thief) -> int:
    return thief.known.groups["all"].number


def share(thief: Thief, cohort: int, about: bytes = bytes(32)) -> KeyShare:
    size = key_length(thief.around.plan.cipher_parameters)
    made = np.full(size, 12345, "<u4").tobytes()
    return KeyShare(thief.name, "all", cohort, made, about)


def current(thief: Thief) -> bytes:
    """What answers for the cohort that is being opened now are about."""

    def opening() -> bytes | None:
        state = thief.known.groups["all"]
        if state.phase is not Phase.OPENING or state.cohort is None:
            return None
        return cohort_digest(thief.run.id, state.cohort)

    return thief.around.until(opening)


BY_HOLDER: dict[str, tuple[Attack, type[SecurepsError] | None]] = {
    "a share of a cohort before": (tells(lambda it: share(it, 0)), None),
    "a share of one to come": (tells(lambda it: share(it, number(it) + 9)), None),
    "a share of a far one": (tells(lambda it: share(it, HUGE)), None),
    "a share of one below 0": (tells(lambda it: share(it, -7)), None),
    "a share for another holder": (
        tells(lambda it: dataclasses.replace(share(it, 0), holder=it.around.holders[1])),
        UnknownParty,
    ),
    "a share of no group": (
        tells(lambda it: dataclasses.replace(share(it, 0), group="other")),
        Malformed,
    ),
    "a refusal of one before": (
        tells(lambda it: OpenRefused(it.name, "all", 0, "no", bytes(32))),
        None,
    ),
    "a refusal of one to come": (
        tells(lambda it: OpenRefused(it.name, "all", number(it) + 9, "x" * 100_000, bytes(32))),
        None,
    ),
    "sums": (tells(lambda it: Opened(it.name, "all", number(it), (), bytes(32))), Malformed),
    "a flaw of nobody's": (
        tells(lambda it: Examined(it.name, SubmissionId("nobody", "all", 1), "bad", bytes(32))),
        None,
    ),
    "a flaw of another group": (
        tells(lambda it: Examined(it.name, SubmissionId(VICTIM, "other", 1), "bad", bytes(32))),
        Malformed,
    ),
    "a flaw in another's name": (
        tells(lambda it: Examined(it.around.holders[1], THEIRS, "bad", bytes(32))),
        UnknownParty,
    ),
    "an empty ledger": (tells(lambda it: Register(it.name, "", 1.0, 0)), Refused),
    "a far ledger": (
        tells(lambda it: Register(it.name, "", 1.0, 0, b"", (GroupVersion("all", HUGE),))),
        SecurepsError,
    ),
    "a far incarnation": (tells(lambda it: Register(it.name, "", 1.0, HUGE)), Malformed),
    "as a shard": (tells(lambda it: Register("shard-0", "evil:1", 1.0, 0)), UnknownParty),
    "another run": (tells(lambda it: Register(it.name, "", 1.0, 0, bytes(32))), ClientError),
    "a sum of ciphertexts": (asks(GetSum), UnknownParty),
    "an opened sum": (puts(purpose=OPENED), Malformed),
    "an update": (puts(), UnknownParty),
}


@pytest.mark.parametrize("attack", BY_HOLDER)
def test_a_holder_s_key(attack: str, holder: Thief) -> None:
    does, refused = BY_HOLDER[attack]
    if refused is None:
        with suppress(SecurepsError):
            does(holder)
    else:
        with pytest.raises(refused) as error:
            does(holder)
        if attack in HOLDER_HEARS:
            check_error(error.value, HOLDER_HEARS[attack])


def test_a_share_that_is_none_opens_nothing_and_stops_nothing(holder: Thief) -> None:
    """For the cohort that is opened now, in time or not: two others suffice."""
    for _ in range(3):
        about = current(holder)
        with suppress(SecurepsError):
            holder.ask(COORDINATOR, share(holder, number(holder), about))
        holder.around.makes(1)


CLIENT_HEARS = {
    "from before its begin": "byte ... of ... is asked for (the sender's fault)",
    "an upload of nothing": "Put takes PutBlock, not ... (the sender's fault)",
    "a download of nothing": "Get takes GetBlock or GetSum, not ... (the sender's fault)",
    "a receipt of a far sequence": (
        "...: a sequence is at least 0, and at most ... (the sender's fault)"
    ),
    "a retirement of who never came": "... has not joined, and cannot retire (the sender's fault)",
    "its own withdrawal of theirs": (
        "... is no submission of ... to a group without rounds (the sender's fault)"
    ),
    "a receipt without a correction": (
        "...: the correction of its key is missing (the sender's fault)"
    ),
    "a receipt of no envelopes": (
        "...: ... key holders want as many envelopes and ... commitments, not ... and "
        "... (the sender's fault)"
    ),
    "a receipt for a sum": "...: no receipt is for ... (the sender's fault)",
    "a receipt of a far step": (
        "...: update ... of one version, by the plan's rule the last is ... (the sender's fault)"
    ),
}
HOLDER_HEARS = {
    "an opened sum": "no block is for ... (the sender's fault)",
    "sums": "...: a committee gives shares of keys, and opens no sums (the sender's fault)",
    "a sum of ciphertexts": (
        "only a key holder that decrypts sums may ask for one (the sender's fault)"
    ),
    "an empty ledger": (
        "... comes with an empty ledger to a run whose sums it has opened: start it with the "
        "state folder that it had; if that is gone, restore no copy, and leave it off (the other "
        "side's fault)"
    ),
    "a far incarnation": (
        "... says that it obeyed incarnation ...; this coordinator has come to ..., and "
        "no start is ... further (the sender's fault)"
    ),
}


UNWANTED: dict[str, dict[str, Any]] = {
    "their block": {"author": VICTIM},
    "a block of another length": {"length": 1},
    "a founding block": {"purpose": FOUNDING},
    "a block of another run": {"run": bytes(32)},
    "a block of another group": {"group": "other"},
    "a block beyond the last": {"block": 1 << 20},
    "a far sequence": {"sequence": HUGE},
}


@pytest.mark.parametrize("what", UNWANTED)
def test_a_block_that_is_not_wanted_is_refused_by_its_header(what: str, client: Thief) -> None:
    with pytest.raises(ClientError):
        client.announce(dataclasses.replace(client.block(**UNWANTED[what]), payload=b""))


def test_a_block_that_nobody_signed_is_refused_by_its_header(client: Thief) -> None:
    header = dataclasses.replace(client.block().header, signature=bytes(64))
    with pytest.raises(Unsigned):
        client.announce(PutBlock(header))


def test_keys_whose_blocks_nobody_wants_take_no_room_together(
    around: OneProcess, client: Thief, holder: Thief
) -> None:
    """The observer's and a holder's announce as many blocks as they may, and send nothing."""
    with closing(Thief(around, OBSERVER)) as observer, ThreadPoolExecutor(32) as pool:
        announced = [
            pool.submit(thief.announce, PutBlock(thief.block(sequence=number).header))
            for number in range(16)
            for thief in (observer, holder)
        ]
        for each in announced:
            assert isinstance(each.exception(PATIENCE), UnknownParty)
    assert client.ask(client.owner(), message := client.block(sequence=50)) == Stored(
        message.header.digest
    )
