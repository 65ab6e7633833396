"""A proposal to reclaim: made by who may not, confirmed or declined by a person, once."""

import json

import pytest

from agentstate.store import proposed
from agentstate.store.errors import (
    ExpectationFailed,
    HolderChanged,
    LeaseHeld,
    NotAllowed,
    NotFound,
    RateLimited,
)
from agentstate.store.ids import uuid7
from agentstate.store.proposals import (
    PROPOSAL_SECONDS,
    PROPOSALS_MAX,
    DeclineProposal,
    ProposalDeclined,
    ProposeReclaim,
)
from tests.store.asking import (
    ANA,
    ASSISTANT,
    OTHER_FLEET,
    SENIOR,
    VIEWER,
    Asking,
    at_once,
    results,
    rows,
)


def propose(unit, lease, *, by=ASSISTANT, reason="it lapsed", **more):
    seen = {"expected_token": lease.token, "expected_owner": lease.owner} | more
    return Asking(by).ask(ProposeReclaim(unit=unit, reason=reason, **seen))


def decline(made, *, by=ANA, reason=""):
    ask = DeclineProposal(unit=made.unit, proposal=made.proposal, reason=reason)
    return Asking(by).ask(ask)


@pytest.fixture
def lapsed(store, clock):
    """Unit u-1, whose holder w-1 has let its lease run out."""
    lease = store.acquire("u-1", "w-1", ttl_seconds=60)
    clock.advance(seconds=100)
    return lease


def audit():
    found = rows(
        "SELECT actor, action, reason, after::text, expected::text FROM agentstate_operatoraction"
        " ORDER BY id"
    )
    return [(*told, json.loads(after), json.loads(seen)) for *told, after, seen in found]


def test_what_is_proposed_changes_nothing_until_a_person_confirms_it(store, lapsed):
    made = propose("u-1", lapsed)
    assert store.lease("u-1").token == lapsed.token
    (open_,) = proposed.read_open()
    assert (open_.row.by, open_.row.reason, open_.live) == ("key:assistant", "it lapsed", False)
    assert (made.until - made.at).total_seconds() == PROPOSAL_SECONDS

    store.as_caller(ANA).reclaim("u-1", token=lapsed.token, proposal=made.proposal)

    assert store.lease("u-1").token is None
    assert proposed.read_open() == []
    first, second = audit()
    assert tuple(first[:3]) == ("key:assistant", "lease.reclaim-proposed", "it lapsed")
    assert first[4] == {"owner": "w-1", "token": lapsed.token}
    assert tuple(second[:3]) == ("person:ana", "lease.reclaimed", "frozen")
    assert second[3]["proposed_by"] == "key:assistant"
    assert second[3]["proposal"] == str(made.proposal)


def test_who_may_propose_may_not_reclaim_and_who_reads_may_not_propose(lapsed):
    with pytest.raises(NotAllowed):
        Asking(ASSISTANT).reclaim("u-1", token=lapsed.token)
    with pytest.raises(NotAllowed) as refused:
        propose("u-1", lapsed, by=VIEWER)
    assert refused.value.facts["scope"] == "propose"
    made = propose("u-1", lapsed)
    with pytest.raises(NotAllowed):
        decline(made, by=ASSISTANT)


def test_what_is_not_as_it_was_seen_cannot_be_proposed(store, lapsed):
    second = store.acquire("u-1", "w-2")
    with pytest.raises(HolderChanged) as refused:
        propose("u-1", lapsed)
    assert refused.value.current["owner"] == "w-2"
    with pytest.raises(HolderChanged):
        propose("u-1", second, expected_owner="w-1")
    with pytest.raises(HolderChanged):
        propose("never-heard-of", lapsed)
    assert audit() == []


def test_a_proposal_is_over_when_the_holder_has_changed(store, lapsed):
    made = propose("u-1", lapsed)
    second = store.acquire("u-1", "w-2")
    assert proposed.read_open() == []
    with pytest.raises(HolderChanged):
        Asking(ANA).reclaim("u-1", token=lapsed.token, proposal=made.proposal)
    with pytest.raises(ExpectationFailed, match="another holder"):
        Asking(SENIOR).reclaim(
            "u-1", token=second.token, owner="w-2", force=True, proposal=made.proposal
        )
    assert store.lease("u-1").owner == "w-2"


