"""Alerts as they are kept: their figures, the one evaluation at a time, and what is read of them.

Rules and the judgement are in alerting.py. Whoever evaluates holds an advisory lock, so two
evaluators have the effect of one; an acknowledgement comes through `execute` and locks the same
row. Nothing in the store depends on an alert: late, twice or never, only people are told later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import OperationalError, connection, transaction
from psycopg.errors import QueryCanceled

from agentstate.store import bounds, deliveries, made_figures, rates, reads
from agentstate.store.alerting import (
    LATE_PART,
    RULES,
    SILENT_SECONDS,
    WRITES_MIN,
    Figure,
    Notice,
    Rule,
    Standing,
    State,
    evaluate,
    is_silent,
    news,
    told,
    told_of,
)
from agentstate.store.delivering import FAILING_SECONDS
from agentstate.store.errors import AttemptsExhausted, BudgetExhausted
from agentstate.store.made import Definition
from agentstate.store.minutes import LATENCY_MS
from agentstate.store.payloads import write

ADVISORY_LOCK = 7209
JOB = "evaluate alerts"
SILENCE = "evaluator-silent"
FIGURE_TIMEOUT_MS = 2_000
NAMES_TOLD = 5
# Of those whose writers meet most, and after them those that write most.
NAMES_READ = 50
COUNT_MAX = 1_000
NO_ATTEMPTS_LEFT = write({"code": AttemptsExhausted.code})[:-1]
CHANGES_READ = 50
NO_WRITES = "no write was counted in these 5 min"
SLOW = f"it was not found out within {FIGURE_TIMEOUT_MS // 1000} s"


# --- figures -------------------------------------------------------------------------------------


def _conflict_share(found: rates.Figures) -> Figure:
    facts = {"writes": found.writes, "conflicts": found.conflicts, "gave_up": found.gave_up}
    if 0 < found.writes < WRITES_MIN:
        few = f"only {found.writes} writes in 5 min: too few to judge by a share"
        return Figure(value=None, facts=facts, fine=few)
    return Figure(value=found.conflict_ratio, facts=facts, missing=_missing(found))


def _retries(found: rates.Figures) -> Figure:
    facts = {"accepted": found.accepted, "retries": found.retries}
    if 0 < found.writes < WRITES_MIN:
        few = f"only {found.writes} writes in 5 min: too few to judge by a share"
        return Figure(value=None, facts=facts, fine=few)
    # All of them refused: as many retries as there are stand against none that was accepted.
    ratio = found.retries_per_success if found.accepted else float(found.retries)
    return Figure(value=ratio if found.writes else None, facts=facts, missing=_missing(found))


def _fenced(found: rates.Figures) -> Figure:
    if not found.writes:
        return Figure(value=None, missing=NO_WRITES)
    fine = "" if found.fenced else "no call of an overtaken worker in 5 min"
    return Figure(value=found.fenced, fine=fine)


def _slow_writes(found: rates.Figures) -> Figure:
    bound = found.percentile_ms(0.95)
    if bound is None:
        return Figure(value=None, missing=NO_WRITES)
    beyond = bound > LATENCY_MS[-1]
    value = float(LATENCY_MS[-1] if beyond else bound)
    words = f"{'more than' if beyond else 'at most'} {value:.0f} ms"
    return Figure(value=value, facts={"writes": found.writes, "words": words})


def _missing(found: rates.Figures) -> str:
    return "" if found.writes else NO_WRITES


def _of_last_minutes(
    tell: Callable[[rates.Figures], Figure], *, of: Callable[[rates.Figures], int]
) -> Callable[[datetime], Figure]:
    """of: what counts towards it, by which the runs that have most of it are named."""

    def read(now: datetime) -> Figure:
        since = now - timedelta(minutes=5)
        figure = tell(rates.read(since=since).total)
        if not figure.value or figure.missing or figure.fine:
            return figure
        groups = rates.read(since=since, by=("run",), limit=NAMES_READ).groups
        return replace(figure, facts={**figure.facts, "runs": _most(groups, of)})

    return read


def _most(groups: Sequence[rates.Group], of: Callable[[rates.Figures], int]) -> list[str]:
    """The runs with most of it, as many as are told."""
    counts = [(of(group.figures), group.keys["run"]) for group in groups]
    some = sorted(((-count, run) for count, run in counts if count and run))
    return [run for _, run in some[:NAMES_TOLD]]


def _refused_charges(now: datetime) -> Figure:
    found = rates.read(since=now - timedelta(minutes=5), by=("outcome",), limit=200)
    if not found.total.writes:
        return Figure(value=None, missing=NO_WRITES)
    by_outcome = {group.keys["outcome"]: group.figures.writes for group in found.groups}
    refused = by_outcome.get(BudgetExhausted.code, 0)
    if not refused:
        return Figure(value=0, fine="no charge was refused in 5 min")
    asked: dict[str, Any] = {"outcome": BudgetExhausted.code, "limit": NAMES_READ}
    groups = rates.read(since=now - timedelta(minutes=5), by=("run",), **asked).groups
    return Figure(value=refused, facts={"runs": _most(groups, lambda found: found.writes)})


LAPSED = """
SELECT unit, extract(epoch FROM %(now)s - expires_at)::float8, count(*) OVER ()
FROM agentstate_lease
WHERE token IS NOT NULL AND expires_at <= %(now)s
ORDER BY expires_at LIMIT %(names)s
"""


def _lapsed(now: datetime) -> Figure:
    found = _rows(LAPSED, {"now": now, "names": NAMES_TOLD})
    if not found:
        return Figure(value=0, facts={"count": 0, "units": []}, fine="no lapsed lease waits")
    units = [unit for unit, _, _ in found]
    return Figure(value=found[0][1], facts={"count": found[0][2], "units": units})


# Terms that ended by themselves, and leases that have run out and are not taken yet.
LOST = """
SELECT owner, count(*) OVER () FROM (
    SELECT owner, upper(held) AS at FROM agentstate_leaseterm
    WHERE ended = 'lapsed' AND upper(held) > %(since)s
    UNION ALL
    SELECT owner, expires_at FROM agentstate_lease
    WHERE token IS NOT NULL AND expires_at <= %(now)s AND expires_at > %(since)s
) AS lost ORDER BY at DESC, owner LIMIT %(names)s
"""


def _lost(now: datetime) -> Figure:
    asked = {"now": now, "since": now - timedelta(minutes=5), "names": NAMES_TOLD}
    found = _rows(LOST, asked)
    if not found:
        return Figure(value=0, facts={"workers": []}, fine="no held lease ran out in 5 min")
    workers = list(dict.fromkeys(owner for owner, _ in found))
    return Figure(value=found[0][1], facts={"workers": workers})


LATE = """
SELECT unit, owner, count(*) OVER () FROM agentstate_lease
WHERE token IS NOT NULL AND expires_at > %(now)s
    AND renewed_at < %(now)s - make_interval(secs => %(part)s * ttl_seconds)
