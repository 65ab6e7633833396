"""The pytest plugin. pytest finds it by itself once the client is installed; until a test asks for
one of its fixtures it imports nothing and costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from agentstate_client import Client
    from agentstate_client.testing import Clock, Server

WHERE = ("auto", "here", "apart")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the server is, and in which process it runs."""
    about_checkout = "folder of the agentstate whose server the tests use"
    about_where = "run that server `here`, in pytest's process, `apart`, or (auto) here if it can"
    group = parser.getgroup("agentstate")
    group.addoption("--agentstate-checkout", metavar="FOLDER", help=about_checkout)
    group.addoption("--agentstate-where", choices=WHERE, help=about_where)
    parser.addini("agentstate_checkout", about_checkout, default="")
    parser.addini("agentstate_where", about_where, default="auto")


@pytest.fixture(scope="session")
def _agentstate_running(pytestconfig: pytest.Config) -> Iterator[Server]:
    """The server of this process's tests: the first that needs it starts it."""
    from agentstate_client.testing import running_server

    checkout = _checkout_of(pytestconfig)
    with running_server(checkout=checkout, where=_where_of(pytestconfig)) as server:
        yield server


@pytest.fixture
def agentstate_server(_agentstate_running: Server) -> Iterator[Server]:
    """A real agentstate with nothing in it: url, key, client(), make_key(), sweep(), clock."""
    yield _agentstate_running
    _agentstate_running.empty()


@pytest.fixture
def agentstate_client(agentstate_server: Server) -> Client:
    """A client of agentstate_server, as the worker `test`."""
    return agentstate_server.client()


@pytest.fixture
def agentstate_clock(agentstate_server: Server) -> Clock:
    """The server's clock. It stands at agentstate_client.testing.START until the test moves it."""
    from agentstate_client.testing import START

    agentstate_server.clock.set(START)
    return agentstate_server.clock


def _checkout_of(config: pytest.Config) -> str | None:
    """The option; else the variable of the environment, which `running_server` reads; else the
    configuration file's, relative to it.
    """

    from agentstate_client.testing.finding import VARIABLE

    if told := config.getoption("--agentstate-checkout"):
        return str(told)
    written = str(config.getini("agentstate_checkout"))
    if not written or os.environ.get(VARIABLE, "").strip():
        return None
    beside = config.inipath.parent if config.inipath is not None else config.rootpath
    return str(beside / Path(written).expanduser())


def _where_of(config: pytest.Config) -> str:
    where = str(config.getoption("--agentstate-where") or config.getini("agentstate_where"))
    if where not in WHERE:
        raise pytest.UsageError(f"agentstate_where is {where!r}, but must be one of {WHERE}")
    return where
