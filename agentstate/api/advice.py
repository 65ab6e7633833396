"""What to do about each code, in words: for whoever writes a worker, and for whoever is paged.

The pages at /problems/ and docs/problems.md are made of this and of the classes of the refusals. A
test compares the facts that are named here with those that answers really have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """why: how it comes to this. do: what to do, in order. facts: members of the answer beside
    those that each problem has. near: codes that are easily taken for this one.
    """

    why: str
    do: tuple[str, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    near: tuple[str, ...] = ()


RUN = "the run as it was under the lock that refused: status, version, last_seq, owner"
LEASE = "the lease as it is: unit, owner, token, expires_at, expires_in_ms"
BUDGET = "the budget as it is: unit, cap, spent, reserved, left, version"
ERRORS = {
    "field": "the field that breaks a rule; of several the first",
    "rule": "the rule that it breaks",
    "errors": "all fields that break one, each with its rule; at most 20",
    "errors_left_out": "how many more there are",
}

ADVICE: dict[str, Advice] = {
    "malformed": Advice(
        why="A body that is no JSON, is empty or ended too soon, a header that is there twice or"
        " has an underscore, a method that the address does not have (405), a body in another type"
        " (415), without a length (411), a request that never came whole (408), or an address or"
        " headers beyond their bounds (414, 431).",
        do=(
            "Read `detail`: it says what could not be read, and where.",
            "With 405, `Allow` lists the methods of the address.",
            "Mend the program that sends it. Nothing was written.",
        ),
        facts={"position": "where the body ends to be JSON, in characters from 0"},
        near=("invalid", "payload-too-large"),
    ),
    "unauthenticated": Advice(
        why="The Authorization header is missing, is not `Bearer <key>`, or its key is unknown,"
        " expired or revoked. They are not told apart, so that nobody learns which keys exist.",
        do=(
            "Check that the header is sent: a proxy may drop it, a redirect loses it.",
            "Look at the keys in the console: expired, revoked, last used.",
            "Make a new key with `./run key` (an installed one: `agentstate key`) or in the"
            " console; a key is shown only once.",
        ),
        near=("not-allowed",),
    ),
    "budget-exhausted": Advice(
        why="A charge is admitted by every level or by none, and this one would pass the cap of"
        " `budget`: of the run's own, or of one above it. What is reserved counts as used. It is"
        " 402 and not 429, because nothing gets better by asking again.",
        do=(
            "Stop before the money is spent: this is what reserving first is for.",
            "If holds take up the room (`reserved`), settle the dead ones or wait for their ttl.",
            "If the work is worth it, somebody with `override` raises the cap, on the budget's"
            " page.",
        ),
        facts={
            "budget": "the level that has no room; `current` is about it",
            "cap": "its cap",
            "spent": "what was spent of it",
            "reserved": "what is held of it",
            "asked": "what was asked for",
            "current": BUDGET,
        },
        near=("cap-below-use", "rate-limited"),
    ),
    "not-allowed": Advice(
        why="The key is good but lacks the scope. No scope implies another: `write` does not read.",
        do=(
            "`scope` says what is missing; the reference names the scopes of each call.",
            "Give the program a key with that scope, or let somebody do it who has one.",
            "Many of these from one key may be a program that is set up wrongly, or worse.",
        ),
        facts={"scope": "what is missing; any one of them, if there are several"},
        near=("unauthenticated",),
    ),
    "not-found": Advice(
        why="Nothing of this name was ever made, or the address is none of the API's.",
        do=(
            "Check the spelling: names are compared letter by letter, and `run:42` is a unit, `42`"
            " its run.",
            "Check that it is the right site: the key worked, so the key's site is this one.",
        ),
        facts={
            "run": "the run that is not there",
            "unit": "the unit that nobody ever had",
            "budget": "the budget that is not there",
            "consumer": "the consumer that never set a checkpoint",
            "id": "the reservation that was never made",
            "key": "the API key that is not there",
            "rule": "the alert that is not there",
            "target": "the target that is not there",
            "worker": "the worker that never announced itself",
        },
        near=("run-expired",),
    ),
    "already-terminal": Advice(
        why="The run is completed, failed or cancelled, and that is for ever: a terminal status"
        " absorbs. It still takes tags, notes, hold, retention and late commits, nothing else.",
        do=(
            "Stop working on it. `current` says how it ended; its page says when and by whom.",
            "If it ended by mistake, make a new run; this one's history stays as it was.",
            "The same terminal move with the same result is no refusal but a replay.",
        ),
        facts={"current": RUN},
        near=("illegal-transition", "stale-fence"),
    ),
    "attempts-exhausted": Advice(
        why="The run was given out `max_attempts` times and nobody finished it, so it was failed in"
        " place of being given out again: something about it ends its workers.",
        do=(
            "Look at the run's ownership and its last events: how did each attempt end?",
            "Mend the cause, then make a new run; one that is worth more tries is made with a"
            " higher `max_attempts`.",
        ),
        facts={"attempts": "how often it was started", "current": RUN},
        near=("already-terminal",),
    ),
    "batch-refused": Advice(
        why="A batch is carried out whole or not at all. At least one operation is refused, so none"
        " was written.",
        do=(
            "Look at each of `operations`: its `code` and `retry` mean what they mean alone.",
            "If all of them are `reread`, read, decide, and send the batch again with another key.",
        ),
        facts={
            "operations": "each operation that is refused: its index in the batch, and the members"
            " of its own problem"
        },
        near=("expectation-failed",),
    ),
    "cap-below-use": Advice(
        why="The new cap would be below what is spent and reserved already.",
        do=(
            "`used` is the lowest cap that is possible now.",
            "To stop all further spending, set the cap to that.",
        ),
        facts={"used": "what is spent and reserved", "current": BUDGET},
        near=("budget-exhausted",),
    ),
    "exists": Advice(
        why="A run or budget of this name was made before, by this program or by another.",
        do=(
            "If it is the one that you meant to make, go on with it: `current` is what it is now.",
            "If a lost answer made you ask again: an Idempotency-Key would have replayed the first"
            " answer. Use one.",
            "For a run without a meaning in its name leave `key` out; the store makes one.",
        ),
        facts={
            "run": "the run that is there",
            "current": "the run or the budget as it is",
        },
        near=("idempotency-key-reuse",),
    ),
    "idempotency-in-flight": Advice(
        why="A request with this Idempotency-Key is being carried out at this moment: a client gave"
        " up waiting and sent it again, or two processes use one key.",
        do=(
            "Send the same request again after `Retry-After`: the first answer will be there.",
            "If it stays so, two processes share a key. Make one key for each thing that is done.",
        ),
        near=("idempotency-key-reuse",),
    ),
    "illegal-transition": Advice(
        why="The table of moves has no such one: pending goes to running or cancelled; running to"
        " paused, pending, completed, failed, cancelled; paused to running, cancelled, failed.",
        do=(
            "`allowed` lists the moves from the status that the run has now.",
            "If the status surprises you, somebody moved it: the run's page says who.",
        ),
        facts={"allowed": "where it may go from here", "current": RUN},
        near=("already-terminal", "paused"),
    ),
    "lease-lost": Advice(
        why="What the token stood for goes on without this worker, or waits for another one.",
        do=(
            "Stop the work at once and write nothing: whoever holds the unit now goes on from the"
            " log. Do not acquire it again from the same work.",
            "`expired`: the renewal came too late. Long pauses of the process, a starved event loop"
            " or a slow database do that; renew at a third of the ttl, in a thread of its own.",
            "`reclaimed`: an operator took it; `by` and `why` say who and for what reason.",
        ),
        facts={
            "reason": "expired, taken, reclaimed, released, run-terminal, revoked, unknown",
            "by": "who ended it",
            "why": "the reason that was given",
            "current": LEASE,
        },
        near=("stale-fence", "lease-held"),
    ),
    "partial-duplicate": Advice(
        why="Some events of the call are stored already and some are not. To add the rest would"
        " make of one call two, so nothing was written.",
        do=(
            "`known` lists the ids that are stored. Read the log after the last of them.",
            "Send only what is missing, as a call of its own; or give all of them new ids, if they"
            " are new.",
        ),
        facts={"known": "the ids that are stored", "current": RUN},
        near=("event-id-reuse",),
    ),
    "paused": Advice(
        why="The run is paused; it is not given out until somebody resumes it.",
        do=(
            "Take other work. `claim` gives out no paused run.",
            "To go on with it, an operator resumes it on its page.",
        ),
        facts={"current": RUN},
        near=("illegal-transition",),
    ),
    "reservation-settled": Advice(
        why="The hold was committed, released or dropped before, and not as it is asked now. A hold"
        " is settled once.",
        do=(
            "`state` and `actual` say how it was settled. The same again would have been a replay.",
            "If more was used than was committed, charge the difference as a spend of its own.",
        ),
        facts={
            "state": "committed, released, dropped or late",
            "actual": "what was recorded as used",
            "current": BUDGET,
        },
        near=("event-id-reuse",),
    ),
    "stale-fence": Advice(
        why="The token is not the run's current one: the lease ran out and somebody else took the"
        " run, or an operator reclaimed it, or the run ended. What this worker wanted to write"
        " would have landed in another one's work.",
        do=(
            "Stop working on the run now; nothing was written and nothing has to be undone.",
            "Do not acquire it again to repeat the write: the new holder has the log and goes on.",
            "Often? Compare the ttl with the longest pause of the worker: the lease strip on the"
            " run's page shows the gaps.",
        ),
        facts={"token": "the token that was sent", "current": RUN},
        near=("lease-lost", "fence-required"),
    ),
    "cursor-expired": Advice(
        why="The feed no longer keeps what comes after this position: the consumer was away for"
        " longer than the feed is kept. Consumers never hold back retention. Or the store was"
        " restored from a backup that was made before this position was given out.",
        do=(
            "Begin again at `earliest` - 1, knowing that something is missing in between.",
            "What is missing can be had from the runs themselves: `GET /runs` by `updated_after`,"
            " then each one's events.",
            "After a restore (`detail` says so) what was read last may be no part of any run now:"
            " take back what was made of it.",
            "Watch the lag of consumers on the System page.",
        ),
        facts={
            "earliest": "the first position that is kept",
            "latest": "the last position there is",
        },
        near=("invalid",),
    ),
    "run-expired": Advice(
        why="The run ended, and it is longer ago than its `retain_seconds`. It is hidden now; its"
        " rows are dropped with their week.",
        do=(
            "If it is needed, look in an export or a backup: it will not come back here.",
            "To keep others, set `hold` or a longer `retain_seconds` before they expire.",
        ),
        facts={"run": "the run", "expired_at": "since when it is hidden"},
        near=("not-found",),
    ),
    "expectation-failed": Advice(
        why="At least one clause of `expect` (or of what an operator saw) does not hold any more.",
        do=(
            "Each of `failed` has what was wanted and what was found. Decide anew with that.",
            "Then write again, with what you have now seen as the expectation.",
        ),
        facts={
            "failed": "each clause that fails: field, wanted, found",
            "current": RUN,
        },
        near=("version-conflict", "seq-conflict"),
    ),
    "holder-changed": Advice(
        why="Somebody else holds the unit, or nobody does, than when the operator looked.",
        do=(
            "Look at `current`: is the new holder in trouble too?",
            "If so, decide again with its token. If not, nothing needs doing.",
        ),
        facts={"current": LEASE},
        near=("lease-held", "stale-fence"),
    ),
    "seq-conflict": Advice(
        why="The log is longer (or shorter) than `expected_seq` said: another writer appended"
        " first.",
        do=(
            "Read the events after the number that you had, up to `last_seq`.",
            "Decide whether yours still make sense, then append with the new number.",
            "If the order does not matter, leave `expected_seq` out: it is appended after whatever"
            " is there.",
        ),
        facts={
            "expected": "the number that was expected",
            "last_seq": "the last number there is",
            "current": RUN,
        },
        near=("version-conflict",),
    ),
    "version-conflict": Advice(
        why="`If-Match` (or a version in the body) names an older version: somebody wrote in"
        " between. Every accepted write moves the version, so on a busy run this is common.",
        do=(
            "Read again, decide again, write again with the new ETag; a few times at most.",
            "On a run that many write to, guard what matters with `expect` in place of the"
            " version.",
            "Counters need no guard at all: `add` adds in the store.",
        ),
        facts={
            "expected": "the version that was expected",
            "found": "the version that it has",
            "current": RUN + "; or the budget, alert or consumer that it is about",
        },
        near=("seq-conflict", "expectation-failed"),
    ),
    "payload-too-large": Advice(
        why="A body has at most 4 MiB, and one payload in it at most 1 MiB.",
        do=(
            "Keep large things where they belong, and store their address and checksum here.",
            "Several large events go in several calls.",
        ),
        facts={
            "limit": "what is allowed, in bytes",
            "actual": "what came, in bytes; null: it was not read to its end",
            "field": "the payload that is too large",
        },
        near=("invalid",),
    ),
    "event-id-reuse": Advice(
        why="The id (of an event, an effect, a change, a charge or a hold) was used before, with"
        " other content. The first one stands.",
        do=(
            "Ids say what something is: make them of the run, the step and what is done, never of a"
            " counter that begins again when the process does.",
            "`seq` is where the first one stands; compare the two.",
        ),
        facts={
            "id": "the id",
            "seq": "the number of the event that has it",
            "effect": "the key of the effect, when the id is of one",
            "current": RUN + "; or the budget",
        },
        near=("partial-duplicate", "idempotency-key-reuse"),
    ),
    "idempotency-key-reuse": Advice(
        why="This Idempotency-Key was sent before with another method, path or body, less than 24"
        " hours ago. One of the two is not what it says it is.",
        do=(
            "Make a key for each thing that is done, once, and keep it for its repetitions only.",
            "`GET /receipts?key=…` says what the first request with it did.",
        ),
        facts={"key": "the key"},
        near=("idempotency-in-flight", "exists"),
    ),
    "invalid": Advice(
        why="A value breaks a rule of its field, or a field or parameter is sent that the call does"
        " not know. It is refused before the database sees it.",
        do=(
            "`field` and `rule` say which and why; `errors` lists them all.",
            "The reference at /api/v1/docs has the bounds of every field.",
            "After an update of the server or the client, compare their versions.",
        ),
        facts=ERRORS
        | {
            "latest": "the feed's last position",
            "last_seq": "the run's last number",
        },
        near=("malformed", "unstorable-text"),
    ),
    "unstorable-text": Advice(
        why="A text has U+0000 or half of a surrogate pair in it. PostgreSQL and UTF-8 have no"
        " place for either; to drop it silently would change what was sent.",
        do=(
            "`field` is where it stands. Often it is the output of a tool that was cut in the"
            " middle of a character, or is no text at all.",
            "Replace it before sending, or send bytes as base64.",
        ),
        facts=ERRORS,
        near=("invalid",),
    ),
    "lease-held": Advice(
        why="Somebody's lease on the unit is live (perhaps one's own: that is renewed, not"
        " acquired). To reclaim a live one takes `force`, and that the scope `override`.",
        do=(
            "Come back after `Retry-After`, or take other work with `claim`.",
            "An operator who knows that the holder is gone can reclaim it with force.",
        ),
        facts={
            "owner": "who holds it",
            "expires_in_ms": "how long, unless it is renewed",
            "current": LEASE,
        },
        near=("lease-lost", "holder-changed"),
    ),
    "fence-required": Advice(
        why="This run was leased at least once. From then on a worker's writes need the holder's"
        " token, even when nobody holds it at the moment: else one that was overtaken could write.",
        do=(
            "Acquire `run:<key>` (or claim), and send its token as `Agentstate-Fence`.",
            "Without a token `operate` may cancel, pause, resume, signal, reclaim, and change tags"
            " and notes.",
        ),
        facts={"current": RUN},
        near=("stale-fence",),
    ),
    "run-hot": Advice(
        why="One run takes only so many writes a second; an operator's brake makes it fewer."
        " Renewals, releases and the move that ends the run are never held up.",
        do=(
            "Send the same request again after `Retry-After`.",
            "Write less often: several events in one append, counters and charge in the same call.",
            "At 3 a.m.: Contention shows which run and which workers. A brake ends by itself, and"
            " can be lifted on the run's page.",
        ),
        facts={"current": RUN + ", and the limit: per_second, braked, until"},
        near=("rate-limited", "overloaded"),
    ),
    "rate-limited": Advice(
        why="The site lets this API key call only so many times a second, and it called more"
        " often. Of proposals to reclaim a key may make 30 an hour: people look at each of them.",
        do=(
            "Send the same request again after `Retry-After`.",
            "Slow down by `RateLimit` before it comes to this; wait on /live/v1 in place of asking"
            " again and again.",
            "If the limit is too low for what the fleet does, it is a setting of the site.",
        ),
        facts={"per_second": "how often the key may call"},
        near=("run-hot", "overloaded"),
    ),
    "internal": Advice(
        why="A bug in agentstate. The log of the server has the rest under the request id.",
        do=(
            "Look for `request_id` in the server's log, and report what stands there.",
            "Whether something was written: `GET /receipts?request_id=…` knows.",
            "With an Idempotency-Key or with ids it is safe to send it again.",
        ),
        near=("unavailable",),
    ),
    "outcome-unknown": Advice(
        why="The connection to the database died in the middle of COMMIT, and the database could"
        " not say yet how it ended. It was written whole, or not at all.",
        do=(
            "With an Idempotency-Key, or with ids in the body: send it again, it has one effect.",
            "Without either: ask `GET /receipts?request_id=…` first. Else it may be done twice.",
        ),
        near=("unavailable", "internal"),
    ),
    "overloaded": Advice(
        why="More requests are in work than the process can answer in time, so this one was not"
        " begun. Reads of lists go first, renewals and completions last.",
        do=(
            "Send the same request again after `Retry-After`, with a growing and random pause.",
            "At 3 a.m.: is one client asking without a pause? Is the database slow? System shows"
            " both.",
            "If it is simply too much for one process, run more of them.",
        ),
        near=("rate-limited", "unavailable"),
    ),
    "unavailable": Advice(
        why="The database cannot be reached, is busy or was rolled back too often; or the request's"
        " own `Agentstate-Deadline` had passed before it could begin. Nothing was written.",
        do=(
            "Send the same request again after `Retry-After`. Leases go on by the database's"
            " clock.",
            "At 3 a.m.: `/health/ready` says which part is missing: database, migrations or"
            " broker.",
            "Nothing is lost: what was acknowledged is stored, what was not was not begun.",
        ),
        facts={
            "checks": "of /health/ready: each part and how it is",
            "attempts": "how often it was tried",
            "last_conflict": "what rolled it back the last time",
        },
        near=("overloaded", "outcome-unknown"),
    ),
}  # fmt: skip
