"""What may be done to a thing: one answer for lists, pages, bulk and the API."""

import pytest

from agentstate.store.permits import allowed_actions
from agentstate.store.states import Status
from dashboard.access import ROLES, Access
from dashboard.access import allowed_actions as in_roles

READER = frozenset({"read"})
OPERATOR = frozenset({"read", "operate"})
SENIOR = OPERATOR | {"override"}


def run(status="running", held=True, live=True):
    return {"kind": "run", "status": status, "held": held, "live": live}


def allowed(scopes, thing):
    return {action for action, verdict in allowed_actions(scopes, thing).items() if verdict.allowed}


def test_each_more_scope_allows_more():
    live = {"kind": "unit", "held": True, "live": True}
    lapsed = live | {"live": False}

    assert allowed(READER, live) == allowed(READER, lapsed) == set()
    assert (allowed(OPERATOR, live), allowed(OPERATOR, lapsed)) == (set(), {"reclaim"})
    assert allowed(SENIOR, live) == {"reclaim"}


@pytest.mark.parametrize("status", Status)
def test_whatever_is_refused_says_why(status):
    for scopes in (READER, OPERATOR, SENIOR):
        for verdict in allowed_actions(scopes, run(status)).values():
            assert verdict.allowed != bool(verdict.why)


def test_an_ended_run_is_edited_and_kept_and_nothing_else():
    ended = run("completed", held=False, live=False)

    assert allowed(SENIOR, ended) == {"edit", "keep"}


def test_a_missing_scope_is_named_and_people_are_told_the_role():
    (verdict,) = allowed_actions(OPERATOR, {"kind": "unit", "held": True, "live": True}).values()
    assert (verdict.needs, verdict.why) == (
        "override", "the holder's lease is live, so it needs the scope override")  # fmt: skip

    ana = Access(name="ana", role="operator", scopes=ROLES["operator"])
    (told,) = in_roles(ana, {"kind": "unit", "held": True, "live": True}).values()
    assert told.why == "the holder's lease is live, so it needs the role senior"


@pytest.mark.parametrize("draining", [True, False])
def test_a_worker_is_drained_or_that_is_taken_back(draining):
    worker = {"kind": "worker", "draining": draining}

    assert allowed(OPERATOR, worker) == {"stop-draining" if draining else "drain"}
    assert allowed(OPERATOR | {"admin"}, worker | {"key": "fleet"}) >= {"revoke-key"}
