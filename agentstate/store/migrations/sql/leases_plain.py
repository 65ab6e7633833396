"""The functions behind `renewals.py` and `claims.py`: leases that nothing stands against."""

# Locked first, in the order of their names, so that callers who renew the same units never wait for
# each other in a ring; then the clock. The guards on a lease's own columns stand in one expression
# with the join: as conditions on the table they would have the planner believe that few leases pass,
# and read all of them first. The times are those of rowsql.SAVE_LEASES.
# Each is looked for from the end of its index, where the version of it is that was written last, and
# is written where it was found: while somebody's transaction stays open nothing that was dead before
# is removed, and a lookup in the usual order reads all of it first.
RENEW_PLAIN = """
CREATE FUNCTION agentstate_renew_plain(asks json, patience text) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    at_ timestamptz;
    owners text[];
    places tid[];
    drained text[];
    told json;
BEGIN
    PERFORM set_config('lock_timeout', patience, true), set_config('enable_seqscan', 'off', true),
        set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
        set_config('plan_cache_mode', 'force_generic_plan', true);
    SELECT array_agg(DISTINCT f.owner), array_agg(f.place ORDER BY f.n) INTO owners, places FROM (
        SELECT w.n, l.owner, l.place
        FROM (SELECT * FROM json_to_recordset(asks) AS w (n int, unit text) ORDER BY w.unit) w
        LEFT JOIN LATERAL (SELECT owner, ctid AS place FROM agentstate_lease
            WHERE unit >= w.unit AND unit <= w.unit
            ORDER BY unit DESC LIMIT 1 FOR NO KEY UPDATE) l ON true) f;
    at_ := agentstate_now();
    drained := ARRAY(SELECT name FROM agentstate_worker WHERE drain_at IS NOT NULL
        AND name = ANY (owners || ARRAY(SELECT split_part(o, '~', 1) FROM unnest(owners) AS o)));
    WITH renewed AS (
        UPDATE agentstate_lease l SET ttl_seconds = w.ttl, renewed_at = at_,
            expires_at = at_ + w.ttl * interval '1 second', renewals = l.renewals + 1,
            progress = coalesce(w.progress::json, l.progress),
            renewed_ms = (l.renewed_ms || floor(extract(epoch FROM at_ - l.acquired_at) * 1000)::bigint)
                [greatest(1, cardinality(l.renewed_ms) + 2 - {kept}):]
        FROM json_to_recordset(asks) AS w (n int, unit text, token bigint, by text, ttl int,
            progress text)
        WHERE l.ctid = places[w.n + 1] AND (l.token = w.token AND l.holder = w.by AND l.expires_at > at_
            AND l.signals IS NULL
            AND NOT l.owner = ANY (drained)
            AND NOT split_part(l.owner, '~', 1) = ANY (drained)) IS TRUE
        RETURNING l.owner, w.n
    ), each_owner AS (
        SELECT owner, json_agg(n) AS done FROM renewed GROUP BY owner
    )
    SELECT json_object_agg(owner, done) INTO told FROM each_owner;
    RETURN json_build_object('at', at_, 'xid', pg_current_xact_id()::text, 'done', told);
END $$;
""".replace("{kept}", "40")
REPLACE_RENEW_PLAIN = RENEW_PLAIN.replace("CREATE", "CREATE OR REPLACE", 1)
DROP_RENEW_PLAIN = "DROP FUNCTION agentstate_renew_plain(json, text);"

