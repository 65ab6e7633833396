"""Who did what, and what becomes of it."""

from agentstate.store.models import Event
from tasks import upkeep
from tests.api.asking import Api, new_key
from tests.dashboard.reading import Page


def test_a_cancelled_run_stays_so_and_what_its_worker_still_sends_is_seen(api, viewer):
    """O-34: refused, told what won, and shown as refused."""
    api.create("42")
    token = api.hold("42", "w-1")
    assert api.post("/runs/42/transitions", {"to": "cancelled"}).status == 200
    before = api.get("/runs/42").json

    for late in (
        api.append("42", {"type": "a"}, {"type": "b"}, Agentstate_Fence=token),
        api.move("completed", Agentstate_Fence=token),
    ):
        assert late.refused == (409, "stale-fence")
        assert late["current"]["status"] == "cancelled"
    assert api.get("/runs/42").json == before
    page = Page(viewer.get("/runs/42", {"tab": "refused"}))
    assert [line[1:4] for line in page.lines if "stale-fence" in line] == [
        ["stale-fence", "w-1", "transition"],
        ["stale-fence", "w-1", "append"],
    ]


def test_each_change_of_state_says_who_made_it_and_a_refused_try_is_there_too(clock, log_in):
    """O-36: a person, another one, the sweep, a worker, a key, and a viewer who may not."""
    fleet = Api(new_key("fleet"))
    ops = Api(new_key("ops-bot", ["read", "operate"]))
    tokens = {key: fleet.create(key) and fleet.hold(key, "w-1", ttl_seconds=5) for key in "abcde"}
    assert fleet.move("failed", key="d", Agentstate_Fence=tokens["d"]).status == 200
    assert ops.move("cancelled", key="e", reason="superseded").status == 200
    clock.advance(seconds=6)
    upkeep.note_lapsed_leases()
    ana, viewer = log_in("ana", "operator"), log_in("vi", "viewer")
    act(ana, "/runs/a/cancel", reason="not needed")
    act(ana, "/leases/run:b/reclaim", reason="its worker is gone")
    assert viewer.post("/runs/c/cancel", {"reason": "me too"}).status_code == 403

    told = Event.objects.filter(type__in=WHO).values_list("run__key", "type", "actor")
    assert {(key, kind): actor for key, kind, actor in told} == {
        ("a", "lease.lapsed"): "system:sweep",
        ("b", "lease.lapsed"): "system:sweep",
        ("c", "lease.lapsed"): "system:sweep",
        ("a", "run.cancelled"): "person:ana",
        ("b", "lease.reclaimed"): "person:ana",
        ("d", "run.failed"): "key:fleet",
        ("e", "run.cancelled"): "key:ops-bot",
    }
    page = Page(viewer.get("/audit"))
    told = "ana", "not needed", "its worker is gone", "ops-bot", "superseded", "vi", "forbidden"
    for part in told:
        assert part in page.text
    assert "running → cancelled" in page.text


WHO = ("run.cancelled", "run.failed", "lease.reclaimed", "lease.lapsed")


def act(client, address, **typed):
    """By the form, as a person does."""
    page = Page(client.get(address))
    hidden = {
        str(a["name"]): str(a.get("value") or "")
        for tag, a in page.tags
        if tag == "input" and a.get("type") == "hidden" and a["name"] != "csrfmiddlewaretoken"
    }
    answer = client.post(address, hidden | typed)
    assert answer.status_code == 302, Page(answer).text
