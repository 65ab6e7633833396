"""Whatever is pasted on top leads to it, or to a list of what it may mean."""

import pytest

from tests.dashboard.reading import Page


@pytest.fixture
def scene(store):
    store.create("42", task="audit checkout")
    store.hold("42", "w-7~beef")
    store.create("4242", task="audit the mailer")
    store.acquire("gpu:1", "w-8")


def jump(client, to):
    return client.get("/jump", {"to": to})


def test_a_name_leads_to_what_has_it(scene, viewer):
    assert jump(viewer, " 42 ").url == "/runs/42"
    assert jump(viewer, "run:42").url == "/runs/42"
    assert jump(viewer, "gpu:1").url == "/leases/gpu:1"
    assert jump(viewer, "w-7~beef").url == "/runs?q=worker%3Aw-7~beef"
    assert jump(viewer, "req-1").url == "/receipts?request_id=req-1"
    assert jump(viewer, "status:running").url == "/runs?q=status%3Arunning"


def test_an_idempotency_key_leads_to_its_receipt(store, viewer):
    from agentstate.store.commands import CreateRun

    store.ask(CreateRun(key="42", task="t"), key="order-77-a")

    assert jump(viewer, "order-77-a").url == "/receipts?key=order-77-a"


def test_what_names_several_things_or_is_a_part_of_one_is_a_list(scene, store, viewer):
    store.acquire("4242", "w-9")

    both = Page(jump(viewer, "4242"))
    assert both.link("^/runs/4242$")
    assert both.link("^/leases/4242$")
    assert "names 2 things" in both.text
    part = Page(jump(viewer, "audit"))
    assert part.link("^/runs/42$")
    assert part.link("^/runs/4242$")
    assert part.link(r"^/runs\?q=audit$")


def test_the_only_thing_that_begins_so_is_gone_to(scene, viewer):
    assert jump(viewer, "gpu").url == "/leases/gpu:1"
    assert jump(viewer, "mailer").url == "/runs/4242"


def test_what_nobody_knows_is_said_as_plain_text(scene, viewer):
    page = Page(jump(viewer, "<b>nothing</b>"))

    assert page.status == 200
    assert "Nothing of this name" in page.text
    assert "<b>nothing</b>" not in page.html
    for odd in ("", "\0", "a\u202eb", "x" * 600, '"', "%", "run:"):
        assert jump(viewer, odd).status_code in (200, 302)