# Whether a lapsed lease waits to be claimed, and from when on that may be so again: a lease that is
# taken or renewed from now on lasts a second at least. Held ones are few beside all units, and are
# all that is read: the index of them is the only one that fits. Had it a condition on `run_id`, the
# index of that would do as well for a planner whose statistics say that nearly all units are held.
LOOK_FOR_LAPSED = """
CREATE FUNCTION agentstate_look_for_lapsed(
    task_ text, tag_ text, at_ timestamptz, OUT lapsed bool, OUT quiet_until timestamptz
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT coalesce(bool_or(l.expires_at <= at_ AND EXISTS (
            SELECT FROM agentstate_run r WHERE r.id = l.run_id AND r.status IN ('pending', 'running')
                AND (task_ IS NULL OR r.task = task_) AND (tag_ IS NULL OR r.tags @> ARRAY[tag_]))),
            false),
        least(min(l.expires_at) FILTER (WHERE l.expires_at > at_ AND l.run_id IS NOT NULL),
            at_ + interval '1 second')
        INTO lapsed, quiet_until
    FROM agentstate_lease l WHERE l.token IS NOT NULL;
END $$;
"""
REPLACE_LOOK_FOR_LAPSED = LOOK_FOR_LAPSED.replace("CREATE", "CREATE OR REPLACE", 1)
DROP_LOOK_FOR_LAPSED = "DROP FUNCTION agentstate_look_for_lapsed(text, text, timestamptz);"

