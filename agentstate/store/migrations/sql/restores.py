"""The SQL of migration 0040 that Django's operations cannot say."""

# How far the feed is ahead of a position. A restore leaves out positions that nobody will ever have
# to read; whoever stands among them stands, for this, where the feed went on.
FEED_LAG = """
CREATE FUNCTION agentstate_feed_lag(reached bigint, latest bigint) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT greatest(0, latest - reached - coalesce((
        SELECT sum(r.feed_begins - greatest(r.feed_after, reached))
        FROM agentstate_restore r WHERE r.feed_begins > reached), 0))::bigint
$$;
"""
DROP_FEED_LAG = "DROP FUNCTION agentstate_feed_lag(bigint, bigint)"
