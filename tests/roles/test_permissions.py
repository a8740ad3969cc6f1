"""Who may say what: a table of roles, and the signature of a party that may send it."""

import ast
import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, get_args

import pytest

from secureps.audit.entries import Begin, End, dump, verify_end
from secureps.audit.ledger_statement import party_of, read_verified, sign_statement
from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.identity import (
    ROLES,
    Identity,
    Role,
    TlsKey,
    certify_tls,
    check_certificate,
    make_authority,
)
from secureps.crypto.roster import (
    Roster,
    certify,
    first_roster,
    next_roster,
    sign_request,
    sign_roster,
)
from secureps.errors import DamagedStore, Malformed, Refused, SecurepsError, UnknownParty, Unsigned
from secureps.messages import orders, requests
from secureps.messages.encoding import digest
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced, announcement_bytes
from secureps.messages.evaluation import Evaluated, Metric, evaluated_bytes
from secureps.messages.requests import PutBlock, Submit
from secureps.messages.run import COORDINATOR, STANDBY, ShardAddress
from secureps.messages.submission import SubmissionId, signing_bytes
from secureps.roles import permissions
from secureps.roles.holder.holder import HolderLedger, HolderRules
from secureps.roles.machine import AnnouncedKeys
from secureps.roles.shard.shard import Shard
from secureps.service.one_wave import play_wave
from secureps.service.process import Party, authenticator
from secureps.store.act_lines import FILE, ActLines, read_acts
from secureps.store.budget import BudgetLedger
from secureps.store.keyring import _verify_roster
from secureps.wire import msgpack
from secureps.wire.grpc.framing import PLAINTEXT, REQUEST_DOMAIN
from secureps.wire.waves.batch import WAVE_DOMAIN, Batch, seal_batch
from tests.kits import permissions_page
from tests.kits.nursery import ROOT
from tests.kits.roles_kit import (
    CA,
    HOLDER,
    IDENTITIES,
    KEYED_ROSTER,
    ROSTER,
    STRANGER,
    World,
    configure,
    make_header,
    make_plan,
    make_receipt,
    make_run,
    opened_header,
)
from tests.kits.roles_kit import refused as refused_by_coordinator
from tests.kits.shard_kit import Desk
from tests.kits.shard_kit import refused as refused_by_shard
from tests.kits.unset import unset

WATCHED = sign_roster(
    CA, [*ROSTER.certificates, certify(CA, STRANGER, "observer", IDENTITIES[STRANGER].public.key)]
)
SENDERS = {
    "client": "c0",
    "shard": "shard-b",
    "holder": HOLDER,
    "observer": STRANGER,
    "coordinator": COORDINATOR,
}
ANSWERS = {"Noted", "Welcome", "Proposal", "Status", "Rows", "Stored", "Payload", "Refusal"}
KINDS = sorted(permissions.SAID, key=lambda kind: kind.__name__)


def test_the_table_knows_every_message_and_every_role() -> None:
    assert {kind.__name__ for kind in permissions.MESSAGES} | ANSWERS == set(msgpack.SENT)
    assert {kind.__name__ for kind in permissions.SAID} == set(msgpack.SENT)
    for table in (permissions.TO_COORDINATOR, permissions.TO_SHARD):
        assert set(table) == set(ROLES) == set(SENDERS)


def test_every_message_has_a_row_and_somebody_who_says_it() -> None:
    assert permissions_page.rows() == {kind.__name__ for kind in permissions.MESSAGES}
    for kind in get_args(requests.Request):
        said = (*permissions.TO_COORDINATOR.values(), *permissions.TO_SHARD.values())
        assert any(kind in kinds for kinds in said), kind
    for kind in get_args(orders.AnyOrder):
        assert any(kind in heard for heard in permissions_page.ORDERS.values()), kind


def test_the_page_shows_the_table() -> None:
    page = permissions_page.PAGE.read_text()
    assert permissions_page.write(page) == page, "python -m tests.kits.permissions_page"


def others(table: permissions.Allowed) -> list[tuple[str, Any]]:
    pairs = itertools.product(ROLES, KINDS)
    return [(SENDERS[role], unset(kind)) for role, kind in pairs if kind not in table[role]]


def test_the_coordinator_hears_nothing_else() -> None:
    world = World(make_plan(), roster=WATCHED)
    world.servers()
    for sender, message in others(permissions.TO_COORDINATOR):
        text = f"{sender} is an? .*, and sends no {type(message).__name__} to the coordinator"
        refused_by_coordinator(world, sender, message, UnknownParty, text)


