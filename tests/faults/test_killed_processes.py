"""What was acknowledged is there, whoever is killed: the promise, from outside."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from agentstate_client import AgentStateError, Client, Event

from tests.bootstrap.conftest import eventually
from tests.bootstrap.sites import Site, begin, end, run, wait_for_start

WRITERS = 3
DATABASE_KILLS, WEB_KILLED_EVERY = 20, 5


@pytest.fixture
def site(open_folder) -> Iterator[Site]:
    site = begin(open_folder / "home", "serve", "--port", "0")
    try:
        wait_for_start(site)
        yield site
    finally:
        end(site)


@dataclass
class Writer:
    """Appends to a run of its own, one event after the other, and keeps what was acknowledged."""

    url: str
    key: str
    name: str
    stop: threading.Event
    acknowledged: dict[int, int] = field(default_factory=dict)  # seq → number that it carries

    def write(self) -> None:
        with Client(self.url, self.key, worker=self.name) as client:
            kept = client.create(task="count", key=self.name)
            number = 0
            while not self.stop.is_set():
                try:
                    appended = kept.append(Event("counted", {"number": number}))
                except AgentStateError:
                    number += 1  # perhaps written, never acknowledged: no promise
                    continue
                self.acknowledged[appended.last_seq] = number
                number += 1


@pytest.mark.long
@pytest.mark.many
def test_what_was_acknowledged_is_there_after_the_database_was_killed_twenty_times(site):
    key = run(site.home, "key", "--name", "w", "--scope", "write", "--scope", "read",
              "--scope", "payloads").stdout.strip()  # fmt: skip
    stop = threading.Event()
    writers = [Writer(site.url, key, f"w-{n}", stop) for n in range(WRITERS)]
    threads = [threading.Thread(target=writer.write) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, DATABASE_KILLS + 1):
            kills = [site.kill_database]
            if number % WEB_KILLED_EVERY == 0:
                kills.append(lambda: site.kill("web"))
            for kill in kills:
                before = [len(writer.acknowledged) for writer in writers]
                eventually(lambda before=before: more(writers, before))
                kill()
        eventually(site.answers)
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)

    with Client(site.url, key, worker="reader") as client:
        for writer in writers:
            events = list(client.run(writer.name).events(after=0))
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            found = {event.seq: event.data["number"] for event in events if event.type == "counted"}
            assert writer.acknowledged.items() <= found.items()
            numbers = sorted(found.values())
            assert numbers == sorted(set(numbers)), "one append, two events"


def more(writers: list[Writer], before: list[int]) -> bool:
    """Whether each writer has had an answer since."""
    return all(len(w.acknowledged) > n + 3 for w, n in zip(writers, before, strict=True))
