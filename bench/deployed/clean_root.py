"""The image, made without an engine: the Dockerfile's own steps in a clean Debian by debootstrap.

    deploy/check-clean-root [--keep]

As root. Each stage begins as a copy of a fresh Debian with nothing but Python, of the version that
the base image has; RUN, COPY, ENV and USER are taken from the Dockerfile. Then `site.py` runs in it
what compose.yaml runs, with PostgreSQL outside, in namespaces of its own: nothing of this machine's
network or mounts is touched, and nothing is left when it ends.

What it does not show: that the base image itself can be had, how an engine builds layers, and what
Docker's own network and volumes do.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.deployed import dockerfile
from bench.deployed.dockerfile import Stage

ROOT = Path(__file__).resolve().parent.parent.parent
SUITE = "trixie"  # whose Python is that of the base image
# Whom this machine trusts; in the root beside its own, which the package manager writes.
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
TRUSTED = "etc/ssl/trusted-here.crt"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE_IMAGE = re.compile(r"python:(\d+\.\d+)-slim")
# How this machine's pip gets packages; what names a folder of it would name nothing in the root.
OF_PIP = ("index-url", "extra-index-url", "trusted-host", "proxy", "default-timeout")
LINES_TOLD = 15


class Failure(Exception):
    """Something in deploy/ is not so. The text is for a person."""


def main() -> int:
    asked = argparse.ArgumentParser(prog="deploy/check-clean-root", description=__doc__)
    asked.formatter_class = argparse.RawDescriptionHelpFormatter
    asked.add_argument("--keep", action="store_true", help="leave the root there, to look at it")
    options = asked.parse_args()
    if os.geteuid() != 0:
        print("it takes root, to make a root", file=sys.stderr)
        return 1
    if shutil.which("debootstrap") is None:
        print("debootstrap is missing: apt-get install debootstrap", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="agentstate-clean-root-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        image = build(folder)
        run_site(folder, image)
    except (Failure, subprocess.CalledProcessError) as failure:
        print(f"✗ {failure}", file=sys.stderr)
        return 1
    finally:
        if options.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    print("✓ what the Dockerfile makes runs as compose.yaml says")
    return 0


# --- the image ------------------------------------------------------------------------------------


def build(folder: Path) -> Stage:
    """Make folder/image of the last stage; the stage. Raises Failure."""
    stages = dockerfile.read(ROOT / "deploy" / "Dockerfile")
    (version,) = {_python_of(stage.base) for stage in stages}
    base = folder / "base"
    _step(f"Debian {SUITE}, nothing but Python {version}", lambda: make_base(base, version))
    roots: dict[str, Path] = {}
    for stage in stages:
        is_last = stage is stages[-1]
        root = roots[stage.name] = folder / ("image" if is_last else f"stage-{stage.name}")
        _carry_out(["cp", "-a", base, root])
        make_stage(stage, root, roots)
    return stages[-1]


def _python_of(image: str) -> str:
    found = BASE_IMAGE.fullmatch(image)
    if found is None:
        raise Failure(f"{image} is no base that is known here")
    return found[1]


def make_base(base: Path, version: str) -> None:
    """A Debian like the base image's: minimal, and `python` of that version in the path."""
    _carry_out(["debootstrap", "--variant=minbase", SUITE, base, mirror()])
    for name in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{name}", base / "etc" / name)
    if CERTIFICATES.exists():
        (base / TRUSTED).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CERTIFICATES, base / TRUSTED)
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-venv"]
    inside(base, install, {"DEBIAN_FRONTEND": "noninteractive"})
    (base / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    told = inside(base, ["python", "--version"], {}).strip()
    if not told.startswith(f"Python {version}."):
        raise Failure(f"the base image has Python {version}, Debian {SUITE} has {told}")


def mirror() -> str:
    """Debian's archive as this machine's apt has it."""
    told = _carry_out(
        ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"]
    )
    found = [line.split() for line in told.splitlines()]
    own = [uri for name, uri in found if not name.endswith(("-security", "-updates"))]
    if not own:
        raise Failure("apt knows no archive of Debian: apt-get update")
    return own[0]


def make_stage(stage: Stage, root: Path, roots: Mapping[str, Path]) -> None:
    """Do a stage's steps in its root."""
    environment: dict[str, str] = {}
    for kind, text in stage.steps:
        if kind == "RUN":
            short = text if len(text) < 70 else f"{text[:70]}…"
            command = ["sh", "-c", text]
            _step(
                f"{stage.name}: RUN {short}",
                lambda c=command, e=dict(environment): inside(root, c, e | of_pip()),  # type: ignore[misc]
            )
        elif kind == "COPY":
            copy(text, root, roots)
        elif kind == "ENV":
            for word in shlex.split(text):
                name, _, value = word.partition("=")
                known = {"PATH": PATH} | environment
                environment[name] = re.sub(r"\$(\w+)", lambda m, k=known: k.get(m[1], ""), value)  # type: ignore[misc]
        elif kind == "WORKDIR":
            (root / text.lstrip("/")).mkdir(parents=True, exist_ok=True)


def copy(text: str, root: Path, roots: Mapping[str, Path]) -> None:
    """COPY: of the checkout, or of an earlier stage. A folder's content goes into the target."""
    words = text.split()
    source = ROOT
    if words[0].startswith("--from="):
        source = roots[words.pop(0).removeprefix("--from=")]
    *names, target = words
    into = root / target.lstrip("/")
    for name in names:
        found = source / name.lstrip("/")
        if found.is_dir():
            # What the engine leaves out by Dockerfile.dockerignore.
            unwanted = shutil.ignore_patterns("__pycache__", "*.pyc") if source is ROOT else None
            shutil.copytree(found, into, symlinks=True, ignore=unwanted, dirs_exist_ok=True)
        else:
            place = into / found.name if target.endswith("/") else into
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, place)