@pytest.mark.parametrize(("seconds", "is_open"), [(-1, True), (1, False)])
def test_it_ages_out(store, clock, lapsed, seconds, is_open):
    made = propose("u-1", lapsed)
    clock.advance(seconds=PROPOSAL_SECONDS + seconds)
    assert bool(proposed.read_open()) is is_open
    assert (proposed.find("u-1", made.proposal) is not None) is is_open
    if is_open:
        Asking(ANA).reclaim("u-1", token=lapsed.token, proposal=made.proposal)
        return
    with pytest.raises(ExpectationFailed, match="too old"):
        Asking(ANA).reclaim("u-1", token=lapsed.token, proposal=made.proposal)
    with pytest.raises(NotFound):
        decline(made)
    # It can be proposed anew, and it can be reclaimed without.
    assert propose("u-1", lapsed).proposal != made.proposal
    Asking(ANA).reclaim("u-1", token=lapsed.token)


def test_a_declined_one_is_gone_and_cannot_be_confirmed(store, lapsed):
    made = propose("u-1", lapsed)
    assert not decline(made, reason="it is being looked at").already
    assert decline(made, by=SENIOR).by == "person:ana"
    assert proposed.read_open() == []
    with pytest.raises(ExpectationFailed, match="person:ana has declined"):
        Asking(SENIOR).reclaim("u-1", token=lapsed.token, proposal=made.proposal)
    assert [row[1] for row in audit()].count("lease.proposal-declined") == 1
    # Somebody who asks again has looked again.
    assert propose("u-1", lapsed).proposal != made.proposal


def test_the_same_again_is_the_one_that_is_open_whoever_asks(lapsed):
    made = propose("u-1", lapsed)
    again = propose("u-1", lapsed, by=OTHER_FLEET, reason="I think so, too")
    assert (again.proposal, again.by, again.already) == (made.proposal, "key:assistant", True)
    assert len(audit()) == 1


def test_one_key_cannot_fill_the_audit(store, clock):
    leases = [store.acquire(f"u-{n}", "w-1", 60) for n in range(PROPOSALS_MAX + 1)]
    for n in range(PROPOSALS_MAX):
        propose(f"u-{n}", leases[n])
    with pytest.raises(RateLimited) as refused:
        propose(f"u-{PROPOSALS_MAX}", leases[-1])
    assert refused.value.retry_after_ms
    propose(f"u-{PROPOSALS_MAX}", leases[-1], by=OTHER_FLEET)
    clock.advance(seconds=PROPOSAL_SECONDS + 1)
    assert proposed.read_open() == []


def test_a_live_lease_may_be_proposed_and_only_a_senior_confirms_it(store, clock):
    lease = store.acquire("u-1", "w-1", ttl_seconds=600)
    made = propose("u-1", lease)
    assert proposed.read_open()[0].live
    with pytest.raises(LeaseHeld):
        Asking(ANA).reclaim("u-1", token=lease.token, proposal=made.proposal)
    with pytest.raises(NotAllowed):
        Asking(ANA).reclaim("u-1", token=lease.token, force=True, proposal=made.proposal)
    Asking(SENIOR).reclaim("u-1", token=lease.token, force=True, proposal=made.proposal)


def test_an_invented_proposal_confirms_nothing(store, clock, lapsed):
    with pytest.raises(ExpectationFailed, match="no such proposal"):
        Asking(ANA).reclaim("u-1", token=lapsed.token, proposal=uuid7(clock.now))
    assert store.lease("u-1").token == lapsed.token


@pytest.mark.django_db(transaction=True)
def test_of_two_people_at_once_one_decides(store, clock, lapsed):
    """One confirms, one declines, each on a connection of its own: never both."""
    made = propose("u-1", lapsed)

    def ask(number):
        if number:
            return decline(made, by=SENIOR)
        return Asking(ANA).reclaim("u-1", token=lapsed.token, proposal=made.proposal)

    outcomes = at_once(2, ask)
    declined = results(outcomes, ProposalDeclined)
    refused = results(outcomes, ExpectationFailed)
    free = store.lease("u-1").token is None
    # Declining first refuses the reclaim; after it, it is only too late to matter.
    assert free is not bool(refused)
    assert len(declined) == 1


@pytest.mark.django_db(transaction=True)
def test_two_who_propose_at_once_make_one_proposal(store, clock, lapsed):
    asked = at_once(2, lambda n: propose("u-1", lapsed, by=(ASSISTANT, OTHER_FLEET)[n]))
    assert asked[0].proposal == asked[1].proposal
    assert sorted(one.already for one in asked) == [False, True]
