"""Who knocks while the server is away: a real port with nobody behind it, and real threads."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import connections

from agentstate.django_postgres.turns import Away, Turns
from tests.store.waiting import wait_for

THREADS = 12


class Door:
    """Where `Turns` knocks: counts, and may be held shut meanwhile."""

    def __init__(self, conninfo: str):
        self.conninfo = conninfo
        self.tries = 0
        self.free = threading.Event()
        self.free.set()

    def connect(self) -> psycopg.Connection:
        self.tries += 1
        self.free.wait(20)
        return psycopg.connect(self.conninfo)


@pytest.fixture
def nobody():
    with socket.socket() as bound:  # it does not listen: whoever comes is refused
        bound.bind(("127.0.0.1", 0))
        yield Door(f"host=127.0.0.1 port={bound.getsockname()[1]} dbname=x connect_timeout=5")


def refused(turns: Turns, door: Door) -> None:
    with pytest.raises(psycopg.OperationalError, match="refused"):
        turns.take(door.connect)


def test_while_the_server_is_away_all_who_wait_share_one_try(nobody):
    turns = Turns(pause_seconds=0.0, behind_one_seconds=20)
    refused(turns, nobody)
    nobody.free.clear()
    came = threading.Barrier(THREADS + 1)

    def ask(_):
        came.wait()
        refused(turns, nobody)

    with ThreadPoolExecutor(THREADS + 1) as pool:
        first = pool.submit(refused, turns, nobody)
        wait_for(lambda: nobody.tries == 2)
        asked = [pool.submit(ask, n) for n in range(THREADS)]
        came.wait()
        nobody.free.set()
        for one in (first, *asked):
            one.result()
    # One that came after the second try had failed made a third; never one for each thread.
    assert 2 <= nobody.tries < THREADS


def test_once_it_is_back_everyone_connects_at_once(nobody):
    turns = Turns(pause_seconds=0.0)
    refused(turns, nobody)
    assert turns.take(lambda: "there") == "there"
    meet = threading.Barrier(THREADS, timeout=20)
    with ThreadPoolExecutor(THREADS) as pool:
        # Each connects while all others do: nobody waits for a turn.
        assert all(pool.map(lambda _: turns.take(meet.wait) >= 0, range(THREADS)))


def test_behind_one_who_hangs_the_others_are_told_what_was_so_the_last_time(nobody):
    turns = Turns(pause_seconds=0.0, behind_one_seconds=0.01)
    refused(turns, nobody)
    nobody.free.clear()
    with ThreadPoolExecutor(1) as pool:
        hangs = pool.submit(refused, turns, nobody)
        wait_for(lambda: nobody.tries == 2)
        refused(turns, nobody)
        assert nobody.tries == 2  # at once, and without a try of its own
        nobody.free.set()
        hangs.result()


def test_nobody_waits_for_ever_behind_one_who_hangs_for_longer_than_a_try_may(nobody):
    turns = Turns(pause_seconds=0.0, behind_one_seconds=0.01, turn_seconds=0.0)
    refused(turns, nobody)
    nobody.free.clear()
    with ThreadPoolExecutor(1) as pool:
        hangs = pool.submit(refused, turns, nobody)
        wait_for(lambda: nobody.tries == 2)
        assert turns.take(lambda: "there") == "there"
        nobody.free.set()
        hangs.result()


def test_who_could_not_connect_is_told_so(nobody):
    with pytest.raises(Away, match="refused"):
        Turns().take(nobody.connect)


def test_the_stores_connections_go_through_it(transactional_db):
    assert type(connections["default"]).__module__ == "agentstate.django_postgres.base"
    assert connections["default"].vendor == "postgresql"
