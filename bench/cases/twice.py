"""O-09: a task of 100 s on a broker that gives it out again after 30 s, and one with a far ETA.

    .venv/bin/python -m bench.cases.twice

Two Celery workers on pgmq; the task works on a run under its lease and charges it (`killed.py`).
Whoever is given it meanwhile finds the run held and comes again when the lease will be over. The
other one is sent with an ETA of two such times.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.cases import Verdict, site
from bench.cases.kills import Worker, until
from bench.cases.rounds import Api
from bench.grounds import Ground

TASK_SECONDS, VISIBILITY_SECONDS = 100, 30


def given_out_twice(ground: Ground, folder: Path, verdict: Verdict) -> None:
    from bench.cases.killed import work

    api = Api(ground)
    for run in ("long", "later"):
        ask = {"task": "t", "key": run, "tags": [run], "budgets": [{"name": "tokens", "cap": 100}]}
        api.post("/runs", ask).raise_for_status()
    impatient = {"AGENTSTATE_CASE_VISIBILITY_SECONDS": str(VISIBILITY_SECONDS)}
    workers = [Worker(ground, folder, name=f"w{n}", **impatient) for n in range(2)]
    try:
        work.delay(url=ground.url, run="long", folder=str(folder), ttl_seconds=30)
        work.apply_async(
            kwargs={"url": ground.url, "run": "later", "folder": str(folder)},
            countdown=2 * VISIBILITY_SECONDS,
        )
        (folder / "go-later").touch()
        until(lambda: workers[0].works("long"))
        time.sleep(TASK_SECONDS)
        (folder / "go-long").touch()
        until(lambda: api.http.get("/runs/long").json()["status"] == "completed")
        until(lambda: api.http.get("/runs/later").json()["status"] == "completed")
        time.sleep(VISIBILITY_SECONDS + 5)  # whoever comes again, comes by then
    finally:
        for worker in workers:
            worker.end()
    told = {}
    for run in ("long", "later"):
        events = Counter(e["type"] for e in api.http.get(f"/runs/{run}/events").json()["items"])
        spent = api.http.get(f"/runs/{run}/budgets/tokens").json()["spent"]
        told[run] = (events["lease.acquired"], events["step.done"], events["run.completed"], spent)
    given = sum(n.what in ("works", "waits", "over") for n in workers[0].notes("long"))
    held = [n for n in workers[0].notes("long") if n.what == "waits"]
    verdict.say(
        "O-09",
        f"given out {given} times, {len(held)} found it held; acquired, steps, ends, spent: {told}",
        told == dict.fromkeys(told, (1, 1, 1, 1)) and given >= 2,
    )


def main() -> int:
    verdict = Verdict()
    with site(background=False) as ground, tempfile.TemporaryDirectory() as folder:
        given_out_twice(ground, Path(folder), verdict)
    return int(verdict.failed)


if __name__ == "__main__":
    sys.exit(main())
