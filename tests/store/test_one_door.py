"""Nothing outside the store writes to its tables, and inside only the modules that say so."""

import ast
import re
from pathlib import Path

import pytest
from django.apps import apps

ROOT = Path(__file__).resolve().parent.parent.parent
WRITERS = {
    "execute.py",
    "minutes.py",
    "collisions.py",
    "rowsql.py",
    "feed.py",
    "upkeep.py",
    "partitions.py",
    "distributed_sql.py",
    "keys.py",
    "alerts.py",
    "bulks.py",
    "deliveries.py",
    "retention.py",
    "ages.py",
    "repair.py",
    "recount.py",
    "restoring.py",
}
WRITING_SQL = re.compile(
    r"\b(insert\s+into|update|delete\s+from|truncate(\s+table)?|copy|merge\s+into|alter\s+table)"
    r"\s+(only\s+)?\"?agentstate_",
    re.IGNORECASE,
)
WRITING_CALLS = {
    "save", "create", "bulk_create", "update", "bulk_update", "delete", "get_or_create",
    "update_or_create", "asave", "acreate", "aupdate", "adelete",
}  # fmt: skip


def sources():
    for folder in ("agentstate", "dashboard", "tasks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.parent == ROOT / "agentstate" / "store" and path.name in WRITERS
            if not inside and "migrations" not in path.parts:
                yield path


def written(tree: ast.AST, models: set[str]) -> list[str]:
    """Every writing statement on a store table, by SQL or through the ORM."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if WRITING_SQL.search(node.value):
                found.append(f"line {node.lineno}: SQL")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in WRITING_CALLS
        ):
            names = {n.id for n in ast.walk(node.func) if isinstance(n, ast.Name)}
            attributes = {n.attr for n in ast.walk(node.func) if isinstance(n, ast.Attribute)}
            if (names | attributes) & models:
                found.append(f"line {node.lineno}: .{node.func.attr}()")
    return found


@pytest.fixture(scope="module")
def models():
    return {model.__name__ for model in apps.get_app_config("agentstate").get_models()}


def test_only_the_stores_writers_write(models):
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sources()
        if (lines := written(ast.parse(path.read_text()), models))
    }
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "Run.objects.filter(key='x').update(status='failed')",
        "models.Event.objects.create(seq=1)",
        "Lease.objects.all().delete()",
        "cursor.execute('DELETE FROM agentstate_lease')",
        "cursor.execute('''\n update agentstate_run set version = 1''')",
    ],
)
def test_the_search_would_find_it(models, code):
    assert written(ast.parse(code), models)
