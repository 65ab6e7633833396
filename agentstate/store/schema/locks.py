"""What a statement of a migration keeps others from, told from its text.

PostgreSQL takes a lock with each change of a table and keeps it to the end of the transaction. For
a change of the catalogue that is milliseconds. It is long when a table is read or written anew
under the lock: then calls wait for as long as that takes, and it grows with the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum


class Keeps(Enum):
    """Whom a lock keeps out. Their order is how much."""

    NOBODY = 0
    WRITERS = 1
    EVERYBODY = 2


class Work(Enum):
    """What is done under it. Their order is how long."""

    CATALOGUE = 0
    READS = 1
    REWRITES = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Effect:
    """One statement's. table: of which; nothing for what locks no table. is_new: makes it."""

    table: str
    keeps: Keeps
    work: Work
    statement: str
    is_new: bool = False

    @property
    def is_long(self) -> bool:
        """Somebody waits for as long as the table is large."""
        return self.work is Work.UNKNOWN or (
            self.keeps is not Keeps.NOBODY and self.work is not Work.CATALOGUE
        )


type Transaction = Sequence[str]

NAME = r'(?:"?\w+"?\.)?"?(?P<table>\w+)"?'
NOTHING = (
    "CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", "DROP FUNCTION", "CREATE SEQUENCE",
    "DROP SEQUENCE", "CREATE EXTENSION", "COMMENT ON", "SET ", "RESET ",
)  # fmt: skip
# In this order: the first that fits. Of ALTER TABLE each action by itself.
RULES: tuple[tuple[str, Keeps, Work], ...] = (
    (rf"CREATE (?:UNIQUE )?INDEX CONCURRENTLY .*? ON {NAME}", Keeps.NOBODY, Work.READS),
    (rf"CREATE (?:UNIQUE )?INDEX .*? ON ONLY {NAME}", Keeps.WRITERS, Work.CATALOGUE),
    (rf"CREATE (?:UNIQUE )?INDEX .*? ON {NAME}", Keeps.WRITERS, Work.READS),
    (rf"DROP INDEX CONCURRENTLY (?:IF EXISTS )?{NAME}", Keeps.NOBODY, Work.CATALOGUE),
    (rf"DROP INDEX (?:IF EXISTS )?{NAME}", Keeps.EVERYBODY, Work.CATALOGUE),
    (rf"ALTER INDEX {NAME} ATTACH PARTITION", Keeps.EVERYBODY, Work.CATALOGUE),
    (rf"ALTER INDEX {NAME} ALTER COLUMN \S+ SET STATISTICS", Keeps.NOBODY, Work.CATALOGUE),
    (rf"ALTER INDEX {NAME}", Keeps.EVERYBODY, Work.CATALOGUE),
    (rf"DROP TABLE (?:IF EXISTS )?{NAME}", Keeps.EVERYBODY, Work.CATALOGUE),
    (rf"CREATE (?:OR REPLACE )?TRIGGER .*? ON {NAME}", Keeps.WRITERS, Work.CATALOGUE),
    (rf"DROP TRIGGER .*? ON {NAME}", Keeps.EVERYBODY, Work.CATALOGUE),
    (rf"ALTER SEQUENCE {NAME}", Keeps.NOBODY, Work.CATALOGUE),
)
ALTER = re.compile(rf"ALTER TABLE (?:IF EXISTS )?(?:ONLY )?{NAME} (?P<actions>.*)", re.DOTALL)
CREATE_TABLE = re.compile(rf"CREATE TABLE (?:IF NOT EXISTS )?{NAME}")
# A default that is the same for all rows is kept in the catalogue; one that has to be asked for
# each row writes the table anew. These are of the first kind, as are literals.
CALL = re.compile(r"\b(?!CURRENT_|LOCALTIME)\w+\s*\(")
TYPED = re.compile(r"\b(?:varchar|char|numeric|decimal|timestamp|time|bit)\s*\(", re.IGNORECASE)
ACTIONS: tuple[tuple[str, Keeps, Work], ...] = (
    (r"VALIDATE CONSTRAINT", Keeps.NOBODY, Work.READS),
    (r"ADD CONSTRAINT .* NOT VALID$", Keeps.EVERYBODY, Work.CATALOGUE),
    (r"ADD CONSTRAINT .* USING INDEX", Keeps.EVERYBODY, Work.CATALOGUE),
    (r"ADD CONSTRAINT", Keeps.EVERYBODY, Work.READS),
    (r"ADD (?:COLUMN )?", Keeps.EVERYBODY, Work.CATALOGUE),
    (r"ALTER COLUMN \S+ (?:SET DATA )?TYPE", Keeps.EVERYBODY, Work.REWRITES),
    (r"ALTER COLUMN \S+ SET NOT NULL", Keeps.EVERYBODY, Work.READS),
    (r"ALTER COLUMN \S+ SET STATISTICS", Keeps.NOBODY, Work.CATALOGUE),
    (r"ALTER COLUMN", Keeps.EVERYBODY, Work.CATALOGUE),
    (r"DROP|RENAME", Keeps.EVERYBODY, Work.CATALOGUE),
    (r"SET \(|RESET \(", Keeps.NOBODY, Work.CATALOGUE),
    (r"SET TABLESPACE|SET LOGGED|SET UNLOGGED", Keeps.EVERYBODY, Work.REWRITES),
    (r"ATTACH PARTITION", Keeps.NOBODY, Work.READS),
    (r"DETACH PARTITION", Keeps.EVERYBODY, Work.CATALOGUE),
)


