"""What peers do for one event, job or step: run in their environment, in a process of its own.

    python -m bench.peer_work --set-up '{"peer": …, "dsn": …, "jobs": …}'   once: tables, jobs
    python -m bench.peer_work --serve '{"peer": …, "dsn": …}'               see crew.py

By each one's public API at its defaults, one event a call; where a peer has a pool it is as large
as there are callers, and where it takes one lock per object, each thread has an object of its own.
Nothing of ours is imported but the benchmarks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import crew
from bench.crew import Told, in_threads

RUNS, STEPS, BATCH = 1_000, 20, 500
CALLERS_MAX = 16  # of one process
TEXT = "The failing test builds its window from the local time zone, so it only breaks there. " * 3
DATA = {"model": "large-2", "thought": TEXT[:230], "tokens": {"in": 4096, "out": 212}}


class Peer(ABC):
    """One way of working. dsn: libpq's parts of a database of its own."""

    has_times = True  # of one event; False: a call is a whole task of many steps

    def __init__(self, dsn: dict[str, str]) -> None:
        self.dsn = dsn
        self.own = threading.local()

    @property
    def conninfo(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.dsn.items())

    def set_up(self, jobs: int) -> None:  # noqa: B027  most make theirs when they connect
        """Its tables, and so many jobs for who takes them."""

    @abstractmethod
    def call(self) -> int:
        """Do it once, in any thread; how many events, jobs or steps that was."""

    def work(self, callers: int, seconds: float) -> Told:
        count, lasted, took = in_threads(callers, seconds, self.call)
        return count, lasted, took if self.has_times else []


class Eventsourcing(Peer):
    """A stored event with the next version of its aggregate: insert_events of the recorder."""

    functions = "n"

    def __init__(self, dsn: dict[str, str]) -> None:
        super().__init__(dsn)
        from eventsourcing.persistence import InfrastructureFactory
        from eventsourcing.utils import Environment

        factory: Any = InfrastructureFactory.construct(Environment("bench", {
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "POSTGRES_DBNAME": dsn["dbname"], "POSTGRES_HOST": dsn["host"],
            "POSTGRES_PORT": dsn["port"], "POSTGRES_USER": dsn["user"], "POSTGRES_PASSWORD": "-",
            "POSTGRES_ENABLE_DB_FUNCTIONS": self.functions,
        }))  # fmt: skip
        self.recorder = factory.application_recorder()
        self.state = json.dumps(DATA).encode()

    def call(self) -> int:
        from eventsourcing.persistence import StoredEvent

        own = self.own.__dict__.setdefault("versions", {uuid.uuid4(): 0 for _ in range(60)})
        run = random.choice(list(own))
        own[run] += 1
        self.recorder.insert_events([StoredEvent(run, own[run], "bench:Event", self.state)])
        return 1


class EventsourcingFunctions(Eventsourcing):
    functions = "y"


class LangGraph(Peer):
    """PostgresSaver.put of a checkpoint; it has a lock of its own, so there is one per thread."""

    def saver(self) -> Any:
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg import Connection
        from psycopg.rows import dict_row

        if not hasattr(self.own, "saver"):
            connection = Connection.connect(
                self.conninfo, autocommit=True, prepare_threshold=0, row_factory=dict_row
            )
            self.own.saver = PostgresSaver(connection)
        return self.own.saver

    def set_up(self, jobs: int) -> None:
        self.saver().setup()

    def call(self) -> int:
        from langgraph.checkpoint.base import empty_checkpoint

        told = empty_checkpoint() | {"channel_values": {"thought": json.dumps(DATA)}}
        thread = {"thread_id": f"r-{random.randrange(RUNS)}", "checkpoint_ns": ""}
        self.saver().put({"configurable": thread}, told, {"source": "loop", "step": 1}, {})
        return 1


class Absurd(Peer):
    """A task is spawned and carried out: twenty steps, each a checkpoint under its claim."""

    has_times = False

    def set_up(self, jobs: int) -> None:
        named = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGDATABASE": "dbname"}
        told = {name: self.dsn[part] for name, part in named.items()}
        tool = Path(sys.executable).with_name("absurdctl")
        subprocess.run([str(tool), "init"], env=os.environ | told, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        self.client().create_queue("bench")

    def client(self) -> Any:
        from absurd_sdk import Absurd as Client

        if not hasattr(self.own, "client"):
            self.own.client = client = Client(self.conninfo, queue_name="bench")

            @client.register_task("steps")
            def steps(params: Any, context: Any) -> None:
                for number in range(STEPS):
                    context.step(f"s-{number}", lambda: DATA)
                self.own.done += STEPS

        return self.own.client

    def call(self) -> int:
        client, self.own.done = self.client(), 0
        client.spawn("steps", {})
        client.work_batch(worker_id=str(threading.get_ident()))
        return int(self.own.done)


class Dbos(Peer):
    """A workflow of twenty steps, each with its output kept."""

    has_times = False

    def __init__(self, dsn: dict[str, str]) -> None:
        super().__init__(dsn)
        from dbos import DBOS

        @DBOS.step()
        def step(number: int) -> dict[str, Any]:
            return DATA

        @DBOS.workflow()
        def flow() -> None:
            for number in range(STEPS):
                step(number)

        self.flow: Callable[[], None] = flow
        url = "postgresql://{user}@/{dbname}?host={host}&port={port}".format_map(dsn)
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR",
                     "executor_id": str(os.getpid())})  # fmt: skip
        DBOS.launch()

    def call(self) -> int:
        self.flow()
        return STEPS


