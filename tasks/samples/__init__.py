"""Work for the simulated fleet: our own sample runs, and real trajectories where there are any.

The samples are drafts of our own format and come with the project. Trajectories of SWE-agent are
looked for in the folder that AGENTSTATE_SAMPLES names, else beside the checkout.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tasks.archive import read_archive
from tasks.drafts import RunDraft, UnreadableFile
from tasks.trajectories import read_trajectory

OWN_FOLDER = Path(__file__).resolve().parent
BESIDE_CHECKOUT = OWN_FOLDER.parents[2] / "shared" / "data" / "swe-agent"


def trajectory_folder() -> Path | None:
    """Where trajectories are, if anywhere. Raises FileNotFoundError when the named one is not."""
    if named := os.environ.get("AGENTSTATE_SAMPLES"):
        folder = Path(named)
        if not folder.is_dir():
            raise FileNotFoundError(f"AGENTSTATE_SAMPLES={named}: there is no such folder")
        return folder
    return BESIDE_CHECKOUT if BESIDE_CHECKOUT.is_dir() else None


def read_samples(*, warn: Callable[[str], None]) -> tuple[RunDraft, ...]:
    """Every sample that can be read: our own, then the trajectories, each in the order of names.

    warn: told of each file that cannot be read; the others are taken.
    """
    found: list[RunDraft] = []
    folder = trajectory_folder()
    for path in [
        *sorted(OWN_FOLDER.glob("*.jsonl")),
        *sorted(folder.glob("*.traj") if folder else []),
    ]:
        try:
            found.extend(read_drafts(path))
        except (UnreadableFile, OSError, UnicodeDecodeError) as wrong:
            warn(f"sample {path.name} left out: {wrong}")
    return tuple(found)


def read_drafts(path: Path) -> tuple[RunDraft, ...]:
    """The drafts of one file; histories in it are left out, they have happened already."""
    text = path.read_bytes().decode("utf-8")
    if path.suffix == ".traj":
        return (read_trajectory(text=text, name=path.name),)
    return tuple(
        run for run in read_archive(text=text, name=path.name) if isinstance(run, RunDraft)
    )
