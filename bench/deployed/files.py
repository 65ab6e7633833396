"""Each file of deploy/, read by the program that it is for.

    deploy/check-files

Docker Compose itself (without an engine it reads, merges and checks), hadolint, systemd, nginx,
Caddy, HAProxy and promtool. A program that is not installed is named, with what installs it, and
the check fails: what nobody read is not said to be fine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
TOOLS = ROOT / "var" / "deploy-tools"
WANTED = Path(__file__).with_name("tools.txt")
PACKAGES = {
    "systemd-analyze": "systemd", "nginx": "nginx-light", "caddy": "caddy", "haproxy": "haproxy",
    "promtool": "prometheus", "pgbouncer": "pgbouncer", "openssl": "openssl",
}  # fmt: skip


class Refused(Exception):
    """What a program said of a file."""


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory(prefix="agentstate-deploy-") as folder:
        for check in CHECKS:
            try:
                said = check(Path(folder))
            except (Refused, OSError) as refused:
                failed += 1
                print(f"✗ {check.__doc__}: {refused}")
            else:
                print(f"✓ {check.__doc__}{said}")
    return 1 if failed else 0


# --- programs -------------------------------------------------------------------------------------


def program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        raise Refused(f"{name} is missing: apt-get install {PACKAGES[name]}")
    return found


def tool(name: str) -> str:
    """One of tools.txt, which is installed the first time and when the file has changed."""
    made_of = TOOLS / ".made-of"
    if not made_of.exists() or made_of.read_text() != WANTED.read_text():
        shutil.rmtree(TOOLS, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(TOOLS)])
        run([str(TOOLS / "bin/pip"), "install", "-q", "--disable-pip-version-check", "-r",
             str(WANTED)])  # fmt: skip
        made_of.write_text(WANTED.read_text())
    return str(TOOLS / "bin" / name)


def run(command: Sequence[str], *, cwd: Path = ROOT) -> str:
    """What it prints. Raises Refused with it when it fails."""
    done = subprocess.run(
        command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Refused(done.stdout.strip() or f"exit code {done.returncode}")
    return done.stdout


# --- files ----------------------------------------------------------------------------------------


def check_compose(folder: Path) -> str:
    """compose.yaml, as Docker Compose merges it"""
    place = folder / "compose"
    shutil.copytree(DEPLOY, place)
    shutil.copy(place / "agentstate.env.example", place / "agentstate.env")
    (place / "database-password").write_text("x")
    asked = ["--env-file", "agentstate.env", "-f", "compose.yaml", "config"]
    told = yaml.safe_load(run([tool("docker-compose"), *asked], cwd=place))
    services = told["services"]
    ours = [name for name, one in services.items() if one["image"] == "agentstate"]
    for name in ours:
        if services[name]["build"]["dockerfile"] != "deploy/Dockerfile":
            raise Refused(f"{name} is built of {services[name]['build']}")
        if "DATABASE_URL" not in services[name]["environment"]:
            raise Refused(f"{name} does not know the database")
    knows = [name for name, one in services.items()
             if "AGENTSTATE_SECRET_KEY" in (one.get("environment") or {})]  # fmt: skip
    if sorted(knows) != sorted(ours):
        raise Refused(f"the secret key is told to {knows}")
    return f" ({len(services)} services)"


def check_dockerfile(folder: Path) -> str:
    """Dockerfile, by hadolint"""
    run([tool("hadolint"), "--failure-threshold", "info", str(DEPLOY / "Dockerfile")])
    return ""


def check_units(folder: Path) -> str:
    """systemd's units, by systemd-analyze verify"""
    place = folder / "units"
    shutil.copytree(DEPLOY / "systemd", place)
    # What they start need not be here; all else is looked at as on the machine that has it.
    for unit in place.iterdir():
        text = unit.read_text().replace("/opt/agentstate/.venv/bin/", "/usr/bin/env ")
        unit.write_text(text)
    (place / "agentstate-web@.service").rename(place / "agentstate-web@8001.service")
    units = sorted(str(unit) for unit in place.iterdir())
    said = run([program("systemd-analyze"), "verify", "--man=no", *units])
    about_us = [line for line in said.splitlines() if "agentstate" in line]
    if about_us:
        raise Refused("\n".join(about_us))
    return f" ({len(units)} files)"


def check_caddy(folder: Path) -> str:
    """Caddyfile, by caddy validate"""
    file = DEPLOY / "proxies" / "Caddyfile"
    run([program("caddy"), "validate", "--adapter", "caddyfile", "--config", str(file)])
    return ""


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """For what will not be read without one."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    run([program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
         "-subj", "/CN=agents.example.org", "-keyout", str(key),
         "-out", str(certificate)])  # fmt: skip
    return key, certificate


def check_nginx(folder: Path) -> str:
    """nginx.conf, by nginx -t"""
    key, certificate = make_certificate(folder)
    text = (DEPLOY / "proxies" / "nginx.conf").read_text()
    text = text.replace("/etc/ssl/agents.example.org.pem", str(certificate))
    text = text.replace("/etc/ssl/private/agents.example.org.key", str(key))
    file = folder / "nginx.conf"
    file.write_text(
        f"pid {folder}/nginx.pid; error_log stderr;\nevents {{}}\nhttp {{\n{text}\n}}\n"
    )
    run([program("nginx"), "-t", "-q", "-c", str(file)])
    return ""


def check_haproxy(folder: Path) -> str:
    """haproxy.cfg, by haproxy -c"""
    key, certificate = make_certificate(folder)
    both = folder / "both.pem"
    both.write_text(certificate.read_text() + key.read_text())
    text = (DEPLOY / "proxies" / "haproxy.cfg").read_text()
    file = folder / "haproxy.cfg"
    file.write_text(text.replace("/etc/haproxy/agents.example.org.pem", str(both)))
    run([program("haproxy"), "-c", "-q", "-f", str(file)])
    return ""


def check_rules(folder: Path) -> str:
    """Prometheus's rules and their tests, by promtool"""
    place = DEPLOY / "prometheus"
    run([program("promtool"), "check", "rules", "alerts.yml"], cwd=place)
    run([program("promtool"), "test", "rules", "alerts_test.yml"], cwd=place)
    run([program("promtool"), "check", "config", "--syntax-only", "prometheus.yml"], cwd=place)
    return ""


CHECKS: tuple[Callable[[Path], str], ...] = (
    check_compose, check_dockerfile, check_units, check_nginx, check_caddy, check_haproxy,
    check_rules,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
