"""The function behind `plain.py`: appends that nothing stands against, in one statement."""

# What is not plain after all is left out of the answer: who asked decides it in Python, where the
# refusals are. The rows are locked first; each statement after that has a snapshot of its own, so
# the clock and the rows are those under the lock. Of several for one run all are done or none.
# `ahead` and the sums are those of rules/pacing.py and rules/deciding/runs.py. Why no loop over the
# asks: docs/decisions/0029-hot-path.md. Settings: see rowsql.BEGIN. Runs are looked up by their key,
# one for each ask: as a join, and with no more than some thousand runs, all of them were read.
# Of an ask: `size` events, numbered from last_seq + before + 1, all of its version; it is the nth of
# `many` for its run, which get `events_in_all`.
APPEND_EVENTS = """
CREATE FUNCTION agentstate_append_events(
    asks json, patience text, terminal text[], amount_max bigint, counters_max int, ahead interval
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    at_ timestamptz;
    done json;
BEGIN
    PERFORM set_config('lock_timeout', patience, true), set_config('enable_seqscan', 'off', true),
        set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
        set_config('plan_cache_mode', 'force_generic_plan', true);
    PERFORM FROM agentstate_run WHERE key = ANY (ARRAY(
        SELECT w.run FROM json_to_recordset(asks) AS w (run text)))
        ORDER BY id FOR NO KEY UPDATE;
    at_ := agentstate_now();
    WITH good AS MATERIALIZED (
        SELECT w.*, r.id AS run_id, r.status, r.version AS had_version, r.last_seq, r.counters, r.owner,
            CASE WHEN r.paced_at > at_ AND r.paced_at <= at_ + ahead THEN r.paced_at ELSE at_ END AS due,
            row_number() OVER each_run AS nth, count(*) OVER whole_run AS many,
            sum(w.size) OVER each_run - w.size AS before, sum(w.size) OVER whole_run AS events_in_all,
            sum(w.gap) OVER whole_run AS gaps, max(w.burst) OVER whole_run AS at_most, r.paced_at,
            count(w.seen) OVER whole_run AS seen_by
        FROM json_to_recordset(asks) AS w (n int, run text, seq bigint, version bigint, token bigint,
            seen bool, principal text, gap interval, burst interval, size int, events json,
            ids text[], types text[], add text, request_id text)
        CROSS JOIN LATERAL (SELECT * FROM agentstate_run WHERE key = w.run LIMIT 1) r
        WHERE r.status <> ALL (terminal)
            AND (r.expires_at IS NULL OR r.expires_at > at_ OR r.hold)
            AND (r.brake_until IS NULL OR r.brake_until <= at_)
            AND CASE WHEN w.token IS NULL THEN r.last_token IS NULL
                ELSE w.token = r.token AND w.principal = r.holder END
            AND (w.version IS NULL OR w.version = r.version)
            AND (w.seq IS NULL OR w.seq = r.last_seq)
            AND (w.ids IS NULL OR NOT EXISTS (
                SELECT FROM agentstate_event e WHERE e.run_id = r.id AND e.event_id = ANY (w.ids)))
        WINDOW whole_run AS (PARTITION BY r.id),
            each_run AS (PARTITION BY r.id ORDER BY w.n)
    ), sums AS MATERIALIZED (
        SELECT g.run_id, a.key, sum(a.value::numeric)
                + coalesce((min(g.counters::text)::jsonb ->> a.key)::numeric, 0) AS total,
            sum(abs(a.value::numeric))
                + abs(coalesce((min(g.counters::text)::jsonb ->> a.key)::numeric, 0)) AS reach
        FROM good g CROSS JOIN LATERAL json_each_text(g.add::json) a GROUP BY g.run_id, a.key
    ), grown AS MATERIALIZED (
        SELECT s.run_id, jsonb_object_agg(s.key, s.total) AS counters, max(s.reach) AS reach
        FROM sums s GROUP BY s.run_id
    ), fine AS MATERIALIZED (
        SELECT g.*, g.counters || coalesce(a.counters, '{}') AS grown
        FROM good g LEFT JOIN grown a ON a.run_id = g.run_id
        WHERE (g.many = 1 OR g.seen_by = 0)
            AND (g.gaps IS NULL OR g.due - at_ + g.gaps <= g.at_most)
            AND (a.reach IS NULL OR a.reach <= amount_max)
            AND (a.counters IS NULL OR g.counters @> a.counters
                OR (SELECT count(*) FROM jsonb_object_keys(g.counters || a.counters)) <= counters_max)
    ), logged AS (
        INSERT INTO agentstate_event (run_id, seq, version, type, origin, data, event_id, token,
            "add", actor, request_id, at)
        SELECT f.run_id, f.last_seq + f.before + e.k, f.had_version + f.nth, e.type, 'worker',
            e.data::json, e.id, f.token, CASE WHEN e.k = f.size THEN f.add::json END, f.principal,
            f.request_id, at_
        FROM fine f CROSS JOIN LATERAL ROWS FROM (
            json_to_recordset(f.events) AS (type text, data text, id text)
        ) WITH ORDINALITY AS e (type, data, id, k)
    ), moved AS (
        UPDATE agentstate_run r SET version = f.had_version + f.nth,
            last_seq = f.last_seq + f.events_in_all, counters = f.grown, updated_at = at_,
            paced_at = CASE WHEN f.gaps IS NULL THEN f.paced_at ELSE f.due + f.gaps END
        FROM fine f WHERE f.nth = f.many AND r.id = f.run_id
    ), told AS (
        INSERT INTO agentstate_outbox (run_id, run_key, first_seq, last_seq, version, types, at)
        SELECT f.run_id, min(f.run), min(f.last_seq) + 1, min(f.last_seq) + min(f.events_in_all),
            min(f.had_version) + min(f.many), array_agg(DISTINCT t), at_
        FROM fine f CROSS JOIN LATERAL unnest(f.types) AS t GROUP BY f.run_id
    )
    SELECT json_agg(json_build_array(n, last_seq + before + 1, last_seq + before + size,
        had_version + nth, status, owner, run_id)) INTO done FROM fine;
    RETURN json_build_object('at', at_, 'xid', pg_current_xact_id()::text, 'done', done);
END $$;
"""
DROP_APPEND_EVENTS = """
DROP FUNCTION agentstate_append_events(json, text, text[], bigint, int, interval);
"""
REPLACE_APPEND_EVENTS = APPEND_EVENTS.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
