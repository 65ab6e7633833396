"""Taking over, as operators do it: with the mouse, with the keyboard alone, two at once."""

from playwright.sync_api import expect

from tests.store.asking import event, rows


def lapse(store, clock, key="42", owner="w-3"):
    store.create(key)
    lease = store.hold(key, owner, ttl_seconds=60)
    clock.advance(seconds=100)
    return lease


def test_a_lapsed_lease_is_reclaimed_from_end_to_end(store, clock, window):
    lease = lapse(store, clock)
    page = window.page

    page.goto("/leases")
    expect(page.get_by_role("heading", name="Lapsed, and nobody took over")).to_be_visible()
    page.get_by_role("link", name="Reclaim run:42").click()
    expect(page.locator("#facts")).to_contain_text("w-3")
    expect(page.locator("#moved")).to_be_hidden()
    page.get_by_label("Why").fill("w-3 is frozen")
    page.get_by_role("button", name="Reclaim from w-3").click()

    page.wait_for_url("**/leases/run:42")
    expect(page.get_by_text("run:42 is free.")).to_be_visible()
    expect(page.get_by_role("heading", name="Takeover watch")).to_be_visible()
    assert store.lease("run:42").owner is None
    try:
        store.append("42", [event()], fence=lease.token)
    except Exception as refused:
        assert type(refused).__name__ == "StaleFence"
    expect(page.locator("#unit")).to_contain_text("1 late write, all refused", timeout=15_000)
    assert window.faults == []


def test_a_stuck_run_is_found_and_taken_with_the_keyboard_alone(store, clock, window):
    lapse(store, clock, "checkout-42", "w-3~07fe")
    page = window.page
    keys = page.keyboard

    keys.press("/")
    keys.type("w-3~07fe")
    keys.press("Enter")
    page.wait_for_url("**/runs?q=*")
    keys.press("j")
    keys.press("Enter")
    page.wait_for_url("**/runs/checkout-42?list=*")
    expect(page.locator(".sentence")).to_contain_text("nobody has taken the unit since")
    page.get_by_role("link", name="Reclaim…").focus()
    keys.press("Enter")
    page.wait_for_url("**/reclaim")
    page.get_by_label("Why").focus()
    keys.type("frozen since the deploy")
    keys.press("Enter")

    page.wait_for_url("**/leases/run:checkout-42")
    assert store.lease("run:checkout-42").owner is None


def test_two_windows_race_and_the_second_gets_the_difference(store, clock, open_window):
    """Case O-33 (docs/cases.md)."""
    lapse(store, clock)
    first, second = open_window("ana").page, open_window("cy").page
    for page in (first, second):
        page.goto("/leases/run:42/reclaim")
        page.get_by_label("Why").fill("frozen")
    first.get_by_role("button", name="Reclaim from w-3").click()
    first.wait_for_url("**/leases/run:42")

    expect(second.locator("#moved")).to_be_visible(timeout=10_000)
    second.get_by_role("button", name="Reclaim from w-3").click()

    expect(second.get_by_role("alert")).to_contain_text("The holder has changed since you looked")
    assert len(rows("SELECT id FROM agentstate_operatoraction")) == 1


def test_a_double_click_acts_once(store, clock, window):
    """Case O-37 (docs/cases.md)."""
    lapse(store, clock)
    window.page.goto("/leases/run:42/reclaim")
    window.page.get_by_label("Why").fill("frozen")

    window.page.get_by_role("button", name="Reclaim from w-3").dblclick()

    window.page.wait_for_url("**/leases/run:42")
    assert len(rows("SELECT id FROM agentstate_operatoraction")) == 1


def test_it_all_works_without_scripts(store, clock, open_window):
    """Case O-37 (docs/cases.md)."""
    lapse(store, clock)
    page = open_window("ana", "operator", java_script_enabled=False).page

    page.goto("/runs?q=lease:lapsed")
    page.get_by_role("link", name="42 audit checkout").click()
    page.get_by_role("link", name="1", exact=True).click()
    expect(page.locator("#pane")).to_contain_text("run.created")
    page.get_by_role("link", name="Reclaim…").click()
    page.get_by_label("Why").fill("frozen")
    page.get_by_role("button", name="Reclaim from w-3").click()

    expect(page.get_by_text("run:42 is free.")).to_be_visible()