ORDER BY expires_at LIMIT %(names)s
"""


def _late(now: datetime) -> Figure:
    found = _rows(LATE, {"now": now, "part": LATE_PART, "names": NAMES_TOLD})
    if not found:
        return Figure(value=0, facts={"units": []}, fine="every holder renews in time")
    return Figure(value=found[0][2], facts={"units": [unit for unit, *_ in found]})


# By its beginning, not read as JSON: a worker may have written anything into a result of its own.
POISON = """
SELECT key FROM agentstate_run
WHERE status = 'failed' AND ended_at > %(since)s AND ended_at <= %(now)s
    AND attempt >= max_attempts AND starts_with(result::text, %(result)s)
ORDER BY ended_at DESC LIMIT %(most)s
"""


def _poison(now: datetime) -> Figure:
    since = now - timedelta(minutes=15)
    asked = {"now": now, "since": since, "result": NO_ATTEMPTS_LEFT, "most": COUNT_MAX}
    keys = [key for (key,) in _rows(POISON, asked)]
    fine = "" if keys else "no run used up its attempts in 15 min"
    return Figure(value=len(keys), facts={"runs": keys[:NAMES_TOLD]}, fine=fine)


# A row that an operator's drain made is no sign of the worker.
AT_WORK = """
SELECT name, version FROM agentstate_worker
WHERE seen_at > %(since)s AND version IS NOT NULL AND principal NOT LIKE 'person:%%'
ORDER BY name LIMIT 10000
"""


def _old_workers(now: datetime) -> Figure:
    found = _rows(AT_WORK, {"since": now - timedelta(minutes=5)})
    versions = {name: order for name, version in found if (order := order_of(version))}
    if not versions:
        return Figure(value=0, fine="no worker at work says its release")
    newest = max(versions.values())
    old = [name for name, order in versions.items() if order < newest]
    said = next(version for _, version in found if order_of(version) == newest)
    fine = "" if old else f"all workers at work are of release {said}"
    return Figure(value=len(old), facts={"newest": said, "workers": old[:NAMES_TOLD]}, fine=fine)


def order_of(version: str) -> tuple[int, ...]:
    """What a release is ordered by: the numbers that it begins with, without zeros at the end.

    Empty for one that has none.
    """
    found = re.match(r"v?(\d{1,9}(?:\.\d{1,9}){0,5})", version, re.ASCII)
    numbers = [int(part) for part in found[1].split(".")] if found else []
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


# Of runs that have not ended, and shared ones; what a hot one's slots have is added up.
BUDGETS = """
SELECT name, percent, count(*) FILTER (WHERE percent >= %(least)s) OVER () FROM (
    SELECT coalesce(r.key || '/', '') || b.name AS name,
        100.0 * (b.spent + b.reserved) / b.cap AS percent
    FROM agentstate_run r JOIN agentstate_budget b ON b.run_id = r.id
    WHERE r.status = ANY(%(live)s) AND b.cap > 0
    UNION ALL
    SELECT min(name) FILTER (WHERE slot_of_id IS NULL),
        100.0 * sum(spent + reserved) / max(cap) FILTER (WHERE slot_of_id IS NULL)
    FROM agentstate_budget WHERE run_id IS NULL
    GROUP BY coalesce(slot_of_id, id) HAVING max(cap) FILTER (WHERE slot_of_id IS NULL) > 0
) AS used ORDER BY percent DESC, name LIMIT %(names)s
"""


def _budgets(now: datetime) -> Figure:
    rule = bounds.rule("budget-nearly-used")
    least = min(bound for bound in (rule.warn, rule.alert) if bound is not None)
    values = {"live": ["pending", "running", "paused"], "least": least, "names": NAMES_TOLD}
    found = _rows(BUDGETS, values)
    fullest = float(found[0][1]) if found else None
    names = [name for name, percent, _ in found if percent >= least]
    facts = {
        "count": found[0][2] if found else 0,
        "budgets": names,
        "least": told(rule.unit, least),
    }
    fine = "" if names else f"no budget in use is at {facts['least']}"
    return Figure(value=fullest, facts=facts, fine=fine)


OVERDUE = """
SELECT key FROM agentstate_run WHERE deadline_at <= %(now)s AND ended_at IS NULL
ORDER BY deadline_at LIMIT %(most)s
"""


def _overdue(now: datetime) -> Figure:
    keys = [key for (key,) in _rows(OVERDUE, {"now": now, "most": COUNT_MAX})]
    fine = "" if keys else "no run is past its deadline"
    return Figure(value=len(keys), facts={"runs": keys[:NAMES_TOLD]}, fine=fine)


def _silent_jobs(now: datetime) -> Figure:
    # The evaluation itself beats while it runs: its silence is told by checked_at.
    jobs = [job for job in reads.heartbeats() if job.name != JOB]
    if all(job.started_at is None for job in jobs):
        return Figure(value=None, missing="no periodic job has ever run here")
    names = [job.name for job in jobs if job.silent]
    fine = "" if names else "all periodic jobs run"
    facts = {"names": ", ".join(names[:NAMES_TOLD]), "jobs": names}
    return Figure(value=len(names), facts=facts, fine=fine)


def _jobs_behind(now: datetime) -> Figure:
    jobs = [job for job in reads.heartbeats() if job.started_at is not None]
    if not jobs:
        return Figure(value=None, missing="no periodic job has ever run here")
    names = [job.name for job in jobs if job.failed is not None or job.behind]
    told = [
        f"{job.name} (failed)" if job.failed is not None else f"{job.name} ({job.behind} left)"
        for job in jobs
        if job.name in names
    ]
    fine = "" if names else "no periodic job fails or is behind"
    facts = {"names": ", ".join(told[:NAMES_TOLD]), "jobs": names}
    return Figure(value=len(names), facts=facts, fine=fine)


KEYS = """
SELECT name, extract(epoch FROM expires_at - %(now)s)::float8 / 3600 FROM agentstate_apikey
WHERE revoked_at IS NULL AND expires_at > %(now)s - interval '1 day'
ORDER BY expires_at LIMIT 1
"""


def _keys(now: datetime) -> Figure:
    """A key that has ended is told of for a day more: those who use it are refused since then."""
    found = _rows(KEYS, {"now": now})
    if not found:
        return Figure(value=None, fine="no key in use has an end")
    name, hours = found[0]
    return Figure(value=max(0.0, hours), facts={"name": name})


# The newest change that runs saw, the first one in the window, and the end of the last minute in
# which a write was counted. Positions have no hole, so the first one is found by halving.
UNCOUNTED = """
WITH RECURSIVE ends AS (
    SELECT min(position) AS low, max(position) AS high FROM agentstate_feed
), halved AS (
    SELECT low, high, 0 AS n FROM ends
    UNION ALL
    SELECT CASE WHEN f.at < %(since)s THEN m.middle + 1 ELSE h.low END,
        CASE WHEN f.at < %(since)s THEN h.high ELSE m.middle END, h.n + 1
    FROM halved h CROSS JOIN LATERAL (SELECT (h.low + h.high) / 2 AS middle) AS m
    JOIN agentstate_feed f ON f.position = m.middle
    WHERE h.low < h.high AND h.n < 64
)
SELECT
    (SELECT at FROM agentstate_feed ORDER BY position DESC LIMIT 1),
    (SELECT f.at FROM halved h JOIN agentstate_feed f ON f.position = h.low
        ORDER BY h.n DESC LIMIT 1),
    (SELECT minute + interval '1 minute' FROM agentstate_minute
        WHERE minute > %(now)s - interval '1 hour'
            AND (operation <> ALL(%(sweeps)s) OR events > 0)
        ORDER BY minute DESC LIMIT 1)