def inside(root: Path, command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Carry out a command in the root, with /proc and nothing else of this machine; its output."""
    told = {"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"} | environment
    within = (
        f"mount -t proc proc {shlex.quote(str(root))}/proc && exec chroot {shlex.quote(str(root))} "
    )
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]
    pairs = [f"{name}={value}" for name, value in told.items()]
    return _carry_out([*apart, within + shlex.join(["/usr/bin/env", "-i", *pairs, *command])])


def of_pip() -> dict[str, str]:
    """How pip gets packages here, as variables: the image is built as the machine is set up."""
    told = _carry_out([sys.executable, "-m", "pip", "config", "list"])
    found = {}
    for line in told.splitlines():
        name, _, value = line.partition("=")
        key = name.rsplit(".", 1)[-1]
        value = " ".join(one for one in value.strip("'\"").split() if not one.startswith("file:"))
        if key in OF_PIP and value:
            found[f"PIP_{key.upper().replace('-', '_')}"] = value
    if CERTIFICATES.exists():
        found["PIP_CERT"] = f"/{TRUSTED}"
    proxies = {n: v for n, v in os.environ.items() if n.lower().endswith("_proxy")}
    return found | proxies


# --- the site -------------------------------------------------------------------------------------


def run_site(folder: Path, image: Stage) -> None:
    """Start what compose.yaml starts, in namespaces of its own. Raises CalledProcessError."""
    apart = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*apart, sys.executable, "-m", "bench.deployed.site", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)


def _step(what: str, do: object) -> None:
    began = time.monotonic()
    do()  # type: ignore[operator]
    print(f"✓ {what} ({time.monotonic() - began:.0f} s)", flush=True)


def _carry_out(command: Sequence[str | Path]) -> str:
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        told = "\n".join(done.stdout.splitlines()[-LINES_TOLD:])
        raise Failure(f"{shlex.join(map(str, command[:3]))} … failed ({done.returncode}):\n{told}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
