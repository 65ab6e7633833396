"""The functions of a store whose log is distributed on Citus: those of the migrations, changed.

Runs, leases and all else stand on the coordinator; a run's events on the worker that its id is
hashed to. Citus carries out no statement that writes to tables of both kinds, so what an append or
a claim adds to the log goes there in a statement of its own, in the same transaction
(`agentstate_log_events`). Guards and values are those of the migrations, to the letter: the text
is taken from there. `distribute` puts these in place of those. Why: docs/decisions/0043-citus.md.
"""

from __future__ import annotations

from agentstate.store.migrations.sql.append_events import APPEND_EVENTS
from agentstate.store.migrations.sql.leases_plain import CLAIM_PLAIN

# So that a look tells which of the two a database has.
MARK = "-- distributed, 1"

# Three things keep the log whole.
# INSERT … SELECT of what the coordinator has at hand goes by COPY, for which Citus always commits
# in two phases: a single row would be committed on the worker before the coordinator, and stay if
# that fails then.
# But after a SELECT from the same shard Citus takes that COPY for a read, and has the worker commit
# in one phase, after the coordinator: lost then, the events would be gone. A DELETE that finds
# nothing says that there is something to prepare. One run for each shard: of several shards at once
# it would take locks that batches wait for.
# And after the coordinator has committed, a worker may still have to: for a moment, or, when it was
# lost just then, until Citus's maintenance has found out. The events of that time are there but not
# to be seen. Nothing is written behind those: a reader of the log would go past them. The caller
# tries again (serialization_failure). The rows are named in the text, so that Citus asks their
# shards alone.
LOG_EVENTS = f"""
CREATE OR REPLACE FUNCTION agentstate_log_events(rows_ json) RETURNS void
    LANGUAGE plpgsql SET plan_cache_mode TO auto AS $$
{MARK}
DECLARE
    wanted int;
    asked text;
    seen int;
    one uuid;
BEGIN
    SELECT count(*), string_agg(format('(run_id = %L AND seq = %s)', f.run_id, f.first - 1), ' OR ')
        INTO wanted, asked
    FROM (SELECT w.run_id, min(w.seq) AS first
        FROM json_to_recordset(rows_) AS w (run_id uuid, seq bigint) GROUP BY w.run_id) f
    WHERE f.first > 1;
    IF wanted > 0 THEN
        EXECUTE 'SELECT count(*) FROM agentstate_event WHERE ' || asked INTO seen;
        IF seen < wanted THEN
            RAISE EXCEPTION 'an earlier write to the run is still being finished on its worker'
                USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;
    INSERT INTO agentstate_event (run_id, seq, version, type, origin, data, event_id, token, add,
        actor, request_id, at)
    SELECT w.run_id, w.seq, w.version, w.type, w.origin, w.data::json, w.event_id, w.token,
        w.add::json, w.actor, w.request_id, w.at
    FROM json_to_recordset(rows_) AS w (run_id uuid, seq bigint, version bigint, type text,
        origin text, data text, event_id text, token bigint, add text, actor text,
        request_id text, at timestamptz);
    FOR one IN SELECT (array_agg(w.run_id))[1] FROM json_to_recordset(rows_) AS w (run_id uuid)
        GROUP BY get_shard_id_for_distribution_column('agentstate_event', w.run_id)
    LOOP
        EXECUTE 'DELETE FROM agentstate_event WHERE run_id = $1 AND seq = 0' USING one;
    END LOOP;
END $$;
"""


def _changed(text: str, *changes: tuple[str, str]) -> str:
    """The text with each part changed, which must be in it once."""
    for old, new in changes:
        if text.count(old) != 1:
            raise AssertionError(f"once, but found {text.count(old)} times: {old}")
        text = text.replace(old, new)
    return text