"""


def _uncounted(now: datetime) -> Figure:
    """How long runs have been written to without a write that was counted."""
    since = now - timedelta(minutes=5)
    asked = {"now": now, "since": since, "sweeps": list(rates.HOUSEKEEPING)}
    newest, first, counted = _rows(UNCOUNTED, asked)[0]
    if newest is None or newest < since:
        return Figure(value=None, missing="no run was written to in these 5 min")
    seconds = (newest - max(first, counted or first)).total_seconds()
    fine = "" if seconds > 0 else "what is written is counted"
    return Figure(value=max(0.0, seconds), fine=fine)


def _unjudged(now: datetime) -> Figure:
    """How long nobody had judged the alerts before this pass. While nobody does: `read`."""
    ((before,),) = _rows("SELECT max(checked_at) FROM agentstate_alert", {})
    if before is None:
        return Figure(value=None, fine="this is the first time")
    seconds = max(0.0, (now - before).total_seconds())
    if seconds <= SILENT_SECONDS:
        return Figure(value=seconds, fine="they are judged every 15 s")
    return Figure(value=seconds, facts={"until": f"{now:%Y-%m-%d %H:%M:%S} UTC"})


FAILING = """
SELECT name FROM agentstate_alerttarget
WHERE (failures > 0 AND NOT enabled)
    OR failing_since <= %(now)s - make_interval(secs => %(seconds)s)
