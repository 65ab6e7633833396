"""The pictures of the docs, made from the scene: `./run test tests/browser/test_pictures.py` with
AGENTSTATE_PICTURES set to a folder keeps them; otherwise they are made and thrown away."""

import os
from pathlib import Path

import pytest

from tests.browser.scene import Scene

PICTURES = {
    "now": ("light", 1280, 640, "/"),
    "runs": ("light", 1280, 800, "/runs"),
    "runs-dark": ("dark", 1280, 800, "/runs?q=status:running"),
    "run": ("light", 1280, 800, "/runs/checkout-42"),
    "run-dark": ("dark", 1280, 800, "/runs/checkout-42"),
    "event": ("light", 1280, 620, "/runs/checkout-42?event=6"),
    "leases": ("light", 1280, 800, "/leases"),
    "reclaim": ("dark", 1280, 800, "/leases/run:deps-1014/reclaim"),
    "takeover": ("light", 1280, 800, "/leases/run:checkout-42"),
    "contention": ("light", 1280, 800, "/contention"),
    "budget": ("light", 1280, 800, "/runs/ticket-77/budgets/tokens"),
    "workers": ("dark", 1280, 620, "/workers"),
    "system": ("light", 1280, 800, "/system"),
    "phone-runs": ("light", 390, 844, "/runs"),
    "phone-run": ("dark", 390, 844, "/runs/checkout-42"),
    "phone-leases": ("light", 390, 844, "/leases"),
}
OCTETS_MAX = 150_000


@pytest.mark.long
@pytest.mark.deep
def test_pictures_are_made_of_every_page(store, clock, open_window, tmp_path):
    scene = Scene(store, clock)
    scene.company()
    scene.play()
    folder = Path(os.environ.get("AGENTSTATE_PICTURES") or tmp_path)
    windows = {
        theme: open_window(f"bo-{theme}", "senior", color_scheme=theme)
        for theme in ("light", "dark")
    }

    for name, (theme, width, height, address) in PICTURES.items():
        page = windows[theme].page
        page.set_viewport_size({"width": width, "height": height})
        page.goto(address)
        page.locator("#live[data-state=live]").wait_for()
        page.evaluate("document.activeElement?.blur()")
        if "event" in name:
            page.evaluate("scrollTo(0, document.body.scrollHeight)")
        picture = folder / f"{name}.png"
        page.screenshot(path=picture, animations="disabled")
        assert 5_000 < picture.stat().st_size < OCTETS_MAX, name
