"""What a caller sends as data comes back as it was sent, and bad text harms nobody else."""

import json

from agentstate_client import Event, RawJSON

from tests.api.asking import Api
from tests.dashboard.reading import Page
from tests.live.conftest import new_key

EXACT = (
    '{"id":1970670598291982290,"max":9223372036854775807,"neg":-9007199254740993,"f":0.1,"e":1e21}'
)
LITERALS = ("1970670598291982290", "9223372036854775807", "-9007199254740993", "0.1", "1e21")


def test_a_number_has_the_same_digits_in_all_six_places(worker, log_in):
    """O-21: timeline, detail, live row, copy button, download, client."""
    client = worker("w-1")
    run = client.create(task="t", key="42")
    run.append(Event("x", RawJSON(EXACT)))
    viewer = log_in("vi", "viewer")

    laid_out = Page(viewer.get("/runs/42", {"event": "2"}))
    as_json = Page(viewer.get("/runs/42", {"event": "2", "view": "json"}))
    live = Page(viewer.get("/runs/42/refresh", {"after": "1"}))
    for literal in LITERALS:
        assert literal in laid_out.text
        assert literal in as_json.text
    # A row shows as much of it as fits.
    assert LITERALS[0] in Page(viewer.get("/runs/42")).text
    assert LITERALS[0] in live.text
    (copied,) = [a["data-copy-from"] for tag, a in laid_out.tags if a.get("data-copy-from")]
    assert viewer.get(copied).content.decode() == EXACT
    (read,) = [e for e in run.events() if e.type == "x"]
    assert read.raw == EXACT
    assert f'"data":{EXACT}' in viewer.get("/runs/42/export").getvalue().decode()


def test_half_an_emoji_is_refused_and_what_comes_after_it_arrives(site, store, follow, log_in):
    """O-19: while a page and a follower are open."""
    store.create("42")
    api = Api(new_key("w"))
    stream = follow("/runs/42/events", after=1)
    viewer = log_in("vi", "viewer")

    for bad in ('"\\ud83d"', '"\\ude00"', '"a\\ud83d b"'):
        refused = api.post("/runs/42/events", f'{{"events": [{{"type": "x", "data": {bad}}}]}}')
        assert refused.refused == (422, "unstorable-text")
    raw = b'{"events": [{"type": "x", "data": "\xff"}]}'
    assert api.send("POST", "/runs/42/events", raw).refused == (400, "malformed")
    # A pair split over two events is two halves, and neither is text.
    halves = '{"events": [{"type": "x", "data": "\\ud83d"}, {"type": "x", "data": "\\ude00"}]}'
    assert api.post("/runs/42/events", halves).refused == (422, "unstorable-text")
    whole = '{"events": [{"type": "x", "data": "\\ud83d\\ude00"}, {"type": "y", "data": "😀"}]}'
    assert api.post("/runs/42/events", whole).status == 201

    first, second = stream.take(2)
    assert [json.loads(e.data)["data"] for e in (first, second)] == ["😀", "😀"]
    live = Page(viewer.get("/runs/42/refresh", {"after": "1"}))
    assert live.html.count('data-seq="') >= 2
    assert api.get("/runs/42/export").status == 200