ORDER BY name
"""


def _failing_targets(now: datetime) -> Figure:
    names = [name for (name,) in _rows(FAILING, {"now": now, "seconds": FAILING_SECONDS})]
    facts = {"names": ", ".join(names[:NAMES_TOLD]), "targets": names[:NAMES_TOLD]}
    fine = "" if names else "no target fails"
    return Figure(value=len(names), facts=facts, fine=fine)


FIGURES: dict[str, Callable[[datetime], Figure]] = {
    "conflict-share": _of_last_minutes(_conflict_share, of=lambda found: found.conflicts),
    "retries-per-success": _of_last_minutes(_retries, of=lambda found: found.retries),
    "fenced": _of_last_minutes(_fenced, of=lambda found: found.fenced),
    "lapsed-unclaimed": _lapsed,
    "lost-holders": _lost,
    "late-renewals": _late,
    "poison-runs": _poison,
    "old-workers": _old_workers,
    "budget-nearly-used": _budgets,
    "refused-charges": _refused_charges,
    "overdue-runs": _overdue,
    "silent-jobs": _silent_jobs,
    "jobs-behind": _jobs_behind,
    "slow-writes": _of_last_minutes(_slow_writes, of=lambda found: found.latency_ms),
    "key-expires": _keys,
    "no-conflict-data": _uncounted,
    "evaluator-silent": _unjudged,
    "failing-targets": _failing_targets,
}


def read_figure(
    rule: Rule, *, now: datetime, definitions: Mapping[str, Definition] | None = None
) -> Figure:
    """A rule's figure, found out within its own time; else it is missing, and no other one is."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('statement_timeout', %s, true)", [str(FIGURE_TIMEOUT_MS)]
            )
            definition = (definitions or {}).get(rule.name)
            read = FIGURES.get(rule.name)
            figure = made_figures.read_figure(definition, now) if definition else read and read(now)
            figure = figure or Figure(value=None, missing="it was deleted a moment ago")
            cursor.execute("SELECT set_config('statement_timeout', '0', true)")
            return figure
    except OperationalError as slow:
        if isinstance(slow.__cause__, QueryCanceled):
            return Figure(value=None, missing=SLOW)
        raise


