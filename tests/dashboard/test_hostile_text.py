"""Whatever workers and addresses say is text on every page. That the browser, too, does nothing
because of it is tested in tests/browser."""

import pytest

from agentstate.store.commands import NewEvent
from agentstate.store.payloads import dump
from tests.dashboard.reading import Page
from tests.store.asking import ANA

MARKUP = "<img src=x onerror=alert(1)>"
HTMX = '"><b hx-get="/evil" hx-trigger="load">'
TEMPLATE = "{{7*7}}{% debug %}"
RIGHT_TO_LEFT = "\u202egnp.exe"
LONG = "w" * 400


@pytest.fixture
def told(store, still_clock):
    """A run in which every free text is hostile."""
    store.create("42", task=f"{MARKUP} {TEMPLATE}", tags=(HTMX[:60], RIGHT_TO_LEFT))
    lease = store.hold("42")
    store.append(
        "42",
        [
            NewEvent(
                type="x",
                data=dump({MARKUP: HTMX, "text": f"{MARKUP}\n</script>{TEMPLATE}", "n": [HTMX]}),
                id="javascript:alert(1)",
            ),
            NewEvent(type="y", data=dump(f"</td></table>{MARKUP}{LONG}")),
        ],
        fence=lease.token,
    )
    still_clock.advance(seconds=100)
    store.as_caller(ANA).reclaim("run:42", token=lease.token, reason=f"{MARKUP} {HTMX}")
    return lease


@pytest.mark.parametrize(
    "address",
    [
        "/runs",
        f"/runs?q=task:%22{MARKUP}%22",
        "/runs/-/refresh?key=42",
        "/runs/42",
        "/runs/42?event=4",
        "/runs/42?event=4&view=json",
        "/runs/42?event=5",
        "/runs/42?tab=state&with=1",
        "/runs/42?show=raw&find=evil",
        "/runs/42?show=compact&errors=1",
        f"/runs/42?find={MARKUP}&from={MARKUP}&event=4&mark={MARKUP}",
        "/runs/42?tab=ownership",
        "/runs/42?tab=audit",
        f"/runs/42?type={MARKUP}",
        "/runs/42/refresh?after=1",
        "/runs/42/timeline",
        "/leases",
        f"/leases?owner={MARKUP}",
        "/leases/run:42",
        "/leases/run:42/reclaim",
        f"/runs/{MARKUP}",
        f"/leases/{MARKUP}",
        f"/audit?text={MARKUP}",
        "/audit",
        f"/login?next={MARKUP}",
        f"/jump?to={MARKUP}",
        "/runs/42/signal",
        "/runs/42/edit",
        "/runs/42/invariants",
        "/workers",
        f"/workers?after={MARKUP}",
        "/budgets",
        f"/budgets?after={MARKUP}",
        f"/budgets/{MARKUP}",
        f"/receipts?text={MARKUP}",
        "/system",
    ],
)
def test_markup_is_shown_and_never_obeyed(told, operator, address):
    """Case O-22 (docs/cases.md)."""
    page = Page(operator.get(address, follow=True))

    assert page.status in (200, 404)
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [attributes for _, attributes in page.tags if "onerror" in attributes]
    asked = {str(a["hx-get"]).partition("?")[0] for _, a in page.tags if "hx-get" in a}
    ours = {"/runs", "/runs/42", "/runs/42/invariants", "/leases", "/audit"}
    assert asked <= ours | {f"/runs/-/{part}" for part in ("filter", "suggestions", "counts")}
    assert not [link for link in page.links if link.lower().startswith("javascript:")]


def test_template_syntax_in_a_text_is_text(told, operator):
    assert TEMPLATE in Page(operator.get("/runs")).text
    assert TEMPLATE in Page(operator.get("/runs/42?event=4")).text
