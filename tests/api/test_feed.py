"""GET /feed and its consumers, as a script sees them."""

import pytest

from agentstate.store import feed


def move_all():
    while feed.move():
        pass


def test_changes_come_in_order_and_the_position_leads_on(api):
    api.create("42", events=[{"type": "a"}])
    api.create("43")
    api.append("42", {"type": "b"}, {"type": "c"})
    move_all()

    first = api.get("/feed?limit=2")
    second = api.get(f"/feed?after={first['position']}")

    told = [(i["run"], i["first_seq"], i["last_seq"], i["types"]) for i in first["items"]]
    assert told == [("42", 1, 2, ["run.created", "a"]), ("43", 1, 1, ["run.created"])]
    assert [(i["position"], i["types"]) for i in second["items"]] == [(3, ["b", "c"])]
    assert second["position"] == 3
    assert "data" not in second.text


def test_types_choose_and_the_position_moves_all_the_same(api):
    api.create("42")
    api.append("42", {"type": "tool.called"})
    api.append("42", {"type": "step.done"})
    move_all()

    found = api.get("/feed?types=run.*&types=tool.called")
    nothing = api.get("/feed?types=nothing.here")

    assert [i["types"] for i in found["items"]] == [["run.created"], ["tool.called"]]
    assert nothing.json == {"items": [], "position": 3}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("after=-1", "after"),
        ("after=x", "after"),
        ("after=1&after=2", "after"),
        ("after=99", "after"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("types=", "types"),
        ("types=*", "types"),
        ("types=run.**", "types"),
        ("types=run*", "types"),
        ("types=a%0Ab", "types"),
        ("wait=5", "wait"),
        ("consumer=x", "consumer"),
        ("types=a&" * 51, "types"),
    ],
)
def test_bad_parameters_are_named(api, query, field):
    answer = api.get(f"/feed?{query}")
    assert answer.refused == (422, "invalid")
    assert answer["field"].startswith(field)


def test_what_is_gone_is_410_with_where_the_feed_begins(api):
    from django.db import connection

    api.create("42")
    api.append("42")
    move_all()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM agentstate_feed WHERE position = 1")

    answer = api.get("/feed?after=0")

    assert answer.refused == (410, "cursor-expired")
    assert (answer["earliest"], answer["latest"], answer["retry"]) == (2, 2, "reread")
    assert api.get("/feed?after=1")["position"] == 2


def test_a_consumer_says_how_far_it_is_and_is_never_set_back(api):
    api.create("42")
    api.append("42")
    move_all()
    assert api.get("/feed/consumers").json == {"items": []}
    assert api.get("/feed/consumers/billing").refused == (404, "not-found")

    put = api.send("PUT", "/feed/consumers/billing", '{"position": 1}')

    assert put.status == 200
    assert (put["consumer"], put["position"]) == ("billing", 1)
    one = api.get("/feed/consumers/billing")
    assert (one["position"], one["lag"], one["expired"], one["by"]) == (1, 1, False, "key:fleet")
    assert one["lag_seconds"] >= 0
    assert api.get("/feed/consumers").json["items"][0]["consumer"] == "billing"

    back = api.send("PUT", "/feed/consumers/billing", '{"position": 0}')
    assert back.refused == (412, "version-conflict")
    assert back["current"] == {"consumer": "billing", "position": 1}
    again = api.send("PUT", "/feed/consumers/billing", '{"position": 1}')
    assert again.status == 200


@pytest.mark.parametrize(
    "body",
    ['{"position": 3}', '{"position": true}', '{"position": "1"}', '{"position": 1.0}', "{}"],
)
def test_a_checkpoint_that_cannot_be_is_refused(api, body):
    api.create("42")
    move_all()
    answer = api.send("PUT", "/feed/consumers/billing", body)
    assert answer.refused == (422, "invalid")
    assert answer["field"] == "position"
    assert api.get("/feed/consumers")["items"] == []


def test_reading_needs_read_and_checkpoints_need_write(with_scopes):
    reader, writer = with_scopes("read"), with_scopes("write")
    assert reader.get("/feed").status == 200
    assert writer.get("/feed").refused == (403, "not-allowed")
    assert writer.get("/feed/consumers").refused == (403, "not-allowed")
    body = '{"position": 0}'
    assert reader.send("PUT", "/feed/consumers/b", body).refused == (403, "not-allowed")
    assert writer.send("PUT", "/feed/consumers/b", body).status == 200
