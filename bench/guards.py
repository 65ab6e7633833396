"""Take out what guards a case of docs/cases.md, one at a time, and see that its test fails.

    python -m bench.guards            # all of them: half an hour of a processor
    python -m bench.guards O-07 O-12  # those of some cases

What is taken out, and the test beside it, stands in guards.toml; bench/mutations.py does it.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from bench.mutations import MUTATIONS, Mutation, run

TABLE = Path(__file__).with_name("guards.toml")
_KNOWN = {mutation.name: mutation for mutation in MUTATIONS}


@dataclass(frozen=True, slots=True)
class Guard:
    """What guards a case, as the mutation that takes it out. fresh: with a new database alone."""

    case: str
    mutation: Mutation
    fresh: bool


def guards() -> tuple[Guard, ...]:
    """All of them, in the order of the cases."""
    return tuple(map(_read, tomllib.loads(TABLE.read_text())["guard"]))


def _read(told: dict[str, object]) -> Guard:
    case, gone, test = str(told["case"]), str(told["gone"]), str(told["test"])
    edits = told.get("edits")
    if edits is None:
        mutation = replace(_KNOWN[gone], test=test)
    else:
        assert isinstance(edits, list)
        (path, old, new), *also = edits
        mutation = Mutation(gone, path, old, new, test, tuple(tuple(edit) for edit in also))
    named = replace(mutation, name=f"{case} {gone}")
    return Guard(case, named, fresh=told.get("fresh") is True)


def main(cases: list[str]) -> int:
    found = guards()
    unknown = set(cases) - {guard.case for guard in found}
    if unknown:
        print(f"no such case: {', '.join(sorted(unknown))}")
        return 2
    chosen = [guard for guard in found if not cases or guard.case in cases]
    kept = {guard.mutation.name for guard in chosen if not guard.fresh}
    return run([guard.mutation for guard in chosen], keeps=kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
