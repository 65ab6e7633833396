"""Forms that are sent once more, with other words or after a refusal. Found by our own sweep."""

import pytest
from django.test import RequestFactory

from agentstate.store import errors
from dashboard.refused import told
from dashboard.views import errors as error_pages
from tests.dashboard.reading import Page

NAMES = ("form_key", "seen_status")


def hidden(page: Page) -> dict[str, str]:
    return {name: page.field(name) for name in NAMES}


@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_what_was_refused_can_be_decided_again_on_the_page_that_says_so(store, operator, action):
    """S-402 (docs/sweeps.md): it kept the key of the form, so the next try could be refused as the
    first one in other words, for good."""
    store.create("42")
    store.hold("42")
    asked = Page(operator.get(f"/runs/42/{action}"))
    address = f"/runs/42/{action}"
    first = operator.post(address, hidden(asked) | {"reason": "one", "seen_status": "pending"})
    assert first.status_code == 409
    shown = Page(first)
    assert shown.field("form_key") != asked.field("form_key")
    assert shown.field("seen_status") == "running"
    again = operator.post(address, hidden(shown) | {"reason": "one"})
    assert (again.status_code, again.url) == (302, "/runs/42")


def test_a_form_that_comes_back_in_other_words_is_told_so_and_the_next_try_acts(store, operator):
    """S-402 (docs/sweeps.md): Back after a pause, another reason, sent twice."""
    store.create("42")
    store.hold("42")
    address = "/runs/42/pause"
    asked = hidden(Page(operator.get(address)))
    assert operator.post(address, asked | {"reason": "one"}).status_code == 302
    assert operator.post("/runs/42/resume", {"reason": "on"}).status_code == 302
    altered = operator.post(address, asked | {"reason": "two"})
    assert altered.status_code == 409
    shown = Page(altered)
    assert "This form was sent before, with other words. What it did then stands" in shown.text
    assert "Nothing was done" not in shown.text
    assert operator.post(address, hidden(shown) | {"reason": "two"}).status_code == 302
    assert store.run("42").status == "paused"


@pytest.mark.parametrize("kind", list(errors.every_refusal().values()), ids=lambda kind: kind.code)
def test_no_refusal_says_that_nothing_was_done_when_nobody_knows_and_none_says_a_thing_twice(kind):
    """S-403 (docs/sweeps.md): a cut in the middle of COMMIT was told as "Nothing was done"."""
    refused = kind("x", "y") if issubclass(kind, errors.Invalid) else kind()
    said = told(refused)
    unknown = kind in (
        errors.OutcomeUnknown,
        errors.IdempotencyKeyReuse,
        errors.IdempotencyInFlight,
    )
    assert said.title.startswith("Nothing was done") is not unknown
    assert refused.title.lower() not in said.text.lower()


@pytest.mark.parametrize(
    ("refused", "status"), [(errors.IdempotencyKeyReuse(), 409), (errors.Overloaded(), 503)]
)
def test_a_refusal_that_no_page_expects_is_still_told_as_one(refused, status, viewer):
    """S-401 (docs/sweeps.md): a page that did not expect it answered with an error of ours."""
    request = RequestFactory().get("/now")
    request.user, request.request_id = None, "x"  # type: ignore[attr-defined, assignment]
    try:
        raise refused
    except errors.Refusal:
        answer = error_pages.broken(request)
    assert answer.status_code == status
    assert told(refused).title.rstrip(".") in answer.content.decode()


@pytest.mark.parametrize(
    ("action", "status"), [("pause", "paused"), ("cancel", "cancelled")], ids=["pause", "cancel"]
)
def test_who_was_slower_is_told_who_was_faster_and_why(store, operator, log_in, action, status):
    """S-404 (docs/sweeps.md): "from paused to paused is no legal move", and what would happen."""
    store.create("42")
    store.hold("42")
    address = f"/runs/42/{action}"
    second = log_in("bo", "operator")
    seen = hidden(Page(second.get(address)))
    first = hidden(Page(operator.get(address)))
    assert operator.post(address, first | {"reason": "it loops"}).status_code == 302
    answer = second.post(address, seen | {"reason": "too dear"})
    assert answer.status_code == 409
    told = Page(answer).text
    assert "Somebody was faster. Nothing was done." in told
    assert f"It is {status} since " in told
    assert "ago, by ana : “it loops”. This page" in told
    assert "What will happen" not in told
    assert "no legal move" not in told
