"""The product's own server in a thread: uvicorn, WSGI threads and all, on a free port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from django.db import connection

from agentstate.web import make_config


@contextmanager
def serving() -> Iterator[str]:
    """Serve while the block lasts; its address, such as http://127.0.0.1:41234."""
    # The threads live on, so each gives its connection back after a request: the test database
    # could not be emptied or dropped otherwise.
    kept, connection.settings_dict["CONN_MAX_AGE"] = connection.settings_dict["CONN_MAX_AGE"], 0
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    server = uvicorn.Server(make_config())
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        connection.settings_dict["CONN_MAX_AGE"] = kept
