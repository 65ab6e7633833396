"""What a request costs through our bridge and through a2wsgi: ratios in one run, interleaved.

    python -m bench.bridge [--seconds 4] [--rounds 5]

Each round starts a web process with either, on one scratch embedded PostgreSQL, and lets a few
connections append to runs of their own (small events, no lease) and read them. a2wsgi has to be
installed for it: `pip install a2wsgi`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SERVE = """
import socket, sys
import uvicorn
from agentstate.store.feed import MOVER
from agentstate import asgi
if sys.argv[2] == "a2wsgi":
    from a2wsgi import WSGIMiddleware
    asgi._pages = WSGIMiddleware(asgi.pages, workers=asgi.WSGI_THREADS)
config = uvicorn.Config(asgi.application, lifespan="off", access_log=False, log_level="warning")
MOVER.start()
uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
"""


def measure(kind: str, key: str, env: dict[str, str], *, clients: int, seconds: float) -> float:
    """Calls a second with so many connections."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    listener.set_inheritable(True)
    port = listener.getsockname()[1]
    command = [sys.executable, "-c", SERVE, str(listener.fileno()), kind]
    server = subprocess.Popen(command, cwd=ROOT, env=env, pass_fds=[listener.fileno()])
    try:
        done = [0] * clients
        ends_at = [0.0]
        ready = threading.Barrier(clients + 1)

        def work(number: int) -> None:
            wire = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

            def call(method: str, path: str, body: object = None) -> None:
                text = None if body is None else json.dumps(body)
                wire.request(method, f"/api/v1{path}", text, headers)
                answer = wire.getresponse()
                answer.read()
                assert answer.status < 300, answer.status

            run = f"{kind}-{os.getpid()}-{time.monotonic_ns()}-{number}"
            call("POST", "/runs", {"key": run, "task": "bench"})
            ready.wait()
            while time.monotonic() < ends_at[0]:
                for _ in range(3):
                    call("POST", f"/runs/{run}/events", {"events": [{"type": "x", "data": 1}]})
                call("GET", f"/runs/{run}")
                done[number] += 4

        threads = [threading.Thread(target=work, args=(n,)) for n in range(clients)]
        for thread in threads:
            thread.start()
        ends_at[0] = time.monotonic() + 60
        ready.wait()
        began = time.monotonic()
        ends_at[0] = began + seconds
        for thread in threads:
            thread.join()
        return sum(done) / (time.monotonic() - began)
    finally:
        server.terminate()
        server.wait(20)
        listener.close()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seconds", type=float, default=4.0)
    asked.add_argument("--rounds", type=int, default=5)
    told = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentstate-bench-") as folder:
        env = os.environ | {"AGENTSTATE_HOME": folder, "AGENTSTATE_RUN_WRITES_PER_SECOND": "0"}
        hold = subprocess.Popen(
            [sys.executable, "-m", "agentstate", "serve", "--port", "0"], cwd=ROOT, env=env,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            key = make_key(env)
            for clients in (1, 8, 32):
                rates: dict[str, list[float]] = {"a2wsgi": [], "bridge": []}
                for _ in range(told.rounds):
                    for kind, found in rates.items():
                        found.append(measure(kind, key, env, clients=clients, seconds=told.seconds))
                ratio = statistics.median(
                    b / a for a, b in zip(rates["a2wsgi"], rates["bridge"], strict=True)
                )
                medians = {kind: f"{statistics.median(r):.0f}/s" for kind, r in rates.items()}
                print(
                    f"{clients:>3} connections: {medians}, bridge / a2wsgi {ratio:.2f}", flush=True
                )
            verify = [sys.executable, "-m", "agentstate", "manage", "verify"]
            subprocess.run(verify, cwd=ROOT, env=env, check=True)
        finally:
            hold.terminate()
            hold.wait(30)


def make_key(env: dict[str, str]) -> str:
    command = [sys.executable, "-m", "agentstate", "key", "--name", "bench"]
    command += ["--scope", "read", "--scope", "payloads", "--scope", "write"]
    for _ in range(60):
        made = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        words = [word for word in made.stdout.split() if len(word) > 30]
        if made.returncode == 0 and words:
            return words[-1]
        time.sleep(1)
    raise SystemExit(made.stdout + made.stderr)


if __name__ == "__main__":
    main()
