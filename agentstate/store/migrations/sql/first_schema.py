"""The SQL of migration 0001 that Django's operations cannot say."""

EVENT = """
CREATE TABLE agentstate_event (
    run_id uuid NOT NULL,
    seq bigint NOT NULL,
    version bigint NOT NULL,
    type text NOT NULL,
    origin text NOT NULL,
    data json NOT NULL,
    event_id text,
    token bigint,
    add json,
    actor text NOT NULL,
    request_id text,
    at timestamptz NOT NULL,
    CONSTRAINT event_number_is_unique_in_its_run PRIMARY KEY (run_id, seq),
    CONSTRAINT event_numbers_from_1 CHECK (seq >= 1),
    CONSTRAINT event_origin_is_store_or_worker CHECK (origin IN ('store', 'worker'))
) PARTITION BY RANGE (run_id);
CREATE UNIQUE INDEX event_id_is_unique_in_its_run ON agentstate_event (run_id, event_id)
    WHERE event_id IS NOT NULL;
"""
DROP_EVENT = "DROP TABLE agentstate_event"

# agentstate_now() is the one clock that decides. Tests replace it in their own database, so that
# an hour passes without anybody waiting for it; nothing else may.
# agentstate_fence: tokens of every unit come from it. CACHE 1, or a second session would hand out
# lower numbers later.
FUNCTIONS = """
CREATE FUNCTION agentstate_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT clock_timestamp() $$;
CREATE SEQUENCE agentstate_fence AS bigint CACHE 1;
CREATE FUNCTION agentstate_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
"""
DROP_FUNCTIONS = """
DROP FUNCTION agentstate_refuse_change();
DROP SEQUENCE agentstate_fence;
DROP FUNCTION agentstate_now();
"""

TRIGGERS = """
CREATE TRIGGER event_is_append_only BEFORE UPDATE OR DELETE ON agentstate_event
    FOR EACH ROW EXECUTE FUNCTION agentstate_refuse_change();
CREATE TRIGGER ledger_is_append_only BEFORE UPDATE OR DELETE ON agentstate_budgetentry
    FOR EACH ROW EXECUTE FUNCTION agentstate_refuse_change();
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON agentstate_operatoraction
    FOR EACH ROW EXECUTE FUNCTION agentstate_refuse_change();
"""
DROP_TRIGGERS = """
DROP TRIGGER audit_is_append_only ON agentstate_operatoraction;
DROP TRIGGER ledger_is_append_only ON agentstate_budgetentry;
DROP TRIGGER event_is_append_only ON agentstate_event;
"""

# Rows that are written again and again stay on their page (HOT), and are cleaned early.
STORAGE = """
ALTER TABLE agentstate_run SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE agentstate_lease SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE agentstate_budget SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE agentstate_outbox SET (autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
"""
