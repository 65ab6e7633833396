"""The tools: each asks the API once or twice, and answers with what came."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Literal

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from agentstate_client import AgentStateError
from agentstate_client.cli.asking import Query, Store
from agentstate_client.errors import NotAllowed
from agentstate_client.mcp.answers import answer
from agentstate_client.records import read_moment

NAME_CHARS = 500

Run = Annotated[str, Field(min_length=1, max_length=NAME_CHARS, description="the run's key")]
Unit = Annotated[
    str,
    Field(
        min_length=1, max_length=NAME_CHARS, description="a unit; that of the run 42 is `run:42`"
    ),
]
Cursor = Annotated[str, Field(description="`next` of the page before, to go on; empty: the start")]
Minutes = Annotated[int, Field(ge=1, le=10_080, description="how far back from now")]


def _rows(at_most: int) -> Any:
    return Field(ge=1, le=at_most, description="how many at most")


class Tools:
    """What an assistant may ask. Raises ToolError with words for it; the key stands in none."""

    def __init__(self, store: Store, *, url: str, key: str) -> None:
        self._store, self._url, self._key = store, url.rstrip("/"), key

    def reading(self) -> tuple[Callable[..., str], ...]:
        """Those that change nothing."""
        return (
            self.search_runs, self.read_run, self.read_story, self.read_events, self.read_budgets,
            self.list_leases, self.read_unit, self.read_contention, self.read_rates,
            self.list_alerts, self.list_proposals,
        )  # fmt: skip

    # --- runs -------------------------------------------------------------------------------

    def search_runs(
        self,
        filter: Annotated[str, Field(max_length=1_000)] = "",
        limit: Annotated[int, _rows(100)] = 20,
        cursor: Cursor = "",
    ) -> str:
        """Find runs, newest first, by the filter of the console. Without one: all runs.

        Clauses that must all hold: status:running,paused task:NAME key:KEY worker:OWNER tag:TAG
        lease:live|lapsed|free since:2h budget:>80 conflicts:>5 overdue:yes parent:KEY
        attr.NAME:VALUE; a minus turns a clause round; loose words are looked for in key, task and
        owner. Stuck runs: lease:lapsed.
        """
        query: dict[str, str | int | list[str]] = {"limit": limit}
        if cursor:
            query["cursor"] = cursor
        if filter.strip():
            return self._list("runs", "-", "search", query={**query, "filter": filter})
        return self._list("runs", query=query)

    def read_run(self, run: Run) -> str:
        """One run as it is now: status, holder, counters, budgets, attrs, what it may still do."""
        return self._one("runs", run)

    def read_story(
        self,
        run: Run,
        after_seq: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, _rows(200)] = 40,
    ) -> str:
        """Everything about one run in one snapshot: budgets, its events in order, its head.

        Go on with `after_seq` set to the last event's seq while `next_seq` is not null.
        """
        query: Query = {"after_seq": after_seq, "limit": limit}
        return self._list("runs", run, "story", query=query)

    def read_events(
        self,
        run: Run,
        after: Annotated[int, Field(ge=0, description="numbers above this one")] = 0,
        before: Annotated[int, Field(ge=0, description="numbers below this one; 0: any")] = 0,
        newest_first: bool = True,
        type: Annotated[str, Field(description="only this type, such as tool.returned")] = "",
        limit: Annotated[int, _rows(200)] = 40,
    ) -> str:
        """A page of a run's numbered events, the last ones first unless told otherwise.

        Go on with `before` (the first ones first: `after`) set to the last number that you saw.
        """
        query: dict[str, str | int | list[str]] = {
            "after": after,
            "order": "newest" if newest_first else "oldest",
            "limit": limit,
        }
        if before:
            query["before"] = before
        if type:
            query["type"] = [type]
        return self._list("runs", run, "events", query=query)

    def read_budgets(
        self,
        run: Annotated[str, Field(description="a run's key; empty: shared budgets")] = "",
        limit: Annotated[int, _rows(100)] = 50,
        cursor: Cursor = "",
    ) -> str:
        """Budgets with cap, spent, reserved and what is left: all of a run, or a page of those that
        many runs share."""
        if run:
            return self._list("runs", run, "budgets")
        place: dict[str, str] = {"cursor": cursor} if cursor else {}
        return self._list("budgets", query={"limit": limit, **place})

    # --- leases -----------------------------------------------------------------------------

    def list_leases(
        self,
        state: Literal["live", "lapsed", "free", ""] = "",
        owner: Annotated[str, Field(description="only of this worker")] = "",
        limit: Annotated[int, _rows(200)] = 50,
        cursor: Cursor = "",
    ) -> str:
        """Units and who holds them. `lapsed` is what is stuck: its holder fell silent and nobody
        took over. Times are the database's."""
        asked = {"state": state, "owner": owner, "cursor": cursor}
        query: dict[str, str | int | list[str]] = {"limit": limit}
        query.update({name: told for name, told in asked.items() if told})
        return self._list("leases", query=query)

    def read_unit(self, unit: Unit) -> str:
        """Who holds a unit now, since when, when it was renewed, and its last ten holders. Read it
        before you propose a reclaim: owner and token are what you say that you saw."""

        def ask() -> str:
            lease = self._store.one("leases", unit).members
            terms = self._store.one("leases", unit, "terms", query={"limit": 10}).members
            return self._answer({"lease": lease, "terms": terms["items"]}, rows="terms")

        return self._asked(ask)

    # --- contention -------------------------------------------------------------------------

    def read_contention(
        self,
        minutes: Minutes = 60,
        run: Annotated[str, Field(description="only of this run; empty: of all")] = "",
        limit: Annotated[int, _rows(100)] = 15,
    ) -> str:
        """Where writers met: hot runs with their conflict ratio, and pairs of who was turned away
        because of whom, about which columns."""

        def ask() -> str:
            query: dict[str, str | int | list[str]] = {"since": self._ago(minutes), "limit": limit}
            if run:
                query["run"] = run
            return self._answer(self._store.one("contention", query=query).members, rows="pairs")

        return self._asked(ask)

    def read_rates(
        self,
        by: Literal["run", "operation", "worker", "outcome", "minute"] = "outcome",
        minutes: Minutes = 60,
        limit: Annotated[int, _rows(100)] = 20,
    ) -> str:
        """Writes, refusals, conflicts, retries and latency of a window, grouped by one thing."""

        def ask() -> str:
            query: Query = {"since": self._ago(minutes), "by": [by], "limit": limit}
            return self._answer(self._store.one("rates", query=query).members, rows="items")

        return self._asked(ask)

    # --- alerts and proposals ---------------------------------------------------------------

    def list_alerts(self) -> str:
        """Every alert rule, how it stands, and what was found; those that fire say since when."""
        return self._list("alerts")

    def list_proposals(self) -> str:
        """Open proposals to reclaim a unit, and the page where a person decides on each."""

        def ask() -> str:
            found = self._store.one("proposals").members
            items = [self._with_page(one) for one in found["items"]]
            return self._answer({**found, "items": items}, rows="items")

        return self._asked(ask)

    def propose_reclaim(
        self,
        unit: Unit,
        expected_owner: Annotated[str, Field(description="the holder as read_unit told it")],
        expected_token: Annotated[int, Field(ge=1, description="and its token")],
        reason: Annotated[
            str,
            Field(
                min_length=1,
                max_length=500,
                description="why, for the person who decides: what you saw, in one line",
            ),
        ],
    ) -> str:
        """Ask a person to take a unit from its holder. This reclaims nothing by itself.

        The proposal is shown in the console, where a person with the role confirms or declines it,
        within an hour and only while that holder still has the unit. Give them the address in
        `page`. Proposing the same again answers with the one that is open.
        """

        def ask() -> str:
            document = {
                "expected_owner": expected_owner,
                "expected_token": expected_token,
                "reason": " ".join(reason.split()),
            }
            made = self._store.write("leases", unit, "proposals", document=document).members
            told = "nothing was reclaimed; a person decides at `page`"
            return self._answer({**self._with_page(made), "what_happened": told})

        return self._asked(ask)

    # --- asking -----------------------------------------------------------------------------

    def _with_page(self, proposal: dict[str, Any]) -> dict[str, Any]:
        """With the whole address: the API tells it from the root of its site."""
        return {**proposal, "page": f"{self._url}{proposal['page']}"}

    def _ago(self, minutes: int) -> str:
        """Counted back from the database's clock, as everything here is."""
        now = read_moment(self._store.one("time")["now"])
        return (now - timedelta(minutes=minutes)).isoformat()

    def _one(self, *path: str, query: Query | None = None, rows: str = "") -> str:
        return self._asked(
            lambda: self._answer(self._store.one(*path, query=query).members, rows=rows)
        )

    def _list(self, *path: str, query: Query | None = None) -> str:
        return self._one(*path, query=query, rows="items")

    def _answer(self, document: dict[str, Any], *, rows: str = "") -> str:
        return answer(document, rows=rows, key=self._key)

    def _asked(self, ask: Callable[[], str]) -> str:
        try:
            return ask()
        except NotAllowed as refused:
            words = f"the key of this MCP server has not the scope {refused.scope}"
        except AgentStateError as failure:
            words = f"{type(failure).__name__}: {failure}"
        raise ToolError(answer({"failed": words}, key=self._key))