# --- evaluation ----------------------------------------------------------------------------------

_COLUMNS = (
    "rule, state, value, message, facts, since, changed_at, held_at, checked_at, version,"
    " acknowledged_at, acknowledged_by, acknowledged_why, snoozed_until, snoozed_by, snoozed_why,"
    " told_state, told_at"
)
READ = f"SELECT {_COLUMNS} FROM agentstate_alert"  # noqa: S608  columns of our own
SAVE = """
INSERT INTO agentstate_alert AS a (rule, state, value, message, facts, since, changed_at, held_at,
    checked_at, version, acknowledged_at, acknowledged_by, acknowledged_why, snoozed_until,
    snoozed_by, snoozed_why, told_state, told_at)
SELECT w.rule, w.state, w.value, w.message, w.facts, w.since, w.changed_at, w.held_at,
    w.checked_at, w.version, w.acknowledged_at, w.acknowledged_by, w.acknowledged_why,
    w.snoozed_until, w.snoozed_by, w.snoozed_why, w.told_state, w.told_at
FROM json_populate_recordset(NULL::agentstate_alert, %s) AS w ORDER BY w.rule
ON CONFLICT (rule) DO UPDATE SET state = excluded.state, value = excluded.value,
    message = excluded.message, facts = excluded.facts, since = excluded.since,
    changed_at = excluded.changed_at, held_at = excluded.held_at,
    checked_at = excluded.checked_at, version = excluded.version,
    acknowledged_at = excluded.acknowledged_at, acknowledged_by = excluded.acknowledged_by,
    acknowledged_why = excluded.acknowledged_why, snoozed_until = excluded.snoozed_until,
    snoozed_by = excluded.snoozed_by, snoozed_why = excluded.snoozed_why,
    told_state = excluded.told_state, told_at = excluded.told_at
"""
SAVE_FIGURES = """
INSERT INTO agentstate_alertfigure AS f (rule, minute, value)
SELECT w.rule, w.minute, w.value FROM json_to_recordset(%s)
    AS w (rule text, minute timestamptz, value float8)
ON CONFLICT (rule, minute) DO UPDATE SET value = CASE WHEN f.rule = ANY(%s)
    THEN least(f.value, excluded.value) ELSE greatest(f.value, excluded.value) END
"""
NOTE_CHANGES = """
INSERT INTO agentstate_alertchange (rule, before, after, value, message, facts, at)
SELECT w.rule, w.before, w.after, w.value, w.message, w.facts, w.at
FROM json_populate_recordset(NULL::agentstate_alertchange, %s) AS w
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An alert went from one state to another. facts: of the figure that it went by."""

    rule: str
    before: str
    after: str
    value: float | None
    message: str
    at: datetime
    facts: Mapping[str, Any] = field(default_factory=dict)


