"""Each command: ask the store, show what it says. Returns the exit code."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from agentstate_client import Change, Invalid, NotFound, RecordedEvent
from agentstate_client.cli.asking import (
    PAGE_ROWS,
    Item,
    Misuse,
    Query,
    Store,
    find_key,
    find_url,
    items_of,
)
from agentstate_client.cli.showing import Screen, shown
from agentstate_client.records import read_moment

DONE, SAID_NO, NONE_SUCH = 0, 1, 4
# The API takes no time before it.
EARLIEST = datetime(1970, 1, 1, tzinfo=timezone.utc)
MOST_OF_DATA = 200
MOST_SEQ = 2**53 - 1
PROGRESS_ROWS = 1_000
ENDED = ("completed", "failed", "cancelled")


def runs(options: argparse.Namespace, screen: Screen) -> int:
    with _store(options) as store:
        query: dict[str, str | int | list[str]] = {
            "order": "oldest" if options.oldest else "newest"
        }
        for name in ("status", "task", "tag", "owner", "parent"):
            if told := getattr(options, name):
                query[name] = told
        if options.search:
            query["q"] = options.search
        if options.overdue:
            query["overdue"] = "true"
        if options.since is not None:
            query["updated_after"] = _since(store, options.since)
        found = store.items("runs", query=query, limit=options.limit)
        _list(screen, found, _run_cells, "status", "run", "task", "owner", "left",
              "#seq", "#version", "changed")  # fmt: skip
        _note_more(store, options)
    return DONE


def leases(options: argparse.Namespace, screen: Screen) -> int:
    with _store(options) as store:
        query: Query = {
            name: told for name in ("state", "owner") if (told := getattr(options, name))
        }
        found = store.items("leases", query=query, limit=options.limit)
        _list(screen, found, _lease_cells, "state", "unit", "owner", "#token", "left",
              "renewed", "#renewals")  # fmt: skip
        _note_more(store, options)
    return DONE


def tail(options: argparse.Namespace, screen: Screen) -> int:
    with _store(options) as store, store.client() as client:
        run = client.run(options.run)
        record = run.read()
        after = options.after
        if after is None:
            after = max(0, record.last_seq - options.lines)
        events = run.events(after=after) if options.no_follow else run.follow(after=after)
        for event in events:
            _show_event(screen, event)
    return DONE


def mcp(options: argparse.Namespace, screen: Screen) -> int:
    if (options.key_file or "").strip() == "-":
        raise Misuse("stdin is the assistant's: name a file, or set the variable")
    if importlib.util.find_spec("mcp") is None:
        raise Misuse("this needs the extra: pip install 'agentstate-client[mcp]'")
    from agentstate_client.mcp.serving import serve

    serve(url=find_url(options.url), key=find_key(options.key_file))
    return DONE


def reclaim(options: argparse.Namespace, screen: Screen) -> int:
    asks = not options.yes
    if asks and not sys.stdin.isatty():
        raise Misuse("nobody can be asked here: say --yes and --reason")
    if not asks and not options.reason:
        raise Misuse("--yes needs --reason")
    with _store(options) as store:
        lease = store.one("leases", options.unit)
        if lease["state"] == "free":
            _note(f"{shown(options.unit)}: nobody holds it")
            return SAID_NO
        if asks:
            _show_holder(lease)
        reason = options.reason or _answer("Reason: ")
        if asks and not (reason and _is_yes(_answer("Take it away? [y/N] "))):
            _note("nothing was done")
            return SAID_NO
        done = store.write(
            "leases",
            options.unit,
            "reclaim",
            document=_reclaim_document(options, lease, reason),
        )
    if screen.json:
        screen.document(done.text)
    else:
        screen.line(
            f"{shown(str(done['unit']))} is free; token {done['token']} was spent, so what "
            f"{shown(str(done['former_owner']))} still writes is refused"
        )
    return DONE


def spend(options: argparse.Namespace, screen: Screen) -> int:
    if (options.run is None) != options.shared:
        raise Misuse("say a RUN, or --shared")
    of = ("budgets",) if options.shared else ("runs", options.run, "budgets")
    with _store(options) as store:
        if options.ledger:
            found = _ledger(store, (*of, options.ledger, "ledger"), options)
            _list(screen, found, _entry_cells, "#n", "kind", "#amount", "#spent", "#reserved",
                  "#cap", "run", "by", "at", "note")  # fmt: skip
            _note_more(store, options)
            return DONE
        found = (
            store.items(*of, limit=options.limit)
            if options.shared
            else iter(items_of(store.one(*of).text))
        )
        _list(screen, found, _budget_cells, "budget", "unit", "#cap", "#spent", "#reserved",
              "#left", "#used", "parent", "")  # fmt: skip
        _note_more(store, options)
    return DONE


def feed(options: argparse.Namespace, screen: Screen) -> int:
    with _store(options) as store:
        if options.no_follow:
            for page in _pages_of_feed(store, options):
                for item in items_of(page.text):
                    _show_change(screen, item.text, item.members)
                _note_position(store, options, page["position"])
            return DONE
        after = options.after
        if after is None and options.consumer is None:
            after = _latest(store)
        with store.client() as client:
            for change in client.feed(consumer=options.consumer, after=after, types=options.type):
                members = _change_members(change)
                _show_change(screen, json.dumps(members), members)
                if options.consumer is not None:
                    change.ack()  # only now that it is written out
    return DONE


def receipt(options: argparse.Namespace, screen: Screen) -> int:
    if (options.key is None) == (options.request_id is None):
        raise Misuse("say a KEY, or --request-id ID")
    query = {"key": options.key} if options.key else {"request_id": options.request_id}
    with _store(options) as store:
        found = store.one("receipts", query=query)
    if screen.json:
        screen.document(found.text)
    else:
        _show_receipt(screen, found)
    return NONE_SUCH if found["state"] == "unknown" else DONE


# --- asking ---------------------------------------------------------------------------------------


@contextmanager
def _store(options: argparse.Namespace) -> Iterator[Store]:
    store = Store(url=find_url(options.url), key=find_key(options.key_file))
    try:
        yield store
    finally:
        store.close()


def _since(store: Store, since: Any) -> str:
    """An age counts back from the database's clock, as everything here does."""
    if not isinstance(since, timedelta):
        return str(since.isoformat())
    now = read_moment(store.one("time")["now"])
    return (EARLIEST if since > now - EARLIEST else now - since).isoformat()


