"""What statements of migrations keep others from, and that none of ours does it for long unsaid."""

import pytest
from django.core.management import call_command
from django.db import connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState

from agentstate.store.schema import plan
from agentstate.store.schema.locks import Keeps, Work, effects
from agentstate.store.schema.operations import AtOnce, CheckBeside, IndexBeside, has_column

# Indexes are made beside their users outside of a transaction alone.
in_database = pytest.mark.django_db(transaction=True)
# Those of before the first release: nobody's old code ran on them.
BEFORE_ANY_RELEASE = {"0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0010"}


def judged(*operations, atomic=True):
    """What a migration of these, after all of ours, would keep others from."""
    loader = MigrationLoader(connection)
    made = type("Migration", (migrations.Migration,), {"operations": operations, "atomic": atomic})
    return plan.all_effects(made("0999_x", "agentstate"), loader.project_state())


@in_database
def test_no_migration_keeps_calls_waiting_for_long_without_saying_so():
    """Nor out of two tables at once, for which a call could wait that has one of them."""
    loader = MigrationLoader(connection)
    state, unsaid, several, seen = ProjectState(), [], [], 0
    order = {}
    for leaf in loader.graph.leaf_nodes():
        order |= dict.fromkeys(loader.graph.forwards_plan(leaf))
    for key in order:
        migration = loader.get_migration(*key)
        if plan.is_ours(migration):
            seen += 1
            parts = plan.transactions(migration, state)
            long = [one for part in parts for one in effects(part) if one.is_long]
            if long and not plan.blocks(migration):
                unsaid.append((str(migration), long[0].table, long[0].statement))
            kept = [plan.kept_out_of(part) for part in parts]
            several += [(str(migration), tables) for tables in kept if len(tables) > 1]
        migration.mutate_state(state, preserve=False)
    assert seen > 30
    assert unsaid == []
    assert several == []


def test_no_migration_adds_what_an_older_release_would_have_to_fill_in():
    """Old code that knows nothing of a column writes on: it may be empty, or has a default."""
    loader = MigrationLoader(None, ignore_no_migrations=True)
    wrong = [
        (name, operation.name)
        for (app, name), migration in loader.disk_migrations.items()
        if app in plan.OURS and name.partition("_")[0] not in BEFORE_ANY_RELEASE
        for operation in flat(migration.operations)
        if isinstance(operation, migrations.AddField)
        and not operation.field.null
        and not operation.field.has_db_default()
    ]
    assert wrong == []


def flat(operations):
    for operation in operations:
        yield from operation.operations if isinstance(operation, AtOnce) else [operation]


INDEX = models.Index(fields=["task"], name="run_by_task_x")
CHECK = models.CheckConstraint(condition=models.Q(attempt__gte=0), name="run_attempts_x")
REFUSED = {
    "an index without CONCURRENTLY": [migrations.AddIndex("run", INDEX)],
    "a check of all rows at once": [migrations.AddConstraint("run", CHECK)],
    "another type": [migrations.AlterField("run", "attempt", models.BigIntegerField(default=0))],
    "no longer empty": [migrations.AlterField("run", "owner", models.TextField(default=""))],
    "a default asked for each row": [
        migrations.RunSQL(
            "ALTER TABLE agentstate_run ADD COLUMN x timestamptz DEFAULT agentstate_now() NOT NULL"
        )
    ],
    "rows changed in one statement": [migrations.RunSQL("UPDATE agentstate_run SET notes = ''")],
    "Python code": [migrations.RunPython(lambda apps, editor: None)],
    "a unique constraint": [
        migrations.AddConstraint("run", models.UniqueConstraint(fields=["task"], name="run_x"))
    ],
    "something read under the lock of what was done before": [
        migrations.AddField("run", "x", models.TextField(null=True)),
        migrations.RunSQL("ALTER TABLE agentstate_run VALIDATE CONSTRAINT run_key_x"),
    ],
}  # fmt: skip


@in_database
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_keep_calls_waiting_is_seen(name):
    found = [one for one in judged(*REFUSED[name]) if one.is_long]
    assert found
    assert found[0].table in ("agentstate_run", "")


@in_database
def test_what_keeps_nobody_waiting_is_let_by():
    found = judged(
        AtOnce(
            migrations.AddField("run", "x", models.TextField(null=True)),
            migrations.AddField("run", "y", models.IntegerField(default=3, db_default=3)),
            there=has_column("agentstate_run", "y"),
        ),
        IndexBeside("run", INDEX),
        CheckBeside("run", CHECK),
        migrations.CreateModel("X", [("id", models.BigAutoField(primary_key=True))]),
        atomic=False,
    )
    assert {(one.keeps, one.work) for one in found if not one.is_long} >= {
        (Keeps.EVERYBODY, Work.CATALOGUE),
        (Keeps.NOBODY, Work.READS),
    }
    assert [one for one in found if one.is_long] == []


@pytest.mark.parametrize(
    ("column", "work"),
    [
        ("x text NULL", Work.CATALOGUE),
        ("x varchar(9) DEFAULT 'now()' NOT NULL", Work.CATALOGUE),
        ("x jsonb DEFAULT '{}'::jsonb NOT NULL", Work.CATALOGUE),
        ("x numeric(5, 2) DEFAULT 1 NOT NULL", Work.CATALOGUE),
        ("x uuid DEFAULT gen_random_uuid()", Work.REWRITES),
        ("x bigint GENERATED BY DEFAULT AS IDENTITY", Work.REWRITES),
        ("x integer CHECK (x > 0)", Work.REWRITES),
    ],
)
def test_a_column_is_in_the_catalogue_alone_unless_each_row_has_its_own_value(column, work):
    (found,) = effects([f"ALTER TABLE agentstate_run ADD COLUMN {column}"])
    assert (found.keeps, found.work) == (Keeps.EVERYBODY, work)


@in_database
def test_a_plan_says_what_each_one_does_and_who_waits_and_changes_nothing(capsys):
    names = "SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
    with connection.cursor() as cursor:
        cursor.execute(names)
        before = cursor.fetchone()
        call_command("migrate", plan=True)
        assert "Nothing to do" in capsys.readouterr().out
        call_command("migrate", "agentstate", "0003", plan=True)
        cursor.execute(names)
        assert cursor.fetchone() == before
    told = capsys.readouterr().out
    assert "agentstate.0005_receipts backwards\n    What a request left behind" in told
    assert "all calls to agentstate_lease, agentstate_leaseterm wait some milliseconds" in told
