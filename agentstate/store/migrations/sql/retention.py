"""The SQL of migration 0004: rows of the ledger go with their week, and by nothing else."""

LET_GO = """
CREATE OR REPLACE FUNCTION agentstate_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'agentstate_budgetentry'
            AND current_setting('agentstate.retention', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
"""
NEVER_LET_GO = """
CREATE OR REPLACE FUNCTION agentstate_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
"""