_NEW = ("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
_DECLARED = (
    "AS $$\nDECLARE\n",
    f"AS $$\n{MARK}\nDECLARE\n    rows_ json;\n",
)

# The ids of events that are there already, as `run id`, before what is asked of runs alone.
_KNOWN = """
    IF EXISTS (SELECT FROM json_to_recordset(asks) AS w (ids text[]) WHERE w.ids IS NOT NULL) THEN
        EXECUTE 'SELECT array_agg(run_id || '' '' || event_id) FROM agentstate_event'
            ' WHERE run_id = ANY ($1) AND event_id = ANY ($2)' INTO known
        USING ARRAY(SELECT r.id FROM json_to_recordset(asks) AS w (run text, ids text[])
                JOIN agentstate_run r ON r.key = w.run WHERE w.ids IS NOT NULL),
            ARRAY(SELECT unnest(w.ids) FROM json_to_recordset(asks) AS w (ids text[]));
    END IF;
    WITH good AS MATERIALIZED (
"""
_UNKNOWN = """            AND (w.ids IS NULL OR known IS NULL OR NOT EXISTS (
                SELECT FROM unnest(w.ids) AS i WHERE r.id || ' ' || i = ANY (known)))
"""
_APPENDED = """
    SELECT json_agg(json_build_array(n, last_seq + before + 1, last_seq + before + size,
        had_version + nth, status, owner, run_id)), (
            SELECT json_agg(json_build_object('run_id', f.run_id,
                'seq', f.last_seq + f.before + e.k, 'version', f.had_version + f.nth,
                'type', e.type, 'origin', 'worker',
                'data', e.data, 'event_id', e.id, 'token', f.token,
                'add', CASE WHEN e.k = f.size THEN f.add END, 'actor', f.principal,
                'request_id', f.request_id, 'at', at_))
            FROM fine f CROSS JOIN LATERAL ROWS FROM (
                json_to_recordset(f.events) AS (type text, data text, id text)
            ) WITH ORDINALITY AS e (type, data, id, k)
        ) INTO done, rows_ FROM fine;
    IF rows_ IS NOT NULL THEN
        PERFORM agentstate_log_events(rows_);
    END IF;
"""


def _between(text: str, begins: str, ends: str) -> str:
    """From one part up to another, which is left out."""
    start = text.index(begins)
    return text[start : text.index(ends, start)]


APPEND_EVENTS_DISTRIBUTED = _changed(
    APPEND_EVENTS,
    _NEW,
    (_DECLARED[0], _DECLARED[1] + "    known text[];\n"),
    ("    WITH good AS MATERIALIZED (\n", _KNOWN.lstrip("\n")),
    (_between(APPEND_EVENTS, "            AND (w.ids IS NULL", "        WINDOW"), _UNKNOWN),
    (_between(APPEND_EVENTS, "    ), logged AS (", "    ), moved AS ("), ""),
    (_between(APPEND_EVENTS, "    SELECT json_agg(", "    RETURN"), _APPENDED.lstrip("\n")),
)
CLAIM_PLAIN_DISTRIBUTED = _changed(
    CLAIM_PLAIN,
    _NEW,
    _DECLARED,
    (
        _between(CLAIM_PLAIN, "    ), logged AS (", "            ('{\"owner\":'"),
        "    ), logged AS MATERIALIZED (\n"
        "        SELECT id AS run_id, last_seq + 1 AS seq, version + 1 AS version,\n"
        "            'lease.acquired' AS type, 'store' AS origin,\n",
    ),
    (
        "|| '}')::json,\n            new_token, by, request_id, at_\n",
        "|| '}') AS data,\n            new_token AS token, by AS actor, request_id, at_ AS at\n",
    ),
    (
        "FROM given WHERE NOT is_plain)\n        INTO done, dropped;",
        "FROM given WHERE NOT is_plain),\n        (SELECT json_agg(logged) FROM logged)\n"
        "        INTO done, dropped, rows_;\n"
        "    IF rows_ IS NOT NULL THEN\n        PERFORM agentstate_log_events(rows_);\n    END IF;",
    ),
)
# In the order in which they are made; each may be put again.
FUNCTIONS = {
    "agentstate_log_events": LOG_EVENTS,
    "agentstate_append_events": APPEND_EVENTS_DISTRIBUTED,
    "agentstate_claim_plain": CLAIM_PLAIN_DISTRIBUTED,
}