def effects(transaction: Transaction) -> list[Effect]:
    """What each statement of a transaction keeps others from; what makes a table, keeps nobody.

    Work that by itself would keep nobody out is counted as under the lock that an earlier statement
    of the same transaction still has on the table.
    """
    held: dict[str, Keeps] = {}
    new: set[str] = set()
    found = []
    for statement in transaction:
        for effect in of_statement(statement):
            if effect.is_new:
                new.add(effect.table)
            if effect.table in new:
                continue
            most = max(effect.keeps, held.get(effect.table, Keeps.NOBODY), key=lambda k: k.value)
            held[effect.table] = most
            found.append(Effect(effect.table, most, effect.work, effect.statement))
    return found


def of_statement(statement: str) -> Iterator[Effect]:
    """What one statement does by itself."""
    text = " ".join(bare(statement).split()).rstrip("; ")
    if not text or text.upper().startswith(NOTHING):
        return
    if made := CREATE_TABLE.match(text):
        yield Effect(made["table"], Keeps.NOBODY, Work.CATALOGUE, text, is_new=True)
    elif altered := ALTER.match(text):
        for action in split(altered["actions"]):
            yield of_action(altered["table"], action.strip(), text)
    else:
        for rule, keeps, work in RULES:
            if fits := re.match(rule, text, re.IGNORECASE | re.DOTALL):
                yield Effect(fits["table"], keeps, work, text)
                return
        yield Effect("", Keeps.NOBODY, Work.UNKNOWN, text)


def of_action(table: str, action: str, statement: str) -> Effect:
    for rule, keeps, work in ACTIONS:
        if re.match(rule, action, re.IGNORECASE | re.DOTALL):
            if rule.startswith("ADD (") and writes_each_row(action):
                work = Work.REWRITES
            return Effect(table, keeps, work, statement)
    return Effect(table, Keeps.EVERYBODY, Work.UNKNOWN, statement)


def writes_each_row(column: str) -> bool:
    """A column whose values PostgreSQL has to make row by row, or to look at."""
    _, has_default, default = column.partition(" DEFAULT ")
    if re.search(r"GENERATED|SERIAL|UNIQUE|PRIMARY KEY|CHECK \(|IDENTITY", column, re.IGNORECASE):
        return True
    outside_quotes = re.sub(r"'(?:[^']|'')*'", "''", default)
    return bool(has_default and CALL.search(TYPED.sub("", outside_quotes)))


def bare(statement: str) -> str:
    """Without comments of its own lines."""
    return "\n".join(line for line in statement.splitlines() if not line.strip().startswith("--"))


def split(actions: str) -> Iterable[str]:
    """The actions of one ALTER TABLE: at commas outside of brackets and quotes."""
    depth, quoted, begun = 0, False, 0
    for at, letter in enumerate(actions):
        if letter == "'":
            quoted = not quoted
        elif not quoted and letter in "([":
            depth += 1
        elif not quoted and letter in ")]":
            depth -= 1
        elif letter == "," and not quoted and depth == 0:
            yield actions[begun:at]
            begun = at + 1
    yield actions[begun:]
