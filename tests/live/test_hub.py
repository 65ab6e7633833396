"""When each stream of a process is told, and which way."""

import asyncio
from functools import wraps

from agentstate.live import hub as hubs
from agentstate.live.hub import Hint, Hub, Notice, Subscription
from agentstate.live.sending import Line

ANY = Hint(9, None, ("run",))


def on_a_loop(test):
    @wraps(test)
    def run(*args, **named):
        asyncio.run(test(*args, **named))

    return run


def hint(position, *runs):
    return Hint(position, dict.fromkeys(runs, position), ("run",))


def telling(*subscriptions):
    """A hub that has these streams and hears nothing by itself."""
    own = Hub(conninfo=lambda: "")
    own._subscriptions = set(subscriptions)
    return own


def heard(subscription):
    found = []
    while not subscription.queue.empty():
        found.append(subscription.queue.get_nowait())
    return found


@on_a_loop
async def test_a_page_of_one_run_is_told_at_once_and_then_not_again_for_a_while(monkeypatch):
    monkeypatch.setattr(hubs, "AGAIN_SECONDS", 0.05)
    page, worker = Subscription("42", person=1), Subscription("42")
    own = telling(page, worker)

    for position in (1, 2, 3):
        own.publish(hint(position, "42"))
    own.publish(hint(4, "other"))

    assert heard(page) == [hint(1, "42")]
    assert heard(worker) == [hint(n, "42") for n in (1, 2, 3)]
    later = await asyncio.wait_for(page.queue.get(), 5)
    assert (later.position, later.runs) == (3, {"42": 3})
    assert page.queue.empty()


@on_a_loop
async def test_pages_of_many_runs_are_told_apart_and_of_all_that_came_meanwhile(monkeypatch):
    monkeypatch.setattr(hubs, "APART_SECONDS", 0.02)
    monkeypatch.setattr(hubs, "APART_SECONDS_MAX", 10.0)
    pages = [Subscription(None, person=n) for n in range(4)]
    own = telling(*pages)

    own.publish(hint(1, "a"))
    own.publish(hint(2, "b"))

    at_once = [told for told in map(heard, pages) if told]
    assert at_once == [[hint(1, "a"), hint(2, "b")]]
    rest = [page.queue.get() for page in pages if page.due is not None]
    told = await asyncio.wait_for(asyncio.gather(*rest), 5)
    assert told == [Hint(2, {"a": 1, "b": 2}, ("run",))] * 3
    assert told[0] is told[1] is told[2]


@on_a_loop
async def test_while_the_client_keeps_up_hints_go_straight_to_it_and_never_past_what_waits():
    sent, may = [], [True]
    page = Subscription("42", person=1)
    page.straight = lambda told: may[0] and not sent.append(told)

    page.put(hint(1, "42"))
    may[0] = False
    page.put(hint(2, "42"))
    may[0] = True
    page.put(hint(3, "42"))

    assert sent == [hint(1, "42")]
    assert heard(page) == [hint(2, "42"), hint(3, "42")]
    page.put(Notice.BYE)
    page.put(hint(4, "42"))
    assert sent == [hint(1, "42")]
    assert heard(page)[0] is Notice.BYE


class Cycle:
    """What uvicorn keeps of a request, as far as a line looks at it."""

    def __init__(self):
        self.transport, self.flow = self, self
        self.chunked_encoding, self.response_complete, self.disconnected = True, False, False
        self.write_paused, self.closing, self.written = False, False, b""

    def is_closing(self):
        return self.closing

    def write(self, data):
        self.written += data


def test_a_line_takes_a_part_only_where_an_answer_is_being_sent_and_read():
    cycle = Cycle()
    line = Line({"agentstate.cycle": cycle})
    assert line.write(b"event: hint\n\n")
    assert cycle.written == b"d\r\nevent: hint\n\n\r\n"
    ends = dict.fromkeys(("response_complete", "disconnected", "write_paused", "closing"), True)
    for name, value in (ends | {"chunked_encoding": None}).items():
        before = getattr(cycle, name)
        setattr(cycle, name, value)
        assert not line.write(b"x")
        setattr(cycle, name, before)
    assert not Line({}).write(b"x")
    assert cycle.written == b"d\r\nevent: hint\n\n\r\n"


def test_a_hint_is_written_once_for_all_runs_and_by_itself_for_one():
    both = hint(7, "a", "b")
    assert both.text is both.text
    assert both.text == '{"position": 7, "runs": {"a": 7, "b": 7}, "kinds": ["run"]}'
    assert both.text_of("a") == '{"position": 7, "runs": {"a": 7}, "kinds": ["run"]}'
    assert ANY.text_of("a") == ANY.text == '{"position": 9, "kinds": ["run"]}'