def _latest(store: Store) -> int:
    """The feed's last position: nobody can begin behind it, and the refusal says where it is."""
    try:
        return int(store.one("feed", query={"after": MOST_SEQ, "limit": 1})["position"])
    except Invalid as refused:
        return int(refused.fact("latest") or 0)


def _pages_of_feed(store: Store, options: argparse.Namespace) -> Iterator[Item]:
    """What the feed has by now, in the order in which it came."""
    position = options.after
    if position is None:
        position = 0 if options.consumer is None else _checkpoint(store, options.consumer)
    latest = _latest(store)
    while position < latest:
        query: Query = {"after": position, "limit": PAGE_ROWS, "types": list(options.type)}
        page = store.one("feed", query=query)
        yield page
        position = int(page["position"])


def _checkpoint(store: Store, consumer: str) -> int:
    try:
        return int(store.one("feed", "consumers", consumer)["position"])
    except NotFound:
        return 0  # it has never said where it is


def _note_position(store: Store, options: argparse.Namespace, position: int) -> None:
    if options.consumer is not None:
        path = ("feed", "consumers", options.consumer)
        store.write(*path, method="PUT", document={"position": position})


def _ledger(store: Store, path: tuple[str, ...], options: argparse.Namespace) -> Iterator[Item]:
    """Lines in their order, as many as were asked for."""
    on: Query | None = {}
    left = options.limit or None
    while on is not None and (left is None or left > 0):
        rows = PAGE_ROWS if left is None else min(left, PAGE_ROWS)
        page = store.one(*path, query={**on, "limit": rows})
        found = items_of(page.text)
        yield from found
        left = None if left is None else left - len(found)
        on = _behind(page, found, rows)
    if on is not None:
        store.more = bool(items_of(store.one(*path, query={**on, "limit": 1}).text))


def _behind(page: Item, found: list[Item], rows: int) -> Query | None:
    """What asks for the next lines of a ledger; None at its end. A split budget has several
    ledgers, so its place is a cursor, as that of every shared one."""
    if "next" in page.members:
        return None if page["next"] is None else {"cursor": page["next"]}
    return {"after": found[-1]["n"]} if len(found) == rows else None


def _reclaim_document(options: argparse.Namespace, lease: Item, reason: str) -> dict[str, Any]:
    """Only from whom it was shown to be held: if that has changed, nothing is done."""
    document = {
        "expected_token": lease["token"],
        "expected_owner": lease["owner"],
        "reason": reason,
        "force": options.force,
    }
    if options.hold_off is not None:
        document["hold_off_seconds"] = options.hold_off
    return document


def _answer(question: str) -> str:
    """From the terminal; asked on stderr, so that stdout has only what was found."""
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def _is_yes(answer: str) -> bool:
    return answer.lower() in ("y", "yes")


def _note_more(store: Store, options: argparse.Namespace) -> None:
    if store.more:
        _note(f"these are the first {options.limit}; --limit 0 shows all")


def _note(text: str) -> None:
    sys.stderr.write(f"agentstate: {text}\n")


# --- showing --------------------------------------------------------------------------------------


def _list(screen: Screen, found: Iterable[Item], cells: Any, *columns: str) -> None:
    """As JSON line by line as it comes; for people all of it, then a table."""
    if screen.json:
        for item in found:
            screen.document(item.text)
        return
    rows: list[Sequence[Any]] = []
    for item in found:
        rows.append(cells(item))
        if len(rows) % PROGRESS_ROWS == 0:
            _progress(f"{len(rows)} …")
    _progress("")
    if rows:
        screen.table(columns, rows)
    elif screen.is_terminal:
        _note("none")


