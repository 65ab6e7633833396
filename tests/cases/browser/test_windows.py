"""Many windows of one browser on plain HTTP/1.1, which has six connections for all of them."""

from playwright.sync_api import expect

WINDOWS = 8


def test_eight_windows_side_by_side_all_load_keep_up_and_act(store, window):
    """O-32: a stream each would take all six connections, and the sixth would never load."""
    pages = [window.page, *(window.context.new_page() for _ in range(WINDOWS - 1))]
    for number, page in enumerate(pages):
        store.create(f"r-{number}", status="running")
        page.set_default_timeout(60_000)
        page.goto(f"/runs/r-{number}")
        expect(page.locator("#live")).to_have_attribute("data-state", "live")

    # None is hidden here; those that poll say so, and show what happens all the same.
    expect(pages[0].locator("#live-text")).to_have_text("Live, polling")
    expect(pages[-1].locator("#live-text")).to_have_text("Live")
    for number, page in enumerate(pages):
        store.append(f"r-{number}")
        expect(page.locator("#e-2")).to_be_attached(timeout=15_000)

    last = pages[-1]
    for number in range(WINDOWS):
        last.goto(f"/runs/r-{number}")
        expect(last.locator("#e-2")).to_be_attached()
    last.goto("/runs/r-7/cancel")
    last.locator("#reason").fill("done elsewhere")
    last.get_by_role("button", name="Cancel r-7").click()
    expect(last.locator("#head")).to_contain_text("cancelled")

    # Whoever is touched has a stream again.
    pages[0].mouse.move(40, 40)
    pages[0].mouse.move(60, 60)
    expect(pages[0].locator("#live-text")).to_have_text("Live", timeout=5_000)
    assert window.faults == []
