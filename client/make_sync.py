"""Makes the sync client from the async one: src/agentstate_client/_async → _sync.

    python make_sync.py            writes what is not as it should be
    python make_sync.py --check    only says so, and ends with 1

A module of _async is made into one of the same name by the words below; `waiting.py` is the
exception: it is written twice, by hand, and holds what cannot be translated. Needs ruff.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "src" / "agentstate_client" / "_async"
MADE = SOURCE.with_name("_sync")
BY_HAND = frozenset({"__init__.py", "waiting.py"})

HEAD = "# Made from _async/{name} by make_sync.py. Change it there.\n\n"
# In the whole text, docstrings and comments too: what they show is to be right as well.
WORDS = (
    (r"\basync (def|with|for) ", r"\1 "),
    (r"\basync (\[|for\b)", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\b_?aclose\b", "close"),
    (r"\basyncio\b", "threading"),
    (r"\bmany tasks\b", "many threads"),
    (r"\b_async\b", "_sync"),
)
# A promise of something is the thing itself.
PROMISES = ("Awaitable[", "AsyncMade[", "AsyncTaking[", "Coroutine[Any, Any, ")


def translated(text: str) -> str:
    """The sync counterpart of a module's text, not yet formatted."""
    for promise in PROMISES:
        text = kept_promises(text, promise)
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    return text


def kept_promises(text: str, promise: str) -> str:
    """Every `promise…]` as what is in it."""
    opening = re.compile(rf"\b{re.escape(promise)}")
    while found := opening.search(text):
        depth, end = 1, found.end()
        while depth:
            depth += {"[": 1, "]": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + text[found.end() : end - 1] + text[end:]
    return text


def made_from(source: Path) -> str:
    """The text that the sync counterpart of a module has to have."""
    text = HEAD.format(name=source.name) + translated(source.read_text())
    name = f"--stdin-filename={MADE / source.name}"
    for command in (
        ["check", "--fix", "--quiet", "--unsafe-fixes", "--select=I,F401,SIM117,UP028"],
        ["format", "--quiet"],
    ):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, name, "-"],
            cwd=HERE,
            input=text,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
    return text


def main() -> int:
    """0 when everything was as it should be or has been written, else 1."""
    wanted = {s.name: made_from(s) for s in sorted(SOURCE.glob("*.py")) if s.name not in BY_HAND}
    present = {m.name: m.read_text() for m in MADE.glob("*.py") if m.name not in BY_HAND}
    differing = sorted(n for n in wanted.keys() | present if wanted.get(n) != present.get(n))
    if "--check" in sys.argv[1:]:
        for name in differing:
            print(f"_sync/{name} is not what _async/{name} makes: run client/make_sync.py")
        return 1 if differing else 0
    for name in differing:
        if name in wanted:
            (MADE / name).write_text(wanted[name])
        else:
            (MADE / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
