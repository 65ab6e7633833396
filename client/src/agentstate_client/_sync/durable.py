# Made from _async/durable.py by make_sync.py. Change it there.

"""Plain functions whose calls are runs: what is finished is remembered, whoever goes on."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentstate_client import clock
from agentstate_client._sync import calling
from agentstate_client._sync.client import Client
from agentstate_client._sync.runs import TERMINAL, Run
from agentstate_client._sync.waiting import pause
from agentstate_client.errors import AlreadyTerminal, LeaseHeld
from agentstate_client.records import NewBudget, RunRecord

KEY_HASH_CHARS = 24
LOOK_AGAIN_SECONDS = 0.5


class Durable:
    """Makes functions durable, on a client: see agentstate_client.durable."""

    def __init__(self, client: Client, *, ttl_seconds: int = 60) -> None:
        self.client, self._ttl_seconds = client, ttl_seconds

    def __call__(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        budgets: Sequence[NewBudget] = (),
        retry_on: tuple[type[BaseException], ...] = (),
        max_attempts: int = 5,
    ) -> Any:
        """A decorator: `@durable` or `@durable(budgets=[NewBudget("tokens", cap=10_000)])`.

        name: of the function in keys and as the run's task (default: its own). retry_on: what an
        attempt may raise without the run having failed; the run is given back then, and the next
        call with the same arguments goes on with it, max_attempts times in all.
        """
        if function is None:
            return functools.partial(
                self, name=name, budgets=budgets, retry_on=retry_on, max_attempts=max_attempts
            )
        return DurableFunction(
            self, function, name=name or function.__name__, budgets=budgets, retry_on=retry_on,
            max_attempts=max_attempts, ttl_seconds=self._ttl_seconds,
        )  # fmt: skip

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A decorator: in a durable call the function is done once for each place, and its result
        comes from the log afterwards. Elsewhere it is the plain function.

        Arguments and result are JSON values; Unsendable says which is not, and then nothing is
        written. What a step did before it was finished may happen again.
        """
        return calling.step(function)

    @property
    def run(self) -> Run:
        """The run of the call that is being carried out here: its budgets, effects and counters.

        Raises RuntimeError outside of a durable call.
        """
        run = calling.present_run()
        if run is None:
            raise RuntimeError("no durable call is being carried out here")
        return run


class DurableFunction:
    """A function whose calls are runs. Calling it carries it out, or goes on with it, or returns
    what it returned before.
    """

    def __init__(
        self,
        durable: Durable,
        function: Callable[..., Any],
        *,
        name: str,
        budgets: Sequence[NewBudget],
        retry_on: tuple[type[BaseException], ...],
        max_attempts: int,
        ttl_seconds: int,
    ) -> None:
        functools.update_wrapper(self, function)
        self.client, self.function, self.name = durable.client, function, name
        self._budgets, self._retry_on = tuple(budgets), retry_on
        self._max_attempts, self._ttl_seconds = max_attempts, ttl_seconds

    def key(self, *arguments: Any, **named: Any) -> str:
        """The key of the run of a call: of the name and the arguments, so the same for the same.

        Raises Unsendable when an argument is not a JSON value.
        """
        text = calling.arguments_text(self.name, arguments, named)
        hashed = hashlib.sha256(text.encode()).hexdigest()[:KEY_HASH_CHARS]
        return f"{self.name}-{hashed}"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Raises what the function raises; CallEnded when it failed or was cancelled before;
        LeaseHeld while somebody else carries it out; Paused; AttemptsExhausted."""
        return self.call(self.key(*arguments, **named), arguments, named)

    def call(
        self,
        key: str,
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
        *,
        wait_seconds: float = 0,
    ) -> Any:
        """The same under a key of your own. wait_seconds: for somebody else to finish it."""
        record = self._made(key, arguments, named or {})
        until = clock.now() + wait_seconds
        while record is None or record.status not in TERMINAL:
            try:
                run = calling.taken(self.client, key, ttl_seconds=self._ttl_seconds)
            except AlreadyTerminal:
                pass  # somebody else was faster
            except LeaseHeld:
                if clock.now() >= until:
                    raise
                pause(min(LOOK_AGAIN_SECONDS, max(0.0, until - clock.now())))
            else:
                return calling.carried_out(
                    run,
                    lambda: self.function(*arguments, **(named or {})),
                    what=self.name,
                    max_attempts=self._max_attempts,
                    retry_on=self._retry_on,
                )
            record = self.client.run(key).read()
        return calling.outcome(record)

    def later(
        self, key: str, arguments: Sequence[Any] = (), named: Mapping[str, Any] | None = None
    ) -> None:
        """Have it wait for a worker (`serve`), or for a call; again with the same key is harmless.

        Raises ValueError when the key is that of a call with other arguments.
        """
        self._made(key, arguments, named or {})

    def _made(
        self, key: str, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> RunRecord | None:
        text = calling.arguments_text(self.name, arguments, named)
        return calling.made(
            self.client, key, task=self.name, attrs={"durable": json.loads(text)},
            compared="durable", budgets=self._budgets, max_attempts=self._max_attempts,
        )  # fmt: skip

    def serve(self, *, concurrency: int = 1) -> None:
        """Have `client.work()` carry out calls that wait, and go on with what was cut off."""

        def carry_out(run: Run) -> Any:
            given = (run.read()).attrs["durable"]
            return calling.called(
                run, lambda: self.function(*given["arguments"], **given["named"]), what=self.name
            )

        self.client.worker(
            task=self.name, concurrency=concurrency, ttl_seconds=self._ttl_seconds,
            retry_on=self._retry_on,
        )(carry_out)  # fmt: skip
