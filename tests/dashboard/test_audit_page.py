from dashboard.queries import actions as queries
from tests.dashboard.reading import Page
from tests.store.asking import ANA


def test_actions_are_listed_with_who_what_and_why(store, viewer):
    store.create("42")
    store.as_caller(ANA).move("42", "cancelled", reason="not needed")

    text = Page(viewer.get("/audit")).text

    assert "ana" in text
    assert "not needed" in text


def test_an_empty_audit_says_so(viewer):
    assert "No operator has stepped in" in Page(viewer.get("/audit")).text
    assert "Nothing matches “x”" in Page(viewer.get("/audit", {"text": "x"})).text


def test_actions_are_read_in_pages_both_ways(store, viewer, monkeypatch):
    monkeypatch.setattr(queries, "PAGE_ROWS", 2)
    for number in range(5):
        store.create(f"r-{number}")
        store.as_caller(ANA).move(f"r-{number}", "cancelled", reason=f"reason {number}")

    pages = [Page(viewer.get("/audit"))]
    for _ in range(2):
        pages.append(Page(viewer.get("/audit" + pages[-1].link("after="))))
    shown = [[n for n in range(5) if f"reason {n}" in page.text] for page in pages]
    assert shown == [[3, 4], [1, 2], [0]]

    back = Page(viewer.get("/audit" + pages[-1].link("before=")))
    assert "reason 2" in back.text


def test_actions_are_searched(store, viewer):
    for key in ("a", "b"):
        store.create(key)
        store.as_caller(ANA).move(key, "cancelled", reason=f"because {key}")

    assert "because a" not in Page(viewer.get("/audit", {"text": "because b"})).text


def test_what_changed_is_told_in_words(store, still_clock, viewer):
    store.create("42")
    lease = store.hold("42", "w-3")
    still_clock.advance(seconds=100)
    taken = store.as_caller(ANA).reclaim("run:42", token=lease.token, owner="w-3")

    text = Page(viewer.get("/audit")).text

    assert f"token spent none → {taken.token}" in text
    assert "live" not in text
    assert "spent_token" not in text
