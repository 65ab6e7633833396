"""The bridge on a real socket, around a WSGI application of the test's own."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from contextlib import contextmanager

import uvicorn

from agentstate.bridge import Bridge
from agentstate.wire import Wire


@contextmanager
def serving(application, *, threads=2, places=100):
    """A WSGI application behind the bridge, on a real socket; its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    config = uvicorn.Config(
        Bridge(application, threads=threads, places=places),
        http=Wire,
        ws="none",
        lifespan="off",
        log_level="critical",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)


def echo(environ, start_response):
    body = environ["wsgi.input"].read()
    told = {
        "body": body.decode(),
        "query": environ["QUERY_STRING"],
        "path": environ["PATH_INFO"],
        "twice": environ.get("HTTP_X_TWICE"),
        "type": environ.get("CONTENT_TYPE"),
    }
    text = json.dumps(told).encode()
    headers = [("Content-Type", "application/json"), ("X-Made-By", "echo")]
    start_response("200 OK", [*headers, ("Content-Length", str(len(text)))])
    return [text]


class Stream:
    """What Django returns for an export: parts that are made while they are sent."""

    streaming = True

    def __init__(self, parts):
        self.parts, self.closed = parts, threading.Event()

    def __iter__(self):
        return iter(self.parts)

    def close(self):
        self.closed.set()


def asked(port, method="GET", path="/", body=None, **headers):
    wire = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    wire.request(method, path, body, {n.replace("_", "-"): v for n, v in headers.items()})
    answer = wire.getresponse()
    return answer, answer.read()