# Claims of one kind (a task, a tag, or neither), the oldest runs first. What somebody else has a
# lock on is passed by, the run like its lease: so nobody waits here. Each claim gets the next ones in
# order; one that would get a run that is not plain gets none at all here. Values of rows are those
# of rules/leases.py (acquire) and rules/deciding/leases.py (_grant), the events' to the letter.
# Sorting is turned off as well: it is the index that has the order, however few rows there are today.
# Plans are made once (force_generic_plan): with a limit or an array that it knows the planner hopes
# for a better one each time, which takes longer than all else [0.8 ms of 1.2].
CLAIM_PLAIN = """
CREATE FUNCTION agentstate_claim_plain(
    asks json, patience text, task_ text, tag_ text, quiet_from timestamptz, quiet_until timestamptz
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    at_ timestamptz;
    lapsed bool := false;
    wanted bigint;
    ids uuid[];
    done json;
    dropped json;
BEGIN
    PERFORM set_config('lock_timeout', patience, true), set_config('enable_seqscan', 'off', true),
        set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
        set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true),
        set_config('plan_cache_mode', 'force_generic_plan', true);
    at_ := agentstate_now();
    IF quiet_until IS NULL OR at_ < quiet_from OR at_ >= quiet_until THEN
        quiet_from := at_;
        SELECT l.lapsed, l.quiet_until INTO lapsed, quiet_until
        FROM agentstate_look_for_lapsed(task_, tag_, at_) l;
        IF lapsed THEN
            RETURN json_build_object('at', at_, 'lapsed', true);
        END IF;
    END IF;
    SELECT sum(w.most) INTO wanted FROM json_to_recordset(asks) AS w (most int);
    IF task_ IS NULL THEN
        ids := ARRAY(SELECT r.id FROM agentstate_run r JOIN agentstate_lease l ON l.run_id = r.id
            WHERE {waiting} AND l.token IS NULL
                AND (tag_ IS NULL OR r.tags @> ARRAY[tag_])
            ORDER BY r.created_at, r.id LIMIT wanted FOR NO KEY UPDATE OF l, r SKIP LOCKED);
    ELSE
        ids := ARRAY(SELECT r.id FROM agentstate_run r JOIN agentstate_lease l ON l.run_id = r.id
            WHERE {waiting} AND l.token IS NULL AND r.task = task_
                AND (tag_ IS NULL OR r.tags @> ARRAY[tag_])
            ORDER BY r.created_at, r.id LIMIT wanted FOR NO KEY UPDATE OF l, r SKIP LOCKED);
    END IF;
    at_ := agentstate_now();
    WITH asked AS MATERIALIZED (
        SELECT w.*, sum(w.most) OVER (ORDER BY w.n) AS upto
        FROM json_to_recordset(asks) AS w (n int, owner text, by text, ttl int, most int,
            request_id text)
    ), given AS MATERIALIZED (
        SELECT r.id, r.key, r.task, r.status, r.version, r.last_seq, r.attempt, l.unit, l.progress,
            l.term_ended_at, a.n, a.owner, a.by, a.ttl, a.request_id, u.nth,
            bool_and({waiting} AND l.token IS NULL
                AND r.attempt < r.max_attempts AND r.expires_at IS NULL AND l.signals IS NULL
                AND (l.hold_off_until IS NULL OR l.hold_off_until <= at_)
                AND NOT EXISTS (SELECT FROM agentstate_openeffect o WHERE o.run_id = r.id))
                OVER (PARTITION BY a.n) AS is_plain
        FROM unnest(ids) WITH ORDINALITY AS u (id, nth)
        JOIN asked a ON u.nth <= a.upto AND u.nth > a.upto - a.most
        CROSS JOIN LATERAL (SELECT * FROM agentstate_run WHERE id = u.id LIMIT 1) r
        CROSS JOIN LATERAL (SELECT * FROM agentstate_lease WHERE run_id = u.id LIMIT 1) l
    ), fine AS MATERIALIZED (
        SELECT g.*, (g.status = 'pending')::int AS moves, nextval('agentstate_fence') AS new_token,
            at_ + g.ttl * interval '1 second' AS until_, greatest(at_, g.term_ended_at) AS from_
        FROM (SELECT * FROM given WHERE is_plain ORDER BY nth) g
    ), logged AS (
        INSERT INTO agentstate_event (run_id, seq, version, type, origin, data, token, actor,
            request_id, at)
        SELECT id, last_seq + 1, version + 1, 'lease.acquired', 'store',
            ('{"owner":' || to_json(owner) || ',"token":' || new_token || ',"ttl_seconds":' || ttl
                || ',"expires_at":"'
                || to_char(until_ AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
                || '","attempt":' || attempt + 1 || '}')::json,
            new_token, by, request_id, at_
        FROM fine
        UNION ALL
        SELECT id, last_seq + 2, version + 2, 'run.running', 'store', '{"from":"pending"}',
            new_token, by, request_id, at_
        FROM fine WHERE moves = 1
    ), moved AS (
        UPDATE agentstate_run r SET status = 'running', owner = f.owner, token = f.new_token,
            holder = f.by, last_token = f.new_token, attempt = f.attempt + 1,
            version = f.version + 1 + f.moves, last_seq = f.last_seq + 1 + f.moves, updated_at = at_
        FROM fine f WHERE r.id = f.id
    ), leased AS (
        UPDATE agentstate_lease l SET owner = f.owner, holder = f.by, token = f.new_token,
            ttl_seconds = f.ttl, acquired_at = f.from_, renewed_at = at_, expires_at = f.until_,
            renewals = 0, hold_off_owner = NULL, hold_off_until = NULL, renewed_ms = '{}'
        FROM fine f WHERE l.unit = f.unit
    ), begun AS (
        INSERT INTO agentstate_leaseterm (token, unit, run_id, owner, holder, held, renewals)
        SELECT new_token, unit, id, owner, by, tstzrange(from_, 'infinity', '[)'), 0 FROM fine
    ), told AS (
        INSERT INTO agentstate_outbox (run_id, run_key, first_seq, last_seq, version, types, at)
        SELECT id, key, last_seq + 1, last_seq + 1 + moves, version + 1 + moves,
            CASE moves WHEN 1 THEN ARRAY['lease.acquired', 'run.running']
                ELSE ARRAY['lease.acquired'] END, at_
        FROM fine
    )
    SELECT (SELECT json_agg(json_build_array(n, unit, key, task, moves, version + 1 + moves,
            last_seq + 1 + moves, attempt + 1, new_token, progress::text) ORDER BY nth) FROM fine),
        (SELECT json_agg(DISTINCT n) FROM given WHERE NOT is_plain)
        INTO done, dropped;
    RETURN json_build_object('at', at_, 'xid', pg_current_xact_id_if_assigned()::text,
        'done', done, 'left', dropped, 'quiet', json_build_array(quiet_from, quiet_until));
END $$;
""".replace(
    "{waiting}",
    "r.token IS NULL AND (r.status = 'pending'"
    " OR (r.status = 'running' AND r.last_token IS NOT NULL))",
)
DROP_CLAIM_PLAIN = """
DROP FUNCTION agentstate_claim_plain(json, text, text, text, timestamptz, timestamptz);
"""
