"""The SQL of migration 0024: what was refused cannot be changed, and goes by its age alone."""

from agentstate.store.migrations.sql.retention import LET_GO

TRIGGERS = """
CREATE OR REPLACE FUNCTION agentstate_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE'
            AND TG_TABLE_NAME IN ('agentstate_budgetentry', 'agentstate_refusedaction')
            AND current_setting('agentstate.retention', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER refusals_of_the_audit_are_append_only
    BEFORE UPDATE OR DELETE ON agentstate_refusedaction
    FOR EACH ROW EXECUTE FUNCTION agentstate_refuse_change();
"""
DROP_TRIGGERS = f"""
DROP TRIGGER refusals_of_the_audit_are_append_only ON agentstate_refusedaction;
{LET_GO}
"""