def test_a_shard_hears_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk("bfv").founded()
    monkeypatch.setattr(desk.shard._follower, "roster", WATCHED)
    for sender, message in others(permissions.TO_SHARD):
        text = f"{sender} is an? .*, and sends no {type(message).__name__} to shard-a"
        refused_by_shard(desk, sender, message, UnknownParty, text)
        if isinstance(message, PutBlock):
            with pytest.raises(UnknownParty, match=text):
                desk.shard.inspect(sender, message)


def test_who_is_not_on_the_roster_may_not_even_look() -> None:
    world, shard = World(make_plan()), Shard(ShardAddress("shard-a", "a:1", 1.0), ROSTER)
    for message in map(unset, KINDS):
        with pytest.raises(UnknownParty, match="nobody named 'stranger'"):
            world.give(STRANGER, message)
        with pytest.raises(UnknownParty, match="nobody named 'stranger'"):
            shard.handle(0.0, STRANGER, message)


CLIENT, ANOTHER, SHARD = "c0", "c1", "shard-b"
OBSERVER, ISSUER, FOREIGNER = "watcher", "issuer", "stranger"
SIGNERS = {name: IDENTITIES[name] for name in (CLIENT, ANOTHER, SHARD, HOLDER, FOREIGNER)} | {
    COORDINATOR: Identity(digest("identity", b"coordinator")),
    OBSERVER: Identity(digest("identity", b"watcher")),
    ISSUER: CA,
}
"""A party of each role and a second client, the CA, and somebody with a key of its own."""
EVERYBODY: Roster = sign_roster(
    CA,
    [
        *KEYED_ROSTER.certificates,
        certify(CA, COORDINATOR, "coordinator", SIGNERS[COORDINATOR].public.key),
        certify(CA, OBSERVER, "observer", SIGNERS[OBSERVER].public.key),
    ],
)
PARTIES = frozenset(SIGNERS) - {ISSUER, FOREIGNER}
CLIENTS = frozenset({CLIENT, ANOTHER})
FORGED = (UnknownParty, Unsigned, Refused, Malformed, DamagedStore)
"""What a record is refused with that the wrong party signed."""


class HeardError(Exception):
    """The receiver accepted the record."""


@dataclasses.dataclass(frozen=True)
class Signed:
    """One kind of record.

    Args:
        by: the parties whose own word it may be.
        hear: gives the receiver a record that says it is of one party (the first name), and that
            another one signed (the second); raises one of FORGED if the receiver refuses it.
    """

    by: frozenset[str]
    hear: Callable[[str, str], object]


def sign(signer: str, record: Any, own: tuple[bytes, bytes]) -> Any:
    return dataclasses.replace(record, signature=SIGNERS[signer].sign(*own))


def desk() -> Desk:
    """A shard with both blocks of everything; another shard passes blocks on to it."""
    made = Desk("doubled bfv")
    made.order(configure(made.plan))
    made.shard._follower.roster = EVERYBODY
    return made


def bring(shard: Desk, header: Any, author: str, signer: str) -> None:
    """The author sends a block, and another shard passes it on."""
    header = dataclasses.replace(header, author=author)
    put = PutBlock(sign(signer, header, signing_bytes(header)))
    for sender in (author, SHARD):
        shard.shard.inspect(sender, put)


def update_block(folder: Path) -> Signed:
    shard = desk()
    header = make_header(shard.plan, shard.run, SubmissionId(CLIENT, "all", 1), 0)
    return Signed(CLIENTS, lambda author, signer: bring(shard, header, author, signer))


def opened_block(folder: Path) -> Signed:
    shard = desk()
    header = opened_header(shard.plan, shard.run, "all", 1, 0)
    return Signed(frozenset({HOLDER}), lambda author, signer: bring(shard, header, author, signer))


def receipt(plan: Any, run: bytes, author: str, signer: str) -> Any:
    made = make_receipt(plan, run, SubmissionId(CLIENT, "all", 1), 0, digest("base"))
    made = dataclasses.replace(made, id=SubmissionId(author, "all", 1), signature=b"")
    return sign(signer, made, signing_bytes(made))


def receipt_at_the_coordinator(folder: Path) -> Signed:
    world = World(make_plan(), roster=EVERYBODY)
    world.servers()
    world.enter(CLIENT)

    def hear(author: str, signer: str) -> None:
        world.give(author, Submit(receipt(world.plan, world.run, author, signer)))

    return Signed(CLIENTS, hear)