def evaluate_all() -> list[Change] | None:
    """Judge every rule by its figure, and keep what came of it; the changes of state.

    None when somebody else is at it at this moment. Repeating it is harmless. A figure is read
    before the alerts' rows are locked, so an acknowledgement waits for no figure.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [ADVISORY_LOCK])
        if not cursor.fetchone()[0]:
            return None
        now = _now(cursor)
        told_rules = bounds.read()
        rules = {told.rule.name: told.rule for told in told_rules}
        made = {t.rule.name: t.bounds.definition for t in told_rules if t.bounds.definition}
        figures = {n: read_figure(rule, now=now, definitions=made) for n, rule in rules.items()}
        cursor.execute(f"{READ} ORDER BY rule FOR UPDATE")
        before = {row[0]: _standing(row) for row in cursor.fetchall()}
        now = _now(cursor)
        after = [evaluate(rule, figures[n], before.get(n), now) for n, rule in rules.items()]
        changes = [c for s in after if (c := _change(before.get(s.rule), s)) is not None]
        due = [n for s in after if (n := _news(rules, before.get(s.rule), s, now)) is not None]
        told = {notice.standing.rule: told_of(notice, now) for notice in due}
        cursor.execute(SAVE, [_text([told.get(s.rule, s) for s in after])])
        cursor.execute(
            SAVE_FIGURES, [_samples(figures, now), [n for n in rules if rules[n].falling]]
        )
        if changes:
            cursor.execute(NOTE_CHANGES, [_text(changes)])
        # In this transaction: what is told was kept, and what was kept is told.
        deliveries.enqueue(cursor, due, now, rules=rules)
        return changes


def _samples(figures: Mapping[str, Figure], now: datetime) -> str:
    """What there was to judge by, for SAVE_FIGURES."""
    minute = now.replace(second=0, microsecond=0).isoformat()
    found = [
        {"rule": name, "minute": minute, "value": figure.value}
        for name, figure in figures.items()
        if not figure.missing
    ]
    return json.dumps(found)


def _news(
    rules: Mapping[str, Rule], before: Standing | None, after: Standing, now: datetime
) -> Notice | None:
    rule = rules[after.rule]
    # Whoever made a rule says how often it is told, more often than the site does as well.
    own = rule.again_seconds if rule.made else 0
    return news(rule, before, after, now, again_seconds=own or settings.ALERT_AGAIN_SECONDS)


def _change(before: Standing | None, after: Standing) -> Change | None:
    was = before.state if before is not None else State.NO_DATA
    # The first look at a rule is no change, unless it fires at once.
    if was == after.state or (before is None and not after.firing):
        return None
    return Change(
        rule=after.rule,
        before=was,
        after=after.state,
        value=after.value,
        message=after.message,
        at=after.changed_at,
        facts=after.facts,
    )


def _standing(row: Any) -> Standing:
    names = _COLUMNS.replace(",", "").split()
    values = dict(zip(names, row, strict=True))
    facts = values["facts"]
    values["facts"] = json.loads(facts) if isinstance(facts, str) else facts
    return Standing(**values | {"state": State(values["state"])})


def _text(rows: Sequence[Standing | Change]) -> str:
    return json.dumps([asdict(row) for row in rows], default=_encode)


def _encode(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"no column takes {type(value).__name__}")


# --- what is read --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Every rule with how it stands (None: not judged yet). silent: nobody judges any more."""

    now: datetime
    standings: tuple[tuple[Rule, Standing | None], ...]
    checked_at: datetime | None
    silent: bool


