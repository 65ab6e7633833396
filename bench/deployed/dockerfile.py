"""A Dockerfile as stages and instructions: as much of the language as ours uses, else an error."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

KNOWN = frozenset(
    {"RUN", "COPY", "ENV", "WORKDIR", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK",
     "CMD"}
)  # fmt: skip


@dataclass(slots=True)
class Stage:
    """One FROM and what follows it. base: the image's name with its tag."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, instruction: str) -> str:
        """What the last of its kind says. Raises KeyError when there is none."""
        return dict(self.steps)[instruction]

    @property
    def command(self) -> list[str]:
        return list(json.loads(self.last("CMD")))

    @property
    def health(self) -> list[str]:
        """The command that says with its exit code whether the container is healthy."""
        return list(json.loads(self.last("HEALTHCHECK").partition("CMD ")[2]))

    @property
    def environment(self) -> dict[str, str]:
        """What ENV sets, without what depends on the variables before it."""
        found = {}
        for kind, text in self.steps:
            if kind == "ENV":
                pairs = (word.partition("=") for word in shlex.split(text))
                found |= {name: value for name, _, value in pairs}
        return found


def read(file: Path) -> list[Stage]:
    """The stages in their order. Raises ValueError for an instruction that is not known here."""
    stages: list[Stage] = []
    for line in _lines(file.read_text()):
        instruction, _, rest = line.partition(" ")
        rest = rest.strip()
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            stages.append(Stage(base=base, name=name or str(len(stages))))
        elif instruction in KNOWN and stages:
            stages[-1].steps.append((instruction, rest))
        else:
            raise ValueError(f"{file.name}: {instruction} is not understood")
    return stages


def _lines(text: str) -> list[str]:
    """Whole instructions, without comments."""
    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return [line.strip() for line in re.sub(r"\\\n\s*", " ", bare).splitlines() if line.strip()]
