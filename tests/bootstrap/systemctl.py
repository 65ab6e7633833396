"""What `systemctl` does with our units, for a machine where systemd is not process 1.

    python systemctl.py STATE VERB [--now] UNIT…

Starts what a unit says (ExecStart, User, WorkingDirectory, Environment, EnvironmentFile, UMask) and
what it requires before it; nothing of how systemd shuts a process in. STATE: a folder for process
ids and output.
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

UNITS = Path("/etc/systemd/system")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STOP_SECONDS = 15.0
WANTING = "agentstate.target"


def pairs(text: str) -> list[list[str]]:
    """The lines NAME=value of a file."""
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return [line.split("=", 1) for line in lines]


class Unit:
    def __init__(self, name: str) -> None:
        self.name = name if "." in name else f"{name}.service"
        stem, at, instance = self.name.removesuffix(".service").partition("@")
        file = UNITS / (f"{stem}@.service" if at else self.name)
        text = file.read_text().replace("%i", instance).replace("%H", socket.gethostname())
        self.lines = pairs(text)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.lines if key == name]

    def one(self, name: str, default: str = "") -> str:
        return (self.all(name) or [default])[-1]

    def environment(self, user: pwd.struct_passwd) -> dict[str, str]:
        told = {"PATH": PATH, "HOME": user.pw_dir, "USER": user.pw_name, "LANG": "C.UTF-8"}
        for line in self.all("Environment"):
            told |= dict(pair.split("=", 1) for pair in shlex.split(line))
        for file in self.all("EnvironmentFile"):  # said last, it counts
            told |= dict(pairs(Path(file).read_text()))
        return told


class Manager:
    def __init__(self, state: Path) -> None:
        self.state = state
        self.file = state / "units.json"
        known = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.running: dict[str, int] = known.get("running", {})
        self.enabled: list[str] = known.get("enabled", [])

    def save(self) -> None:
        self.file.write_text(json.dumps({"running": self.running, "enabled": self.enabled}))

    def start(self, name: str) -> None:
        if name == WANTING:
            for wanted in [one for one in self.enabled if WANTING in Unit(one).all("WantedBy")]:
                self.start(wanted)
            return
        unit = Unit(name)
        if unit.name.endswith(".timer") or unit.name in self.running:
            return
        for required in unit.one("Requires").split():
            self.start(required)
        user = pwd.getpwnam(unit.one("User"))
        log = (self.state / f"{unit.name}.log").open("ab")
        process = subprocess.Popen(
            shlex.split(unit.one("ExecStart")), cwd=unit.one("WorkingDirectory"),
            env=unit.environment(user), user=user.pw_uid, group=user.pw_gid, extra_groups=[],
            umask=int(unit.one("UMask", "0022"), 8), stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, start_new_session=True,
        )  # fmt: skip
        if unit.one("Type") == "oneshot":
            if process.wait():
                sys.exit(f"{unit.name} failed: see {log.name}")
            if unit.one("RemainAfterExit") == "yes":
                self.running[unit.name] = 0
            return
        self.running[unit.name] = process.pid

    def stop(self, name: str) -> None:
        if name == WANTING:
            for one in [n for n in self.running if WANTING in Unit(n).all("PartOf")]:
                self.stop(one)
            return
        pid = self.running.pop(Unit(name).name, 0)
        if not pid:
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while is_alive(pid):
            if time.monotonic() > deadline:
                os.killpg(pid, signal.SIGKILL)
                sys.exit(f"{name} did not end in {STOP_SECONDS:.0f} s")
            time.sleep(0.05)

    def enable(self, name: str) -> None:
        unit = Unit(name)
        if not unit.all("WantedBy"):
            sys.exit(f"{name} has no [Install]")
        if unit.name not in self.enabled:
            self.enabled.append(unit.name)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def main() -> None:
    manager = Manager(Path(sys.argv[1]))
    verb, *rest = sys.argv[2:]
    names = [name for name in rest if name != "--now"]
    try:
        for name in names:
            if verb == "enable":
                manager.enable(name)
            if verb in ("stop", "restart"):
                manager.stop(name)
            if verb in ("start", "restart") or (verb == "enable" and "--now" in rest):
                manager.start(name)
    finally:
        manager.save()
    if verb not in ("enable", "start", "stop", "restart", "daemon-reload"):
        sys.exit(f"systemctl {verb} is not known here")


if __name__ == "__main__":
    main()