def receipt_at_a_holder(folder: Path) -> Signed:
    plan, ledger = make_plan("bfv"), HolderLedger(HOLDER, ROSTER, HolderRules(2))
    ledger.configure(configure(plan))
    ledger.follower.roster = EVERYBODY

    def hear(author: str, signer: str) -> None:
        ledger.check_author(receipt(plan, ledger.pinned.run.id, author, signer))

    return Signed(CLIENTS, hear)


def evaluation(folder: Path) -> Signed:
    section = {"every": 1, "metrics": {"loss": 1.0}, "evaluator": CLIENT}
    world = World(make_plan(evaluation=section), roster=EVERYBODY)
    world.servers()
    world.enter(CLIENT)

    def hear(author: str, signer: str) -> None:
        made = Evaluated(world.run, author, 1, (), (Metric("loss", 0.5),), 1)
        world.give(author, sign(signer, made, evaluated_bytes(made)))

    return Signed(frozenset({CLIENT}), hear)


def envelope_key(folder: Path) -> Signed:
    key = EnvelopeKey.from_os().public.key

    def hear(author: str, signer: str) -> None:
        made = EnvelopeKeyAnnounced(bytes(32), author, 1, key, 0)
        made = sign(signer, made, announcement_bytes(made))
        AnnouncedKeys().is_news(made, bytes(32), EVERYBODY)

    return Signed(frozenset({HOLDER}), hear)


def request(folder: Path) -> Signed:
    """Every party on the roster may ask; the table has which role may ask for what."""

    def hear(author: str, signer: str) -> None:
        signature = SIGNERS[signer].sign(REQUEST_DOMAIN, b"request")
        authenticator(lambda: EVERYBODY)(author, b"request", signature)

    return Signed(PARTIES, hear)


def wave(folder: Path) -> Signed:
    """A message to a node, or to a key holder behind one, inside Flower's engine."""
    node = Party(CLIENT, SIGNERS[CLIENT], PLAINTEXT, EVERYBODY, folder / "state", folder)

    def make(*given: Any) -> NoReturn:
        raise HeardError

    def hear(author: str, signer: str) -> None:
        told = Batch(author, CLIENT, b"", bytes(32), ())
        data = seal_batch(told, lambda own: SIGNERS[signer].sign(WAVE_DOMAIN, own))
        play_wave(node, data, {}, make)

    return Signed(frozenset({COORDINATOR}), hear)


FIRST = first_roster(CA, 0)


def issued(author: str, signer: str) -> Roster:
    """The roster after the first, in the CA's name, signed by anybody."""
    if author != ISSUER:
        raise UnknownParty("a roster says of no party that it signed it")
    made = next_roster(CA, FIRST, EVERYBODY.certificates, 1, 0)
    return sign_roster(SIGNERS[signer], made.certificates, made.epoch)


def followed_roster(folder: Path) -> Signed:
    """The roster that the coordinator sends during a run."""
    return Signed(frozenset({ISSUER}), lambda *by: FIRST.of_line(issued(*by).text))


def kits_roster(folder: Path) -> Signed:
    """The roster in public/ of a kit."""
    return Signed(
        frozenset({ISSUER}), lambda *by: _verify_roster(CA.public, issued(*by).to_bytes())
    )


def certificate(folder: Path) -> Signed:
    """A party's certificate with the CA's signature around it."""

    def hear(author: str, signer: str) -> None:
        if author != ISSUER:
            raise UnknownParty("a certificate says of nobody that it signed it")
        own = certify(SIGNERS[signer], CLIENT, "client", SIGNERS[CLIENT].public.key)
        sign_roster(CA, [own]).verify(CA.public)

    return Signed(frozenset({ISSUER}), hear)


def tls_certificate(folder: Path) -> Signed:
    key = TlsKey.generate()

    def hear(author: str, signer: str) -> None:
        if author != ISSUER:
            raise UnknownParty("a certificate names its issuer, whose key is known")
        made = certify_tls(SIGNERS[signer], make_authority(CA), CLIENT, "client", key.public)
        check_certificate(CA.public, CLIENT, made)

    return Signed(frozenset({ISSUER}), hear)