def read() -> Board:
    """All rules: what fires first, the worst first, and among those the longest-standing one."""
    with connection.cursor() as cursor:
        now = _now(cursor)
        cursor.execute(READ)
        kept = {row[0]: _standing(row) for row in cursor.fetchall()}
    found = [(rule, kept.get(name)) for name, rule in bounds.rules().items()]
    checked = [standing.checked_at for _, standing in found if standing is not None]
    # A rule that came with this release is not judged before the next pass; that is no silence.
    newest = max(checked, default=None)
    silent = is_silent(newest, now)
    if silent and newest is not None:
        found = [(r, _of_silence(r, s, newest, now) if r.name == SILENCE else s) for r, s in found]
    return Board(
        now=now,
        standings=tuple(sorted(found, key=_order)),
        checked_at=newest,
        silent=silent,
    )


def _of_silence(
    rule: Rule, kept: Standing | None, checked_at: datetime, now: datetime
) -> Standing | None:
    """How the rule about the evaluation stands while there is none: whoever looks finds it out."""
    seconds = (now - checked_at).total_seconds()
    return kept and replace(
        kept,
        state=State.ALERT,
        value=seconds,
        message=f"nobody has judged the alerts for {told(rule.unit, seconds)}",
        facts={},
        since=checked_at,
        acknowledged_at=None,
        snoozed_until=None,
        derived=True,
    )


def _order(pair: tuple[Rule, Standing | None]) -> tuple[int, float]:
    _, standing = pair
    state = standing.state if standing is not None else State.NO_DATA
    place = [State.ALERT, State.WARN, State.NO_DATA, State.OK].index(state)
    firing = standing is not None and standing.firing
    return place, standing.since.timestamp() if firing and standing is not None else 0.0


FIRING_COUNT = """
SELECT count(*) FILTER (WHERE state = 'alert' AND acknowledged_at IS NULL
        AND coalesce(snoozed_until <= agentstate_now(), true)),
    coalesce(max(checked_at) < agentstate_now() - make_interval(secs => %(silent)s), false)
FROM agentstate_alert WHERE rule = ANY(%(rules)s)
    OR rule IN (SELECT rule FROM agentstate_alertrule WHERE definition IS NOT NULL)
"""


def count_firing() -> int:
    """How many alerts nobody has acknowledged or snoozed, for the navigation; that nobody judges
    them any more is one of them.
    """
    values = {"silent": SILENT_SECONDS, "rules": sorted(RULES)}
    ((firing, silent),) = _rows(FIRING_COUNT, values)
    return int(firing) + bool(silent)


CHANGES = """
SELECT rule, before, after, value, message, at, facts::text FROM agentstate_alertchange
ORDER BY at DESC, id DESC LIMIT %(limit)s
"""


def changes(*, limit: int = CHANGES_READ) -> list[Change]:
    """The newest changes of state."""
    names = ("rule", "before", "after", "value", "message", "at")
    return [
        Change(**dict(zip(names, columns, strict=True)), facts=json.loads(facts))
        for *columns, facts in _rows(CHANGES, {"limit": limit})
    ]


def _rows(statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


def _now(cursor: Any) -> datetime:
    cursor.execute("SELECT agentstate_now()")
    now: datetime = cursor.fetchone()[0]
    return now