class ProcrastinateDefer(Peer):
    """A job is put in its queue."""

    def __init__(self, dsn: dict[str, str]) -> None:
        super().__init__(dsn)
        from procrastinate import App, SyncPsycopgConnector

        logging.getLogger("procrastinate").setLevel(logging.ERROR)  # an app is meant to be imported
        connector = SyncPsycopgConnector(conninfo=self.conninfo, max_size=CALLERS_MAX)
        self.app = App(connector=connector)
        self.task = self.app.task(name="bench", pass_context=False)(lambda **_: None)
        self.app.open()

    def set_up(self, jobs: int) -> None:
        self.app.schema_manager.apply_schema()
        for first in range(0, jobs, BATCH):
            self.task.batch_defer(*[{"data": DATA}] * min(BATCH, jobs - first))

    def call(self) -> int:
        self.task.defer(data=DATA)
        return 1


class ProcrastinateFetch(ProcrastinateDefer):
    """A job is taken out of those that wait, as a worker does; it has an asyncio API alone."""

    def work(self, callers: int, seconds: float) -> Told:
        return asyncio.run(self._work(callers, seconds))

    async def _work(self, callers: int, seconds: float) -> Told:
        from procrastinate import App, PsycopgConnector

        connector = PsycopgConnector(conninfo=self.conninfo, min_size=callers, max_size=callers)
        took: list[int] = []

        async def fetch(worker: int) -> None:
            while (at := time.perf_counter()) < until:
                if await app.job_manager.fetch_job(queues=None, worker_id=worker) is None:
                    raise ValueError("no job is left")
                took.append(int((time.perf_counter() - at) * 1e6))

        async with App(connector=connector).open_async() as app:
            workers = [await app.job_manager.register_worker() for _ in range(callers)]
            began = time.perf_counter()
            until = began + seconds
            async with asyncio.TaskGroup() as group:
                for worker in workers:
                    group.create_task(fetch(worker))
            return len(took), time.perf_counter() - began, took


class PgmqSend(Peer):
    """A message is put in its queue."""

    def __init__(self, dsn: dict[str, str]) -> None:
        super().__init__(dsn)
        from pgmq import PGMQueue

        self.queue = PGMQueue(conn_string=f"{self.conninfo} password=-", pool_size=CALLERS_MAX,
                              init_extension=False)  # fmt: skip

    def set_up(self, jobs: int) -> None:
        import psycopg
        from pgmq.install import get_embedded_install_sql

        with psycopg.connect(self.conninfo) as connection:
            connection.execute(get_embedded_install_sql().encode())
        self.queue.create_queue("bench")
        for first in range(0, jobs, BATCH):
            self.queue.send_batch("bench", [DATA] * min(BATCH, jobs - first))

    def call(self) -> int:
        self.queue.send("bench", DATA)
        return 1


class PgmqRead(PgmqSend):
    """A message is taken for an hour."""

    def call(self) -> int:
        if not self.queue.read("bench", vt=3_600):
            raise ValueError("no message is left")
        return 1


class DjangoOrm(Peer):
    """select_for_update of the run, save of its counter, create of the event; one transaction."""

    def __init__(self, dsn: dict[str, str]) -> None:
        super().__init__(dsn)
        import django
        from django.conf import settings
        from django.db import models

        if not settings.configured:
            settings.configure(DATABASES={"default": {
                "ENGINE": "django.db.backends.postgresql", "NAME": dsn["dbname"],
                "HOST": dsn["host"], "PORT": dsn["port"], "USER": dsn["user"],
            }})  # fmt: skip
        django.setup()

        class Run(models.Model):
            last_seq = models.BigIntegerField(default=0)

            class Meta:
                app_label = "bench"

        class Event(models.Model):
            run = models.ForeignKey(Run, on_delete=models.CASCADE)
            seq = models.BigIntegerField()
            data = models.JSONField()

            class Meta:
                app_label = "bench"
                unique_together = (("run", "seq"),)

        self.run: Any = Run
        self.event: Any = Event

    def set_up(self, jobs: int) -> None:
        from django.db import connection

        with connection.schema_editor() as editor:
            editor.create_model(self.run)
            editor.create_model(self.event)
        self.run.objects.bulk_create([self.run() for _ in range(RUNS)])

    def call(self) -> int:
        from django.db import transaction

        with transaction.atomic():
            run = self.run.objects.select_for_update().get(pk=random.randint(1, RUNS))
            run.last_seq += 1
            run.save(update_fields=["last_seq"])
            self.event.objects.create(run=run, seq=run.last_seq, data=DATA)
        return 1


PEERS: dict[str, type[Peer]] = {
    "eventsourcing": Eventsourcing,
    "eventsourcing, database functions": EventsourcingFunctions,
    "LangGraph PostgresSaver.put": LangGraph,
    "Absurd step": Absurd,
    "DBOS step": Dbos,
    "procrastinate defer": ProcrastinateDefer,
    "pgmq send": PgmqSend,
    "Django ORM lock + save + create": DjangoOrm,
    "procrastinate fetch_job": ProcrastinateFetch,
    "pgmq read": PgmqRead,
}
WARM_UP_SECONDS = 0.3


def serve(told: dict[str, Any]) -> None:
    peer: Peer | None = None

    def work(kind: str, callers: int, seconds: float) -> Told:
        nonlocal peer
        if peer is None:
            peer = PEERS[told["peer"]](told["dsn"])
        peer.work(callers, WARM_UP_SECONDS)  # connections are made
        return peer.work(callers, seconds)

    crew.serve(work)


def main() -> None:
    how, told = sys.argv[1], json.loads(sys.argv[2])
    if how == "--serve":
        serve(told)
    else:
        PEERS[told["peer"]](told["dsn"]).set_up(told["jobs"])
    # Threads of a peer's own may not end by themselves.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
