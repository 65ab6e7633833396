"""The list of runs, worked with: typed into, ticked, kept, exported, left and come back to."""

import csv
import io

from playwright.sync_api import expect


def options(page):
    return page.locator("#q-list option").evaluate_all("all => all.map(one => one.value)")


def test_a_list_is_filtered_ticked_kept_and_walked_through_by_keyboard(store, clock, window):
    for number in range(60):
        clock.advance(seconds=1)
        store.create(f"job-{number:02}", task="say hello", tags=("night",) if number % 2 else ())
    page = window.page
    page.goto("/runs")

    # Suggestions complete what is typed at the end; the list opens under a chip for each filter.
    page.locator("#q").fill("ta")
    expect(page.locator("#q-list option")).to_have_count(2, timeout=20_000)
    assert options(page) == ["task:", "tag:"]
    page.locator("#q").fill("task:hello st")
    expect(page.locator("#q-list option")).to_have_count(1, timeout=20_000)
    assert options(page) == ["task:hello status:"]
    page.locator("#q").fill("task:hello")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Remove task:hello")).to_be_visible(timeout=20_000)

    # Ticks: one, then all up to another; they stay through a change of a row and another page.
    page.locator("#rows").wait_for()
    page.locator("h1").click()
    for key in ("j", "x", "j", "j", "Shift+X"):
        page.keyboard.press(key)
    bar = page.locator("#selection")
    expect(bar).to_have_attribute("data-count", "3")
    store.hold("job-58", "w-7")
    page.locator("h1").click()
    expect(page.locator("#run-job-58")).to_contain_text("running", timeout=20_000)
    expect(page.get_by_label("Select job-58")).to_be_checked()
    page.keyboard.press("]")
    page.locator("#run-job-00").wait_for()
    expect(bar).to_have_attribute("data-count", "3")
    page.get_by_label("Select job-00").check()
    page.reload()
    expect(page.get_by_label("Select job-00")).to_be_checked()
    with page.expect_download() as download:
        page.keyboard.press("b")
        page.keyboard.press("Enter")
    sheet = download.value.path().read_text("utf-8-sig")
    assert [row["key"] for row in csv.DictReader(io.StringIO(sheet))] == [
        "job-59",
        "job-58",
        "job-57",
        "job-00",
    ]
    bar.get_by_role("button", name="Clear").click()
    expect(bar).to_be_hidden()

    # Kept under a name, and found under its key again.
    page.keyboard.press("v")
    page.get_by_role("link", name="Keep this list…").click()
    page.get_by_label("Name").fill("Hello")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Kept as Hello.")).to_be_visible(timeout=20_000)
    expect(page.locator(".view-name")).to_have_text("Hello")

    # A field as a control: what is there, with its number, loaded when it is opened.
    page.locator(".facets-menu > summary").click()
    night = page.locator("#facets").get_by_role("link", name="night 30")
    night.click()
    page.wait_for_url("**tag%3Anight**")
    expect(page.locator("#rows tr")).to_have_count(30, timeout=20_000)

    # A run of the list, the next one in it, and another by its name.
    page.keyboard.press("j")
    page.keyboard.press("o")
    page.wait_for_url("**/runs/job-59?list=*")
    page.keyboard.press("]")
    page.wait_for_url("**/runs/job-57?list=*")
    page.keyboard.press("[")
    page.wait_for_url("**/runs/job-59?list=*")
    page.keyboard.press("Control+k")
    page.keyboard.type("job-0")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jump?to=job-0")
    expect(page.get_by_role("heading", name="What may be meant")).to_be_visible()
    page.get_by_role("link", name="job-07").click()
    page.wait_for_url("**/runs/job-07")
    assert window.faults == []


def test_without_scripts_the_same_is_done_with_full_pages(store, clock, open_window):
    for key in ("a", "b"):
        clock.advance(seconds=1)
        store.create(key, tags=("night",))
    page = open_window("ana", "operator", java_script_enabled=False).page
    page.goto("/runs?q=tag:night")

    page.get_by_label("Select b").check()
    with page.expect_download() as download:
        page.locator("#selection").get_by_role("button", name="JSON lines").click()
    assert '"key":"b"' in download.value.path().read_text()
    page.locator("summary", has_text="Filters").click()
    page.get_by_role("link", name="Every field with what is there").click()
    page.get_by_label("Key begins with").fill("a")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**/runs?q=key%3Aa**")
    expect(page.locator("#rows tr")).to_have_count(1)
    page.locator("summary[aria-label=Columns]").click()
    page.get_by_label("Tags").check()
    page.get_by_label("Events").uncheck()
    page.get_by_role("button", name="Show these").click()
    page.wait_for_url("**columns=tags**")
    expect(page.locator("#run-a")).to_contain_text("night")