def key_request(folder: Path) -> Signed:
    """A party on the roster replaces its keys, and proves it with the old ones."""
    tls, new = TlsKey.generate(), Identity.generate()

    def hear(author: str, signer: str) -> None:
        role = EVERYBODY.find(author).role
        sign_request(author, role, new, tls, old=SIGNERS[signer]).verify(EVERYBODY.identity(author))

    return Signed(PARTIES, hear)


def audit_file(folder: Path) -> Signed:
    run = make_run(make_plan())

    def hear(author: str, signer: str) -> None:
        begin, end = Begin(1, author, "client", run.id, run), End(0, 0, bytes(32), None)
        verify_end(dump(b"", begin, (), end, SIGNERS[signer]), EVERYBODY.identity(author))

    return Signed(PARTIES, hear)


def ledger_statement(folder: Path) -> Signed:
    ledger = BudgetLedger(folder / "ledger.db")

    def hear(author: str, signer: str) -> None:
        told = sign_statement(ledger, author, SIGNERS[signer])
        read_verified(told, EVERYBODY.identity(party_of(told)))

    return Signed(PARTIES, hear)


def act_lines(folder: Path) -> Signed:
    def hear(author: str, signer: str) -> None:
        own = folder / author / signer
        own.mkdir(parents=True)
        ActLines(own, author, SIGNERS[signer]).note("pause")
        read_acts((own / FILE).read_bytes(), EVERYBODY.identity(author))

    return Signed(PARTIES, hear)


SITES: dict[str, tuple[Callable[[Path], Signed], ...]] = {
    "audit/entries.py verify_end": (audit_file,),
    "audit/ledger_statement.py read_verified": (ledger_statement,),
    "crypto/roster.py of_line": (followed_roster,),
    "crypto/roster.py verify": (kits_roster, certificate, key_request),
    "crypto/identity.py _signed_by": (tls_certificate,),
    "crypto/identity.py verify_tls": (key_request,),
    "flower/strategy.py _verify": (),  # tests/flower/test_refusals.py, on a grid
    "roles/machine.py _verify_announcement": (envelope_key,),
    "roles/coordinator/membership.py take_evaluation": (evaluation,),
    "roles/coordinator/membership.py submit": (receipt_at_the_coordinator,),
    "roles/holder/holder.py check_author": (receipt_at_a_holder,),
    "roles/shard/shard.py _is_wanted": (update_block, opened_block),
    "service/one_wave.py _verify": (wave,),
    "service/process.py authenticate": (request,),
    "store/act_lines.py read_acts": (act_lines,),
    "store/issuing.py _check": (key_request,),
    "store/keyring.py _verify_roster": (kits_roster,),
}
"""Where the code looks at a signature, and the records that come there."""
RECORDS = sorted(
    {kind for kinds in SITES.values() for kind in kinds}, key=lambda kind: kind.__name__
)


def sites() -> set[str]:
    """The functions of the code that check a signature."""
    found = set()
    for path in (ROOT / "secureps").rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                calls = (each for each in ast.walk(function) if isinstance(each, ast.Call))
                named = (each.func for each in calls if isinstance(each.func, ast.Attribute))
                if any(each.attr == "verify" for each in named):
                    found.add(f"{path.relative_to(ROOT / 'secureps')} {function.name}")
    return found


def test_the_table_has_every_place_that_looks_at_a_signature() -> None:
    inner = {"crypto/identity.py verify", "service/process.py authenticator"}
    assert sites() - inner == SITES.keys()


@pytest.mark.parametrize("name", [COORDINATOR, STANDBY])
@pytest.mark.parametrize("role", [role for role in ROLES if role != "coordinator"])
def test_no_roster_has_the_coordinators_name_in_another_role(name: str, role: Role) -> None:
    """A party with such a name would be obeyed as the coordinator."""
    with pytest.raises(Malformed, match="is the coordinator's name"):
        certify(CA, name, role, SIGNERS[FOREIGNER].public.key)


def refused(signed: Signed, author: str, signer: str) -> bool:
    """Whether a record is refused because of its signer, which is checked first."""
    try:
        signed.hear(author, signer)
    except FORGED:
        return True
    except (SecurepsError, HeardError):
        return False
    return False


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_nobody_signs_for_another_role_or_in_anothers_name(
    kind: Callable[[Path], Signed], tmp_path: Path
) -> None:
    signed = kind(tmp_path)
    pairs = [(author, signer) for author in SIGNERS for signer in SIGNERS]
    wanted = {(author, author) for author in signed.by}
    assert {pair for pair in pairs if not refused(signed, *pair)} == wanted
