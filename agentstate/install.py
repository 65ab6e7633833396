"""Make .venv from a hashed lock. Run by ./run with a bare Python: standard library only.

    python agentstate/install.py runtime|dev

Several starts at once: one installs, the others wait for it and find it done. A venv that works is
completed, not made anew; one that does not run (its Python is gone) is made anew.
"""

import collections
import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".made-of"
LOCKS = {"runtime": ROOT / "requirements.lock", "dev": ROOT / "requirements-dev.lock"}


class InstallFailure(Exception):
    """The text is for a person."""


def main(kind: str) -> int:
    """Return the exit code for ./run."""
    try:
        with (ROOT / ".venv.lock").open("a") as lock:
            wait_for(lock.fileno())
            if not is_made(kind):
                install(kind)
    except OSError as error:
        say(f"{error.filename or ROOT}: {error.strerror}")
        return 1
    except InstallFailure as failure:
        say(str(failure))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def wait_for(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another start is installing; waiting for it …")
        fcntl.flock(lock, fcntl.LOCK_EX)


def is_made(kind: str) -> bool:
    """Whether the venv was made of the lock as it is now. One for development serves as both."""
    if not STAMP.exists() or not runs():
        return False
    return STAMP.read_text().strip() in {mark("dev"), mark(kind)}


def mark(kind: str) -> str:
    """What ./run compares: the kind, and what the shell's cksum says of the lock."""
    with LOCKS[kind].open() as lock:
        told = subprocess.run(["cksum"], stdin=lock, capture_output=True, text=True, check=True)
    return f"{kind} {told.stdout.strip()}"


def runs() -> bool:
    if not PYTHON.exists():
        return False
    probe = "import sys; sys.exit(sys.version_info < (3, 12))"
    return subprocess.run([PYTHON, "-I", "-c", probe], check=False).returncode == 0


def install(kind: str) -> None:
    """With uv when it works, else with pip. Hashes are required of both."""
    STAMP.unlink(missing_ok=True)
    if not runs():
        shutil.rmtree(VENV, ignore_errors=True)
    count = len(re.findall(r"^[A-Za-z0-9].*==", LOCKS[kind].read_text(), re.MULTILINE))
    say(f"Python {version()} found · installing {count} packages …")
    uv = find_uv()
    if not (uv and install_with_uv(uv, LOCKS[kind])):
        install_with_pip(LOCKS[kind])
    STAMP.write_text(mark(kind) + "\n")


def version() -> str:
    """3.13, say, of the venv that there is, or of this Python, of which one will be made."""
    ask = "import sys; print(*sys.version_info[:2], sep='.')"
    return run(PYTHON if runs() else sys.executable, "-I", "-c", ask).stdout.strip()


def find_uv() -> str | None:
    uv = shutil.which("uv")
    if os.environ.get("NO_UV") or uv is None:
        return None
    # pyenv's shim may be there without a uv behind it.
    works = subprocess.run([uv, "--version"], capture_output=True, check=False).returncode == 0
    return uv if works else None


def install_with_uv(uv: str, lock: Path) -> bool:
    """False when it failed; pip is tried then, and tells why if it fails as well."""
    if not VENV.exists():
        make = [uv, "venv", "-q", "--no-project", "--python", sys.executable, str(VENV)]
        if subprocess.run(make, cwd=ROOT, capture_output=True, check=False).returncode:
            return False
    command = [uv, "pip", "install", "-q", "--python", str(PYTHON), "--require-hashes"]
    command += ["-r", str(lock)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def install_with_pip(lock: Path) -> None:
    if not runs():
        made = run(sys.executable, "-I", "-m", "venv", VENV)
    elif run(PYTHON, "-I", "-m", "pip", "--version").returncode:
        made = run(PYTHON, "-I", "-m", "ensurepip")  # uv makes a venv without pip
    else:
        made = None
    if made and made.returncode:
        raise InstallFailure(f"the venv cannot be made: {last_line(made.stdout)}")
    # Not compiled: what is never imported need not be, and that is most of it.
    told = follow(
        PYTHON, "-I", "-m", "pip", "install", "--no-compile", "--disable-pip-version-check",
        "--no-input", "--root-user-action=ignore", "--progress-bar=off", "--require-hashes",
        "-r", lock,
    )  # fmt: skip
    if told is not None:
        raise InstallFailure(f"the packages cannot be installed.\n{told}")


def follow(*command: object) -> str | None:
    """Run pip and count on the terminal what it has fetched. None, or why it failed."""
    count, tail = 0, collections.deque[str](maxlen=3)
    with subprocess.Popen(
        [str(word) for word in command], cwd=ROOT, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as pip:  # fmt: skip
        for line in pip.stdout or ():
            tail.append(line.rstrip())
            if line.startswith("Collecting "):
                count += 1
                tick(f"  fetched {count}")
            elif line.startswith("Installing collected packages"):
                tick("  unpacking …")
    tick("")
    return "\n".join(tail) if pip.returncode else None


def tick(text: str) -> None:
    """Show a line that the next one replaces; nothing where nobody watches."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=ROOT, text=True, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no word why"])[-1]


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