def _progress(text: str) -> None:
    """Written over the one before, where somebody watches."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text:<12}\r")
        sys.stderr.flush()


def _run_cells(run: Item) -> Sequence[Any]:
    lease = run["lease"] or {}
    left = "" if run["status"] in ENDED else _left(lease)
    return (run["status"], run["key"], shown(run["task"], most=40), run["owner"], left,
            run["last_seq"], run["version"], _time(run["updated_at"]))  # fmt: skip


def _lease_cells(lease: Item) -> Sequence[Any]:
    return (lease["state"], lease["unit"], lease["owner"], lease["token"], _left(lease.members),
            _time(lease["renewed_at"]), lease["renewals"])  # fmt: skip


def _budget_cells(budget: Item) -> Sequence[Any]:
    cap, used = budget["cap"], budget["spent"] + budget["reserved"]
    share = f"{used * 100 // cap} %" if cap else ""
    flag = "overdrawn" if budget["overdrawn"] else ""
    return (budget["budget"], budget["unit"], cap, budget["spent"], budget["reserved"],
            budget["left"], share, budget["parent"], flag)  # fmt: skip


def _entry_cells(entry: Item) -> Sequence[Any]:
    names = ("n", "kind", "amount", "spent", "reserved", "cap", "run", "actor", "at", "note")
    return [_time(entry[name]) if name == "at" else entry[name] for name in names]


def _left(lease: dict[str, Any]) -> str:
    """How long the lease goes on, by the database's clock when it answered."""
    if lease.get("state") == "lapsed":
        return "lapsed"
    milliseconds = lease.get("expires_in_ms")
    return "" if not milliseconds else f"{milliseconds / 1000:.0f} s"


def _time(at: str | None) -> str:
    return "" if at is None else f"{read_moment(at):%Y-%m-%d %H:%M:%S}Z"


def _show_event(screen: Screen, event: RecordedEvent) -> None:
    if screen.json:
        head = {"seq": event.seq, "type": event.type, "origin": event.origin,
                "at": event.at.isoformat(), "id": event.id, "token": event.token}  # fmt: skip
        text = json.dumps(head, ensure_ascii=False)
        data = "" if event.raw is None else f', "data": {event.raw}'
        screen.document(f"{text[:-1]}{data}}}")
        return
    token = "" if event.token is None else f"token {event.token}"
    data = "" if event.raw in (None, "null") else shown(str(event.raw), most=MOST_OF_DATA)
    line = f"{event.at:%H:%M:%S}.{event.at.microsecond // 1000:03d}Z {event.seq:>6}  " + (
        f"{shown(event.type):<22} {token:<12} {data}"
    )
    word = event.type.removeprefix("run.") if event.origin == "store" else ""
    screen.line(screen.styled(line.rstrip(), word if word in ENDED else event.origin))


def _change_members(change: Change) -> dict[str, Any]:
    return {
        "position": change.position,
        "run": change.run,
        "first_seq": change.first_seq,
        "last_seq": change.last_seq,
        "version": change.version,
        "types": list(change.types),
        "at": change.at.isoformat(),
    }


def _show_change(screen: Screen, text: str, change: dict[str, Any]) -> None:
    if screen.json:
        screen.document(text)
        return
    first, last = change["first_seq"], change["last_seq"]
    events = str(first) if first == last else f"{first}-{last}"
    screen.line(
        f"{read_moment(change['at']):%H:%M:%S}Z {change['position']:>8}  "
        f"{shown(change['run']):<24} {events:>9}  "
        f"{shown(', '.join(change['types']), most=MOST_OF_DATA)}"
    )


def _show_holder(lease: Item) -> None:
    """What whoever decides has to know; on stderr, with the question."""
    facts = (
        ("unit", lease["unit"]),
        (
            "held by",
            f"{lease['owner']}, token {lease['token']}, since {_time(lease['acquired_at'])}",
        ),
        ("lease", "lapsed" if lease["state"] == "lapsed" else f"live, {_left(lease.members)} left"),
        ("renewed", f"{_time(lease['renewed_at'])}, {lease['renewals']} times"),
    )
    for name, fact in facts:
        sys.stderr.write(f"{name:<8} {shown(str(fact))}\n")


def _show_receipt(screen: Screen, found: Item) -> None:
    screen.line(f"state: {shown(str(found['state']))}")
    for name, of in (("kept", "kept answer"), ("writes", "write"), ("charges", "charge"),
                     ("actions", "action"), ("refusals", "refusal")):  # fmt: skip
        for member in found[name] or []:
            said = {key: value for key, value in member.items() if value is not None}
            words = (f"{key} {_plain(value)}" for key, value in said.items())
            screen.line(f"{of}: {', '.join(words)}")


def _plain(value: Any) -> str:
    return shown(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
